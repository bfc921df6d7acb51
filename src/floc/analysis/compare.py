"""Run several methods at several ratios on the same tokens, and measure the results.

Every method runs at every requested ratio. Between two requested ratios, the result of a method with a nested order is
a prefix of its result for the larger ratio.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from floc import analysis, methods, representatives
from floc._arrays import Array, take_rows, to_numpy, to_tensor
from floc.analysis.metrics import mean_cosine, mean_of_lowest, redundancy_of, sum_normalized
from floc.budget import Budget
from floc.compression import compress
from floc.kept import Kept
from floc.tokens import TokenGrid

STEPS_PER_OCTAVE = 4  # between a ratio and half of it
MAX_STEPS = 17
MIN_RATIO = 1e-9
BLOCK = 32  # frames; redundancy is measured between blocks of this length
WARM_UP_FRAMES = 2  # enough to trigger compilation, which must not count as the method's time

MAX_PRODUCTS = 10**12  # multiplications of an exact nearest-token search: about fifteen seconds on two cores
SEARCH_DIRECTIONS = 256  # of MobileNetV2's 1280: lowers the coverage found by 0.0001 to 0.0002 on real footage

Progress = Callable[[str, float], None]  # called with the current task and the share of all work that is done


class RatioStep(NamedTuple):
    """A ratio at which results can be viewed."""

    label: str  # "1/8"
    budget: int  # tokens
    requested: bool = True  # and therefore measured; the others lie in between


class Measures(NamedTuple):
    """Metrics of one result; see `floc.analysis`."""

    tokens: int
    coverage: float
    worst: float
    bound: float | None
    averaged_sum_coverage: float
    averaged_distance: float | None
    redundancy: float | None  # None if all kept tokens are in one block
    seconds: float


@dataclass(frozen=True)
class MethodResult:
    """The results of one method, by position in `Comparison.steps`."""

    name: str  # as requested, with options
    description: str
    kept: dict[int, Kept] = field(default_factory=dict)
    measures: dict[int, Measures] = field(default_factory=dict)  # at requested ratios
    scatter: dict[int, tuple[float, float]] = field(default_factory=dict)  # sum coverage and distance, z-scored


@dataclass(frozen=True)
class Comparison:
    """The results of all methods on the same tokens."""

    steps: list[RatioStep]  # from most tokens to fewest
    results: list[MethodResult]
    notes: list[str]  # methods that failed, and why

    def rows(self) -> list[dict[str, Any]]:
        """Return a JSON-serialisable row for each method and measured ratio."""
        return [
            {"method": result.name, "ratio": self.steps[step].label, **measures._asdict()}
            for result in self.results
            for step, measures in sorted(result.measures.items())
        ]


def compare(
    tokens: Array, names: Sequence[str], ratios: Sequence[float | str], *, progress: Progress = lambda task, share: None
) -> Comparison:
    """Run every method at every ratio, and measure the results.

    Args:
        tokens: [T, H, W, D] or [T, N, D].
        names: methods, optionally with options: "floc", "floc:detail=1:horizon=none".
        ratios: kept / total, such as "1/8".
        progress: see `Progress`.
    """
    grid = TokenGrid.from_array(tokens)
    steps = plan_steps(ratios, grid.n)
    specs = [methods.parse(name) for name in dict.fromkeys(names)]
    if not specs:
        raise ValueError("name at least one method to compare")
    requested = [index for index, step in enumerate(steps) if step.requested]
    evaluator = _Evaluator(grid)
    notes, results = [], []
    for number, spec in enumerate(specs):
        compress(tokens[:WARM_UP_FRAMES], ratio=1, method=spec.method, **spec.options)
        result = MethodResult(spec.label, methods.describe(spec.method))
        for done, (start, end) in enumerate(zip(requested, [*requested[1:], len(steps)], strict=True)):
            task = f"{spec.label} at {steps[start].label}"
            progress(task, (number + done / len(requested)) / len(specs))
            try:
                selections, nearest = evaluator.assign(_select(tokens, spec, steps[start:end]))
                result.kept.update(zip(range(start, end), selections, strict=False))
                result.measures[start] = evaluator.measure(selections[0], nearest)
            except (ValueError, MemoryError, ImportError) as error:
                # the budget is below the method's minimum, or memory is too small: report it and continue
                notes.append(f"{task}: {error}")
        if result.kept:
            results.append(result)
    if not results:
        raise ValueError("no method could be run: " + "; ".join(notes))
    if evaluator.approximate:
        notes.append(
            f"There are many tokens, so the nearest kept tokens were searched in {SEARCH_DIRECTIONS} principal "
            "directions. The true coverage and worst 5% are slightly higher, for all methods alike."
        )
    for step in requested:  # scale both scores over the methods, as in the paper's figure
        measured = [result for result in results if step in result.measures]
        xs = analysis.zscore(np.array([result.measures[step].averaged_sum_coverage for result in measured]))
        ys = analysis.zscore(np.array([result.measures[step].averaged_distance or 0.0 for result in measured]))
        for result, x, y in zip(measured, xs.tolist(), ys.tolist(), strict=True):
            result.scatter[step] = x, y
    return Comparison(steps, results, notes)


def plan_steps(ratios: Sequence[float | str], n: int) -> list[RatioStep]:
    """Return the requested ratios and some in between, from most tokens to fewest.

    >>> [step.label for step in plan_steps(["1/8", "1/16"], 10_000)]
    ['1/8', '1/9.51', '1/11.3', '1/13.5', '1/16']
    """
    requested = sorted({Budget.parse(ratio, None, None).ratio or Fraction(1) for ratio in ratios}, reverse=True)
    if not requested:
        raise ValueError("name at least one ratio to compare at, such as 1/8")
    largest, smallest = float(requested[0]), float(requested[-1])
    if smallest < MIN_RATIO:
        raise ValueError(f"a ratio of {smallest:g} is too small to compare at; the smallest is {MIN_RATIO:g}")
    octaves = math.log2(requested[0] / requested[-1])
    count = min(round(octaves * STEPS_PER_OCTAVE), MAX_STEPS - 1)
    steps = {Budget(ratio=ratio).count(n): (_label(ratio), True) for ratio in requested}
    for step in range(1, count):
        between = largest * 2 ** (-octaves * step / count)
        # skip a ratio that is close to a requested one
        if min(abs(math.log2(between / ratio)) for ratio in requested) > octaves / count / 2:
            steps.setdefault(Budget.parse(between, None, None).count(n), (_label(between), False))
    return [RatioStep(label, budget, given) for budget, (label, given) in sorted(steps.items(), reverse=True)]


def _select(tokens: Array, spec: methods.MethodSpec, steps: Sequence[RatioStep]) -> list[Kept]:
    """Run a method at the first step and, if its order is nested, cut the result for the following steps."""
    selections = [compress(tokens, budget=steps[0].budget, method=spec.method, **spec.options)]
    for step in steps[1:] if selections[0].nested else []:
        # cut the previous selection, so that a smaller step never adds a token
        selections.append(replace(selections[-1].at(budget=step.budget), seconds=selections[0].seconds))
    return selections


class _Evaluator:
    """Measures selections from the same tokens, and computes what they share once.

    If there are very many tokens, the nearest kept token is searched in the principal directions only. It may miss the
    true nearest one, rarely by much.
    """

    def __init__(self, grid: TokenGrid) -> None:
        self.grid = grid
        self.token_sum = sum_normalized(grid.tokens)
        self.approximate = False  # whether any search used the principal directions

    def assign(self, selections: list[Kept]) -> tuple[list[Kept], np.ndarray]:
        """Assign the nearest kept tokens as representatives to nested selections, unless the method has its own.

        Returns the selections, and [n] the place in the first, the largest, of the kept token nearest to each token.
        """
        features = to_tensor(selections[0].features)
        if not isinstance(selections[0].representation, representatives.NearestRepresentation):
            return selections, self._find_nearest(features, [len(features)])[0]
        # order tokens by the number of selections they are in: each selection is a prefix, and one product serves all
        sets = [to_numpy(kept.indices) for kept in selections]
        depth = np.sum([np.isin(sets[0], indices) for indices in sets], 0)
        order = np.argsort(-depth, kind="stable")
        places = self._find_nearest(take_rows(features, order), [len(indices) for indices in sets[::-1]])
        assigned = []
        for kept, indices, nearest in zip(selections, sets, places[::-1], strict=True):
            represents = np.searchsorted(indices, sets[0][order[nearest]])
            represents[indices] = np.arange(len(indices))
            features = to_tensor(kept.features)
            representation = representatives.AssignedRepresentation(self.grid.tokens, features, represents)
            assigned.append(replace(kept, representation=representation))
        return assigned, to_numpy(assigned[0].represents)

    def measure(self, kept: Kept, nearest: np.ndarray) -> Measures:
        """Compute all metrics of a selection; `nearest` [n] is the place of the kept token nearest to each token."""
        features = to_tensor(kept.features)
        places = torch.from_numpy(nearest).to(features.device)
        cosines = to_numpy(representatives.compute_cosines(self.grid.tokens, features, places))
        search_features = (
            representatives.project(features, self._directions) if self._exceeds_limit(len(kept) ** 2) else features
        )
        repeated = redundancy_of(features, search_features, to_tensor(kept.positions)[:, 0] // BLOCK)
        return Measures(
            tokens=len(kept),
            coverage=float(cosines.mean(dtype=np.float64)),
            worst=mean_of_lowest(cosines),
            bound=kept.bound,
            averaged_sum_coverage=mean_cosine(self.token_sum, kept),
            averaged_distance=_nan_to_none(analysis.averaged_distance(self.grid.tokens, kept)),
            redundancy=_nan_to_none(repeated),
            seconds=kept.seconds,
        )

    @cached_property
    def _directions(self) -> torch.Tensor:
        return representatives.find_principal_directions(self.grid.tokens, SEARCH_DIRECTIONS)

    @cached_property
    def _projected(self) -> torch.Tensor:
        return representatives.project(self.grid.tokens, self._directions)

    def _find_nearest(self, features: torch.Tensor, ends: Sequence[int]) -> list[np.ndarray]:
        """Return for each prefix features[:end], and every token, the place of the most similar feature."""
        tokens = self.grid.tokens
        if self._exceeds_limit(self.grid.n * len(features)):
            tokens, features = self._projected, representatives.project(features, self._directions)
        return [to_numpy(place) for _, place in representatives.find_nearest_of_prefixes(tokens, features, ends)]

    def _exceeds_limit(self, pairs: int) -> bool:
        exceeds = pairs * self.grid.dim > MAX_PRODUCTS and self.grid.dim > 2 * SEARCH_DIRECTIONS
        self.approximate |= exceeds
        return exceeds


def _nan_to_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _label(ratio: float | Fraction) -> str:
    inverse = float(1 / ratio)
    return f"1/{inverse:.3g}" if inverse < 1000 else f"1/{inverse:.0f}"
