"""Several methods, several ratios, the same tokens.

Every method runs at every ratio asked for. Between two of them, a method whose order is nested is shown by the answer
for the larger one, cut off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from floc import analysis, methods
from floc._arrays import Array, to_numpy, to_tensor
from floc.analysis.metrics import repetition, sum_coverage, unit_sum, worst_of
from floc.budget import Budget
from floc.compression import compress
from floc.kept import Kept
from floc.representatives import (
    AssignedRepresentation,
    NearestRepresentation,
    compute_cosines,
    find_nearest_of_prefixes,
    find_principal_directions,
    project,
)
from floc.tokens import TokenGrid

STOPS_AN_OCTAVE = 4  # between one ratio and half of it
MOST_STOPS = 17
SMALLEST = 1e-9  # ratio
BLOCK = 32  # frames; between stretches of so many, repetition is redundancy
WARM_UP_FRAMES = 2  # enough to compile what a method compiles, which is not its time

AFFORDABLE = 10**12  # multiplications to find who is nearest to whom: some fifteen seconds of two cores
SEARCH_DIRECTIONS = 256  # of MobileNetV2's 1280, they cost coverage 0.0001 to 0.0002 on real footage

Progress = Callable[[str, float], None]  # what is being done, and the share of everything that is done


class Stop(NamedTuple):
    """A ratio that can be looked at."""

    label: str  # "1/8"
    ratio: float  # kept / total
    budget: int  # tokens
    asked: bool  # for, and so measured; the others lie between


class Measures(NamedTuple):
    """What an answer is worth; see `floc.analysis`."""

    tokens: int
    coverage: float  # of the whole video, by any token kept
    worst: float
    bound: float | None
    averaged_sum_coverage: float
    averaged_distance: float | None
    redundancy: float | None  # None where all that is kept lies in one block
    seconds: float


@dataclass(frozen=True)
class Contender:
    """A method, and what it answered."""

    name: str  # as it was asked for, with its options
    description: str
    kept: dict[int, Kept] = field(default_factory=dict)  # by place in `Comparison.stops`
    measures: dict[int, Measures] = field(default_factory=dict)  # at the ratios asked for
    scatter: dict[int, tuple[float, float]] = field(default_factory=dict)  # sum coverage and distance, z-scored


@dataclass(frozen=True)
class Comparison:
    """All contenders on the same tokens."""

    stops: list[Stop]  # from most tokens to fewest
    contenders: list[Contender]
    notes: list[str]  # what could not be done, and why


def compare(
    tokens: Array, names: Sequence[str], ratios: Sequence[float | str], *, progress: Progress | None = None
) -> Comparison:
    """Run every method at every ratio, and measure what came out.

    Args:
        tokens: [T, H, W, D] or [T, N, D].
        names: methods, each with options where wanted: "floc", "floc:detail=1:block=none".
        ratios: kept / total, such as "1/8".
        progress: called with what is being done and the share of the whole that is done.
    """
    show = progress or (lambda _, __: None)
    grid = TokenGrid.from_array(tokens)
    stops = stops_for(ratios, grid.n)
    specs = [methods.parse(name) for name in dict.fromkeys(names)]
    if not specs:
        raise ValueError("name at least one method to compare")
    asked = [place for place, stop in enumerate(stops) if stop.asked]
    judge = _Judge(grid)
    notes: list[str] = []
    contenders = []
    for at, spec in enumerate(specs):
        compress(tokens[:WARM_UP_FRAMES], ratio=1, method=spec.method, **spec.options)
        contender = Contender(spec.label, methods.describe(spec.method))
        for done, place in enumerate(asked):
            until = min([*(each for each in asked if each > place), len(stops)])
            show(f"{spec.label} at {stops[place].label}", (at + done / len(asked)) / len(specs))
            with _noting(f"{spec.label} at {stops[place].label}", notes):
                answers, near = judge.represent(_answers(tokens, spec, stops[place:until]))
                contender.kept.update(zip(range(place, until), answers, strict=False))
                contender.measures[place] = judge.measure(answers[0], near)
        if contender.kept:
            contenders.append(contender)
    if not contenders:
        raise ValueError("no method could be run: " + "; ".join(notes))
    if judge.searched:
        notes.append(
            f"So many tokens: the kept one nearest to each was looked for in {SEARCH_DIRECTIONS} principal directions, "
            "so coverage and worst 5% are a little higher than they say, for all methods alike."
        )
    _place_on_scatter(contenders, asked)
    return Comparison(stops, contenders, notes)


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """The table: one row for each method and ratio that was measured, as JSON takes it."""
    return [
        {"method": contender.name, "ratio": comparison.stops[place].label, **measures._asdict()}
        for contender in comparison.contenders
        for place, measures in sorted(contender.measures.items())
    ]


def stops_for(ratios: Sequence[float | str], n: int) -> list[Stop]:
    """The ratios asked for, and some between them, from most tokens to fewest.

    >>> [stop.label for stop in stops_for(["1/8", "1/16"], 10_000)]
    ['1/8', '1/9.51', '1/11.3', '1/13.5', '1/16']
    """
    asked = sorted({Budget.parse(ratio, None, None).ratio or Fraction(1) for ratio in ratios}, reverse=True)
    if not asked:
        raise ValueError("name at least one ratio to compare at, such as 1/8")
    if float(asked[-1]) < SMALLEST:
        raise ValueError(f"a ratio of {float(asked[-1]):g} is too small to compare at; the smallest is {SMALLEST:g}")
    octaves = math.log2(asked[0] / asked[-1])
    steps = max(1, min(round(octaves * STOPS_AN_OCTAVE), MOST_STOPS - 1))
    between = [float(asked[0]) * 2 ** (-octaves * step / steps) for step in range(1, steps)]
    # one that is close to a ratio asked for would only be in the way
    nearest = [min(abs(math.log2(ratio / each)) for each in asked) for ratio in between]
    found = {Budget(ratio=each).count(n): Stop(_label(each), float(each), 0, True) for each in asked}
    for ratio, distance in zip(between, nearest, strict=True):
        if distance > octaves / steps / 2:
            found.setdefault(Budget.parse(ratio, None, None).count(n), Stop(_label(ratio), ratio, 0, False))
    return [found[budget]._replace(budget=budget) for budget in sorted(found, reverse=True)]


def _answers(tokens: Array, spec: methods.Spec, stops: Sequence[Stop]) -> list[Kept]:
    """What a method keeps at the first stop and, where its order is nested, at those after it."""
    answers = [compress(tokens, budget=stops[0].budget, method=spec.method, **spec.options)]
    if answers[0].nested:
        for stop in stops[1:]:
            # each from the last, so that the slider only ever takes away
            answers.append(replace(answers[-1].at(budget=stop.budget), seconds=answers[0].seconds))
    return answers


@contextmanager
def _noting(what: str, notes: list[str]) -> Iterator[None]:
    """A method may have a floor, or need more memory than there is: that is a result too."""
    try:
        yield
    except (ValueError, MemoryError, ImportError) as error:
        notes.append(f"{what}: {error}")


class _Judge:
    """Measures answers on one film, and finds what they have in common once.

    Among very many tokens the nearest is looked for in the directions that matter most: a closer one is possible,
    rarely by much.
    """

    def __init__(self, grid: TokenGrid) -> None:
        self.grid = grid
        self.searched = False  # whether anything had to be looked for so

    def represent(self, answers: list[Kept]) -> tuple[list[Kept], np.ndarray]:
        """The same nested answers, with the nearest as representatives where the method does not know them.

        Also, for every token, the place of the nearest in the first answer.
        """
        if not isinstance(answers[0].representation, NearestRepresentation):
            return answers, self._nearest(to_tensor(answers[0].features), [len(answers[0])])[0]
        # what is kept in more answers comes first, so that each is a prefix, and one product serves them all
        sets = [to_numpy(kept.indices) for kept in answers]
        depth = np.sum([np.isin(sets[0], indices) for indices in sets], 0)
        order = np.argsort(-depth, kind="stable")
        flat = sets[0][order]
        features = to_tensor(answers[0].features)
        places = self._nearest(
            features[torch.from_numpy(order).to(features.device)], [len(each) for each in sets[::-1]]
        )
        representations = []
        for kept, indices, near in zip(answers, sets, places[::-1], strict=True):
            represents = np.searchsorted(indices, flat[near])
            represents[indices] = np.arange(len(indices))
            representations.append(AssignedRepresentation(self.grid.tokens, to_tensor(kept.features), represents))
        found = [replace(kept, representation=each) for kept, each in zip(answers, representations, strict=True)]
        return found, representations[0].represents

    def measure(self, kept: Kept, near: np.ndarray) -> Measures:
        """All that is measured of an answer, where `near` [n] is the place of the kept token nearest to each."""
        features = to_tensor(kept.features)
        closeness = to_numpy(compute_cosines(self.grid.tokens, features, torch.from_numpy(near).to(features.device)))
        return Measures(
            tokens=len(kept),
            coverage=float(closeness.mean(dtype=np.float64)),
            worst=worst_of(closeness),
            bound=kept.bound,
            averaged_sum_coverage=sum_coverage(self._total, kept),
            averaged_distance=_known(analysis.averaged_distance(self.grid.tokens, kept)),
            redundancy=_known(self._redundancy(kept)),
            seconds=kept.seconds,
        )

    @cached_property
    def _total(self) -> torch.Tensor:
        return unit_sum(self.grid.tokens)

    @cached_property
    def _directions(self) -> torch.Tensor:
        return find_principal_directions(self.grid.tokens, SEARCH_DIRECTIONS)

    @cached_property
    def _projected(self) -> torch.Tensor:
        return project(self.grid.tokens, self._directions)

    def _nearest(self, features: torch.Tensor, ends: Sequence[int]) -> list[np.ndarray]:
        """For each of features[:end] and every token, the place of the one most like it."""
        tokens = self.grid.tokens
        if self._is_too_much(self.grid.n * len(features)):
            tokens, features = self._projected, project(features, self._directions)
        return [to_numpy(place) for _, place in find_nearest_of_prefixes(tokens, features, ends)]

    def _redundancy(self, kept: Kept) -> float:
        features = to_tensor(kept.features)
        searched = features
        if self._is_too_much(len(kept) ** 2):
            searched = project(features, self._directions)
        return repetition(features, searched, to_tensor(kept.positions)[:, 0] // BLOCK)

    def _is_too_much(self, pairs: int) -> bool:
        """Whether the cosines of so many pairs would take too long."""
        much = pairs * self.grid.dim > AFFORDABLE and self.grid.dim > 2 * SEARCH_DIRECTIONS
        self.searched |= much
        return much


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _place_on_scatter(contenders: Sequence[Contender], asked: Sequence[int]) -> None:
    """Both measures at mean 0 and deviation 1 over the methods, as in the paper's figure."""
    for place in asked:
        there = [contender for contender in contenders if place in contender.measures]
        of = [contender.measures[place] for contender in there]
        xs = analysis.zscored(np.array([each.averaged_sum_coverage for each in of]))
        ys = analysis.zscored(np.array([each.averaged_distance or 0.0 for each in of]))
        for contender, x, y in zip(there, xs, ys, strict=True):
            contender.scatter[place] = float(x), float(y)


def _label(ratio: float | Fraction) -> str:
    parts = float(1 / ratio)
    return f"1/{parts:.3g}" if parts < 1000 else f"1/{parts:.0f}"
