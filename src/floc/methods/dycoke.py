"""DyCoke's first stage (Tao et al., "DyCoke: Dynamic Compression of Tokens for Fast Video Large Language Models",
2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from floc.kept import Kept
from floc.methods.base import Facts
from floc.methods.budgets import require_floor
from floc.methods.cells import same_cell
from floc.methods.registry import register
from floc.tokens import TokenGrid

DROPPED = -1


@register("dycoke")
@dataclass(frozen=True)
class DyCoke:
    """Keep the first frame of every 4, and of the other three the tokens least like the same cell before.

    Called temporal merging, but nothing is averaged: similar tokens are dropped. In a window of four, the second and
    third frames are compared with the first and the fourth with the third, as they were before any was pruned. Each
    pruned frame keeps floor((1 - merging_ratio) * cells); a budget sets that number, and what then remains goes one by
    one to the earliest pruned frames, so a budget is met exactly.

    Where the frames are a multiple of four, the third of the last window stays whole, as in the published program;
    `sound` prunes it. The published program drops the last frame of an odd number and fails on four frames or fewer.
    Here that frame stays whole (`sound` prunes it where it is the third of its window), and four frames or fewer are
    the beginning of a window; `strict` is the published program to the letter. It emits the tokens of a pruned frame
    with the least similar first; here they are in video order, and in that order along `order`. The cosine with a zero
    token is 0, and equal cosines go to the lowest cell.

    Fewer tokens than the whole frames have, a quarter of the video or a little more, is below its floor, an error;
    `nearest` accepts the whole frames for it, and `widen` takes windows as long as the budget needs, which the paper
    does not have: there odd frames are compared with the frame before, even ones with the window's first.
    """

    facts: ClassVar[Facts] = Facts(
        "Tao et al., DyCoke, 2024", "select", floor="the first frame of every 4 (25%)", searched=("merging_ratio",)
    )

    merging_ratio: float = 0.7  # the share of a pruned frame that is dropped
    window: int = 4  # frames; any but 4 is cut as with `sound`
    sound: bool = False  # prune all windows alike, also the last
    strict: bool = False  # as published, where that drops the last frame or fails
    widen: bool = False  # below the floor, the shortest window that has room
    nearest: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.merging_ratio <= 1:
            raise ValueError(f"merging_ratio must be in [0, 1], the share dropped; got {self.merging_ratio}")
        if self.window < 1:
            raise ValueError(f"window must be at least 1 frame, got {self.window}")
        if self.strict and (self.sound or self.widen or self.window != 4):
            raise ValueError("strict=True is the published program: it has window=4, and neither sound nor widen")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        t, h, w = grid.shape
        cells, window = h * w, int(self.window)
        against = self._against(t, window)
        if self.widen and budget < _whole(against) * cells:
            # one frame longer at least: a window of four may have failed for the frame that only `sound` prunes
            window = max(window + 1, math.ceil(t / max(1, budget // cells)))
            against = self._against(t, window)
        floor = _whole(against) * cells
        why = f"{_whole(against)} of {t} frames whole, the first of every {window}"
        why += "" if self.widen or self.strict else " (fewer with widen=True)"
        require_floor("dycoke", budget, floor, grid.n, why, nearest=self.nearest)
        pruned = _pruned(against)
        each, left = divmod(max(0, budget - floor), max(1, len(pruned)))
        kept = _least_alike(grid, against, each + (np.arange(len(pruned)) < left))
        # half a token above the border, so that no rounding of the product can cross it
        ratio = max(0.0, (cells - each - 0.5) / cells)
        return replace(kept, settings={"merging_ratio": ratio, "window": window})

    def native(self, grid: TokenGrid) -> Kept:
        """Keep the same share of every pruned frame."""
        t, h, w = grid.shape
        against = self._against(t, int(self.window))
        # in double precision, where 1 - 0.9 is a little less than 0.1: of 60 tokens a ratio of 0.9 leaves 5, not 6
        each = math.floor((1 - float(self.merging_ratio)) * (h * w))
        return _least_alike(grid, against, np.full(len(_pruned(against)), each))

    def _against(self, frames: int, window: int) -> np.ndarray:
        """[T] the frame that each is compared with: itself where it stays whole, DROPPED where nothing of it stays."""
        if self.strict and frames <= 4:
            raise ValueError(f"the published program fails on 4 frames or fewer, got {frames}; leave strict=True out")
        t = np.arange(frames)
        place = t % window
        against = np.where(place % 2 == 1, t - 1, t - place)
        if window == 4 and frames > 4 and not self.sound:
            spared = (place == 2) & (t - place >= frames - 4)  # its loop over windows stops too early
            against[spared] = t[spared]
        if self.strict and frames % 2:
            against[-1] = DROPPED
        return against


def _whole(against: np.ndarray) -> int:
    """How many frames stay whole."""
    return int((against == np.arange(len(against))).sum())


def _pruned(against: np.ndarray) -> np.ndarray:
    """The frames of which some cells may stay."""
    return ((against != np.arange(len(against))) & (against != DROPPED)).nonzero()[0]


def _least_alike(grid: TokenGrid, against: np.ndarray, quota: np.ndarray) -> Kept:
    """Keep whole frames, and of each pruned frame its quota of the cells least like the frame it is compared with."""
    t, h, w = grid.shape
    pruned = _pruned(against)
    cells = np.tile(np.arange(h * w), (t, 1))  # [T, N], of each frame the first to be kept first
    cells[pruned] = same_cell(grid.tokens, pruned, against[pruned]).argsort(stable=True, dim=1).cpu().numpy()
    counts = np.where(against == DROPPED, 0, h * w)
    counts[pruned] = quota
    return grid.keep((np.arange(t)[:, None] * (h * w) + cells)[np.arange(h * w) < counts[:, None]])
