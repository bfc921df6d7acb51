"""FastVID (Shen et al., "FastVID: Dynamic Density Pruning for Fast Video Large Language Models")."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from floc import blocks
from floc._arrays import Array, to_tensor
from floc._checks import check_choice
from floc.kept import Kept
from floc.methods import density
from floc.methods.base import Facts
from floc.methods.density import frame_means, tiles, wide
from floc.methods.registry import register
from floc.representatives import find_nearest
from floc.tokens import TokenGrid

NEIGHBOURS = 4  # that a density is taken from
TILE_FRAMES = 8  # of segments that are absorbed together


# compared by identity: its options may be arrays
@register("fastvid")
@dataclass(frozen=True, eq=False)
class FastVid:
    """Keep each frame's most salient tokens, and merge the rest of a segment into dense tokens of every few frames.

    The film is cut into segments where consecutive frames differ. The share 1 - stprune_d of a frame's quota goes to
    its most salient tokens, unchanged. The rest goes to anchors, in the last frame of a segment and every `dtm_p`-th
    before it: the density peaks among the tokens that are not salient. The anchors of each of these frames absorb all
    such tokens of the segment, each going to the anchor most like it; an anchor becomes w times itself plus 1 - w
    times the mean of what it absorbed, with w the larger of dtm_beta and 1 / (1 + their number).

    `variant` says which of the published programs: "onevision" has one quota for all frames, and loses the remainder
    where anchors do not divide; its anchors absorb themselves, and only their own frame where their number is that of
    an undivided quota, e.g. in segments of one frame. "llava-video" has a quota for the segment, loses nothing, and
    its anchors do not absorb themselves. Newline tokens are not part of this.

    A budget sets the quota, `retention_ratio`, and is met exactly, in both variants by the quotas of "llava-video",
    with one more salient token for each of the first frames until nothing is left over. All tokens are kept unchanged
    where the quota is a whole frame.

    Salience and frame vectors come from a vision encoder. Without `attn`, a token's salience is its product with the
    mean token of its frame; without `frame_global`, a frame's vector is that mean. `stprune_d=1` needs no salience.

    What differs from the programs:
    - Equal densities are told apart by index, not by noise, and densities are compared by their logarithm, so that
      tokens far apart, whose density is 0 in float32, keep an order (there it is the noise that orders them).
    - Fewer frames than `dyseg_c`, a quota without anchors, and fewer than 4 tokens beside the salient ones are errors
      there, and work here. Anchors that a frame has no room for, also an error there, become salient tokens of the
      segment's other frames, one by one from the first.
    - A token that several frames' anchors absorbed is represented by the one most like it, as it was before it
      absorbed anything; one that none absorbed, by the kept token most like it.
    """

    facts: ClassVar[Facts] = Facts(
        "Shen et al., FastVID, 2025",
        "merge",
        needs="attention and frame vectors of the vision encoder, attn= and frame_global=, if there are any",
        searched=("retention_ratio",),
    )

    retention_ratio: float = 0.1  # a frame's quota / its tokens
    dyseg_c: int = 8  # segments there are at least
    dyseg_tau: float = 0.9  # consecutive frames less alike than this are in different segments
    stprune_d: float = 0.4  # the share of the quota that goes to anchors
    dtm_p: int = 4  # frames for each that has anchors
    dtm_beta: float = 0.6  # an anchor's weight in what it becomes
    variant: str = "onevision"
    attn: Array | None = None  # [T, N] how salient each token is
    frame_global: Array | None = None  # [T, C] a vector for each frame, of any size

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, ("onevision", "llava-video"))
        for name in ("retention_ratio", "stprune_d", "dtm_beta"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        for name in ("dyseg_c", "dtm_p"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def native(self, grid: TokenGrid) -> Kept:
        cells = grid.n // grid.shape[0]
        quota = int(cells * self.retention_ratio)
        if quota == 0:
            raise ValueError(
                f"retention_ratio={self.retention_ratio} is less than one of the {cells} tokens of a frame; "
                f"ask for {1 / cells:.3g} or more, or pass budget= or ratio= to leave frames without a token"
            )
        if quota == cells:
            return grid.keep_all()
        segments = self._segments(grid)
        share = int(quota * self.stprune_d)
        if self.variant == "llava-video":
            quotas = _shared(segments, quota, self.stprune_d, extra=0)
        else:
            quotas = _one_for_all(segments, quota, share)
        return self._kept(grid, segments, quotas, share)

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        if budget == grid.n:
            return replace(grid.keep_all(), settings={"retention_ratio": 1.0})
        frames = grid.shape[0]
        cells = grid.n // frames
        quota, extra = divmod(budget, frames)
        segments = self._segments(grid)
        quotas = _shared(segments, quota, self.stprune_d, extra)
        kept = self._kept(grid, segments, quotas, int(quota * self.stprune_d))
        ratio = quota / cells
        if int(cells * ratio) < quota:  # rounding
            ratio = math.nextafter(ratio, 1)
        return replace(kept, settings={"retention_ratio": ratio, "extra_salient": extra})

    def _segments(self, grid: TokenGrid) -> _Segments:
        frames = grid.shape[0]
        vectors = frame_means(grid) if self.frame_global is None else self._given(grid, "frame_global")
        vectors = F.normalize(vectors, dim=-1)
        alike = (vectors[:-1] * vectors[1:]).sum(-1).cpu().double().numpy()  # [T - 1]
        cut = alike < self.dyseg_tau
        cut[np.argsort(alike, kind="stable")[: self.dyseg_c - 1]] = True
        starts = np.concatenate([[0], 1 + np.flatnonzero(cut)])
        lengths = np.diff(starts, append=frames)
        segment = np.repeat(np.arange(len(starts)), lengths)
        from_last = (starts + lengths - 1)[segment] - np.arange(frames)
        return _Segments(starts, lengths, segment, from_last % self.dtm_p == 0)

    def _salience(self, grid: TokenGrid) -> torch.Tensor:
        """[T, N], in an order that counts alone."""
        if self.attn is not None:
            return self._given(grid, "attn")
        # the specified softmax of it has the same order, until it rounds to 0
        means, cells = frame_means(grid), grid.n // grid.shape[0]
        parts = tiles(len(means), 4 * cells * grid.dim, grid.tokens.device)
        products = [means[part, None] @ wide(grid.tokens[part]).reshape(-1, cells, grid.dim).mT for part in parts]
        return torch.cat(products)[:, 0]

    def _given(self, grid: TokenGrid, name: str) -> torch.Tensor:
        """An option as a tensor beside the tokens, or an error that says what is wrong with it."""
        array = getattr(self, name)
        if not isinstance(array, torch.Tensor | np.ndarray):
            raise TypeError(f"{name} must be a torch tensor or a numpy array, got {type(array).__name__}")
        frames, cells = grid.shape[0], grid.n // grid.shape[0]
        size = array.shape[1] if name == "frame_global" and array.ndim == 2 else cells
        if array.shape != (frames, size) or not size:
            wanted = f"[{frames}, {cells}], frames by tokens" if name == "attn" else f"[{frames}, C], a vector a frame"
            raise ValueError(f"{name} must be {wanted} of these tokens; got {tuple(array.shape)}")
        tensor = wide(to_tensor(array).detach().to(grid.tokens.device))
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} must be finite; there are infinite values or NaN in it")
        return tensor

    def _kept(self, grid: TokenGrid, segments: _Segments, quotas: _Quotas, share: int) -> Kept:
        """Keep what the quotas say.

        Args:
            share: of one frame's quota, what goes to anchors; where a frame has just these, it absorbs only its own.
        """
        frames = grid.shape[0]
        cells = grid.n // frames
        salient_count, anchor_count = _fitted(segments, quotas, cells)
        salient = np.zeros((frames, cells), bool)
        if salient_count.any():
            by_salience = self._salience(grid).sort(descending=True, stable=True, dim=1).indices.cpu().numpy()
            np.put_along_axis(salient, by_salience, np.arange(cells) < salient_count[:, None], 1)
        if not anchor_count.any():
            return grid.keep(np.flatnonzero(salient))
        anchor_frames = np.flatnonzero(anchor_count)
        counts = anchor_count[anchor_frames]
        anchors = _peaks(grid, anchor_frames, ~salient[anchor_frames], counts)  # flat, ascending
        anchor = np.zeros((frames, cells), bool)
        anchor.ravel()[anchors] = True
        own = quotas.anchors[anchor_frames] == share
        own |= segments.all_anchored[anchor_frames]
        own &= self.variant == "onevision"
        merged, absorbed_by = self._absorbed(grid, segments, anchor_frames, counts, anchors, salient, anchor, own)
        indices = np.flatnonzero(salient | anchor)
        features = wide(grid.gather(indices))
        features[torch.from_numpy(np.searchsorted(indices, anchors)).to(features.device)] = merged
        represents = np.where(absorbed_by < 0, -1, np.searchsorted(indices, anchors)[absorbed_by])
        represents[indices] = np.arange(len(indices))
        lost = np.flatnonzero(represents < 0)
        if len(lost):
            represents[lost] = find_nearest(grid.gather(lost), features)[1].cpu().numpy()
        return grid.merge(indices, features, represents)

    def _absorbed(
        self,
        grid: TokenGrid,
        segments: _Segments,
        anchor_frames: np.ndarray,
        counts: np.ndarray,
        anchors: np.ndarray,
        salient: np.ndarray,
        anchor: np.ndarray,
        own: np.ndarray,
    ) -> tuple[torch.Tensor, np.ndarray]:
        """What anchors become.

        Args:
            anchor_frames: [F] frames with anchors.
            counts: [F] how many.
            anchors: [A] flat indices.
            salient, anchor: [T, N] bool, what each token is.
            own: [F] bool, whether a frame's anchors absorb that frame alone.

        Returns:
            [A, D] float32 or better, and [n] the anchor most like every token of those that absorbed it, or -1.
        """
        device = grid.tokens.device
        frames = grid.shape[0]
        cells = grid.n // frames
        before = np.concatenate([[0], np.cumsum(counts)])
        values = wide(grid.gather(anchors))
        directions = F.normalize(values, dim=-1)
        sums, members = torch.zeros_like(values), values.new_zeros(len(values))
        is_salient, is_anchor = (torch.from_numpy(each).to(device) for each in (salient, anchor))
        best = torch.full((grid.n,), -1, device=device)
        segment = segments.segment[anchor_frames]  # [F]
        for tile, reach in _tiles(grid, segments, segment, counts):
            low, high = int(before[reach[0]]), int(before[reach[-1] + 1])
            # each frame's anchors, padded by a column that is never the best
            columns = np.arange(counts[reach].max()) + (before[reach] - low)[:, None]  # [f, a]
            columns[np.arange(columns.shape[1]) >= counts[reach, None]] = high - low
            mine = tile[:, None] == anchor_frames[reach]  # [t, f]
            together = (segments.segment[tile, None] == segment[reach]) & (mine | ~own[reach])
            refused = (
                is_salient[tile[0] : tile[-1] + 1, :, None] | ~torch.from_numpy(together).to(device)[:, None]
            )  # [t, N, f]
            if self.variant == "llava-video":
                refused |= is_anchor[tile[0] : tile[-1] + 1, :, None] & torch.from_numpy(mine).to(device)[:, None]
            refused = refused.flatten(0, 1)
            x = wide(grid.tokens[tile[0] : tile[-1] + 1]).reshape(-1, grid.dim)  # [m, D]
            # the length of a token has no part in which anchor is most like it
            cosine = F.pad(x @ directions[low:high].T, (0, 1), value=-torch.inf)  # [m, A + 1]
            like, which = cosine[:, torch.from_numpy(columns).to(device)].max(2)  # [m, f]
            which += torch.from_numpy(before[reach] - low).to(device)
            which.masked_fill_(refused, high - low)
            # a product with zeros and ones, as sums by index have no fixed order on a GPU
            member = torch.zeros_like(cosine).scatter_(1, which, 1)[:, : high - low]
            sums[low:high] += member.T @ x
            members[low:high] += member.sum(0)
            found = which.gather(1, like.masked_fill_(refused, -torch.inf).argmax(1, keepdim=True))[:, 0]
            best[tile[0] * cells : (tile[-1] + 1) * cells] = torch.where(found == high - low, -1, found + low)
        mean = sums / members.clamp(min=1)[:, None]
        weight = (1 / (members + 1)).clamp(min=self.dtm_beta)[:, None]
        return weight * values + (1 - weight) * mean, best.cpu().numpy()


def _tiles(
    grid: TokenGrid, segments: _Segments, segment: np.ndarray, counts: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """A few frames at a time, [t], and the places, [f], of the frames whose anchors their segments have.

    Short segments go together, as tokens meet the anchors of other segments in vain; long ones are cut, as they meet
    all of their own at once.

    Args:
        segment: [F] of the frames with anchors.
        counts: [F] anchors.
    """
    cells = grid.n // grid.shape[0]
    for some in blocks.pack_blocks(segments.lengths, TILE_FRAMES):
        reach = np.flatnonzero((segment >= some[0]) & (segment <= some[-1]))
        if len(reach):
            start, stop = segments.starts[some[0]], segments.starts[some[-1]] + segments.lengths[some[-1]]
            each_bytes = 4 * cells * max(grid.dim, int(counts[reach].max()) * len(reach))
            for part in tiles(stop - start, each_bytes, grid.tokens.device):
                yield np.arange(start, stop)[part], reach


class _Segments(NamedTuple):
    """Contiguous stretches of frames."""

    starts: np.ndarray  # [S] the first frame of each
    lengths: np.ndarray  # [S]
    segment: np.ndarray  # [T] the segment of each frame
    anchored: np.ndarray  # [T] bool, whether a frame may have anchors

    @property
    def anchored_frames(self) -> np.ndarray:
        """[S] frames of each that may have anchors."""
        return np.add.reduceat(self.anchored.astype(np.int64), self.starts)

    @property
    def all_anchored(self) -> np.ndarray:
        """[T] bool, whether all frames of a frame's segment may have anchors."""
        return (self.anchored_frames == self.lengths)[self.segment]


