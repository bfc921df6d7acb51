"""Budgets: the floor of a method, and the search for the parameter that meets a budget."""

from collections.abc import Callable


def check_floor(method: str, budget: int, floor: int, n: int, reason: str, *, nearest: bool) -> None:
    """Raise ValueError if a budget is below the fewest of `n` tokens that a method can keep, unless `nearest`."""
    if budget < floor and not nearest:
        problem = f"{method} keeps {reason}: at least {floor} of {n} tokens (ratio {floor / n:.3g})"
        remedy = f"Use a larger budget, or the option nearest=True (--method {method}:nearest=true) to keep {floor}"
        raise ValueError(f"{problem}; got a budget of {budget}. {remedy}")


def find_parameter(
    count: Callable[[float], int], low: float, high: float, budget: int, steps: int = 24
) -> float | None:
    """Find the parameter with the largest count within a budget by bisection; None if `low` already exceeds it.

    The count should grow with the parameter. Because it may waver, the best parameter seen is returned.

    >>> find_parameter(lambda x: int(10 * x), 0, 1, 7)
    0.75
    """
    best, best_count = None, -1
    for parameter in (low, high):
        parameter_count = count(parameter)
        if best_count < parameter_count <= budget:
            best, best_count = parameter, parameter_count
    if best == high:
        return high
    for _ in range(steps):
        if best_count == budget:
            break
        middle = (low + high) / 2
        middle_count = count(middle)
        low, high = (middle, high) if middle_count <= budget else (low, middle)
        if best_count < middle_count <= budget:
            best, best_count = middle, middle_count
    return best
