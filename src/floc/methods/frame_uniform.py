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
        check_floor("frame_uniform", budget, grid.cells, grid.n, "whole frames", nearest=self.nearest)
        places = np.linspace(0, grid.shape[0] - 1, max(1, budget // grid.cells))
        frames = np.rint(places).astype(np.int64)  # rounds halves to even
        return grid.keep((frames[:, None] * grid.cells + np.arange(grid.cells)).ravel())
