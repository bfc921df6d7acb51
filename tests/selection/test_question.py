"""Greedy with the tokens of a question as further targets: brute force, then every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floc.selection.backends import create_engine
from floc.selection.engine import Band, Job, Question, Solution
from floc.selection.objective import SCALE, WEIGHT_SCALE, Similarity
from tests.selection.gpu.launches import MARKS

pytestmark = MARKS
BACKENDS = ["reference", "cpu", "torch", "gpu"]
PLAIN = Similarity("cosine", 1)


def make_signs(rng: np.random.Generator, n: int) -> np.ndarray:
    """[n, 16] tokens of +1 and -1: their cosines are exact, and ties are common."""
    tokens = rng.choice(np.array([-1, 1], np.float32), (n, 16))
    tokens[n // 2] = tokens[0]
    return tokens


def make_relevance(rng: np.random.Generator, n: int, words: int, largest: int) -> np.ndarray:
    """[n, words] int16 relevances, many of them 0."""
    return rng.integers(-largest, largest + 1, (n, words)).clip(0).astype(np.int16)


def compute_cosines(tokens: np.ndarray) -> np.ndarray:
    """[n, n] cosines of signs in fixed point, exact."""
    return np.rint(tokens.astype(np.float64) @ tokens.T / 16 * SCALE).astype(np.int64)


def evaluate(kept: list[int], cosine: np.ndarray, relevance: np.ndarray, weight: int, band: Band | None) -> int:
    """Compute f of a set by its definition: all targets one by one."""
    if not kept:
        return 0
    total = 0
    for v in range(len(cosine)):
        if band is None:
            total += WEIGHT_SCALE * max(int(cosine[v, u]) for u in kept)
        else:
            near = [u for u in kept if abs(u // band.cells - v // band.cells) <= band.horizon]
            total += WEIGHT_SCALE * max([0, *(int(cosine[v, u]) for u in near)])
    for q in range(relevance.shape[1]):
        total += weight * max(int(relevance[u, q]) for u in kept)
    return total


def select_greedily(
    tokens: np.ndarray, relevance: np.ndarray, weight: int, k: int, band: Band | None
) -> tuple[list[int], list[int]]:
    """Pick the token with which f is largest, k times; the first on ties."""
    cosine, picks, gains = compute_cosines(tokens), [], []
    for _ in range(k):
        before = evaluate(picks, cosine, relevance, weight, band)
        values = [
            -1 if u in picks else evaluate([*picks, u], cosine, relevance, weight, band) - before
            for u in range(len(tokens))
        ]
        picks.append(int(np.argmax([v if u not in picks else -(2**62) for u, v in enumerate(values)])))
        gains.append(values[picks[-1]])
    return picks, gains


def solve(
    backend: str, tokens: np.ndarray, question: Question, k: int, band: Band | None, device: torch.device
) -> Solution:
    relevance = question.relevance.to(device)
    job = Job(torch.from_numpy(tokens).to(device), k, question=Question(relevance, question.weight))
    engine = create_engine(backend, device)
    if band is None:
        (solution,) = engine.solve([job], PLAIN, with_cosines=True)
        return solution
    return engine.solve_band(job, band, PLAIN, with_cosines=True)


def check(backend: str, case: Any, k: int, band: Band | None, device: torch.device, wanted: Any = None) -> None:
    tokens, relevance, weight = case
    picks, gains = wanted or select_greedily(tokens, relevance, weight, min(k + 1, len(tokens)), band)
    solution = solve(backend, tokens, Question(torch.from_numpy(relevance), weight), k, band, device)
    assert solution.picks.tolist() == picks[:k]
    assert solution.gains.tolist() == gains[:k]
    assert solution.next_gain == (gains[k] if k < len(gains) else 0)
    cosine = compute_cosines(tokens) / SCALE
    # the history is of the video's tokens, by plain cosines: the question represents nothing
    for v, rank in enumerate(solution.history.representatives(len(tokens), k)):
        near = [u for u in picks[:k] if band is None or abs(u // band.cells - v // band.cells) <= band.horizon]
        best = max([cosine[v, u] for u in near], default=0)
        if rank < 0:
            assert best <= 0
        else:
            assert cosine[v, solution.picks[rank]] == best or v == solution.picks[rank]


@settings(max_examples=40, deadline=None)
@given(
    frames=st.integers(1, 9),
    cells=st.integers(1, 3),
    horizon=st.integers(0, 4),
    words=st.integers(1, 4),
    largest=st.sampled_from([1, 3, 40, SCALE]),
    weight=st.sampled_from([0, 1, 37, 256, 5000, 300_000]),
    is_banded=st.booleans(),
    seed=st.integers(0, 2**16),
    data=st.data(),
)
def test_every_backend_equals_brute_force(
    frames: int,
    cells: int,
    horizon: int,
    words: int,
    largest: int,
    weight: int,
    is_banded: bool,
    seed: int,
    data: st.DataObject,
) -> None:
    rng = np.random.default_rng(seed)
    n = frames * cells
    k = data.draw(st.integers(1, min(n, 8)))
    case = make_signs(rng, n), make_relevance(rng, n, words, largest), weight
    band = Band(frames, cells, horizon) if is_banded else None
    wanted = select_greedily(*case, min(k + 1, n), band)
    for backend in ("reference", "cpu", "torch"):
        check(backend, case, k, band, torch.device("cpu"), wanted)


@pytest.mark.parametrize("band", [None, Band(7, 2, 1), Band(14, 1, 3)])
@pytest.mark.parametrize("weight", [1, 256, 70_000])
def test_the_gpu_backend_equals_brute_force(band: Band | None, weight: int, device: torch.device) -> None:
    """Within a horizon it takes the torch route on the same device."""
    rng = np.random.default_rng(weight)
    check("gpu", (make_signs(rng, 14), make_relevance(rng, 14, 3, SCALE), weight), 6, band, device)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize(("frames", "cells", "horizon"), [(60, 4, 2), (40, 1, 7), (9, 16, 12), (150, 3, 4)])
@pytest.mark.parametrize("weight", [3, 256, 20_000])
def test_larger_bands_equal_the_reference(backend: str, frames: int, cells: int, horizon: int, weight: int) -> None:
    rng = np.random.default_rng(frames + weight)
    band = Band(frames, cells, horizon)
    tokens = make_signs(rng, band.n)
    question = Question(torch.from_numpy(make_relevance(rng, band.n, 6, SCALE)), weight)
    cpu = torch.device("cpu")
    for k in {1, band.n // 6, band.n}:
        want, got = (solve(name, tokens, question, k, band, cpu) for name in ("reference", backend))
        np.testing.assert_array_equal(got.picks, want.picks)
        np.testing.assert_array_equal(got.gains, want.gains)
        assert got.next_gain == want.next_gain
        assert (np.diff(want.gains) <= 0).all()


def test_weight_zero_picks_as_without_a_question() -> None:
    rng = np.random.default_rng(0)
    tokens, band, cpu = make_signs(rng, 60), Band(20, 3, 2), torch.device("cpu")
    question = Question(torch.from_numpy(make_relevance(rng, 60, 4, SCALE)), 0)
    for place in (None, band):
        for backend in ("cpu", "torch"):
            engine, job = create_engine(backend, cpu), Job(torch.from_numpy(tokens), 20)
            plain = (
                next(engine.solve([job], PLAIN, with_cosines=True))
                if place is None
                else engine.solve_band(job, place, PLAIN, with_cosines=True)
            )
            asked = solve(backend, tokens, question, 20, place, cpu)
            np.testing.assert_array_equal(asked.picks, plain.picks)
            np.testing.assert_array_equal(asked.gains, plain.gains * WEIGHT_SCALE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relevance": torch.zeros(5, 2)}, "must be"),
        ({"relevance": torch.zeros(4, 2, dtype=torch.int16)}, "must be"),
        ({"relevance": torch.zeros(5, dtype=torch.int16)}, "must be"),
        ({"weight": -1}, "at least 0"),
    ],
)
def test_refuses_questions_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    fitting = {"relevance": torch.zeros(5, 2, dtype=torch.int16), "weight": 1}
    Job(torch.ones(5, 3), 2, question=Question(**fitting))
    with pytest.raises(ValueError, match=message):
        Job(torch.ones(5, 3), 2, question=Question(**{**fitting, **change}))
    with pytest.raises(ValueError, match="all tokens must be candidates"):
        Job(torch.ones(5, 3), 2, first=1, question=Question(**fitting))
