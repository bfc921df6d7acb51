"""Argument checks shared by the package. Errors name the argument, the value given and the values allowed."""

import difflib
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

# "12", "0.125", "1e-3" or "1/8"; a longer exponent would make a number that fills the memory
_FRACTION = re.compile(r"[+-]?(\d{1,40}(\.\d{0,40})?|\.\d{1,40})(e[+-]?\d{1,2}|/\d{1,40})?", re.ASCII | re.IGNORECASE)
MOST_SECONDS = 1e9  # largest time that a user may give


def parse_fraction(text: str) -> Fraction:
    """Parse a number that may come from a stranger; raise ValueError at once if it is malformed or far too large.

    >>> parse_fraction("1/8"), parse_fraction("2.5e-1")
    (Fraction(1, 8), Fraction(1, 4))
    >>> parse_fraction("1e99999999")
    Traceback (most recent call last):
    ValueError: '1e99999999' is not a number such as 0.125 or a fraction such as 1/8
    """
    if len(text) <= 100 and _FRACTION.fullmatch(text.strip()):
        with suppress(ValueError, ZeroDivisionError):  # such as 1/0
            return Fraction(text)
    raise ValueError(f"{shorten(text)} is not a number such as 0.125 or a fraction such as 1/8")


def parse_time(text: str | None) -> float | None:
    """Parse a time in seconds, minutes:seconds or hours:minutes:seconds.

    >>> parse_time("90"), parse_time("1:30"), parse_time("1:02:30.5"), parse_time(None)
    (90.0, 90.0, 3750.5, None)
    """
    if text is None:
        return None
    try:
        *larger, seconds = (float(part) for part in text.split(":", 3))
    except ValueError:
        larger, seconds = [], math.nan
    total = seconds + sum(part * 60**power for power, part in enumerate(reversed(larger), 1))
    if not (0 <= seconds <= total <= MOST_SECONDS and len(larger) <= 2 and all(part.is_integer() for part in larger)):
        raise ValueError(f"a time must be seconds, or like 1:30 or 1:02:30; got {shorten(text)}")
    return total


def shorten(value: object) -> str:
    """Describe a value in an error; texts and numbers of strangers can be of any length."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)} values"
    try:
        text = repr(value[:60] if isinstance(value, str) else value)
    except ValueError:  # Python does not print integers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_choice(kind: str, name: object, known: Iterable[str]) -> None:
    """Raise ValueError unless `name` is one of `known`.

    >>> check_choice("metric", "cosin", ["cosine", "gaussian"])
    Traceback (most recent call last):
    ValueError: unknown metric 'cosin'; did you mean 'cosine'? Choose one of: cosine, gaussian
    """
    names = list(known)
    if isinstance(name, str) and name in names:
        return
    near = difflib.get_close_matches(name[:60] if isinstance(name, str) else shorten(name), names, n=1)
    hint = f"did you mean {near[0]!r}? Choose" if near else "choose"
    raise ValueError(f"unknown {kind} {shorten(name)}; {hint} one of: {', '.join(names)}")


def require(condition: object, message: str) -> None:
    """Raise ValueError unless a condition holds; for messages that are cheap to build."""
    if not condition:
        raise ValueError(message)


def is_int(value: object) -> bool:
    """Return whether a value is an integer; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_positive_int(value: object) -> bool:
    """Return whether a value is an integer of at least 1."""
    return is_int(value) and int(value) >= 1  # type: ignore[call-overload]  # it is a number


def is_number(value: object) -> bool:
    """Return whether a value is a real number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def to_float(value: Any) -> float:
    """Convert a number; one that is too large becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_count(name: str, value: object, unit: str) -> None:
    """Raise ValueError unless `value` is an integer of at least 1.

    >>> check_count("budget", 0, "tokens")
    Traceback (most recent call last):
    ValueError: budget must be a whole number of tokens, at least 1; got 0
    """
    if not is_positive_int(value):
        raise ValueError(f"{name} must be a whole number of {unit}, at least 1; got {shorten(value)}")


def check_factor(name: str, value: object, hint: str = "") -> None:
    """Raise ValueError unless `value` is a finite number of at least 1.

    >>> check_factor("detail", 0.5, " (1 turns it off)")
    Traceback (most recent call last):
    ValueError: detail must be a number, at least 1 and finite (1 turns it off); got 0.5
    """
    if not (is_number(value) and 1 <= to_float(value) < math.inf):
        raise ValueError(f"{name} must be a number, at least 1 and finite{hint}; got {shorten(value)}")
