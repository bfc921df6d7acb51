"""Random selection, the baseline that every method must beat."""

from dataclasses import dataclass

import torch

from floc.kept import Kept
from floc.methods.registry import register
from floc.tokens import TokenGrid


@register("random", "uniform random sampling", "select")
@dataclass(frozen=True)
class Random:
    """Keep tokens drawn at random, without replacement.

    Keeps the first `budget` entries of a permutation by torch's CPU generator. The result is therefore the same on
    every device, and a smaller budget keeps a subset of a larger one.
    """

    seed: int = 0

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        generator = torch.Generator().manual_seed(self.seed)
        return grid.keep(torch.randperm(grid.n, generator=generator)[:budget], nested=True)
