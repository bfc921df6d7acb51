"""Uniform frame sampling: fewer frames, all their tokens."""

from dataclasses import dataclass

import numpy as np

from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.budgets import check_floor
from floc.tokens import TokenGrid


@register("frame_uniform", "uniform frame sampling", "select", exact=False, floor="one frame")
@dataclass(frozen=True)
class FrameUniform:
    """Keep all tokens of evenly spaced frames.

    Keeps as many whole frames as fit the budget, so the count can be up to one frame below it. A budget smaller than
    one frame is an error; with `nearest`, one frame is kept instead. The first and the last frame are included.
    """

    nearest: bool = False

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        t, h, w = grid.shape
        check_floor("frame_uniform", budget, h * w, grid.n, "whole frames", nearest=self.nearest)
        frames = np.rint(np.linspace(0, t - 1, max(1, budget // (h * w)))).astype(np.int64)  # rounds halves to even
        return grid.keep((frames[:, None] * h * w + np.arange(h * w)).ravel())
