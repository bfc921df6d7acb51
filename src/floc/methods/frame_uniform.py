"""Uniform frame sampling: fewer frames, all their tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from floc._checks import check_choice
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.budgets import check_floor
from floc.tokens import TokenGrid


@register("frame_uniform", "uniform frame sampling", "select", exact=False, floor="one frame")
@dataclass(frozen=True)
class FrameUniform:
    """Keep all tokens of evenly spaced frames.

    Keeps as many whole frames as fit the budget, so the count can be up to one frame below it. A budget smaller than
    one frame is an error; with `nearest`, one frame is kept instead. `spacing="ends"` includes the first and the last
    frame, `spacing="middles"` takes the middle frames of equal intervals.
    """

    spacing: str = "ends"  # or "middles"
    nearest: bool = False

    def __post_init__(self) -> None:
        check_choice("spacing", self.spacing, ("ends", "middles"))

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        t, h, w = grid.shape
        check_floor("frame_uniform", budget, h * w, grid.n, "whole frames", nearest=self.nearest)
        count = max(1, budget // (h * w))
        if self.spacing == "ends":
            frames = np.rint(np.linspace(0, t - 1, count)).astype(np.int64)  # rounds halves to even
        else:
            frames = (2 * np.arange(count) + 1) * t // (2 * count)
        return grid.keep((frames[:, None] * h * w + np.arange(h * w)).ravel())
