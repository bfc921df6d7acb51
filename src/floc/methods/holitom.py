"""HoliTom (Shao et al., NeurIPS 2025, arXiv 2505.21334), the part before the language model."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from floc._arrays import Array
from floc.blocks import raise_in_rounds
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.budgets import find_parameter
from floc.methods.shared.density import compute_distances, rank_points
from floc.methods.shared.frames import compare_with_previous, estimate_salience, split_tiles, to_float
from floc.methods.shared.inputs import check_least, check_shares, read_salience
from floc.methods.shared.merging import merge_rows, pad_groups
from floc.tokens import TokenGrid


class _Counts(NamedTuple):
    """Tokens to keep."""

    static: np.ndarray  # [W] of each window
    dominant: np.ndarray  # [T] of each frame
    contextual: np.ndarray  # [T]

    @property
    def total(self) -> int:
        return int(sum(counts.sum() for counts in self))


# compared by identity: its options may be arrays
@register(
    "holitom",
    "Shao et al., HoliTom, NeurIPS 2025",
    "merge",
    exact=False,
    needs="attention of the vision encoder (attn=)",
    searched=("retain_ratio",),
)
@dataclass(frozen=True, eq=False)
class HoliTom:
    """Average static cells over the frames of a window, merge them, and keep the most salient of the other tokens.

    A cell stays the same if its cosine with the frame before is above `tau`. The video is split into windows such that
    averaging the cells that stay the same throughout a window removes the most tokens. The means of a window's static
    cells are merged into density peaks: a centre becomes beta * centre + (1 - beta) * mean of the tokens nearest to it.
    Of the other tokens of a frame, the most salient are kept unchanged; with `contextual`, that fraction of them is
    density peaks of the rest, merged in the same way. Both keep the same fraction: `retain_ratio`, relative to what
    averaging leaves. Only neighbouring frames are compared, so that a slow drift stays static.

    A budget sets that fraction. Rounding leaves a few tokens over, which become further salient tokens, one each from
    the first frame, then further centres of static cells. Below one token for each frame, frames may have none. If the
    budget exceeds what averaging leaves, fewer tokens are kept.

    Without `attn`, the salience of a token is its product with the mean token of the frame.

    Differences from the published program: ties between densities are broken by index, not by noise, and tokens are in
    video order, static ones in the first frame of their window. The program fails with a contextual fraction above 0.
    Merging inside the language model is not included.
    """

    retain_ratio: float = 0.1  # kept / all tokens
    tau: float = 0.8  # a cell with a higher cosine stays the same
    beta: float = 0.6  # the weight of a centre in its merged token
    k: int = 7  # neighbours that a density is computed from
    max_window_size: int = 1024  # frames
    contextual: float = 0.0  # the fraction of a frame's tokens that is merged
    attn: Array | None = None  # [T, N] salience of each token

    def __post_init__(self) -> None:
        check_shares(self, "retain_ratio", "beta", "contextual")
        check_least(self, 1, "", "k", "max_window_size")

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        salience = read_salience(grid, self.attn)
        windows = Windows.find(grid, float(self.tau), self.max_window_size)
        ratio = min(1.0, float(self.retain_ratio) / ((grid.n - windows.reduced) / grid.n))
        counts = self._count(windows, ratio, math.ceil)
        if not counts.total:
            raise ValueError(f"retain_ratio={self.retain_ratio} keeps no token; use a larger one, or pass budget=")
        return self._merge(grid, windows, counts, salience)

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        salience = read_salience(grid, self.attn)
        if budget == grid.n:
            return replace(grid.keep_all(), settings={"retain_ratio": 1.0})
        windows = Windows.find(grid, float(self.tau), self.max_window_size)
        at_least_one = int((windows.dynamic > 0).sum()) <= budget
        rounding = math.ceil if at_least_one else math.floor
        ratio = find_parameter(lambda ratio: self._count(windows, ratio, rounding).total, 0.0, 1.0, budget)
        assert ratio is not None, "a ratio of 0 keeps nothing"
        counts = self._count(windows, ratio, rounding)
        dominant = raise_in_rounds(counts.dominant, windows.dynamic - counts.contextual, budget - counts.total)
        counts = counts._replace(dominant=dominant)
        static = raise_in_rounds(counts.static, windows.static, budget - counts.total)
        kept = self._merge(grid, windows, counts._replace(static=static), salience)
        settings = {"retain_ratio": ratio * (grid.n - windows.reduced) / grid.n, "windows": len(windows.starts)}
        return replace(kept, settings={**kept.settings, **settings})

    def _count(self, windows: "Windows", ratio: float, rounding: Callable[[float], int]) -> _Counts:
        """Return the counts for a fraction of what averaging leaves."""
        static = np.array([round(size * ratio) for size in windows.static.tolist()])
        quota = np.array([rounding(size * ratio) for size in windows.dynamic.tolist()])
        dominant = np.array([round(size * (1 - float(self.contextual))) for size in quota.tolist()])
        return _Counts(static, dominant, quota - dominant)

    def _merge(self, grid: TokenGrid, windows: "Windows", counts: _Counts, salience: torch.Tensor | None) -> Kept:
        t, cells, device = grid.shape[0], grid.cells, grid.tokens.device
        window = np.repeat(np.arange(len(windows.starts)), windows.lengths)  # [T]
        is_static = torch.from_numpy(windows.is_static[window]).to(device)  # [T, N]
        fallback = {} if salience is not None else {"fallback": "products with the mean token as attn"}
        by_salience = (estimate_salience(grid) if salience is None else salience).masked_fill(is_static, -torch.inf)
        order = by_salience.sort(dim=1, descending=True, stable=True).indices
        is_dominant = torch.zeros_like(is_static)
        is_dominant.scatter_(1, order, torch.from_numpy(np.arange(cells) < counts.dominant[:, None]).to(device))
        dominant = is_dominant.flatten().nonzero()[:, 0]
        represents = torch.full((grid.n,), -1, device=device)
        represents[dominant] = torch.arange(len(dominant), device=device)
        indices, features = [dominant], [to_float(grid.gather(dominant.cpu().numpy()))]
        count = len(dominant)
        static = torch.from_numpy(np.flatnonzero(windows.is_static)).to(device)  # window * cells + cell
        merged = self._blend(_average_windows(grid, windows), static, windows.static, counts.static)
        first = torch.from_numpy(windows.starts * cells).to(device)
        indices.append(first[merged[0] // cells] + merged[0] % cells)
        features.append(merged[1])
        goes_to = torch.full((len(windows.starts) * cells,), -1, device=device)
        goes_to[static] = torch.where(merged[2] < 0, -1, merged[2] + count)
        goes_to = goes_to.view(-1, cells)[torch.from_numpy(window).to(device)].flatten()
        represents = torch.where(is_static.flatten(), goes_to, represents)
        count += len(merged[0])
        if counts.contextual.any():
            rest = (~is_static & ~is_dominant).flatten().nonzero()[:, 0]
            sizes = np.bincount(rest.cpu().numpy() // cells, minlength=t)
            rows = to_float(grid.tokens.detach()).reshape(-1, grid.dim)
            merged = self._blend(rows, rest, sizes, counts.contextual)
            indices.append(merged[0])
            features.append(merged[1])
            represents[rest] = torch.where(merged[2] < 0, -1, merged[2] + count)
        return replace(merge_rows(grid, torch.cat(indices), torch.cat(features), represents), settings=fallback)

    def _blend(
        self, rows: torch.Tensor, members: torch.Tensor, sizes: np.ndarray, counts: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Merge the members of each group into density peaks.

        Args:
            rows: [n, D] float32 or float64.
            members: [M] int64 row numbers, group after group.
            sizes: [G] members of each group.
            counts: [G] centres of each group.

        Returns:
            [C] row numbers of the centres; [C, D] their vectors; [M] the centre that each member went into, or -1.
        """
        goes_to = torch.full((len(members),), -1, device=rows.device)
        starts = sizes.cumsum() - sizes
        centres, vectors, count = [members[:0]], [rows[:0]], 0
        groups = np.flatnonzero((counts > 0) & (sizes > 0))
        widest = int(sizes[groups].max()) if len(groups) else 1
        for tile in split_tiles(len(groups), 4 * widest * max(2 * widest, rows.shape[1]), rows.device):
            group = groups[tile]
            places = _list_places(starts[group], sizes[group], rows.device)
            padded = pad_groups(places, sizes[group])  # [b, m] places in `members`
            size, number = (torch.from_numpy(array[group]).to(rows.device) for array in (sizes, counts))
            x = rows[members[padded]]
            squared = compute_distances(x, size)
            by_score = rank_points(squared, size, number.clamp(max=self.k))
            slots = torch.arange(padded.shape[1], device=rows.device)
            is_real, is_centre = slots < size[:, None], torch.zeros_like(padded, dtype=torch.bool)
            is_centre.scatter_(1, by_score, slots < number[:, None])
            nearest = squared.masked_fill(~is_centre[:, None], torch.inf).argmin(2)  # the first on ties
            nearest = torch.where(is_centre, slots, nearest)
            # a product with zeros and ones, since scattered sums have no fixed order on a GPU
            member = torch.zeros_like(squared).scatter_(1, nearest[:, None], 1).masked_fill_(~is_real[:, None], 0)
            member.masked_fill_(is_centre[:, None] & torch.eye(len(slots), dtype=torch.bool, device=rows.device), 0)
            total = member.sum(2, keepdim=True)
            blended = float(self.beta) * x + (1 - float(self.beta)) * (member @ x) / total.clamp(min=1)
            merged = torch.where(total > 0, blended, x)
            number_of = (is_centre.flatten().cumsum(0) - 1).view_as(padded)
            goes_to[padded[is_real]] = count + number_of.gather(1, nearest)[is_real]
            centres.append(members[padded[is_centre]])
            vectors.append(merged[is_centre])
            count += int(is_centre.sum())
        return torch.cat(centres), torch.cat(vectors), goes_to


