"""FastVID (Shen et al., "FastVID: Dynamic Density Pruning for Fast Video Large Language Models")."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from floc import blocks
from floc._arrays import Array
from floc._checks import check_choice
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.density import compute_distances, rank_points
from floc.methods.shared.frames import average_frames, estimate_salience, find_segments, split_tiles, to_float
from floc.methods.shared.inputs import check_least, check_shares, read_array
from floc.representatives import find_nearest
from floc.tokens import TokenGrid

NEIGHBOURS = 4  # that a density is computed from
TILE_FRAMES = 8  # frames of short segments merged together


class _Segments(NamedTuple):
    """Contiguous runs of frames."""

    starts: np.ndarray  # [S] the first frame of each
    lengths: np.ndarray  # [S]
    segment: np.ndarray  # [T] the segment of each frame
    is_anchored: np.ndarray  # [T] bool, whether a frame may have anchors
    anchored_frames: np.ndarray  # [S] how many frames of each may have anchors


# compared by identity: its options may be arrays
@register(
    "fastvid",
    "Shen et al., FastVID, 2025",
    "merge",
    needs="attention (attn=) and frame vectors (frame_global=) of the vision encoder",
    searched=("retention_ratio",),
)
@dataclass(frozen=True, eq=False)
class FastVid:
    """Keep the most salient tokens of each frame, and merge the rest of a segment into a few anchor tokens.

    The video is cut into segments where consecutive frames differ. The fraction 1 - stprune_d of a frame's quota goes
    to its most salient tokens, which are kept unchanged. The rest goes to anchors in the last frame of each segment
    and every `dtm_p`-th frame before it: the density peaks among the tokens that are not salient. The anchors of each
    such frame absorb all non-salient tokens of the segment, each token going to the most similar anchor. An anchor
    becomes w * anchor + (1 - w) * mean of the absorbed tokens, where w = max(dtm_beta, 1 / (1 + their number)).

    `variant` selects the published program. "onevision" has the same quota for all frames and loses the remainder if
    anchors do not divide evenly. Its anchors absorb themselves, and only their own frame if their number is the
    undivided quota, for example in segments of one frame. "llava-video" has a quota for each segment, loses nothing,
    and its anchors do not absorb themselves. Newline tokens are not included.

    A budget sets `retention_ratio` and is met exactly. Both variants then use the quotas of "llava-video", and the
    first frames get one more salient token each until nothing is left over. If the quota is a whole frame, all tokens
    are kept unchanged.

    Salience (`attn`) and frame vectors (`frame_global`) come from a vision encoder. Without `attn`, the salience of a
    token is its product with the mean token of the frame; without `frame_global`, that mean is the frame's vector.
    `stprune_d=1` needs no salience.

    Differences from the published programs:
    - Ties between densities are broken by index, not by noise. Densities are compared by their logarithm, because
      those of distant tokens underflow in float32.
    - Fewer frames than `dyseg_c`, a quota without anchors, and fewer than 4 non-salient tokens are errors there and
      work here. Anchors that do not fit in a frame, also an error there, become salient tokens of the segment's other
      frames, one each from the first.
    - A token absorbed by the anchors of several frames is represented by the most similar of them before merging, a
      token that was not absorbed by the most similar kept token.
    """

    retention_ratio: float = 0.1  # a frame's quota / its tokens
    dyseg_c: int = 8  # the least number of segments
    dyseg_tau: float = 0.9  # consecutive frames with a lower cosine are in different segments
    stprune_d: float = 0.4  # the fraction of the quota that goes to anchors
    dtm_p: int = 4  # every how many frames have anchors
    dtm_beta: float = 0.6  # the least weight of an anchor in its merged token
    variant: str = "onevision"
    attn: Array | None = None  # [T, N] salience of each token
    frame_global: Array | None = None  # [T, C] a vector for each frame

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, ("onevision", "llava-video"))
        check_shares(self, "retention_ratio", "stprune_d", "dtm_beta")
        check_least(self, 1, "", "dyseg_c", "dtm_p")

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        """Keep the quota of `retention_ratio` in every frame."""
        cells, ratio = grid.cells, self.retention_ratio
        quota = int(cells * ratio)
        if quota == 0:
            remedy = f"use at least {1 / cells:.3g}, or pass budget= or ratio= to leave frames without a token"
            raise ValueError(f"retention_ratio={ratio} is less than one of the {cells} tokens of a frame; {remedy}")
        if quota == cells:
            return grid.keep_all()
        segments = self._find_segments(grid)
        if self.variant == "llava-video":
            salient, anchors = _share_quota(segments, quota, self.stprune_d, extra=0)
        else:
            context = int(quota * self.stprune_d)
            salient = np.full(len(segments.segment), quota - context)
            frame_anchors = context * segments.lengths // segments.anchored_frames  # [S]; the remainder is lost
            anchors = np.where(segments.is_anchored, frame_anchors[segments.segment], 0)
        return self._merge(grid, segments, salient, anchors, quota)

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        if budget == grid.n:
            return replace(grid.keep_all(), settings={"retention_ratio": 1.0})
        cells = grid.cells
        quota, extra = divmod(budget, grid.shape[0])
        segments = self._find_segments(grid)
        kept = self._merge(grid, segments, *_share_quota(segments, quota, self.stprune_d, extra), quota)
        ratio = quota / cells
        if int(cells * ratio) < quota:  # rounding
            ratio = math.nextafter(ratio, 1)
        return replace(kept, settings={"retention_ratio": ratio, "extra_salient": extra})

    def _find_segments(self, grid: TokenGrid) -> _Segments:
        frames = grid.shape[0]
        given = read_array(grid, "frame_global", self.frame_global, (frames, "C"))
        vectors = average_frames(grid) if given is None else given
        starts, lengths, segment = segments = find_segments(vectors, self.dyseg_tau, self.dyseg_c)
        from_last = (starts + lengths - 1)[segment] - np.arange(frames)
        is_anchored = from_last % self.dtm_p == 0
        return _Segments(*segments, is_anchored, np.add.reduceat(is_anchored, starts, dtype=np.int64))

    def _compute_salience(self, grid: TokenGrid) -> torch.Tensor:
        """Return [T, N] values whose order within a frame is that of the salience."""
        given = read_array(grid, "attn", self.attn, (grid.shape[0], grid.cells))
        return estimate_salience(grid) if given is None else given

    def _merge(
        self, grid: TokenGrid, segments: _Segments, salient: np.ndarray, anchors: np.ndarray, quota: int
    ) -> Kept:
        """Keep [T] salient tokens and [T] anchors."""
        cells = grid.cells
        # as published, anchors absorb only their own frame if their number is the undivided quota of a frame
        all_anchored = (segments.anchored_frames == segments.lengths)[segments.segment]
        own_only = ((anchors == int(quota * self.stprune_d)) | all_anchored) & (self.variant == "onevision")
        salient, anchors = _fit_anchors(segments, salient, anchors, cells)
        is_salient = np.zeros((grid.shape[0], cells), bool)
        if salient.any():
            by_salience = self._compute_salience(grid).sort(descending=True, stable=True, dim=1).indices.cpu().numpy()
            np.put_along_axis(is_salient, by_salience, np.arange(cells) < salient[:, None], 1)
        if not anchors.any():
            return grid.keep(np.flatnonzero(is_salient))
        is_anchor = _find_peaks(grid, ~is_salient, anchors)
        merged, absorbed_by = self._absorb(grid, segments, is_salient, is_anchor, own_only)
        indices = np.flatnonzero(is_salient | is_anchor)
        places = np.searchsorted(indices, np.flatnonzero(is_anchor))  # of the anchors
        features = to_float(grid.gather(indices))
        features[torch.from_numpy(places).to(features.device)] = merged
        represents = np.where(absorbed_by < 0, -1, places[absorbed_by])
        represents[indices] = np.arange(len(indices))
        rest = np.flatnonzero(represents < 0)
        if len(rest):
            represents[rest] = find_nearest(grid.gather(rest), features)[1].cpu().numpy()
        return grid.merge(indices, features, represents)

    def _absorb(
        self, grid: TokenGrid, segments: _Segments, is_salient: np.ndarray, is_anchor: np.ndarray, own_only: np.ndarray
    ) -> tuple[torch.Tensor, np.ndarray]:
        """Merge [T, N] tokens into anchors; those of frames with `own_only`, [T] bool, absorb only their own frame.

        Returns:
            [A, D] the merged anchors, and [n] the most similar of the anchors that absorbed each token, or -1.
        """
        device, cells = grid.tokens.device, is_anchor.shape[1]
        values = to_float(grid.gather(np.flatnonzero(is_anchor)))
        directions = F.normalize(values, dim=-1)
        sums, members = torch.zeros_like(values), values.new_zeros(len(values))
        salient, anchor = (torch.from_numpy(mask).to(device) for mask in (is_salient, is_anchor))
        best = torch.full((grid.n,), -1, device=device)
        counts = is_anchor.sum(1)  # [T]
        before = np.cumsum(counts) - counts
        for frames, anchored in _plan_tiles(grid, segments, counts):
            tile = slice(frames[0], frames[-1] + 1)
            low, high = int(before[anchored[0]]), int(before[anchored[-1]] + counts[anchored[-1]])
            # the anchors of each frame, padded with a column that is never the best
            columns = np.arange(counts[anchored].max()) + (before[anchored] - low)[:, None]  # [f, a]
            columns[np.arange(columns.shape[1]) >= counts[anchored, None]] = high - low
            is_own = frames[:, None] == anchored  # [t, f]
            absorbs = (segments.segment[frames, None] == segments.segment[anchored]) & (is_own | ~own_only[anchored])
            refused = salient[tile, :, None] | ~torch.from_numpy(absorbs).to(device)[:, None]  # [t, N, f]
            if self.variant == "llava-video":
                refused |= anchor[tile, :, None] & torch.from_numpy(is_own).to(device)[:, None]
            refused = refused.flatten(0, 1)
            x = to_float(grid.tokens[tile]).reshape(-1, grid.dim)  # [m, D]
            # the length of a token does not affect which anchor is most similar
            cosine = F.pad(x @ directions[low:high].T, (0, 1), value=-torch.inf)  # [m, A + 1]
            similarity, which = cosine[:, torch.from_numpy(columns).to(device)].max(2)  # [m, f]
            which += torch.from_numpy(before[anchored] - low).to(device)
            which.masked_fill_(refused, high - low)
            # a product with zeros and ones, since scattered sums have no fixed order on a GPU
            member = torch.zeros_like(cosine).scatter_(1, which, 1)[:, : high - low]
            sums[low:high] += member.T @ x
            members[low:high] += member.sum(0)
            nearest = which.gather(1, similarity.masked_fill_(refused, -torch.inf).argmax(1, keepdim=True))[:, 0]
            best[tile.start * cells : tile.stop * cells] = torch.where(nearest == high - low, -1, nearest + low)
        mean = sums / members.clamp(min=1)[:, None]
        weight = (1 / (members + 1)).clamp(min=self.dtm_beta)[:, None]
        return weight * values + (1 - weight) * mean, best.cpu().numpy()


def _plan_tiles(grid: TokenGrid, segments: _Segments, counts: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a few frames at a time, [t], with the frames of their segments that have anchors, [f], by [T] counts.

    Short segments are processed together, although their tokens then meet anchors of other segments for nothing; long
    ones are split to bound memory.
    """
    cells = grid.cells
    anchor_frames = np.flatnonzero(counts)
    segment = segments.segment[anchor_frames]
    for group in blocks.pack_blocks(segments.lengths, TILE_FRAMES):
        anchored = anchor_frames[(segment >= group[0]) & (segment <= group[-1])]
        if len(anchored):
            frames = np.arange(segments.starts[group[0]], segments.starts[group[-1]] + segments.lengths[group[-1]])
            frame_bytes = 4 * cells * max(grid.dim, int(counts[anchored].max()) * len(anchored))
            for tile in split_tiles(len(frames), frame_bytes, grid.tokens.device):
                yield frames[tile], anchored


