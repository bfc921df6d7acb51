"""The one dial a user turns: a ratio, a budget or a coverage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from numbers import Integral, Real


@dataclass(frozen=True)
class Budget:
    """Exactly one of the three, checked."""

    ratio: Fraction | None = None  # kept / total, in (0, 1]
    budget: int | None = None  # tokens to keep
    coverage: float | None = None  # mean cosine to reach, in (0, 1]

    @classmethod
    def parse(cls, ratio: float | str | None, budget: int | None, coverage: float | None) -> Budget:
        """Check what a caller gave.

        >>> Budget.parse("1/8", None, None).count(1000)
        125
        """
        given = {name: each for name, each in zip(_NAMES, (ratio, budget, coverage), strict=True) if each is not None}
        if len(given) != 1:
            said = " and ".join(f"{name}={each!r}" for name, each in given.items()) or "none of them"
            raise ValueError(f"give exactly one of ratio=, budget= and coverage=; got {said}")
        if ratio is not None:
            return cls(ratio=_ratio(ratio))
        if budget is not None:
            if isinstance(budget, bool) or not isinstance(budget, Integral) or budget < 1:
                raise ValueError(f"budget must be a whole number of tokens, at least 1; got {budget!r}")
            return cls(budget=int(budget))
        if isinstance(coverage, bool) or not isinstance(coverage, Real) or not 0 < coverage <= 1:
            raise ValueError(f"coverage must be in (0, 1], the mean cosine to reach; got {coverage!r}")
        return cls(coverage=float(coverage))

    def count(self, n: int) -> int:
        """How many of `n` tokens to keep: at least one, and all where the budget is larger."""
        if self.ratio is not None:
            part, whole = self.ratio.numerator, self.ratio.denominator
            return max(1, (2 * part * n + whole) // (2 * whole))  # halves up
        assert self.budget is not None, "a coverage is not a count before it is measured"
        return min(self.budget, n)

    def __str__(self) -> str:
        return next(f"{name}={getattr(self, name)}" for name in _NAMES if getattr(self, name) is not None)


def find_fewest(coverage_of: Callable[[int], float], most: int, coverage: float) -> int:
    """The smallest count, up to `most`, that reaches a coverage, where more tokens never cover less."""
    reached = coverage_of(most)
    if reached < coverage:
        raise ValueError(f"coverage {coverage:g} cannot be reached: {most} tokens give {reached:.6f}")
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if coverage_of(middle) >= coverage:
            high = middle
        else:
            low = middle + 1
    return low


_NAMES = ("ratio", "budget", "coverage")


def _ratio(given: float | str) -> Fraction:
    try:
        if isinstance(given, bool):
            raise TypeError
        value = _fraction(given if isinstance(given, str) else float(given))
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        raise ValueError(f"ratio must be a number such as 0.125 or a fraction such as '1/8', got {given!r}") from None
    if not 0 < value <= 1:
        raise ValueError(f"ratio must be in (0, 1], kept / total; got {given!r}; pass budget= to keep a fixed count")
    return value


@lru_cache(maxsize=64, typed=True)
def _fraction(given: float | str) -> Fraction:
    """A float near a simple fraction means it: 0.1 is 1/10, not the binary number next to it."""
    return Fraction(given) if isinstance(given, str) else Fraction(given).limit_denominator(10**9)
