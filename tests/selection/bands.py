"""Tokens, solutions and bands for tests of selection within a horizon."""

from __future__ import annotations

import itertools

import numpy as np

from floc.selection.engine import Band, Solution


def make_signs(n: int, seed: int = 0, dim: int = 16) -> np.ndarray:
    """[n, dim] tokens of +1 and -1: products and lengths are exact, and ties are common."""
    return np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), (n, dim))


def assert_same(got: Solution, want: Solution) -> None:
    np.testing.assert_array_equal(got.picks, want.picks)
    np.testing.assert_array_equal(got.gains, want.gains)
    assert got.next_gain == want.next_gain
    assert (np.diff(got.history.rank) >= 0).all()
    (token, rank, cosine), expected = (
        np.stack(history)[:, np.lexsort((history.token, history.rank))] for history in (got.history, want.history)
    )
    np.testing.assert_array_equal(np.stack([token, rank]), expected[:2])
    np.testing.assert_allclose(cosine, expected[2], atol=1e-6)


def pack(matrix: np.ndarray, band: Band) -> np.ndarray:
    """Write an [n, n] matrix as a band, by definition."""
    values = np.zeros((band.n, band.width), np.int16)
    for v, u in itertools.product(range(band.n), repeat=2):
        column = u - (v // band.cells - band.horizon) * band.cells
        if 0 <= column < band.width:
            values[v, column] = max(matrix[v, u], 0)
    return values
