"""Random: what any method must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..types import Kept, TokenGrid
from . import Facts, register


@register("random")
@dataclass(frozen=True)
class Random:
    """Keep tokens drawn at random, without replacement.

    The first `budget` of a permutation by torch's CPU generator, so every device draws the same, and a smaller budget
    draws the first of a larger one's.
    """

    facts: ClassVar[Facts] = Facts("the baseline of all baselines", "select")

    seed: int = 0

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        generator = torch.Generator().manual_seed(self.seed)
        return grid.keep(torch.randperm(grid.n, generator=generator)[:budget], nested=True)
