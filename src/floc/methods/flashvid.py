"""FlashVID (Fan et al., ICLR 2026, arXiv 2602.08024), the part before the language model."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from floc._arrays import Array, convert_like
from floc._checks import check_choice
from floc.blocks import share_budget
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.components import sum_groups
from floc.methods.shared.density import cluster_points
from floc.methods.shared.frames import Segments, average_frames, find_segments, read_frames, split_tiles, to_float
from floc.methods.shared.greedy import normalize_precisely
from floc.methods.shared.inputs import check_least, check_shares, read_salience
from floc.methods.shared.merging import merge_rows, pad_groups
from floc.representatives import normalize
from floc.tokens import TokenGrid

NEIGHBOURS = 7  # that a density is computed from, at most
SALIENCE_SCALE = 1e6  # of weights, as published
LOWEST = -1 + 1e-6  # the least threshold
SELECTIONS = ("attn_div_v2", "attn_div", "div", "attn")


class _Quotas(NamedTuple):
    """Tokens to keep."""

    selected: np.ndarray  # [T] unchanged tokens of each frame
    merged: int  # merged tokens of a frame, on average over a segment
    is_exact: bool  # share them exactly, not rounded up in every frame


# compared by identity: its options may be arrays
@register(
    "flashvid",
    "Fan et al., FlashVID, ICLR 2026",
    "merge",
    needs="attention of the vision encoder (attn=)",
    searched=("retention_ratio",),
)
@dataclass(frozen=True, eq=False)
class FlashVid:
    """Keep diverse salient tokens of each frame; merge the others along trees through time, then in space.

    The video is cut into segments where consecutive frames differ, at least `min_segment_num`. The fraction `alpha` of
    a frame's quota goes to tokens kept unchanged, each the farthest from those picked before; distances are 1 - cosine,
    weighted by `token_selection_method`: "attn_div_v2" by salience and by the product with the segment's mean token,
    "attn_div" by salience, "div" not at all. "attn" keeps the most salient. Every other token is merged into the most
    similar one of the previous frame, at any place, if their cosine is above `temporal_threshold`, as long as enough
    tokens remain. What is left in each frame is clustered by density peaks, and each cluster is replaced by its mean.

    Without `attn`, the published fall-back is used: `token_selection_method="div"`.

    A budget sets the quota of a frame and is met exactly: the tokens of a segment are shared among its frames in
    proportion to what is left, and the remainder becomes selected tokens, one each from the first frame. `expansion`,
    by which the published program keeps more here and prunes inside the language model, must then be 1.

    Differences from the published program (`strict` reproduces it):
    - Tokens merged over time become their mean. The program divides the sum of all by one more than the number of
      direct successors, so that merged tokens are several times as long as others.
    - In a segment of one frame, only the tokens that were not selected are clustered. The program clusters all, so that
      positions occur twice.
    - "attn_div_v2" never selects a token twice. In the program it can.
    - Ties between densities are broken by index, not by noise.
    """

    retention_ratio: float = 0.25  # a frame's quota / its tokens
    expansion: float = 1.0  # factor of the quota
    alpha: float = 0.7  # the fraction of the quota that is kept unchanged
    token_selection_method: str = "attn_div_v2"
    temporal_threshold: float = 0.8  # tokens with a higher cosine are merged over time
    segment_threshold: float = 0.9  # consecutive frames with a lower cosine are in different segments
    min_segment_num: int = 8
    strict: bool = False
    attn: Array | None = None  # [T, N] salience of each token

    def __post_init__(self) -> None:
        check_choice("token_selection_method", self.token_selection_method, SELECTIONS)
        check_shares(self, "retention_ratio", "alpha")
        check_least(self, 1, "segment", "min_segment_num")
        if not self.expansion > 0:
            raise ValueError(f"expansion must be above 0, got {self.expansion}")

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        frames, cells = grid.shape[0], grid.cells
        quota = min(cells, math.ceil(cells * float(self.retention_ratio) * float(self.expansion)))
        if quota == 0:
            raise ValueError(f"retention_ratio={self.retention_ratio} keeps no token; use more than 0, or pass budget=")
        selected = max(1, math.ceil(quota * float(self.alpha)))
        return self._merge(grid, _Quotas(np.full(frames, selected), quota - selected, False))

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        if self.expansion != 1:
            raise ValueError(f"expansion must be 1 with a budget, got {self.expansion}; multiply the budget instead")
        frames, cells = grid.shape[0], grid.cells
        quota, extra = divmod(budget, frames)
        selected = max(1, math.ceil(quota * float(self.alpha))) if quota else 0
        settings = {"retention_ratio": quota / cells, "extra_selected": extra}
        if budget == grid.n:
            read_salience(grid, self.attn)
            return replace(grid.keep_all(), settings=settings)
        quotas = _Quotas(selected + (np.arange(frames) < extra), quota - selected, True)
        kept = self._merge(grid, quotas)
        return replace(kept, settings={**kept.settings, **settings})

    def _merge(self, grid: TokenGrid, quotas: _Quotas) -> Kept:
        salience = read_salience(grid, self.attn)
        method = "div" if salience is None else self.token_selection_method
        settings = {} if salience is not None else {"token_selection_method": "div", "fallback": "div, without attn"}
        device = grid.tokens.device
        segments = find_segments(average_frames(grid), float(self.segment_threshold), self.min_segment_num)
        is_selected = self._select(grid, segments, quotas.selected, method, salience)  # [T, N]
        selected = is_selected.flatten().nonzero()[:, 0]
        represents = torch.full((grid.n,), -1, device=device)
        represents[selected] = torch.arange(len(selected), device=device)
        features = to_float(grid.gather(selected.cpu().numpy()))
        if not quotas.merged:
            return replace(merge_rows(grid, selected, features, represents), settings=settings)
        parent = self._find_parents(grid, segments, is_selected, quotas)  # [n]
        root = parent
        while not torch.equal(higher := root[root], root):
            root = higher
        is_alone = torch.from_numpy((segments.lengths == 1)[segments.segment]).to(device)[:, None]
        is_left = (root == torch.arange(grid.n, device=device)).view_as(is_selected)
        is_left &= ~is_selected | is_alone if self.strict else ~is_selected
        left = is_left.flatten().nonzero()[:, 0]
        vectors = self._average_trees(grid, parent, root, left)
        sizes = is_left.sum(1).cpu().numpy()
        places, merged, cluster = _cluster_frames(vectors, sizes, _share_clusters(segments, sizes, quotas))
        number = torch.full((grid.n,), -1, device=device)  # of the merged token that a root went into
        number[left] = torch.where(cluster < 0, -1, cluster + len(selected))
        represents = torch.where(represents < 0, number[root], represents)
        indices, features = torch.cat([selected, left[places]]), torch.cat([features, merged])
        kept = merge_rows(grid, indices, features, represents)
        if len(torch.unique(indices)) < len(indices):  # positions that occur twice, with `strict`
            kept = replace(kept, order=convert_like(kept.features, np.arange(len(kept))))
        return replace(kept, settings=settings)

    def _select(
        self,
        grid: TokenGrid,
        segments: Segments,
        counts: np.ndarray,
        method: str,
        salience: torch.Tensor | None,
    ) -> torch.Tensor:
        """Select [T] counts of tokens of each frame: [T, N] bool."""
        t, cells = grid.shape[0], grid.cells
        taken = torch.from_numpy(np.arange(cells) < counts[:, None]).to(grid.tokens.device)
        is_selected = torch.zeros_like(taken)
        if method == "attn":
            assert salience is not None, "checked by the caller"
            return is_selected.scatter_(1, salience.sort(dim=1, descending=True, stable=True).indices, taken)
        means = average_frames(grid)
        segment = torch.from_numpy(segments.segment).to(means.device)
        first = torch.arange(t, device=means.device)
        sums = sum_groups(means, first, torch.from_numpy(segments.lengths).to(means.device))
        events = (sums / torch.from_numpy(segments.lengths).to(means)[:, None])[segment]  # [T, D]
        repeats = self.strict and method == "attn_div_v2"  # as published, picked tokens are not excluded
        for tile in split_tiles(t, 16 * cells * max(cells, grid.dim), grid.tokens.device):
            x = read_frames(grid, tile)
            unit = normalize_precisely(x)
            cosine = unit @ unit.mT
            distance = 1 - (cosine + cosine.mT) / 2  # [t, N, N], symmetric to the last bit: its ties are ties
            if method != "div":
                assert salience is not None, "checked by the caller"
                weight = SALIENCE_SCALE * salience[tile].to(unit.dtype)
                if method == "attn_div_v2":
                    weight = weight * (x.to(unit.dtype) @ events[tile, :, None].to(unit.dtype))[..., 0]
                distance = distance * weight[:, None]
            picks = _pick_farthest(distance, int(counts[tile].max()), repeats=repeats)
            # of a token picked twice, any pick counts
            is_selected[tile] = (
                is_selected[tile].int().scatter_reduce_(1, picks, taken[tile, : picks.shape[1]].int(), "amax") > 0
            )
        return is_selected

    def _find_parents(
        self, grid: TokenGrid, segments: Segments, is_selected: torch.Tensor, quotas: _Quotas
    ) -> torch.Tensor:
        """Return the token of the previous frame that each token is merged into, itself if it is not: [n]."""
        t, cells = is_selected.shape
        device = is_selected.device
        best = torch.full((t, cells), -1.0, device=device)
        parent = torch.arange(grid.n, device=device).view(t, cells).clone()
        later = np.setdiff1d(np.arange(t), segments.starts)  # frames with a previous one in the segment
        for tile in split_tiles(len(later), 4 * cells * max(cells, 2 * grid.dim), device):
            frames = torch.from_numpy(later[tile]).to(device)
            x, previous = (normalize(grid.tokens[index].reshape(-1, cells, grid.dim)) for index in (frames, frames - 1))
            cosine = (x @ previous.mT).masked_fill_(is_selected[frames - 1][:, None], -torch.inf)
            value, place = cosine.max(2)
            is_free = ~is_selected[frames] & value.isfinite()
            best[frames] = torch.where(is_free, value, -1)
            parent[frames] = torch.where(is_free, (frames - 1)[:, None] * cells + place, parent[frames])
        threshold = self._find_thresholds(segments, best.cpu().numpy(), quotas)
        is_merged = best > torch.from_numpy(threshold).to(device)[:, None]
        return torch.where(is_merged, parent, torch.arange(grid.n, device=device).view(t, cells)).flatten()

    def _find_thresholds(self, segments: Segments, best: np.ndarray, quotas: _Quotas) -> np.ndarray:
        """Raise the threshold of segments in which too few tokens would remain: [T] float32."""
        cells = best.shape[1]
        threshold = np.full(len(best), self.temporal_threshold, np.float32)
        quota = quotas.selected + quotas.merged
        for start, length in zip(segments.starts.tolist(), segments.lengths.tolist(), strict=True):
            frames = slice(start, start + length)
            removable = length * cells - int(quota[frames].sum())
            if (best[frames] > threshold[start]).sum() > removable:
                raised = np.sort(best[frames], axis=None)[-removable] if removable else np.inf
                threshold[frames] = max(raised, np.float32(LOWEST))
        return threshold

    def _average_trees(
        self, grid: TokenGrid, parent: torch.Tensor, root: torch.Tensor, left: torch.Tensor
    ) -> torch.Tensor:
        """Return the vectors of [L] trees, by their roots `left`: [L, D]. `parent` and `root` are [n]."""
        rows = to_float(grid.tokens.detach()).reshape(-1, grid.dim)
        sizes = torch.bincount(root, minlength=grid.n)
        sums = sum_groups(rows, root.argsort(stable=True), sizes)[left]
        # as published with `strict`: the root and its direct successors, although the sum is over the whole tree. A
        # root is its own parent.
        counts = torch.bincount(parent, minlength=grid.n) if self.strict else sizes
        return sums / counts[left, None]


def _pick_farthest(distance: torch.Tensor, count: int, *, repeats: bool) -> torch.Tensor:
    """Pick `count` tokens of each frame, each the farthest from those picked before: [t, count].

    Args:
        distance: [t, N, N], from a picked token (row) to a candidate (column).
        count: Number of picks.
        repeats: Whether a token may be picked again.
    """
    t, cells, _ = distance.shape
    frames = torch.arange(t, device=distance.device)
    # the first pick: the second smallest distance of a column, the smallest being that to the token itself
    farness = distance.kthvalue(min(2, cells), dim=1).values
    picks = torch.zeros((t, count), dtype=torch.int64, device=distance.device)
    picked = torch.zeros((t, cells), dtype=torch.bool, device=distance.device)
    for i in range(count):
        picks[:, i] = (farness if repeats else farness.masked_fill(picked, -torch.inf)).argmax(1)
        picked[frames, picks[:, i]] = True
        row = distance[frames, picks[:, i]]
        farness = row if i == 0 else torch.minimum(farness, row)
    return picks


def _share_clusters(segments: Segments, sizes: np.ndarray, quotas: _Quotas) -> np.ndarray:
    """Return the number of clusters of each frame, [T], for [T] tokens left."""
    counts = np.zeros_like(sizes)
    for start, length in zip(segments.starts.tolist(), segments.lengths.tolist(), strict=True):
        frames = slice(start, start + length)
        total, left = quotas.merged * length, int(sizes[frames].sum())
        if total >= left:
            counts[frames] = sizes[frames]
        elif quotas.is_exact:
            counts[frames] = share_budget(sizes[frames], total)
        else:
            counts[frames] = [math.ceil(size * (total / left)) for size in sizes[frames].tolist()]
    return counts


def _cluster_frames(
    vectors: torch.Tensor, sizes: np.ndarray, counts: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cluster the tokens left in each frame by density peaks.

    Args:
        vectors: [L, D], frame after frame.
        sizes: [T] tokens left in each frame.
        counts: [T] clusters of each frame.

    Returns:
        [C] places of the centres in `vectors`; [C, D] the means; [L] the cluster of each token, -1 for none.
    """
    device = vectors.device
    starts = sizes.cumsum() - sizes
    cluster_of = torch.full((len(vectors),), -1, device=device)
    centres, means, total = [cluster_of[:0]], [vectors[:0]], 0
    frames = np.flatnonzero(counts)
    widest = int(sizes[frames].max()) if len(frames) else 1
    for tile in split_tiles(len(frames), 4 * widest * max(3 * widest, vectors.shape[1]), device):
        part = frames[tile]
        places = torch.cat([torch.arange(s, s + m) for s, m in zip(starts[part], sizes[part], strict=True)]).to(device)
        padded = pad_groups(places, sizes[part])  # [b, m]
        size, count = (torch.from_numpy(array[part]).to(device) for array in (sizes, counts))
        x, most = vectors[padded], int(counts[part].max())
        order, cluster = cluster_points(x, size, count, most, count.clamp(max=NEIGHBOURS))
        # a product with zeros and ones, since scattered sums have no fixed order on a GPU
        member = x.new_zeros(*cluster.shape, most + 1).scatter_(2, cluster[..., None], 1)[..., :most]
        mean = member.mT @ x / member.sum(1).clamp(min=1)[..., None]  # [b, most, D]
        is_used = torch.arange(most, device=device) < count[:, None]
        offset = (count.cumsum(0) - count)[:, None] + total
        is_real = cluster < most
        cluster_of[padded[is_real]] = (cluster + offset)[is_real]
        centres.append(padded.gather(1, order)[is_used])
        means.append(mean[is_used])
        total += int(count.sum())
    return torch.cat(centres), torch.cat(means), cluster_of
