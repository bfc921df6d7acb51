"""The interface of a compression method, and the optional interfaces that some methods add."""

from typing import Any, Protocol, runtime_checkable

import torch

from floc.kept import Kept
from floc.tokens import TokenGrid


class Method(Protocol):
    """Compresses a grid to a budget."""

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        """Keep `budget` tokens, 1 <= budget <= grid.n."""


@runtime_checkable
class SelfSizing(Method, Protocol):
    """A method whose own options can determine how many tokens it keeps."""

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        """Keep the tokens that the method's options select."""


@runtime_checkable
class CoverageSearch(Method, Protocol):
    """A method that finds the smallest budget for a coverage without trial runs."""

    def reach_coverage(self, grid: TokenGrid, coverage: float) -> Kept:
        """Keep the fewest tokens that reach `coverage`."""


@runtime_checkable
class Streamable(Method, Protocol):
    """A method that `floc.Stream` can run on a few frames at a time, in bounded memory."""

    def get_stream_options(self, *, by_ratio: bool) -> dict[str, Any] | None:
        """Return the options of an equivalent `floc.Stream` with a ratio or a budget, or None if there is none."""


@runtime_checkable
class IndexSelection(Method, Protocol):
    """A method that can select tokens without computing their representatives, which is faster."""

    def select_indices(self, grid: TokenGrid, budget: int) -> torch.Tensor:
        """Return the flat indices of the kept tokens: [K] int64, ascending, on the tokens' device."""
