"""Projecting tokens to the plane."""

from __future__ import annotations

import numpy as np
import pytest

from floc import analysis

pytest.importorskip("sklearn", reason="t-SNE needs scikit-learn: pip install 'floc-video[report]'")


def test_similar_tokens_are_close() -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((3, 16)) * 5
    which = rng.integers(0, 3, (30, 2, 3))
    tokens = centres[which] + rng.standard_normal((30, 2, 3, 16)) * 0.2
    indices, xy = analysis.tsne(tokens, sample=120, seed=1)
    again = analysis.tsne(tokens, sample=120, seed=1)
    np.testing.assert_array_equal(xy, again.xy)
    assert len(set(indices.tolist())) == 120
    assert np.abs(xy).max() == pytest.approx(1)
    group = which.ravel()[indices]
    distance = np.linalg.norm(xy[:, None] - xy[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    assert (group[distance.argmin(1)] == group).mean() > 0.98


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 40])
@pytest.mark.parametrize("kind", ["random", "same", "one feature", "zero"])
def test_few_equal_and_zero_tokens(n: int, kind: str) -> None:
    tokens = np.random.default_rng(0).standard_normal((n, 1, 1, 1 if kind == "one feature" else 6))
    if kind in ("same", "zero"):
        tokens[:] = tokens[0] * (kind == "same")
    indices, xy = analysis.tsne(tokens)
    assert indices.tolist() == list(range(n))
    assert xy.shape == (n, 2)
    assert np.isfinite(xy).all()
