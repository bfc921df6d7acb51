"""Random: what any method must beat."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar

import torch

from floc.kept import Kept
from floc.methods.base import Facts
from floc.methods.registry import register
from floc.tokens import TokenGrid


@register("random")
@dataclass(frozen=True)
class Random:
    """Keep tokens drawn at random, without replacement.

    The first `budget` of a permutation by torch's CPU generator, so every device draws the same, and a smaller budget
    draws the first of a larger one's.
    """

    facts: ClassVar[Facts] = Facts("the baseline of all baselines", "select")

    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, Integral):
            raise ValueError(f"seed must be a whole number, got {self.seed!r}")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        generator = torch.Generator().manual_seed(int(self.seed))
        return grid.keep(torch.randperm(grid.n, generator=generator)[:budget], nested=True)
