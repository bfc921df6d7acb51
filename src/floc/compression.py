"""The front door: one call, one dial."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from floc import methods
from floc._arrays import Array
from floc.budget import Budget, find_fewest
from floc.kept import Kept
from floc.selection.backends import resolve_backend
from floc.tokens import TokenGrid


def compress(
    tokens: Array,
    *,
    ratio: float | str | None = None,
    budget: int | None = None,
    coverage: float | None = None,
    method: str = "floc",
    **options: object,
) -> Kept:
    """Keep the few tokens of a video that best stand in for all the others.

    Exactly one of `ratio`, `budget` and `coverage` says how many; a method with parameters of its own that decide it,
    such as thresholds, also runs on them alone.

    Args:
        tokens: [T, H, W, D] or [T, N, D], torch or numpy, any float dtype, any device. They are not changed.
        ratio: kept / total, in (0, 1]: 0.125 or "1/8".
        budget: how many tokens to keep; more than there are keeps all.
        coverage: the mean cosine between tokens and their representatives to reach, with as few tokens as it takes.
        method: see `floc.methods.names()`.
        **options: the method's own. For "floc":
            block: frames chosen from together (32); "scene" cuts where scenes change, in the tokens; a list, where its
                frames begin a block; None takes the whole video as one set.
            dedupe: how many tokens for each one kept go into the second pass (2); 1 is no second pass.
            detail: how much more badly covered tokens weigh (2); 1 is not at all.
            metric: "cosine" or "gaussian".
            allocate: "uniform", the same ratio in each block, or "global", greedy over all blocks (with dedupe=1).
            backend: "auto", "cpu", "torch", "gpu" or "reference".
            progress: a function that is called with the share of the work done.

    Tokens on an NVIDIA GPU are chosen from there, and the call returns before the choice is made: what is fetched from
    the result waits for it. Values that are not finite are reported by `coverage`, `represents`, `bound` and `at` then.

    Returns:
        Kept: indices, features, positions, order, gains, represents, coverage, bound, and `at` for smaller budgets.

    >>> import numpy as np
    >>> frames = np.repeat(np.eye(3, dtype=np.float32)[None], 4, axis=0)  # four frames of the same three tokens
    >>> compress(frames, budget=3).indices.tolist()
    [0, 1, 2]
    """
    started = time.perf_counter()
    chosen = methods.make(method, options)
    on_its_own = ratio is None and budget is None and coverage is None and isinstance(chosen, methods.Native)
    dial = None if on_its_own else Budget.parse(ratio, budget, coverage)
    if dial is not None:
        _require_one_master(method, dial, options)
    # a method that never waits for the device says what is wrong with the tokens when something is fetched from there
    stays = isinstance(tokens, torch.Tensor) and methods.stays_on(chosen, tokens.device)
    grid = TokenGrid.from_array(tokens, check_finite=not stays or coverage is not None or tokens.dtype == torch.float64)
    with torch.no_grad():
        kept = _run(chosen, grid, dial)
    settings = {name: _noted(getattr(chosen, name)) for name in methods.options(method) if name != "progress"}
    settings |= kept.settings  # what a budget made of them
    if "backend" in settings:
        settings["backend"] = resolve_backend(str(settings["backend"]), grid.tokens.device)
    return replace(kept, method=method, settings=settings, seconds=time.perf_counter() - started)


def _run(method: methods.Method, grid: TokenGrid, dial: Budget | None) -> Kept:
    if dial is None:
        assert isinstance(method, methods.Native), "only those run without a dial"
        return method.native(grid)
    if dial.coverage is None:
        return method(grid, dial.count(grid.n))
    if isinstance(method, methods.Reaching):
        return method.reaching(grid, dial.coverage)
    return method(grid, find_fewest(lambda count: _coverage(method, grid, count), grid.n, dial.coverage))


def _coverage(method: methods.Method, grid: TokenGrid, count: int) -> float:
    try:
        return method(grid, count).coverage
    except ValueError:  # fewer than it can keep
        return 0.0


def _require_one_master(method: str, dial: Budget, options: Mapping[str, object]) -> None:
    """A budget and the parameter that it would set cannot both decide."""
    both = [name for name in methods.facts(method).searched if name in options]
    if both:
        raise ValueError(
            f"{dial} sets {' and '.join(both)} of method {method!r}; give one or the other, not both "
            f"(got {', '.join(f'{name}={options[name]!r}' for name in both)})"
        )


def _noted(value: object) -> object:
    """An option as a file can hold it: of an array its shape."""
    return f"array {tuple(value.shape)}" if isinstance(value, torch.Tensor | np.ndarray) else value
