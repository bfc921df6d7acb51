"""Checks of arguments: bounded parsing of numbers, and messages."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from floc._checks import check_choice, parse_fraction, parse_time, shorten


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/8", Fraction(1, 8)),
        (" 0.125 ", Fraction(1, 8)),
        (".5", Fraction(1, 2)),
        ("3.", Fraction(3)),
        ("-2", Fraction(-2)),
        ("1E-3", Fraction(1, 1000)),
        ("62.500000000", Fraction(125, 2)),
    ],
)
def test_parse_fraction(text: str, value: Fraction) -> None:
    assert parse_fraction(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1/0",
        "1e99999999",
        "1e-99999999",
        "1e1/2",
        pytest.param("9" * 10**6, id="digits"),
        "nan",
        "inf",
        "0x10",
        "1_0",
        "٣",
        "1/8/2",
        "1 /8",
    ],
)
def test_parse_fraction_refuses_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a number such as 0.125 or a fraction such as 1/8") as caught:
        parse_fraction(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"),
        ([1] * 9, "a list of 9 values"),
        ({}, "an object of 0 values"),
        pytest.param("a" * 10**6, f"'{'a' * 56}...", id="text"),
        pytest.param(10**5000, "a number of thousands of digits", id="digits"),
        (0.5, "0.5"),
    ],
)
def test_shorten(value: object, text: str) -> None:
    assert shorten(value) == text


def test_check_choice_suggests_a_name() -> None:
    check_choice("metric", "cosine", ["cosine", "gaussian"])
    with pytest.raises(ValueError, match=r"unknown metric .*; choose one of"):
        check_choice("metric", np.array(["cosine", "dot"]), ["cosine", "gaussian"])
    with pytest.raises(ValueError, match="unknown metric 'dot'; choose one of: cosine, gaussian"):
        check_choice("metric", "dot", ["cosine", "gaussian"])
    with pytest.raises(ValueError, match=r"'cosin'; did you mean 'cosine'\? Choose one of: cosine, gaussian"):
        check_choice("metric", "cosin", ["cosine", "gaussian"])


@pytest.mark.parametrize(
    "text", ["x", "-1", "nan", "inf", "1e300", "1:-1", "1:2:3:4", "1.5:00", "inf:00", "", "1:" * 999 + "1"]
)
def test_times_are_checked(text: str) -> None:
    with pytest.raises(ValueError, match="a time must be seconds, or like 1:30"):
        parse_time(text)
