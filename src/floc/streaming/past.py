"""What both kinds of a stream's past share: blocks of frames, and how they select from them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from floc.selection.engine import Job, Solution
from floc.selection.objective import Similarity
from floc.selection.torch.engine import TorchEngine


class StreamBlock(NamedTuple):
    """Consecutive frames that are selected from together."""

    tokens: torch.Tensor  # [t, H, W, D]
    times: np.ndarray  # [t] seconds

    @property
    def flat(self) -> torch.Tensor:
        """[t * H * W, D]"""
        return self.tokens.flatten(0, 2)

    @property
    def cells(self) -> int:
        """Tokens of a frame."""
        return self.tokens.shape[1] * self.tokens.shape[2]


class Selector(NamedTuple):
    """The engine and the similarity that a stream selects with."""

    engine: TorchEngine
    similarity: Similarity
    dim: int | None  # number of features to compare, the first ones; None: all

    def crop(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the features of [n, D] tokens that are compared."""
        return tokens if self.dim is None else tokens[:, : self.dim].contiguous()

    def select(self, tokens: torch.Tensor, count: int, *, with_cosines: bool) -> Solution:
        """Select from one set of [n, D] tokens."""
        (solution,) = self.engine.solve([Job(tokens, count)], self.similarity, with_cosines=with_cosines)
        return solution
