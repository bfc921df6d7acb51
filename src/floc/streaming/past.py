"""What both pasts of a stream share: the frames they are given, how they choose from them, and what they are asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from floc.kept import Kept
from floc.selection.engine import Engine, Job, Solution
from floc.selection.objective import Similarity


class Piece(NamedTuple):
    """Some frames, one after another, that are chosen from together."""

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


class Chooser(NamedTuple):
    """The engine, and what it is asked for."""

    engine: Engine
    similarity: Similarity
    dim: int | None  # features that are compared, the first ones; None: all

    def compared(self, tokens: torch.Tensor) -> torch.Tensor:
        """[n, D] of [n, D and more]"""
        return tokens if self.dim is None else tokens[:, : self.dim].contiguous()

    def choose(self, tokens: torch.Tensor, count: int, *, with_cosines: bool) -> Solution:
        """Choose from one set of [n, D] tokens."""
        (solution,) = self.engine.solve([Job(tokens, count)], self.similarity, with_cosines=with_cosines)
        return solution


class Past(Protocol):
    """All blocks that are complete, as far as they are remembered."""

    def add(self, chooser: Chooser, block: Piece) -> None:
        """One more block."""
        ...

    def kept(
        self, chooser: Chooser, rest: Sequence[Piece], cells: tuple[int, int], numpy_dtype: np.dtype | None
    ) -> Kept:
        """What is kept of all blocks and of the rest, which is not a part of the past yet."""
        ...

    def about(self) -> dict[str, Any]:
        """What is saved of it beside its tensors, as JSON takes it."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """Its tensors; none where there was no block yet."""
        ...

    def restore(self, state: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
        """Become what was saved."""
        ...