def _list_places(starts: np.ndarray, sizes: np.ndarray, device: torch.device) -> torch.Tensor:
    """Concatenate the ranges of `sizes` from `starts`."""
    offsets = np.repeat(starts - (sizes.cumsum() - sizes), sizes)
    return torch.from_numpy(offsets + np.arange(sizes.sum())).to(device)


class Windows(NamedTuple):
    """A split of the frames into windows, with the cells that stay the same throughout each."""

    starts: np.ndarray  # [W] the first frame
    lengths: np.ndarray  # [W]
    is_static: np.ndarray  # [W, N] bool
    static: np.ndarray  # [W] number of static cells
    dynamic: np.ndarray  # [T] number of other cells of each frame
    reduced: int  # tokens that averaging static cells removes

    @classmethod
    def find(cls, grid: TokenGrid, tau: float, longest: int) -> "Windows":
        """Find the windows in which averaging removes the most tokens, the shortest on ties, by dynamic programming."""
        t, cells = grid.shape[0], grid.cells
        same = np.zeros((t, cells), bool)
        same[1:] = (compare_with_previous(grid) > tau).cpu().numpy()
        frames = np.arange(t)[:, None]
        run = frames - np.maximum.accumulate(np.where(same, 0, frames), axis=0)  # [T, N] frames that stayed the same
        best, length = np.zeros(t + 1, np.int64), np.ones(t, np.int64)  # best[e + 1]: of frames 0..e
        for end in range(t):
            most = min(longest - 1, end)
            # cells that stayed the same for at least 0, 1, ... frames
            lasting = np.bincount(np.minimum(run[end], most), minlength=most + 1)[::-1].cumsum()[::-1]
            steps = np.arange(most + 1)
            gains = best[end - steps] + lasting * steps
            length[end] = 1 + gains.argmax()
            best[end + 1] = gains.max()
        ends = [t]
        while ends[-1]:
            ends.append(ends[-1] - int(length[ends[-1] - 1]))
        bounds = np.array(ends[::-1])
        starts, lengths = bounds[:-1], np.diff(bounds)
        is_static = (run[bounds[1:] - 1] >= (lengths - 1)[:, None]) & (lengths > 1)[:, None]
        static = is_static.sum(1)
        return cls(starts, lengths, is_static, static, cells - np.repeat(static, lengths), int(best[t]))


def _average_windows(grid: TokenGrid, windows: Windows) -> torch.Tensor:
    """Return the mean of each cell over the frames of each window: [W * N, D]."""
    spans = zip(windows.starts.tolist(), (windows.starts + windows.lengths).tolist(), strict=True)
    means = [to_float(grid.tokens[start:stop].detach()).mean(0) for start, stop in spans]
    return torch.stack(means).reshape(-1, grid.dim)
