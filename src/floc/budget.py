"""How many tokens to keep: given as a ratio, a budget or a coverage."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from floc._checks import check_count, is_number, parse_fraction, require, shorten

MOST = 2**53  # tokens; counts up to it are exact in float64


@dataclass(frozen=True)
class Budget:
    """Exactly one of a ratio, a number of tokens and a coverage."""

    ratio: Fraction | None = None  # kept / total, in (0, 1]
    budget: int | None = None  # tokens to keep
    coverage: float | None = None  # mean cosine to reach, in (0, 1]

    @classmethod
    def parse(cls, ratio: float | str | None, budget: int | None, coverage: float | None) -> "Budget":
        """Check the arguments of a caller; exactly one must be given.

        >>> Budget.parse("1/8", None, None).count(1000)
        125
        """
        given = dict(ratio=ratio, budget=budget, coverage=coverage)
        listed = [f"{name}={shorten(value)}" for name, value in given.items() if value is not None]
        if len(listed) != 1:
            got = " and ".join(listed) or "none of them"
            raise ValueError(f"give exactly one of ratio=, budget= and coverage=; got {got}")
        if ratio is not None:
            return cls(ratio=parse_ratio(ratio, hint="; pass budget= for a fixed count"))
        if budget is not None:
            check_count("budget", budget, "tokens")
            return cls(budget=min(int(budget), MOST))
        if not (is_number(coverage) and 0 < coverage <= 1):  # type: ignore[operator]  # it is a number
            raise ValueError(f"coverage must be in (0, 1], the mean cosine to reach; got {shorten(coverage)}")
        return cls(coverage=float(coverage))  # type: ignore[arg-type]

    def count(self, n: int) -> int:
        """Return how many of `n` tokens to keep: at least one, at most all."""
        if self.ratio is not None:
            part, whole = self.ratio.numerator, self.ratio.denominator
            return max(1, (2 * part * n + whole) // (2 * whole))  # rounds half up
        assert self.budget is not None, "a coverage becomes a count only when it is measured"
        return min(self.budget, n)

    def __str__(self) -> str:
        return next(f"{name}={value}" for name, value in vars(self).items() if value is not None)


def find_fewest(coverage_of: Callable[[int], float], most: int, coverage: float) -> int:
    """Return the smallest count, at most `most`, that reaches a coverage; more tokens must never cover less."""
    reached = coverage_of(most)
    require(reached >= coverage, f"coverage {coverage:g} cannot be reached: {most} tokens give {reached:.6f}")
    return 1 + bisect_left(range(1, most), coverage, key=coverage_of)


def parse_ratio(ratio: object, name: str = "ratio", meaning: str = "kept / total", hint: str = "") -> Fraction:
    """Check a share in (0, 1]; the rest is for the error.

    >>> parse_ratio(0.1), parse_ratio("1/8")
    (Fraction(1, 10), Fraction(1, 8))
    """
    try:
        if isinstance(ratio, bool) or str(getattr(ratio, "dtype", "")).endswith("bool"):
            raise TypeError
        value = _to_fraction(ratio if isinstance(ratio, str) else float(ratio))  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{name} must be a number such as 0.125 or a fraction '1/8', got {shorten(ratio)}") from None
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be in (0, 1], {meaning}; got {shorten(ratio)}{hint}")
    return value


@lru_cache(maxsize=64, typed=True)
def _to_fraction(ratio: float | str) -> Fraction:
    """Convert a ratio; a float near a simple fraction means that fraction: 0.1 is 1/10."""
    if isinstance(ratio, str):
        return parse_fraction(ratio)
    value = Fraction(ratio)
    near = value.limit_denominator(10**9)
    return near if near and (near <= 1) == (value <= 1) else value.limit_denominator(10**39)
