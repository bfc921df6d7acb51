"""Floors of budgets, and the search for a parameter."""

from __future__ import annotations

import pytest

from floc.methods.shared.budgets import check_floor, find_parameter


def test_budget_below_floor_raises_unless_nearest() -> None:
    with pytest.raises(ValueError, match=r"m keeps whole frames: at least 6 of 48 .*got a budget of 5.*nearest=True"):
        check_floor("m", 5, 6, 48, "whole frames", nearest=False)
    check_floor("m", 5, 6, 48, "whole frames", nearest=True)
    check_floor("m", 6, 6, 48, "whole frames", nearest=False)


@pytest.mark.parametrize("budget", [0, 1, 37, 99, 100, 500])
def test_finds_the_largest_count_within_the_budget(budget: int) -> None:
    parameter = find_parameter(lambda x: round(100 * x), 0, 1, budget)
    assert parameter is not None
    assert round(100 * parameter) == min(budget, 100)


def test_returns_none_if_the_lowest_count_exceeds_the_budget() -> None:
    assert find_parameter(lambda x: 5 + round(x), 0, 1, 4) is None


def test_returns_the_best_parameter_tried_if_counts_waver() -> None:
    tried: dict[float, int] = {}

    def count(x: float) -> int:
        tried[x] = round(100 * x) - 7 * (round(1000 * x) % 3)
        return tried[x]

    parameter = find_parameter(count, 0, 1, 60)
    assert parameter is not None
    assert tried[parameter] == max(value for value in tried.values() if value <= 60)
