"""What methods do alike with a budget: floors, and thresholds to search for."""

from __future__ import annotations

from collections.abc import Callable


def require_floor(method: str, budget: int, floor: int, n: int, why: str, *, nearest: bool) -> None:
    """Complain of a budget that a method cannot go down to, unless the nearest it can do is welcome.

    Args:
        floor: the fewest tokens that the method can keep of these n.
        why: what it keeps in any case, for the message.
        nearest: whether the caller accepts the floor for the budget.
    """
    if budget < floor and not nearest:
        raise ValueError(
            f"{method} keeps {why}, so at least {floor} of {n} tokens (ratio {floor / n:.3g}); "
            f"got a budget of {budget}: ask for more, or pass nearest=True to get its fewest"
        )


def largest_within(
    count: Callable[[float], int], low: float, high: float, budget: int, steps: int = 24
) -> float | None:
    """The parameter with the largest count within a budget, where a larger parameter hardly ever means fewer tokens.

    Bisection that remembers the best it has seen, since counts may wobble; None where even `low` is over the budget.

    >>> largest_within(lambda x: int(10 * x), 0, 1, 7)
    0.75
    """
    best, reached = None, -1
    for parameter in (low, high):
        here = count(parameter)
        if reached < here <= budget:
            best, reached = parameter, here
    if best == high:
        return high
    for _ in range(steps):
        if reached == budget:
            break
        middle = (low + high) / 2
        here = count(middle)
        if here <= budget:
            low = middle
            if here > reached:
                best, reached = middle, here
        else:
            high = middle
    return best
