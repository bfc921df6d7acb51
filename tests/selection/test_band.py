"""Greedy within a horizon: brute force, then `reference`, then the other backends."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floc import _system
from floc.selection import reference
from floc.selection.backends import create_engine
from floc.selection.engine import Band, Job, Solution
from floc.selection.objective import SCALE, Similarity
from floc.selection.torch import band_rounds
from floc.selection.torch.engine import compute_band
from tests.selection.bands import assert_same, make_signs, pack
from tests.selection.matrices import sharpen

NEEDS_NUMBA = "backend 'cpu' needs numba: pip install 'floc-video[cpu]'"
cpu_engine = pytest.importorskip("floc.selection.cpu.engine", reason=NEEDS_NUMBA)
greedy = pytest.importorskip("floc.selection.cpu.greedy", reason=NEEDS_NUMBA)

CPU = torch.device("cpu")
FAST = ["cpu", "torch"]


def solve(backend: str, tokens: np.ndarray, band: Band, k: int, detail: float = 1) -> Solution:
    job, similarity = Job(torch.from_numpy(tokens), k), Similarity("cosine", detail)
    return create_engine(backend, CPU).solve_band(job, band, similarity, with_cosines=True)


def brute_force(tokens: np.ndarray, band: Band, k: int) -> tuple[list[int], list[float]]:
    """Greedy by definition: evaluate f of every set that has one more token, in float64."""
    unit = tokens / np.maximum(np.linalg.norm(tokens, axis=1, keepdims=True), 1e-30)
    cosine = unit.astype(np.float64) @ unit.T

    def evaluate(kept: list[int]) -> float:
        total = 0.0
        for v in range(band.n):
            near = [u for u in kept if abs(u // band.cells - v // band.cells) <= band.horizon]
            total += max(0.0, *(cosine[v, u] for u in near)) if near else 0.0
        return total

    picks: list[int] = []
    gains = []
    for _ in range(k):
        values = {u: evaluate([*picks, u]) for u in range(band.n) if u not in picks}
        best = max(values, key=lambda u: (round(values[u], 9), -u))
        gains.append(values[best] - evaluate(picks))
        picks.append(best)
    return picks, gains


@pytest.mark.parametrize("backend", ["reference", *FAST])
@pytest.mark.parametrize("horizon", [0, 1, 3, 9])
def test_equals_the_definition(backend: str, horizon: int) -> None:
    band = Band(6, 2, horizon)
    tokens = make_signs(12, seed=3)
    tokens[5] = 0
    picks, gains = brute_force(tokens, band, 12)
    solution = solve(backend, tokens, band, 12)
    assert solution.picks.tolist() == picks
    np.testing.assert_allclose(solution.gains / SCALE, gains, atol=1e-9)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("detail", [1, 2, 3, 2.5])
@pytest.mark.parametrize(("frames", "cells"), [(1, 1), (1, 5), (2, 1), (5, 3), (13, 7), (70, 1), (40, 3)])
@pytest.mark.parametrize("horizon", [0, 1, 4, 80])
def test_equals_the_reference(backend: str, detail: float, frames: int, cells: int, horizon: int) -> None:
    band = Band(frames, cells, horizon)
    tokens = make_signs(band.n, seed=band.n)
    tokens[band.n // 2] = 0
    tokens[-1] = tokens[0]  # a tie
    for k in {1, max(1, band.n // 5), band.n}:
        want = solve("reference", tokens, band, k, detail)
        assert_same(solve(backend, tokens, band, k, detail), want)
        assert (np.diff(want.gains) <= 0).all()  # f of the empty set covers every token by 0, so gains never rise


@settings(max_examples=60, deadline=None)
@given(
    frames=st.integers(1, 24),
    cells=st.integers(1, 6),
    horizon=st.integers(0, 8),
    largest=st.sampled_from([1, 3, 40, SCALE]),
    seed=st.integers(0, 2**16),
    data=st.data(),
)
def test_any_band(frames: int, cells: int, horizon: int, largest: int, seed: int, data: st.DataObject) -> None:
    """Symmetric matrices of any integers: few distinct values make many ties, many are negative."""
    band = Band(frames, cells, horizon)
    k = data.draw(st.integers(1, band.n))
    half = np.random.default_rng(seed).integers(-largest, largest + 1, (band.n, band.n))
    matrix = np.triu(half) + np.triu(half, 1).T
    picks, gains = reference.greedy(reference.limit_to_horizon(matrix, cells, horizon), k)
    values = pack(matrix, band)
    ours, our_gains = greedy.band_greedy(values, band, k)
    raises = greedy.trace_history(values, ours, cells)
    np.testing.assert_array_equal(ours, picks)
    np.testing.assert_array_equal(our_gains, gains)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(band_rounds, "CHECK", 1)  # to stop as early as possible
        rounds, round_gains = band_rounds.greedy(torch.from_numpy(values), band, k)
    np.testing.assert_array_equal(rounds, picks)
    np.testing.assert_array_equal(round_gains, gains)
    traced = band_rounds.trace_history(torch.from_numpy(values), band, torch.from_numpy(picks))
    for a, b in zip(raises, traced, strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=40, deadline=None)
@given(
    parts=st.integers(2, 3),
    horizon=st.integers(0, 2),
    busy=st.integers(0, 8),
    largest=st.sampled_from([3, 40, SCALE]),
    seed=st.integers(0, 2**16),
    data=st.data(),
)
def test_any_band_in_threads(parts: int, horizon: int, busy: int, largest: int, seed: int, data: st.DataObject) -> None:
    """The first `busy` eighths of the video have larger similarities, so that threads pick unequally many."""
    band = Band(32 * parts * max(1, horizon) + 5, 2, horizon)
    k = data.draw(st.integers(1, band.n))
    half = np.random.default_rng(seed).integers(0, largest + 1, (band.n, band.n))
    half[band.n * busy // 8 :] //= 2
    matrix = np.triu(half) + np.triu(half, 1).T
    picks, gains = reference.greedy(reference.limit_to_horizon(matrix, 2, horizon), k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "count_threads", lambda: parts)
        patch.setattr(_system, "count_threads", lambda: parts)
        ours, our_gains = greedy.band_greedy(pack(matrix, band), band, k)
    np.testing.assert_array_equal(ours, picks)
    np.testing.assert_array_equal(our_gains, gains)


@pytest.mark.parametrize("slots", [1, 7])
def test_raised_tokens_may_wait_for_later_rounds(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    band = Band(30, 4, 2)
    values = compute_band(torch.from_numpy(make_signs(120)), band, Similarity("cosine", 1))
    want = greedy.band_greedy(values.numpy(), band, 60)
    monkeypatch.setattr(band_rounds, "_count_slots", lambda band: slots)
    picks, gains = band_rounds.greedy(values, band, 60)
    np.testing.assert_array_equal(picks, want[0])
    np.testing.assert_array_equal(gains, want[1])


@pytest.mark.parametrize("detail", [1, 2, 3, 2.5])
@pytest.mark.parametrize(("frames", "cells", "horizon"), [(1, 1, 0), (3, 70, 1), (50, 3, 20), (40, 9, 4), (5, 2, 9)])
def test_bands_equal_the_definition_to_one_unit(detail: float, frames: int, cells: int, horizon: int) -> None:
    band = Band(frames, cells, horizon)
    tokens = np.random.default_rng(1).standard_normal((band.n, 24)).astype(np.float32)
    unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    s = (unit.astype(np.float64) @ unit.T).clip(0, 1)
    want = pack(np.rint(sharpen(s, detail) * SCALE).astype(np.int64), band).astype(int)
    ours = cpu_engine._compute_cosine_band(tokens, band, detail, lambda _: None)
    other = compute_band(torch.from_numpy(tokens), band, Similarity("cosine", detail)).numpy()
    for values in (ours, other):
        assert np.abs(values - want).max() <= 1
        v, column = np.nonzero(values)
        u = column + (v // cells - horizon) * cells
        np.testing.assert_array_equal(values[u, v - (u // cells - horizon) * cells], values[v, column])  # symmetric


def test_wide_bands_have_64_bit_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    band, tokens = Band(9, 4, 3), make_signs(36)
    want = solve("cpu", tokens, band, 20)
    monkeypatch.setattr(greedy, "MAX_INT32_TOKENS", 8)
    monkeypatch.setattr(greedy, "band_greedy", None)
    assert_same(solve("cpu", tokens, band, 20), want)


@pytest.mark.parametrize("backend", ["reference", *FAST])
def test_rejects_a_band_of_other_tokens(backend: str) -> None:
    with pytest.raises(ValueError, match="cannot select from 12 tokens in Band"):
        solve(backend, make_signs(12), Band(5, 2, 1), 3)


@pytest.mark.parametrize("detail", [1, 2, 2.5])
@pytest.mark.parametrize(("frames", "cells", "horizon"), [(2, 1, 0), (9, 3, 1), (40, 2, 4), (12, 5, 30)])
def test_continues_from_tokens_that_were_picked_before(detail: float, frames: int, cells: int, horizon: int) -> None:
    """The gains are those of one greedy that made the given picks first, and then passed over the earlier tokens."""
    band, rng = Band(frames, cells, horizon), np.random.default_rng(frames)
    tokens = make_signs(band.n, seed=frames)
    tokens[-1] = 0
    first = band.n // 3 // cells * cells + 1  # within a slice, too
    given = rng.permutation(first)[: max(1, first // 3)]
    similarity = Similarity("cosine", detail)
    matrix = compute_band(torch.from_numpy(tokens), band, similarity).numpy()
    whole = np.zeros((band.n, band.n), np.int64)
    for v, u in itertools.product(range(band.n), repeat=2):
        column = u - (v // cells - horizon) * cells
        if 0 <= column < band.width:
            whole[v, u] = matrix[v, column]
    covered = whole[given].max(0)
    k = max(1, (band.n - first) // 2)
    want: list[int] = []
    want_gains = []
    for _ in range(k):
        gains = {u: int(np.maximum(whole[u] - covered, 0).sum()) for u in range(first, band.n) if u not in want}
        want.append(max(gains, key=lambda u: (gains[u], -u)))
        want_gains.append(gains[want[-1]])
        covered = np.maximum(covered, whole[want[-1]])
    job = Job(torch.from_numpy(tokens), k, given, first)
    for backend in ("reference", *FAST):
        solution = create_engine(backend, CPU).solve_band(job, band, similarity, with_cosines=True)
        np.testing.assert_array_equal(solution.picks[: len(given)], given)
        np.testing.assert_array_equal(solution.gains, [0] * len(given) + want_gains)
        useful = len(given) + np.count_nonzero(want_gains)
        np.testing.assert_array_equal(solution.picks[:useful], [*given, *want][:useful])
        assert len(np.unique(solution.picks)) == len(given) + k
        assert solution.picks[len(given) :].min() >= first
        best = whole[solution.picks].max(0)
        last = solution.history.representatives(band.n, len(solution.picks))
        assert ((last >= 0) | (best == 0)).all()
        rows = whole[solution.picks[last], np.arange(band.n)]
        np.testing.assert_array_equal(rows[last >= 0], best[last >= 0])


def test_given_tokens_come_before_the_first_candidate() -> None:
    with pytest.raises(ValueError, match="given must be in"):
        Job(torch.ones(6, 2), 1, np.array([3]), first=3)
    with pytest.raises(ValueError, match="from 4 on"):
        Job(torch.ones(6, 2), 3, first=4)


@pytest.mark.parametrize("detail", [1, 2])
@pytest.mark.parametrize("backend", ["reference", *FAST])
def test_picks_behind_the_stop_are_made_but_not_returned(backend: str, detail: float) -> None:
    band, tokens = Band(20, 3, 2), make_signs(60, seed=4, dim=64)
    given = np.array([2, 17])
    whole, part = (
        create_engine(backend, CPU).solve_band(
            Job(torch.from_numpy(tokens), 20, given, 18, stop), band, Similarity("cosine", detail), with_cosines=True
        )
        for stop in (None, 40)
    )
    is_returned = whole.picks < 40
    assert 5 < is_returned.sum() < 20
    np.testing.assert_array_equal(part.picks, whole.picks[is_returned])
    np.testing.assert_array_equal(part.gains, whole.gains[is_returned])
    # the history is that of the returned picks alone
    last = part.history.representatives(60, len(part.picks))
    cosine = tokens @ tokens[part.picks].T / 64
    is_far = abs(np.arange(60)[:, None] // 3 - part.picks // 3) > 2
    cosine[is_far] = 0
    has_one = cosine.max(1) > 0
    np.testing.assert_array_equal(last >= 0, has_one)
    np.testing.assert_allclose(cosine[np.arange(60), last][has_one], cosine.max(1)[has_one], atol=1e-6)