class _Quotas(NamedTuple):
    """Tokens of each frame."""

    salient: np.ndarray  # [T]
    anchors: np.ndarray  # [T]


def _one_for_all(segments: _Segments, quota: int, share: int) -> _Quotas:
    """The same quota for every frame; the anchors of a segment are divided, and the remainder is lost."""
    each = share * segments.lengths // segments.anchored_frames  # [S]
    return _Quotas(
        np.full(len(segments.segment), quota - share), np.where(segments.anchored, each[segments.segment], 0)
    )


def _shared(segments: _Segments, quota: int, share: float, extra: int) -> _Quotas:
    """A quota for every segment, of which nothing is lost, and an extra salient token for each of the first frames."""
    total = quota * segments.lengths
    context = np.floor(total * share).astype(np.int64)  # [S]
    frames = np.arange(len(segments.segment))
    place = frames - segments.starts[segments.segment]
    salient, more = np.divmod(total - context, segments.lengths)
    of_first = (place < more[segments.segment]).astype(np.int64)
    each, more = np.divmod(context, segments.anchored_frames)
    # counted back from the last frame with anchors
    after = segments.anchored[::-1].cumsum()[::-1]
    ends = segments.starts + segments.lengths - 1
    from_last = after - after[ends][segments.segment]
    of_last = (from_last < more[segments.segment]).astype(np.int64)
    return _Quotas(
        salient[segments.segment] + of_first + (frames < extra),
        np.where(segments.anchored, each[segments.segment] + of_last, 0),
    )


