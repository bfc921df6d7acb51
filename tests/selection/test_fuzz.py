"""Many more cases of what `test_greedy.py` samples: run with -m slow."""

from __future__ import annotations

import numpy as np
import pytest

import floc
from floc.selection import reference

pytestmark = pytest.mark.slow


def similarity_of(rng: np.random.Generator, kind: int, m: int, n: int) -> np.ndarray:
    """[m, n] int16: ties, duplicates, centred tokens, all equal, zeros, extremes, near-duplicates."""
    if kind == 0:
        return rng.integers(-2, 3, (m, n)).astype(np.int16)
    if kind == 1:
        return rng.choice(np.array([-32768, -16384, 0, 16384, 32767], np.int16), (m, n))
    d = int(rng.integers(1, 12))
    tokens = rng.standard_normal((m + n, d))
    if kind == 2:
        tokens -= tokens.mean(0)
    elif kind == 3:
        tokens = tokens[rng.integers(0, 1 + (m + n) // 5, m + n)]
    elif kind == 4:
        tokens[:] = tokens[0]
    elif kind == 5:
        tokens[rng.uniform(size=m + n) < 0.4] = 0
    elif kind == 6:
        tokens = 5 + 0.01 * tokens
    unit = tokens / np.maximum(np.linalg.norm(tokens, axis=1, keepdims=True), 1e-12)
    return np.rint(16384 * (unit[:m] @ unit[m:].T)).astype(np.int16)


@pytest.mark.parametrize("kind", range(8))
def test_backends_equal_the_reference(kind: int) -> None:
    rng = np.random.default_rng(kind)
    for _ in range(125):
        m, n = (int(each) for each in rng.integers(1, 300, 2))
        similarity = similarity_of(rng, kind, m, n)
        weights = rng.integers(0, 3000, n) if rng.uniform() < 0.4 else None
        k = int(rng.integers(1, m + 1))
        picks, gains = reference.greedy(similarity, k, weights)
        for backend in ("cpu", "torch"):
            got = floc.select(similarity, k, weights, backend=backend)
            np.testing.assert_array_equal(got.picks, picks)
            np.testing.assert_array_equal(got.gains, gains)