def _share_quota(segments: _Segments, quota: int, share: float, extra: int) -> tuple[np.ndarray, np.ndarray]:
    """Share each segment's quota among its frames without loss, `extra` to the first: [T] salient, [T] anchors."""
    total = quota * segments.lengths
    context = np.floor(total * share).astype(np.int64)  # [S]
    frames = np.arange(len(segments.segment))
    offset = frames - segments.starts[segments.segment]
    salient, rest = np.divmod(total - context, segments.lengths)
    salient = salient[segments.segment] + (offset < rest[segments.segment]) + (frames < extra)
    anchors, rest = np.divmod(context, segments.anchored_frames)
    # the remainder goes to the last frames with anchors
    after = segments.is_anchored[::-1].cumsum()[::-1]
    from_last = after - after[segments.starts + segments.lengths - 1][segments.segment]
    anchors = anchors[segments.segment] + (from_last < rest[segments.segment])
    return salient, np.where(segments.is_anchored, anchors, 0)


def _fit_anchors(
    segments: _Segments, salient: np.ndarray, anchors: np.ndarray, cells: int
) -> tuple[np.ndarray, np.ndarray]:
    """Turn anchors that do not fit in their frame into salient tokens of the segment's other frames."""
    fitting = np.minimum(anchors, cells - salient)
    raised = salient.copy()
    excess = np.add.reduceat(anchors - fitting, segments.starts)
    for segment in np.flatnonzero(excess):
        frames = slice(segments.starts[segment], segments.starts[segment] + segments.lengths[segment])
        raised[frames] = blocks.raise_in_rounds(salient[frames], cells - fitting[frames], int(excess[segment]))
    return raised, fitting


def _find_peaks(grid: TokenGrid, candidates: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Find [T] counts of density peaks among the [T, N] bool candidates of each frame: [T, N] bool."""
    frames = np.flatnonzero(counts)
    sizes = candidates[frames].sum(1)
    # [F, M] flat indices, padded with tokens that are no candidates
    members = np.argsort(~candidates[frames], axis=1, kind="stable")[:, : sizes.max()]
    members += frames[:, None] * candidates.shape[1]
    orders = []
    for tile in split_tiles(len(frames), 4 * members.shape[1] * max(members.shape[1], grid.dim), grid.tokens.device):
        x = to_float(grid.gather(members[tile].ravel())).view(*members[tile].shape, -1)
        size = torch.from_numpy(sizes[tile]).to(x.device)
        orders.append(rank_points(compute_distances(x, size), size, NEIGHBOURS))
    by_score = np.take_along_axis(members, torch.cat(orders).cpu().numpy(), 1)
    is_peak = np.zeros_like(candidates)
    is_peak.ravel()[by_score[np.arange(members.shape[1]) < counts[frames, None]]] = True
    return is_peak
