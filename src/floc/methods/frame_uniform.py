"""Frame-uniform: fewer frames, all their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from floc._checks import check_choice
from floc.kept import Kept
from floc.methods.base import Facts
from floc.methods.budgets import require_floor
from floc.methods.registry import register
from floc.tokens import TokenGrid


@register("frame_uniform")
@dataclass(frozen=True)
class FrameUniform:
    """Keep all tokens of evenly spaced frames.

    As many whole frames as the budget holds, so up to a frame's tokens fewer than asked for. A budget below one frame
    is an error, unless `nearest` accepts one frame for it.
    """

    facts: ClassVar[Facts] = Facts("uniform frame sampling", "select", exact=False, floor="one frame")

    spacing: str = "ends"  # the first frame and the last are among them; "middles": the middles of equal stretches
    nearest: bool = False

    def __post_init__(self) -> None:
        check_choice("spacing", self.spacing, ("ends", "middles"))

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        t, h, w = grid.shape
        require_floor("frame_uniform", budget, h * w, grid.n, "whole frames", nearest=self.nearest)
        m = max(1, budget // (h * w))
        if self.spacing == "ends":
            frames = np.rint(np.linspace(0, t - 1, m)).astype(np.int64)  # halves go to the even frame
        else:
            frames = (2 * np.arange(m) + 1) * t // (2 * m)
        return grid.keep((frames[:, None] * h * w + np.arange(h * w)).ravel())
