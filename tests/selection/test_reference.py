"""Plain greedy against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from floc.selection import reference
from tests.selection.matrices import KINDS, make_matrix, value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_each_pick_has_the_largest_gain_and_lowest_index(kind: str, seed: int) -> None:
    similarity = make_matrix(kind, 9, seed)
    picks, gains = reference.greedy(similarity, 9)
    for i in range(9):
        values = {u: value(similarity, np.append(picks[:i], u)) for u in range(9) if u not in picks[:i]}
        best = max(values.values())
        assert picks[i] == min(u for u, v in values.items() if v == best)
        assert gains[i] == best - value(similarity, picks[:i])


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_value_is_within_the_guarantee_of_the_optimum(k: int) -> None:
    for seed in range(20):
        similarity = np.abs(make_matrix("plain", 9, seed))  # the guarantee holds for non-negative similarities
        best = max(value(similarity, np.array(s)) for s in itertools.combinations(range(9), k))
        picks, gains = reference.greedy(similarity, k)
        assert gains.sum() == value(similarity, picks)
        assert gains.sum() >= (1 - 1 / np.e) * best
