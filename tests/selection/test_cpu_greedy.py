"""Greedy with all gains at hand, against the plain greedy and a history that is found by looking at every pick."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floc.selection import reference
from floc.selection.cpu import greedy
from floc.selection.objective import SCALE
from tests.selection.test_greedy import KINDS, case


def raised(similarity: np.ndarray, picks: np.ndarray) -> list[list[int]]:
    """Token, rank and cover, each time a pick raised one."""
    found, covered = [], np.full(len(similarity), -(2**15), np.int16)
    for rank, pick in enumerate(picks):
        row = similarity[pick]
        found += [[token, rank, row[token]] for token in np.flatnonzero(row > covered)]
        covered = np.maximum(covered, row)
    return found


def check(similarity: np.ndarray, k: int, traced: int) -> None:
    picks, gains, raises = greedy.from_symmetric(similarity, k, traced)
    want = reference.greedy(similarity, k)
    np.testing.assert_array_equal(picks, want[0])
    np.testing.assert_array_equal(gains, want[1])
    assert np.stack(raises, 1).tolist() == raised(similarity, picks[:traced])
    assert np.stack(greedy.history(similarity, picks[:traced]), 1).tolist() == raised(similarity, picks[:traced])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 17, 63, 64, 65, 257])
def test_picks_gains_and_history_are_those_of_plain_greedy(kind: str, n: int) -> None:
    similarity = case(kind, n, seed=n)
    similarity = np.minimum(similarity, similarity.T)  # "ties" are not symmetric
    for k in sorted({1, max(1, n // 8), n // 2 or 1, n}):
        check(similarity, k, traced=max(1, k - 1))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), spread=st.sampled_from([1, 3, SCALE]), data=st.data())
def test_on_anything_symmetric(seed: int, n: int, spread: int, data: st.DataObject) -> None:
    half = np.random.default_rng(seed).integers(-spread, spread + 1, (n, n))
    k = data.draw(st.integers(1, n))
    check((np.tril(half) + np.tril(half, -1).T).astype(np.int16), k, traced=data.draw(st.integers(0, k)))


def test_a_history_grows_as_long_as_it_must() -> None:
    similarity = case("centred", 257, seed=3)
    assert (
        len(raised(similarity, reference.greedy(similarity, 257)[0])) > 4 * 257
    )  # more than twice what it starts with
    check(similarity, 257, traced=257)


def test_sets_beyond_32_bit_gains_are_left_to_lazy_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "MOST_TOKENS", 60)
    monkeypatch.setattr(greedy, "_from_symmetric", None)
    check(case("centred", 60, seed=1), 20, traced=19)
