"""Argument checks shared by the package. Errors name the argument, the value given and the values allowed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real


def check_choice(kind: str, name: object, known: Iterable[str]) -> None:
    """Raise ValueError unless `name` is one of `known`.

    >>> check_choice("metric", "cosin", ["cosine", "gaussian"])
    Traceback (most recent call last):
    ValueError: unknown metric 'cosin': did you mean 'cosine'? There are: cosine, gaussian
    """
    names = list(known)
    if name in names:
        return
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f" did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown {kind} {name!r}:{hint} There are: {', '.join(names)}")


def is_int(value: object) -> bool:
    """Return whether a value is an integer; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_positive_int(value: object) -> bool:
    """Return whether a value is an integer of at least 1."""
    return is_int(value) and int(value) >= 1  # type: ignore[call-overload]  # it is a number


def is_number(value: object) -> bool:
    """Return whether a value is a real number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_count(name: str, value: object, unit: str) -> None:
    """Raise ValueError unless `value` is an integer of at least 1.

    >>> check_count("budget", 0, "tokens")
    Traceback (most recent call last):
    ValueError: budget must be a whole number of tokens, at least 1; got 0
    """
    if not is_positive_int(value):
        raise ValueError(f"{name} must be a whole number of {unit}, at least 1; got {value!r}")


def check_at_least(name: str, value: object, least: float, hint: str = "") -> None:
    """Raise ValueError unless `value` is a finite number of at least `least`.

    >>> check_at_least("detail", 0.5, 1, " (1 turns it off)")
    Traceback (most recent call last):
    ValueError: detail must be a number, at least 1 and finite (1 turns it off); got 0.5
    """
    if not (is_number(value) and least <= value < math.inf):  # type: ignore[operator]  # it is a number
        raise ValueError(f"{name} must be a number, at least {least} and finite{hint}; got {value!r}")
