"""Bounds against brute force, and merging of solutions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import floc
from floc.ranking import Ranking, find_improvements
from floc.selection.engine import History, Solution
from floc.selection.objective import SCALE
from tests.selection.matrices import snap, value


def cosine_matrix(tokens: np.ndarray) -> np.ndarray:
    flat = tokens.reshape(-1, tokens.shape[-1]).astype(np.float64)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    return unit @ unit.T


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_bound_holds_against_brute_force(seed: int, centred: bool, k: int) -> None:
    tokens = np.random.default_rng(seed).standard_normal((5, 2, 4)) + (0 if centred else 1)
    if centred:
        tokens -= tokens.mean((0, 1))
    kept = floc.compress(tokens, budget=k, horizon=None, detail=1)
    similarity = snap(cosine_matrix(tokens))
    best = max(value(similarity, np.array(s)) for s in itertools.combinations(range(10), k))
    reached = kept.gains.sum() * SCALE
    assert reached == pytest.approx(value(similarity, kept.indices), abs=10)
    assert kept.bound <= reached / best + 1e-3
    assert 0 < kept.bound <= 1
    if k == 1:
        assert kept.bound >= reached / best * 0.5  # the bound is not trivial


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("k", [4, 6])
@pytest.mark.parametrize("centred", [False, True])
def test_bound_holds_against_brute_force_in_blocks(seed: int, k: int, centred: bool) -> None:
    tokens = np.random.default_rng(seed).standard_normal((4, 3, 4)) + (0 if centred else 0.7)
    if centred:
        tokens -= tokens.reshape(2, 6, 4).mean(1).repeat(2, 0)[:, None]
    kept = floc.compress(tokens, budget=k, block=2, detail=1)
    within = [snap(cosine_matrix(tokens[:2])), snap(cosine_matrix(tokens[2:]))]

    def total(first: tuple[int, ...], second: tuple[int, ...]) -> int:
        return value(within[0], np.array(first, int)) + value(within[1], np.array(second, int))

    halves = list(itertools.combinations(range(6), k // 2))
    best = max(total(first, second) for first in halves for second in halves)
    reached = kept.gains.sum() * SCALE
    indices = kept.indices
    # float32 and float64 matrices differ by a unit in some entries
    assert reached == pytest.approx(total(tuple(indices[indices < 6]), tuple(indices[indices >= 6] - 6)), abs=12)
    assert kept.bound <= reached / best + 1e-3


@pytest.mark.parametrize("k", [2, 5, 9, 30])
def test_bound_is_the_tightest_that_the_gains_prove(tokens: np.ndarray, k: int) -> None:
    gains = floc.compress(tokens, budget=k + 1, horizon=None).gains
    limits = [gains[:i].sum() + k * gains[i] for i in range(1, k + 1)]
    assert floc.compress(tokens, budget=k, horizon=None).bound == pytest.approx(gains[:k].sum() / min(limits))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(-10, 10)), min_size=1, max_size=40))
def test_find_improvements_keeps_running_maxima(entries: list[tuple[int, int, int]]) -> None:
    token, rank, cosine = (np.array(column) for column in zip(*entries, strict=True))
    kept = list(zip(*(column.tolist() for column in find_improvements(token, rank, cosine / 10)), strict=True))
    assert [p for _, p, _ in kept] == sorted(p for _, p, _ in kept)
    for t in set(token.tolist()):
        for p in range(10):
            before = [c / 10 for tt, pp, c in entries if tt == t and pp <= p]
            improvements = [c for tt, pp, c in kept if tt == t and pp <= p]
            assert (max(before) if before else None) == (improvements[-1] if improvements else None)


def solution(gains: list[float], next_gain: float, n: int) -> Solution:
    """Picks 0, 1, ... of n tokens; the first represents all tokens, every other one itself."""
    k = len(gains)
    token = np.concatenate([np.arange(n), np.arange(1, k)])
    rank = np.concatenate([np.zeros(n, np.int64), np.arange(1, k)])
    cosine = np.concatenate([[1.0], np.full(n - 1, 0.5), np.ones(k - 1)])
    return Solution(np.arange(k), np.array(gains), next_gain, History(token, rank, cosine))


SETS = [solution([5, 2, 1], 0.5, 6), solution([4, 3], 1, 6)]


def test_merge_by_gain_orders_picks_of_all_groups() -> None:
    ranking = Ranking.merge(SETS, np.array([6, 6]), shared=False)
    assert ranking.picks.tolist() == [0, 6, 7, 1, 2]
    assert ranking.gains.tolist() == [5, 4, 3, 2, 1]
    assert (ranking.group.tolist(), ranking.rank.tolist()) == ([0, 1, 1, 0, 0], [0, 0, 1, 1, 2])
    assert ranking.represents(3).tolist() == [0] * 6 + [1, 2, 1, 1, 1, 1]
    assert ranking.coverage(2) == pytest.approx((2 + 10 * 0.5) / 12)


def test_bound_with_a_group_without_picks_uses_the_openings() -> None:
    sets = [solution([5, 4, 3], 3, 6), solution([1, 0.5], 0.2, 6)]
    ranking = Ranking.merge(sets, np.array([6, 6]), shared=False)
    # no two tokens exceed f of both first picks + 2 x the largest second gain
    assert ranking.bound(2) == pytest.approx((5 + 4) / (5 + 1 + 2 * 4))
    assert ranking.bound(1) == 1


def test_truncate_keeps_the_next_gain_of_each_group() -> None:
    ranking = Ranking.merge(SETS, np.array([6, 6]))
    smaller = ranking.truncate(2)
    assert smaller.picks.tolist() == [0, 6]
    assert smaller.next_gains.tolist() == [2, 3]
    assert smaller.bound(2) == ranking.bound(2)
    assert smaller.represents(2).tolist() == ranking.represents(2).tolist() == [0] * 6 + [1] * 6


def test_groups_without_picks_are_represented_by_the_nearest_index() -> None:
    ranking = Ranking.merge([SETS[0], None], np.array([6, 6]))
    assert ranking.represents(1).tolist() == [0] * 12
    assert ranking.coverage(1) == pytest.approx((1 + 5 * 0.5) / 12)


def test_without_history() -> None:
    ranking = Ranking.merge(SETS, np.array([6, 6]), with_history=False)
    assert ranking.history is None
    assert ranking.truncate(3).history is None
