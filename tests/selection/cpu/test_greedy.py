"""`symmetric_greedy` against the reference, and histories against a plain loop over the picks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floc.selection import reference
from floc.selection.objective import SCALE
from tests.selection.matrices import KINDS, make_matrix

greedy = pytest.importorskip(
    "floc.selection.cpu.greedy", reason="backend 'cpu' needs numba: pip install 'floc-video[cpu]'"
)


def list_raises(similarity: np.ndarray, picks: np.ndarray) -> list[list[int]]:
    """[token, rank, cover] for every time a pick raised a token's cover."""
    raises, covered = [], np.full(len(similarity), -(2**15), np.int16)
    for rank, pick in enumerate(picks):
        row = similarity[pick]
        raises += [[token, rank, row[token]] for token in np.flatnonzero(row > covered)]
        covered = np.maximum(covered, row)
    return raises


def assert_equals_reference(similarity: np.ndarray, k: int, traced: int) -> None:
    picks, gains = greedy.symmetric_greedy(similarity, k)
    want = reference.greedy(similarity, k)
    np.testing.assert_array_equal(picks, want[0])
    np.testing.assert_array_equal(gains, want[1])
    assert np.stack(greedy.trace_history(similarity, picks[:traced]), 1).tolist() == list_raises(
        similarity, picks[:traced]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 17, 63, 64, 65, 257])
def test_equals_reference(kind: str, n: int) -> None:
    similarity = make_matrix(kind, n, seed=n)
    similarity = np.minimum(similarity, similarity.T)  # "ties" is not symmetric
    for k in sorted({1, max(1, n // 8), n // 2 or 1, n}):
        assert_equals_reference(similarity, k, traced=max(1, k - 1))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), spread=st.sampled_from([1, 3, SCALE]), data=st.data())
def test_equals_reference_on_random_symmetric_matrices(seed: int, n: int, spread: int, data: st.DataObject) -> None:
    half = np.random.default_rng(seed).integers(-spread, spread + 1, (n, n))
    k = data.draw(st.integers(1, n))
    assert_equals_reference(
        (np.tril(half) + np.tril(half, -1).T).astype(np.int16), k, traced=data.draw(st.integers(0, k))
    )


def test_history_outgrows_its_first_arrays() -> None:
    similarity = make_matrix("centred", 257, seed=3)
    initial_length = 2 * 257
    assert len(list_raises(similarity, reference.greedy(similarity, 257)[0])) > 2 * initial_length
    assert_equals_reference(similarity, 257, traced=257)


def test_large_sets_use_lazy_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "MAX_INT32_TOKENS", 60)
    monkeypatch.setattr(greedy, "_symmetric_greedy", None)
    assert_equals_reference(make_matrix("centred", 60, seed=1), 20, traced=19)