def _fitted(segments: _Segments, quotas: _Quotas, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """[T] salient tokens and [T] anchors, where anchors without room become salient tokens of other frames."""
    salient, anchors = quotas.salient.copy(), np.minimum(quotas.anchors, cells - quotas.salient)
    excess = np.add.reduceat(quotas.anchors - anchors, segments.starts)
    for segment in np.flatnonzero(excess):
        mine = slice(segments.starts[segment], segments.starts[segment] + segments.lengths[segment])
        room = cells - salient[mine] - anchors[mine]
        # round after round, one for each frame that has room, from the first
        turns = np.argwhere(np.arange(cells)[:, None] < room)[: excess[segment], 1]
        salient[mine] += np.bincount(turns, minlength=len(room))
    return salient, anchors


def _peaks(grid: TokenGrid, frames: np.ndarray, candidates: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[A] flat indices, ascending, of the density peaks among the candidates of some frames.

    Args:
        frames: [F] which.
        candidates: [F, N] bool.
        counts: [F] how many of each.
    """
    sizes = candidates.sum(1)
    members = np.argsort(~candidates, axis=1, kind="stable")[:, : sizes.max()]  # [F, M] cells, padded by others
    at = frames[:, None] * candidates.shape[1] + members
    orders = []
    for part in tiles(len(at), 4 * at.shape[1] * max(at.shape[1], grid.dim), grid.tokens.device):
        x = wide(grid.gather(at[part].ravel())).view(*at[part].shape, -1)
        size = torch.from_numpy(sizes[part]).to(x.device)
        orders.append(density.ranked(density.distances(x, size), size, NEIGHBOURS))
    by_score = np.take_along_axis(at, torch.cat(orders).cpu().numpy(), 1)
    return np.sort(by_score[np.arange(at.shape[1]) < counts[:, None]])
