"""Many more random matrices than `test_select.py` samples; run with -m slow."""

from __future__ import annotations

import numpy as np
import pytest

import floc
from floc.selection import reference
from tests.selection.matrices import make_random_matrix

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", range(8))
def test_backends_equal_reference(kind: int) -> None:
    rng = np.random.default_rng(kind)
    for _ in range(125):
        m, n = (int(size) for size in rng.integers(1, 300, 2))
        similarity = make_random_matrix(rng, kind, m, n)
        weights = rng.integers(0, 3000, n) if rng.uniform() < 0.4 else None
        k = int(rng.integers(1, m + 1))
        picks, gains = reference.greedy(similarity, k, weights)
        for backend in ("cpu", "torch"):
            got = floc.select(similarity, k, weights, backend=backend)
            np.testing.assert_array_equal(got.picks, picks)
            np.testing.assert_array_equal(got.gains, gains)
