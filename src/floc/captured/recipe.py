"""How to compress a video: the budget, the method and its options."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from floc import methods
from floc._system import restore_interrupts
from floc.budget import Budget
from floc.compression import check_merge, compress
from floc.kept import Kept
from floc.representatives import average_by_representative
from floc.tokens import TokenGrid


@dataclass(frozen=True)
class Recipe:
    """The arguments of `floc.compress`, checked, to be used on any number of videos."""

    ratio: float | str | None = None
    budget: int | None = None
    coverage: float | None = None
    method: str = "floc"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        method = self._method  # raises if a name is unknown
        check_merge(self.method, self.options.get("merge", 0))
        if isinstance(block := self.options.get("block"), list | tuple):
            raise ValueError(f"block={block!r} lists first frames, which fit only one video; pass a count or 'scene'")
        has_budget = (self.ratio, self.budget, self.coverage) != (None, None, None)
        if has_budget or not isinstance(method, methods.SelfSizing):
            Budget.parse(self.ratio, self.budget, self.coverage)

    @cached_property
    def _method(self) -> methods.Method:
        return methods.make(self.method, {name: value for name, value in self.options.items() if name != "merge"})

    def __call__(self, tokens: torch.Tensor, query: torch.Tensor | None = None) -> Kept:
        """Compress the tokens [T, H, W, D] of a whole video, for the [Q, D] embeddings of a question if given."""
        budget: Any = {"ratio": self.ratio, "budget": self.budget, "coverage": self.coverage}
        options = self.options if query is None else {**self.options, "query": query}
        return compress(tokens, **budget, method=self.method, **options)

    @restore_interrupts()
    def select_indices(
        self, tokens: torch.Tensor, count: int | None = None, *, check_finite: bool = True
    ) -> torch.Tensor:
        """Return [K] int64 ascending, the indices of the kept tokens of [T, H, W, D], without representatives.

        `count` tokens are kept, by default as many as the recipe says. If `check_finite` is False, the caller must
        check that the values are finite.
        """
        method = self._method
        if not isinstance(method, methods.IndexSelection):
            recipe = self if count is None else replace(self, ratio=None, budget=count, coverage=None)
            return torch.as_tensor(recipe(tokens).indices)
        check_finite = check_finite and not methods.stays_on(method, tokens.device)
        grid = TokenGrid.from_array(tokens, check_finite=check_finite)
        with torch.no_grad():
            return method.select_indices(grid, self.count(grid.n) if count is None else count)

    def get_stream_options(self) -> dict[str, Any] | None:
        """Return the options of a `floc.Stream` that selects with this recipe, or None if no stream can."""
        method = self._method
        if self.coverage is not None or self.options.get("merge") or not isinstance(method, methods.Streamable):
            return None
        return method.get_stream_options(by_ratio=self.budget is None)

    def count(self, tokens: int) -> int:
        """Return how many of `tokens` tokens to keep, for a ratio or a budget."""
        return Budget.parse(self.ratio, self.budget, None).count(tokens)

    def count_so_far(self, tokens: int, planned: int) -> int | None:
        """Return the budget for the part of a video that was encoded so far, so that pieces share the budget evenly.

        The part has `tokens` of `planned` tokens. Returns None for a coverage.
        """
        if self.budget is not None and tokens < planned:
            return self.budget * tokens // planned
        return None if self.ratio is None and self.budget is None else self.count(tokens)


def merge_values(values: torch.Tensor, kept: Kept) -> torch.Tensor:
    """Select or merge other features [n, D] of the tokens in the same way as the tokens: [K, D]."""
    own = values[torch.as_tensor(kept.indices)]
    if not kept.merged:
        return own
    mean = average_by_representative(values, torch.as_tensor(kept.represents), len(kept))
    share: Any = kept.settings.get("merge", 1)
    return torch.lerp(own.float(), mean, float(share)).to(values.dtype)
