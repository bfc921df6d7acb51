"""Budgets: a ratio, a number of tokens or a coverage, and the search for the fewest tokens."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import floc
from floc.budget import Budget, find_fewest

GOOD = np.random.default_rng(0).standard_normal((40, 2, 3, 8)).astype(np.float32)


@pytest.mark.parametrize(
    ("budgets", "says"),
    [
        ({}, "exactly one of ratio=, budget= and coverage=; got none"),
        (dict(ratio=0.5, budget=3), "got ratio=0.5 and budget=3"),
        (dict(ratio=0), r"\(0, 1\].*got 0"),
        (dict(ratio=-0.1), r"\(0, 1\].*got -0.1"),
        (dict(ratio=1.01), r"\(0, 1\].*budget="),
        (dict(ratio=8), r"\(0, 1\]"),
        (dict(ratio=float("nan")), "such as 0.125"),
        (dict(ratio="an eighth"), "'1/8'"),
        (dict(ratio="1/0"), "'1/8'"),
        (dict(ratio="1e-99999999"), "'1/8'"),
        (dict(ratio=f"0.{'1' * 5000}"), "'1/8'"),
        (dict(ratio=10**400), "'1/8'"),
        (dict(ratio=True), "such as 0.125"),
        (dict(ratio=np.True_), "such as 0.125"),
        (dict(ratio=1 + 1e-10), r"\(0, 1\].*got 1.0000000001"),
        (dict(coverage=Fraction(10**5000)), "got a number of thousands of digits"),
        (dict(budget=0), "at least 1; got 0"),
        (dict(budget=-4), "at least 1; got -4"),
        (dict(budget=2.5), "whole number"),
        (dict(budget=True), "whole number"),
        (dict(coverage=0), r"\(0, 1\]"),
        (dict(coverage=1.5), r"\(0, 1\]"),
        (dict(coverage="0.9"), r"\(0, 1\]"),
    ],
)
def test_rejects_bad_budgets(budgets: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        floc.compress(GOOD, **budgets)
    kept = floc.compress(GOOD, budget=20)
    with pytest.raises(ValueError, match=says):
        kept.at(**budgets)


@pytest.mark.parametrize("ratio", ["1/8", 0.125, 1 / 8, np.float32(0.125), "0.125"])
def test_ratio_has_several_notations(ratio: object) -> None:
    assert len(floc.compress(GOOD, ratio=ratio)) == 30


def test_a_budget_above_all_tokens_keeps_all() -> None:
    assert len(floc.compress(GOOD, budget=10_000)) == 240
    assert len(floc.compress(GOOD, ratio=1)) == 240
    for ratio in (1e-6, 1e-10, "1e-10"):
        assert len(floc.compress(GOOD, ratio=ratio)) == 1


def test_a_changed_ratio_is_read_again() -> None:
    tokens = np.random.default_rng(0).standard_normal((4, 4, 8)).astype(np.float32)
    ratio = torch.tensor(0.5)
    assert len(floc.compress(tokens, ratio=ratio)) == 8
    ratio.fill_(0.25)
    assert len(floc.compress(tokens, ratio=ratio)) == 4
    assert len(floc.compress(tokens, ratio=np.array(0.125))) == 2


@pytest.mark.parametrize(
    ("ratio", "exact"), [(0.1, "1/10"), (1 / 3, "1/3"), ("1/3", "1/3"), ("2.5e-1", "1/4"), (1, "1")]
)
def test_ratio_is_exact(ratio: float | str, exact: str) -> None:
    assert Budget.parse(ratio, None, None) == Budget(ratio=Fraction(exact))


def test_count_rounds_half_up_and_keeps_one() -> None:
    half = Budget.parse("1/2", None, None)
    assert [half.count(n) for n in (1, 2, 3, 5)] == [1, 1, 2, 3]
    assert Budget.parse("1e-9", None, None).count(10) == 1
    assert Budget.parse(None, 10**30, None).count(10) == 10


@given(st.integers(1, 50), st.floats(0.01, 1))
def test_find_fewest(most: int, coverage: float) -> None:
    count = find_fewest(lambda k: k / most, most, coverage)
    assert count / most >= coverage
    assert count == 1 or (count - 1) / most < coverage


def test_find_fewest_error_states_the_coverage_that_can_be_reached() -> None:
    with pytest.raises(ValueError, match=r"coverage 0\.9 cannot be reached: 3 tokens give 0\.600000"):
        find_fewest(lambda k: k / 5, 3, 0.9)
