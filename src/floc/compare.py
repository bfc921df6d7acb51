"""Several methods, several ratios, the same tokens.

A method whose order is nested runs once, at the largest ratio; its smaller answers are that order cut off. Any other
runs at every ratio asked for.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch

from . import analysis, methods
from .analysis.metrics import worst_of
from .arrays import Array, numpy_of, tensor_of
from .compress import compress
from .dials import Dial
from .standing import Assigned, Nearest, cosines, nearest_of_prefixes, principal, projected
from .types import Kept, TokenGrid

STOPS_AN_OCTAVE = 4  # between one ratio and half of it
MOST_STOPS = 17
WARM_UP_FRAMES = 2  # enough to compile what a method compiles, which is not its time

AFFORDABLE = 10**12  # multiplications to find who is nearest to whom: some fifteen seconds of two cores
SEARCH_DIRECTIONS = 256  # of 1280, they cost coverage 0.0002 on real footage

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
    averaged_distance: float
    redundancy: float
    seconds: float  # of the run that the answer is from


@dataclass(frozen=True)
class Contender:
    """A method, and what it answered."""

    name: str  # as it was asked for, with its options
    description: str
    nested: bool
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
    grid = TokenGrid.of(tokens)
    stops = stops_for(ratios, grid.n)
    specs = [parse(name) for name in dict.fromkeys(names)]
    if not specs:
        raise ValueError("name at least one method to compare")
    asked = [place for place, stop in enumerate(stops) if stop.asked]
    notes: list[str] = []
    contenders = []
    for at, spec in enumerate(specs):
        show(f"{spec.label}: choosing", at / len(specs))
        contender = _run(tokens, spec, stops, notes)
        if contender is None:
            continue
        show(f"{spec.label}: measuring", (at + 0.5) / len(specs))
        _measure(grid, contender, asked)
        contenders.append(contender)
    if not contenders:
        raise ValueError("no method could be run: " + "; ".join(notes))
    if is_searched_for(grid, stops[0].budget):
        notes.append(
            f"So many tokens: the kept one nearest to each was looked for in {SEARCH_DIRECTIONS} principal directions, "
            "so coverage is a little higher than it says, by about 0.0002, for all methods alike."
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


class Spec(NamedTuple):
    """A method and its options, as text."""

    label: str
    method: str
    options: dict[str, Any]


def parse(text: str) -> Spec:
    """A method with its options, checked.

    >>> parse("floc:detail=1:block=none").options
    {'detail': 1, 'block': None}
    """
    method, *pairs = text.strip().split(":")
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{text!r}: {pair!r} is no option; write them as floc:detail=1:block=none")
        options[name.strip()] = _value(value.strip())
    methods.make(method, options)  # says what is wrong with them
    return Spec(text.strip(), method, options)


def stops_for(ratios: Sequence[float | str], n: int) -> list[Stop]:
    """The ratios asked for, and some between them, from most tokens to fewest.

    >>> [stop.label for stop in stops_for(["1/8", "1/16"], 10_000)]
    ['1/8', '1/9.51', '1/11.3', '1/13.5', '1/16']
    """
    asked = sorted({Dial.of(ratio, None, None).ratio or Fraction(1) for ratio in ratios}, reverse=True)
    if not asked:
        raise ValueError("name at least one ratio to compare at, such as 1/8")
    octaves = math.log2(asked[0] / asked[-1])
    steps = max(1, min(round(octaves * STOPS_AN_OCTAVE), MOST_STOPS - 1))
    between = [float(asked[0]) * 2 ** (-octaves * step / steps) for step in range(1, steps)]
    # one that is close to a ratio asked for would only be in the way
    nearest = [min(abs(math.log2(ratio / each)) for each in asked) for ratio in between]
    found = {Dial(ratio=each).count(n): Stop(_label(each), float(each), 0, True) for each in asked}
    for ratio, distance in zip(between, nearest, strict=True):
        if distance > octaves / steps / 2:
            found.setdefault(Dial.of(ratio, None, None).count(n), Stop(_label(ratio), ratio, 0, False))
    return [found[budget]._replace(budget=budget) for budget in sorted(found, reverse=True)]


def _run(tokens: Array, spec: Spec, stops: list[Stop], notes: list[str]) -> Contender | None:
    """One method at all stops it can have, or None where it failed; notes say why."""
    first = None
    with _noting(f"{spec.label} at {stops[0].label}", notes):
        compress(tokens[:WARM_UP_FRAMES], ratio=1, method=spec.method, **spec.options)
        first = compress(tokens, budget=stops[0].budget, method=spec.method, **spec.options)
    if first is None:
        return None
    contender = Contender(spec.label, methods.describe(spec.method), first.nested, {0: first})
    for place, stop in enumerate(stops[1:], 1):
        if first.nested:
            # each from the last, so that the slider only ever takes away
            smaller = contender.kept[place - 1].at(budget=stop.budget)
            contender.kept[place] = replace(smaller, seconds=first.seconds)
        elif stop.asked:
            with _noting(f"{spec.label} at {stop.label}", notes):
                contender.kept[place] = compress(tokens, budget=stop.budget, method=spec.method, **spec.options)
    return contender


@contextmanager
def _noting(what: str, notes: list[str]) -> Iterator[None]:
    """A method may have a floor, or need more memory than there is: that is a result too."""
    try:
        yield
    except (ValueError, MemoryError, ImportError) as error:
        notes.append(f"{what}: {error}")


def _measure(grid: TokenGrid, contender: Contender, asked: Sequence[int]) -> None:
    """Fill in the measures, and who stands for whom where a method does not know it itself."""
    for place, represents in _closest(grid, contender).items():
        kept = contender.kept[place]
        features = tensor_of(kept.features)
        if isinstance(kept.standing, Nearest):
            contender.kept[place] = replace(kept, standing=Assigned(grid.tokens, features, represents))
        if place in asked:
            closeness = numpy_of(cosines(grid.tokens, features, torch.from_numpy(represents).to(features.device)))
            contender.measures[place] = Measures(
                tokens=len(kept),
                coverage=float(closeness.mean(dtype=np.float64)),
                worst=worst_of(closeness),
                bound=kept.bound,
                averaged_sum_coverage=analysis.averaged_sum_coverage(grid.tokens, kept),
                averaged_distance=analysis.averaged_distance(grid.tokens, kept),
                redundancy=analysis.redundancy(grid.tokens, kept),
                seconds=kept.seconds,
            )


def _closest(grid: TokenGrid, contender: Contender) -> dict[int, np.ndarray]:
    """At every stop, for every token the place among those kept of the one most like it, for a kept one itself."""
    if not contender.nested:
        return {place: _nearest(grid, kept, [len(kept)])[0] for place, kept in contender.kept.items()}
    # what is kept at more stops comes first, so that each answer is a prefix, and one product serves them all
    places = sorted(contender.kept, key=lambda place: len(contender.kept[place]))
    sets = [numpy_of(contender.kept[place].indices) for place in places]
    largest = contender.kept[places[-1]]
    depth = np.sum([np.isin(numpy_of(largest.indices), indices) for indices in sets], 0)
    order = np.argsort(-depth, kind="stable")
    flat = numpy_of(largest.indices)[order]
    answers = {}
    for place, indices, near in zip(
        places, sets, _nearest(grid, largest, [len(indices) for indices in sets], order), strict=True
    ):
        answers[place] = np.searchsorted(indices, flat[near])
        answers[place][indices] = np.arange(len(indices))
    return answers


def _nearest(grid: TokenGrid, kept: Kept, ends: Sequence[int], order: np.ndarray | None = None) -> list[np.ndarray]:
    """For each of kept[order][:end] and every token, the place of the one most like it.

    Among very many it is looked for in the directions that matter most: a closer one is possible, rarely by much.
    """
    tokens, features = grid.tokens, tensor_of(kept.features)
    if order is not None:
        features = features[torch.from_numpy(order).to(features.device)]
    if is_searched_for(grid, len(kept)):
        directions = principal(tokens, SEARCH_DIRECTIONS)
        tokens, features = projected(tokens, directions), projected(features, directions)
    return [numpy_of(place) for _, place in nearest_of_prefixes(tokens, features, ends)]


def is_searched_for(grid: TokenGrid, kept: int) -> bool:
    """Whether the product of all tokens with all kept ones would take too long."""
    return grid.n * kept * grid.dim > AFFORDABLE and grid.dim > 2 * SEARCH_DIRECTIONS


def _place_on_scatter(contenders: Sequence[Contender], asked: Sequence[int]) -> None:
    """Both measures at mean 0 and deviation 1 over the methods, as in the paper's figure."""
    for place in asked:
        there = [contender for contender in contenders if place in contender.measures]
        of = [contender.measures[place] for contender in there]
        xs = analysis.zscored(np.array([each.averaged_sum_coverage for each in of]))
        ys = analysis.zscored(np.array([each.averaged_distance for each in of]))
        for contender, x, y in zip(there, xs, ys, strict=True):
            contender.scatter[place] = float(x), float(y)


def _value(text: str) -> object:
    if text.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _label(ratio: float | Fraction) -> str:
    return f"1/{float(1 / ratio):.3g}"
