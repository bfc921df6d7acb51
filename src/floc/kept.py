"""`Kept`: the tokens that a method kept, and which of them represents each input token."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from floc._arrays import Array, convert_like, to_numpy
from floc.budget import Budget, find_fewest
from floc.ranking import Ranking
from floc.representatives import NearestRepresentation, Representation


@dataclass(frozen=True, eq=False)
class Kept:
    """The kept tokens, and how they represent the others.

    Arrays are torch tensors on the tokens' device for torch input, numpy arrays for numpy input.
    """

    indices: Array  # [K] int64, ascending flat index t*H*W + y*W + x
    features: Array  # [K, D], the input's type, dtype and device
    positions: Array  # [K, 3] int64 (t, y, x)
    order: Array  # [K] int64 places in `indices`, most important first; `at` keeps a prefix, or one per block
    gains: Array  # [K] float64, what each added to the objective, in that order
    shape: tuple[int, int, int]  # frames, rows and columns of the input
    method: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)  # the method's options
    seconds: float = 0.0  # duration of the call; on a GPU, until the selection was launched
    nested: bool = False  # whether `order` holds the results for smaller budgets
    merged: bool = False  # whether features are merged from several tokens, not tokens of the input
    times_s: Array | None = field(default=None, repr=False)  # [K] float64, when each token is shown, if known
    span_s: tuple[float, float] | None = None  # of a stream: first and last time
    representation: Representation = field(kw_only=True, repr=False)

    @classmethod
    def from_host(
        cls, features: Array, picks: np.ndarray, gains: np.ndarray, shape: tuple[int, int, int], **fields: Any
    ) -> "Kept":
        """Build a `Kept` from [K, D] features by ascending index, and [K] picks and gains, most important first.

        The arrays get the type and device of `features`; `fields` are other fields of `Kept`.
        """
        indices = np.sort(picks)
        host = {"indices": indices, "positions": np.stack(np.unravel_index(indices, shape), 1), "gains": gains}
        host["order"] = np.searchsorted(indices, picks)
        arrays: Any = {name: convert_like(features, array) for name, array in host.items()}
        return cls(features=features, shape=shape, **arrays, **fields)

    @cached_property
    def represents(self) -> Array:
        """[n] int64, for every input token the place in `indices` of its representative."""
        represents = self.representation.represents
        if represents is None:
            raise ValueError("a stream with a budget does not store its tokens, so their representatives are unknown")
        return convert_like(self.features, represents)

    @property
    def bound(self) -> float | None:
        """Lower bound on f(kept) / f(best selection) from the same blocks or, after two passes, survivors."""
        return self.representation.bound

    @property
    def ranking(self) -> Ranking | None:
        """The nested order of picks, if the method has one."""
        return self.representation.ranking

    @property
    def coverage(self) -> float:
        """Mean cosine between every token and its representative."""
        return self.representation.coverage

    @property
    def n(self) -> int:
        """Number of input tokens."""
        return math.prod(self.shape)

    @property
    def ratio(self) -> float:
        """Kept / total."""
        return len(self) / self.n

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        known = ""
        if self.representation.is_known:  # printing must not start the search for representatives
            known = f"coverage {self.coverage:.4f}, " + ("" if self.bound is None else f"bound {self.bound:.4f}, ")
        return f"Kept({len(self)} of {self.n} tokens, {known}method {self.method!r})"

    def without_tokens(self) -> "Kept":
        """Release the input tokens that a selection on a GPU holds to find representatives later."""
        representation = self.representation
        if isinstance(representation, NearestRepresentation) and representation.source is not None:
            return replace(self, representation=replace(representation, tokens=None))
        return self

    def at(
        self, *, ratio: float | str | None = None, budget: int | None = None, coverage: float | None = None
    ) -> "Kept":
        """Return the result for a smaller budget, from the stored order; nothing is computed again.

        A ratio is relative to all input tokens. Without a second pass the result is that of `floc.compress` with the
        smaller budget, except that the shares of two blocks may differ by one token.
        """
        target = Budget.parse(ratio, budget, coverage)
        if not self.nested:
            merged = "merge" in self.settings
            problem = "tokens were merged" if merged else f"method {self.method!r} does not keep a nested order"
            raise ValueError(f"{problem}; call floc.compress again")
        if target.coverage is None:
            count = target.count(self.n)
        elif self.ranking is not None and self.ranking.history is not None:
            count = self.ranking.find_count(target.coverage)
        else:
            count = find_fewest(lambda count: self._shrink(count).coverage, len(self), target.coverage)
        if count > len(self):
            remedy = "call floc.compress with a larger budget"
            raise ValueError(f"{target} needs {count} tokens, {len(self)} were kept; {remedy}")
        return self._shrink(count)

    def _shrink(self, count: int) -> "Kept":
        """Keep the `count` most important tokens only."""
        ranking = self.ranking
        if ranking is None:
            picks, gains = to_numpy(self.order)[:count], self.gains[:count]
        else:
            ranking = ranking.truncate(count)
            kept = ranking.mask(count)
            picks = np.searchsorted(to_numpy(self.indices), ranking.picks[kept])
            gains = convert_like(self.features, ranking.gains[kept])
        places = np.sort(picks)
        taken = convert_like(self.features, places)
        arrays: Any = {name: getattr(self, name)[taken] for name in ("indices", "features", "positions")}
        order = convert_like(self.features, np.searchsorted(places, picks))
        times_s = None if self.times_s is None else self.times_s[taken]
        representation = self.representation.shrink(places, ranking)
        return replace(self, **arrays, order=order, gains=gains, times_s=times_s, representation=representation)
