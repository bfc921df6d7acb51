"""What both kinds of a stream's past share: their input, how they select from it, and their interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from floc.kept import Kept
from floc.selection.engine import Engine, Job, Solution
from floc.selection.objective import Similarity


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

    engine: Engine
    similarity: Similarity
    dim: int | None  # number of features to compare, the first ones; None: all

    def crop(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the features of [n, D] tokens that are compared."""
        return tokens if self.dim is None else tokens[:, : self.dim].contiguous()

    def select(self, tokens: torch.Tensor, count: int, *, with_cosines: bool) -> Solution:
        """Select from one set of [n, D] tokens."""
        (solution,) = self.engine.solve([Job(tokens, count)], self.similarity, with_cosines=with_cosines)
        return solution


class Past(Protocol):
    """The complete blocks of a stream, as far as they are stored."""

    def add(self, selector: Selector, block: StreamBlock) -> None:
        """Add a block."""
        ...

    def keep(
        self, selector: Selector, rest: Sequence[StreamBlock], cells: tuple[int, int], numpy_dtype: np.dtype | None
    ) -> Kept:
        """Return the kept tokens of all blocks and of `rest`, which is not added.

        Args:
            cells: Rows and columns of a frame.
        """
        ...

    def metadata(self) -> dict[str, Any]:
        """Return the JSON-serialisable part of the state to save."""
        ...

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors to save; none before the first block."""
        ...

    def restore(self, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        ...
