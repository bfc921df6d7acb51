from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import floc
from floc.ranking import find_improvements
from floc.selection.objective import SCALE, snap, value


def cosine_matrix(tokens: np.ndarray) -> np.ndarray:
    flat = tokens.reshape(-1, tokens.shape[-1]).astype(np.float64)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    return unit @ unit.T


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_no_set_of_the_whole_video_beats_the_bound(seed: int, centred: bool, k: int) -> None:
    tokens = np.random.default_rng(seed).standard_normal((5, 2, 4)) + (0 if centred else 1)
    if centred:
        tokens -= tokens.mean((0, 1))
    kept = floc.compress(tokens, budget=k, block=None, detail=1)
    similarity = snap(cosine_matrix(tokens))
    best = max(value(similarity, np.array(s)) for s in itertools.combinations(range(10), k))
    reached = kept.gains.sum() * SCALE
    assert reached == pytest.approx(value(similarity, kept.indices), abs=10)
    assert kept.bound <= reached / best + 1e-3
    assert 0 < kept.bound <= 1
    if k == 1:
        assert kept.bound >= reached / best * 0.5  # not a bound that says nothing


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("allocate", "k"), [("uniform", 4), ("uniform", 6), ("global", 1), ("global", 3), ("global", 5)]
)
@pytest.mark.parametrize("centred", [False, True])
def test_no_other_choice_from_blocks_beats_the_bound(seed: int, allocate: str, k: int, centred: bool) -> None:
    tokens = np.random.default_rng(seed).standard_normal((4, 3, 4)) + (0 if centred else 0.7)
    if centred:
        tokens -= tokens.reshape(2, 6, 4).mean(1).repeat(2, 0)[:, None]
    kept = floc.compress(tokens, budget=k, block=2, dedupe=1, detail=1, allocate=allocate)
    within = [snap(cosine_matrix(tokens[:2])), snap(cosine_matrix(tokens[2:]))]

    def total(first: tuple[int, ...], second: tuple[int, ...]) -> int:
        return value(within[0], np.array(first, int)) + value(within[1], np.array(second, int))

    splits = [(k // 2, k - k // 2)] if allocate == "uniform" else [(a, k - a) for a in range(k + 1)]
    best = max(
        total(first, second)
        for a, b in splits
        for first in itertools.combinations(range(6), a)
        for second in itertools.combinations(range(6), b)
    )
    reached = kept.gains.sum() * SCALE
    chosen = kept.indices
    # the matrices differ by float32 against float64: a unit here and there
    assert reached == pytest.approx(total(tuple(chosen[chosen < 6]), tuple(chosen[chosen >= 6] - 6)), abs=12)
    assert kept.bound <= reached / best + 1e-3


@pytest.mark.parametrize("k", [2, 5, 9, 30])
def test_the_bound_is_the_tightest_that_the_gains_prove(tokens: np.ndarray, k: int) -> None:
    gains = floc.compress(tokens, budget=k + 1, block=None).gains
    limits = [gains[:i].sum() + k * gains[i] for i in range(1, k + 1)]
    assert floc.compress(tokens, budget=k, block=None).bound == pytest.approx(gains[:k].sum() / min(limits))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(-10, 10)), min_size=1, max_size=40))
def test_improvements_keep_what_was_better_than_all_before(entries: list[tuple[int, int, int]]) -> None:
    token, place, cosine = (np.array(each) for each in zip(*entries, strict=True))
    kept = list(zip(*(each.tolist() for each in find_improvements(token, place, cosine / 10)), strict=True))
    assert [p for _, p, _ in kept] == sorted(p for _, p, _ in kept)
    for t in set(token.tolist()):
        for p in range(10):
            before = [c / 10 for tt, pp, c in entries if tt == t and pp <= p]
            found = [c for tt, pp, c in kept if tt == t and pp <= p]
            assert (max(before) if before else None) == (found[-1] if found else None)
