"""Greedy coverage compared with a loop that computes every gain anew."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.methods.shared import greedy


def cover_by_definition(values: np.ndarray, k: int, weights: np.ndarray) -> list[int]:
    best, picks = np.zeros(values.shape[1]), []
    for _ in range(k):
        gains = weights * np.maximum(values - best, 0).sum(1)
        gains[picks] = -1
        picks.append(int(gains.argmax()))
        best = np.maximum(best, values[picks[-1]])
    return picks


@pytest.mark.parametrize(("n", "rows", "k"), [(1, 1, 1), (5, 3, 5), (90, 40, 60), (200, 7, 30)])
@pytest.mark.parametrize("candidates", [1, 32])
@pytest.mark.parametrize("weighted", [False, True])
def test_matches_definition(
    n: int, rows: int, k: int, candidates: int, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greedy, "CANDIDATES", candidates)
    monkeypatch.setattr(greedy, "TILE_BYTES", 1000)  # several tiles
    rng = np.random.default_rng(n)
    values = rng.integers(-4, 20, (n, rows)) / 16  # exact sums, many ties
    weights = rng.integers(0, 3, n) / 2 if weighted else np.ones(n)
    given = torch.from_numpy(weights) if weighted else None
    picks, gains = greedy.cover_greedily(torch.from_numpy(values).float(), k, given)
    assert picks.tolist() == cover_by_definition(values, k, weights)
    assert len(gains) == k
    covered = np.maximum(values[picks], 0).max(0).sum()
    if not weighted:
        assert float(gains.sum()) == pytest.approx(covered)
