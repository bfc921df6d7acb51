"""TS-LLaVA's sampling compared with outputs of the published program and with its definition."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import floc


def group_by_sizes(arrays: dict[str, np.ndarray]) -> dict[tuple[int, int], np.ndarray]:
    """Key the reference outputs of a file by the two numbers in their names."""
    return {(int(key.split("_")[1]), int(key.split("_")[2])): array for key, array in arrays.items()}


def select(n: int, budget: int, frames: int = 1) -> np.ndarray:
    kept = floc.compress(np.ones((frames, 1, n // frames, 1), np.float32), budget=budget, method="ts_llava")
    return np.asarray(kept.indices)


def test_matches_published_program(read_golden) -> None:
    for (n, k), expected in group_by_sizes(read_golden("tsllava_sampling")).items():
        np.testing.assert_array_equal(select(n, k), expected, err_msg=f"{k} of {n}")


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (2, 2), (63, 2), (63, 62), (64, 43), (257, 100), (258, 257)])
def test_indices_are_evenly_spaced_and_rounded(n: int, k: int) -> None:
    exact = [round(Fraction(i * (n - 1), max(1, k - 1))) for i in range(k)]  # rounds halves to even
    assert select(n, k).tolist() == exact


@pytest.mark.parametrize(("n", "k"), [(47040, 46826), (100352, 100026), (200704, 200052)])
def test_indices_are_distinct_beyond_float32_precision(n: int, k: int) -> None:
    kept = select(n, k, frames=n // 16)
    assert len(kept) == k
    assert (np.diff(kept) > 0).all()
    assert (kept[0], kept[-1]) == (0, n - 1)


def test_samples_the_flattened_grid() -> None:
    tokens = np.random.default_rng(0).standard_normal((5, 3, 4, 2))
    kept = floc.compress(tokens, budget=7, method="ts_llava")
    assert kept.indices.tolist() == [0, 10, 20, 30, 39, 49, 59]
    np.testing.assert_array_equal(kept.features, tokens.reshape(60, 2)[kept.indices])
