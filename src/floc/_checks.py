"""Errors for names that do not exist: what was given, what there is, and the likely meaning."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral


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


def is_positive_int(value: object) -> bool:
    """Whether a value is a whole number, at least 1."""
    return is_int(value) and int(value) >= 1  # type: ignore[call-overload]  # it is a number


def is_int(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
