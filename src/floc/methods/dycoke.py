"""DyCoke (Tao et al., "DyCoke: Dynamic Compression of Tokens for Fast Video Large Language Models", 2024), stage 1."""

import math
from dataclasses import dataclass, replace

import numpy as np

from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.budgets import check_floor
from floc.methods.shared.frames import compare_cells
from floc.methods.shared.inputs import check_least, check_shares
from floc.tokens import TokenGrid

DROPPED = -1


@register(
    "dycoke",
    "Tao et al., DyCoke, 2024",
    "select",
    floor="the first frame of every 4 (25%)",
    searched=("merging_ratio",),
)
@dataclass(frozen=True)
class DyCoke:
    """Keep the first frame of every 4, and in the other three the tokens least similar to the same cell before.

    The paper calls this temporal merging, but nothing is averaged: similar tokens are dropped. In a window of four
    frames, the second and third are compared with the first, and the fourth with the third, always before pruning.
    Each pruned frame keeps floor((1 - merging_ratio) * cells) tokens. A budget sets that number; the remaining tokens
    go one each to the earliest pruned frames, so the budget is met exactly. The cosine with a zero token is 0, and
    ties keep the lower cell.

    A budget below the whole frames, a quarter of the video or slightly more, is an error. `nearest` then keeps the
    whole frames. `widen`, which the paper does not have, uses windows as long as the budget needs; in these, odd
    frames are compared with the frame before, and even frames with the first of the window.

    Differences from the published program (`strict` reproduces it exactly, except for the output order):
    - If the number of frames is a multiple of four, the program leaves the third frame of the last window whole.
      This is reproduced by default; `sound` prunes that frame.
    - The program drops the last frame of an odd number of frames. Here it stays whole, unless it is the third of its
      window and `sound` is set.
    - The program fails on four frames or fewer. Here they are the beginning of a window.
    - The program outputs the tokens of a pruned frame by similarity. Here they are in video order; `order` holds the
      order of the program.
    """

    merging_ratio: float = 0.7  # the fraction of a pruned frame that is dropped
    window: int = 4  # frames; lengths other than 4 are processed as with `sound`
    sound: bool = False  # prune the last window like all others
    strict: bool = False  # also drop the last odd frame, and fail on four frames or fewer
    widen: bool = False  # below the floor, use the shortest window that fits the budget
    nearest: bool = False

    def __post_init__(self) -> None:
        check_shares(self, "merging_ratio")
        check_least(self, 1, "frame", "window")
        if self.strict and (self.sound or self.widen or self.window != 4):
            raise ValueError("strict=True reproduces the published program: it needs window=4, neither sound nor widen")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        t, cells, window = grid.shape[0], grid.cells, int(self.window)
        reference = self._find_references(t, window)
        if self.widen and budget < _count_whole(reference) * cells:
            # at least one frame longer: a window of 4 may have failed only because of the unpruned third frame
            window = max(window + 1, math.ceil(t / max(1, budget // cells)))
            reference = self._find_references(t, window)
        whole, hint = _count_whole(reference), "" if self.widen or self.strict else " (fewer with widen=True)"
        floor, reason = whole * cells, f"{whole} of {t} frames whole, the first of every {window}{hint}"
        check_floor("dycoke", budget, floor, grid.n, reason, nearest=self.nearest)
        pruned = _find_pruned(reference)
        quota, extra = divmod(max(0, budget - floor), max(1, len(pruned)))
        kept = _keep_least_similar(grid, reference, quota + (np.arange(len(pruned)) < extra))
        # half a token above the boundary, so that rounding the product cannot cross it
        ratio = max(0.0, (cells - quota - 0.5) / cells)
        return replace(kept, settings={"merging_ratio": ratio, "window": window})

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        """Keep the same fraction of every pruned frame."""
        reference = self._find_references(grid.shape[0], int(self.window))
        # in double precision, where 1 - 0.9 is slightly below 0.1: of 60 tokens a ratio of 0.9 leaves 5, not 6
        quota = math.floor((1 - float(self.merging_ratio)) * grid.cells)
        return _keep_least_similar(grid, reference, np.full(len(_find_pruned(reference)), quota))

    def _find_references(self, frames: int, window: int) -> np.ndarray:
        """Return the frame that each frame is compared with: itself if it stays whole, DROPPED if it is dropped."""
        if self.strict and frames <= 4:
            raise ValueError(f"the published program fails on 4 frames or fewer, got {frames}; remove strict=True")
        t = np.arange(frames)
        offset = t % window
        reference = np.where(offset % 2 == 1, t - 1, t - offset)
        if window == 4 and frames > 4 and not self.sound:
            unpruned = (offset == 2) & (t - offset >= frames - 4)  # the program's loop over windows stops too early
            reference[unpruned] = t[unpruned]
        if self.strict and frames % 2:
            reference[-1] = DROPPED
        return reference


def _count_whole(reference: np.ndarray) -> int:
    return int((reference == np.arange(len(reference))).sum())


def _find_pruned(reference: np.ndarray) -> np.ndarray:
    return ((reference != np.arange(len(reference))) & (reference != DROPPED)).nonzero()[0]


def _keep_least_similar(grid: TokenGrid, reference: np.ndarray, quotas: np.ndarray) -> Kept:
    """Keep whole frames, and in each pruned frame its quota of the cells least similar to the reference frame."""
    frames, n = grid.shape[0], grid.cells
    pruned = _find_pruned(reference)
    cells = np.tile(np.arange(n), (frames, 1))  # [T, N] cells of each frame, first to keep first
    cells[pruned] = compare_cells(grid.tokens, pruned, reference[pruned]).argsort(stable=True, dim=1).cpu().numpy()
    counts = np.where(reference == DROPPED, 0, n)
    counts[pruned] = quotas
    return grid.keep((np.arange(frames)[:, None] * n + cells)[np.arange(n) < counts[:, None]])
