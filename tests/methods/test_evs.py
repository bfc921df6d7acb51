"""EVS compared with outputs of the published program and with its definition."""

from __future__ import annotations

import numpy as np
import pytest

import floc


@pytest.mark.parametrize("case", "abc")
@pytest.mark.parametrize("prefix", ["", "floor_"])
def test_matches_published_program(read_golden, case: str, prefix: str) -> None:
    golden = read_golden(f"evs_{case}")
    kept = floc.compress(golden["tokens"], method="evs", pruning_rate=float(golden[f"{prefix}pruning_rate"]))
    np.testing.assert_array_equal(kept.indices, golden[f"{prefix}kept"])


def select_by_definition(tokens: np.ndarray, count: int) -> list[int]:
    t, h, w, d = tokens.shape
    x = tokens.reshape(t, h * w, d).astype(np.float64)
    x = x / np.maximum(np.linalg.norm(x, axis=2, keepdims=True), 1e-8)
    change = np.full((t, h * w), 255.0)
    change[1:] = 1 - (x[1:] * x[:-1]).sum(2)
    return sorted(np.argsort(-change.ravel(), kind="stable")[:count].tolist())


@pytest.mark.parametrize("budget", [12, 13, 100, 839, 840])
def test_meets_budget_by_definition(tokens: np.ndarray, budget: int) -> None:
    kept = floc.compress(tokens, budget=budget, method="evs")
    assert kept.indices.tolist() == select_by_definition(tokens, budget)
    again = floc.compress(tokens, method="evs", pruning_rate=kept.settings["pruning_rate"])
    assert again.indices.tolist() == kept.indices.tolist()


def test_counts_in_double_precision() -> None:
    tokens = np.random.default_rng(0).standard_normal((24, 6, 10, 3)).astype(np.float32)
    assert len(floc.compress(tokens, method="evs", pruning_rate=0.9)) == 143  # 1 - 0.9 is slightly below 0.1


def test_ties_keep_the_earlier_token() -> None:
    tokens = np.ones((4, 2, 3, 5), np.float32)
    assert floc.compress(tokens, budget=8, method="evs").indices.tolist() == list(range(8))


def test_zero_tokens_are_unlike_all_others() -> None:
    tokens = np.ones((3, 1, 2, 4), np.float32)
    tokens[1, 0, 1] = 0
    assert floc.compress(tokens, budget=4, method="evs").indices.tolist() == [0, 1, 3, 5]


def test_rejects_invalid_rates_and_budgets_below_a_frame() -> None:
    tokens = np.ones((4, 2, 3, 5))
    for rate in (-0.1, 1.0):
        with pytest.raises(ValueError, match="pruning_rate must be in"):
            floc.compress(tokens, method="evs", pruning_rate=rate)
    with pytest.raises(ValueError, match="first frame whole: at least 6 of 24 tokens"):
        floc.compress(tokens, method="evs", budget=5)
