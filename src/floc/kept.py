"""`Kept`: the tokens that a method kept, and which of them represents each input token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from floc._arrays import Array, convert_like, to_numpy
from floc.budget import Budget, find_fewest
from floc.ranking import Answer, Ranking
from floc.representatives import (
    GroupedRepresentatives,
    NearestRepresentatives,
    Representation,
    RepresentationSource,
    SummedRepresentatives,
)


@dataclass(frozen=True, eq=False)
class Kept:
    """The tokens kept, and how they stand for the rest.

    Arrays are torch tensors on the tokens' device for torch input, numpy arrays for numpy input.
    """

    indices: Array  # [K] int64, ascending flat index t*H*W + y*W + x
    features: Array  # [K, D], the input's type, dtype and device
    positions: Array  # [K, 3] int64 (t, y, x)
    order: Array  # [K] int64 places in `indices`, most important first; `at` cuts it off, or each block's part of it
    gains: Array  # [K] float64, what each added to the objective, in that order
    shape: tuple[int, int, int]  # frames, rows, columns of the grid they come from
    method: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)  # how it was made
    seconds: float = 0.0  # that the call took; of a choice made on a GPU, until it was launched
    nested: bool = False  # whether `order` holds the answers for smaller budgets
    merged: bool = False  # whether features are made of several tokens, not tokens of the input
    times_s: Array | None = field(default=None, repr=False)  # [K] float64, when each is shown, where that is known
    span_s: tuple[float, float] | None = None  # of a stream, from when to when it covers
    standing: RepresentationSource = field(kw_only=True, repr=False)

    @cached_property
    def represents(self) -> Array:
        """[n] int64, for every input token the place in `indices` of its representative."""
        represents = self._stood_for.represents
        if represents is None:
            raise ValueError("a stream with a budget forgets its tokens, so who stood for each is not known any more")
        return convert_like(self.features, represents)

    @property
    def forgets(self) -> bool:
        """Whether `represents` is not known any more."""
        return self._stood_for.represents is None

    @property
    def bound(self) -> float | None:
        """At least this share of the best choice from the same blocks or, after two passes, survivors."""
        return self.standing.bound

    @property
    def path(self) -> Ranking | None:
        """What leads to the answers for smaller budgets, where that is known."""
        return self.standing.path

    @property
    def coverage(self) -> float:
        """Mean cosine between every token and its representative."""
        return self._stood_for.coverage

    @cached_property
    def _stood_for(self) -> Representation:
        return self.standing.find()

    @property
    def n(self) -> int:
        """How many tokens there were."""
        return math.prod(self.shape)

    @property
    def ratio(self) -> float:
        """Kept / total."""
        return len(self) / self.n

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        # looking must not set off the search for representatives
        is_known = isinstance(self.standing, Representation) or "_stood_for" in self.__dict__
        coverage = f"coverage {self.coverage:.4f}, " if is_known else ""
        bound = "" if not is_known or self.bound is None else f"bound {self.bound:.4f}, "
        return f"Kept({len(self)} of {self.n} tokens, {coverage}{bound}method {self.method!r})"

    def without_tokens(self) -> Kept:
        """The same, but of a choice made on a GPU without the hold on all tokens that tell who stands for whom."""
        if not isinstance(self.standing, GroupedRepresentatives):
            return self
        return replace(self, standing=replace(self.standing, tokens=None))

    def at(self, *, ratio: float | str | None = None, budget: int | None = None, coverage: float | None = None) -> Kept:
        """The answer for a smaller budget, from the order that is stored; nothing is computed again.

        Without a second pass it is what `floc.compress` would return for that budget. One exception: largest remainders
        can give a short block a token that they take away again for a larger budget; that token was not kept here,
        and another block has one more instead.

        Args:
            ratio, budget, coverage: exactly one, as in `floc.compress`; ratio is of all the tokens there were.
        """
        dial = Budget.parse(ratio, budget, coverage)
        if not self.nested:
            raise ValueError(f"method {self.method!r} does not keep a nested order; call floc.compress again")
        count = dial.count(self.n) if dial.coverage is None else self._fewest(dial.coverage)
        if count > len(self):
            raise ValueError(
                f"{dial} needs {count} tokens, {len(self)} were kept; call floc.compress with a larger budget"
            )
        smaller = self._first(count) if self.path is None else self._along(self.path.upto(count), count)
        return replace(smaller, method=self.method, settings=self.settings, span_s=self.span_s)

    def _fewest(self, coverage: float) -> int:
        path = self.path
        if path is None:
            return find_fewest(lambda count: self._first(count).coverage, len(self), coverage)
        if path.history is None:
            return find_fewest(lambda count: self._along(path.upto(count), count).coverage, len(self), coverage)
        return path.fewest(coverage)

    def _along(self, path: Ranking, count: int) -> Kept:
        answer = path.answer(count)
        places = convert_like(self.features, np.searchsorted(to_numpy(self.indices), answer.indices))
        features = self.features[places]
        standing = None
        if isinstance(self.standing, GroupedRepresentatives):
            standing = self.standing.smaller(path, torch.as_tensor(places))
        smaller = Kept.from_answer(answer, features, self.shape, path, standing)
        return replace(smaller, times_s=None if self.times_s is None else self.times_s[places])

    def _first(self, count: int) -> Kept:
        """The `count` most important, where nothing but their order is known."""
        first = to_numpy(self.order)[:count]
        places = np.sort(first)
        mine = convert_like(self.features, places)
        assert isinstance(self.standing, NearestRepresentatives | SummedRepresentatives), (
            "merged tokens have no nested order"
        )
        device = self.standing.kept.device
        return replace(
            self,
            indices=self.indices[mine],
            features=self.features[mine],
            positions=self.positions[mine],
            order=convert_like(self.features, np.searchsorted(places, first)),
            gains=self.gains[:count],
            times_s=None if self.times_s is None else self.times_s[mine],
            standing=replace(
                self.standing,
                kept=self.standing.kept[torch.from_numpy(places).to(device)],
                indices=self.standing.indices[places],
            ),
        )

    @classmethod
    def from_answer(
        cls,
        answer: Answer,
        features: Array,
        shape: tuple[int, int, int],
        path: Ranking,
        standing: RepresentationSource | None = None,
    ) -> Kept:
        """Dress a path's answer in the kind of array, and on the device, of the features."""
        if standing is None:
            assert answer.coverage is not None, "the path has a history"
            standing = Representation(answer.represents, answer.coverage, answer.bound, path)
        positions = np.stack(np.unravel_index(answer.indices, shape), 1)
        return cls(
            indices=convert_like(features, answer.indices),
            features=features,
            positions=convert_like(features, positions),
            order=convert_like(features, answer.order),
            gains=convert_like(features, answer.gains),
            standing=standing,
            shape=shape,
            nested=True,
        )
