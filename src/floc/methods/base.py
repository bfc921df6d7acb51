"""What a compression method is."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import torch

from floc.kept import Kept
from floc.tokens import TokenGrid


class Facts(NamedTuple):
    """What there is to know of a method before it runs."""

    paper: str  # where it was published, in a line
    kind: Literal["select", "merge"]
    exact: bool = True  # whether it reaches any budget above its floor exactly
    floor: str = ""  # the fewest tokens it can keep, in words
    needs: str = ""  # what it can use beside the tokens
    searched: tuple[str, ...] = ()  # options that a budget sets, so that giving both is an error


class Method(Protocol):
    """What compresses a grid to a budget."""

    facts: ClassVar[Facts]

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        """Keep `budget` tokens, 1 <= budget <= grid.n."""
        ...


@runtime_checkable
class Native(Method, Protocol):
    """A method that also runs on its own parameters, without a budget."""

    def native(self, grid: TokenGrid) -> Kept:
        """Keep what its parameters say."""
        ...


@runtime_checkable
class Reaching(Method, Protocol):
    """A method that knows how many tokens a coverage takes without trying."""

    def reaching(self, grid: TokenGrid, coverage: float) -> Kept:
        """Keep as few tokens as reach a coverage."""
        ...


@runtime_checkable
class Streaming(Method, Protocol):
    """A method that `floc.Stream` can follow, a few frames at a time and in bounded memory."""

    def streaming(self) -> dict[str, Any] | None:
        """The options with which a stream chooses in the same way; None where it cannot."""
        ...


@runtime_checkable
class Naming(Method, Protocol):
    """A method that says which tokens it keeps sooner than who stands for whom."""

    def indices(self, grid: TokenGrid, budget: int) -> torch.Tensor:
        """[K] int64 ascending flat indices, what a call keeps, on the tokens' device."""
        ...
