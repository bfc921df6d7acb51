"""`floc.compress`: keep the few tokens of a video that best represent all the others."""

import time
from dataclasses import replace

import torch

from floc import methods
from floc._arrays import Array, require_dense
from floc._checks import is_number, shorten
from floc._system import restore_interrupts
from floc.budget import Budget, find_fewest
from floc.kept import Kept
from floc.selection.backends import resolve_backend
from floc.tokens import TokenGrid


@restore_interrupts()
def compress(
    tokens: Array,
    *,
    ratio: float | str | None = None,
    budget: int | None = None,
    coverage: float | None = None,
    method: str = "floc",
    merge: float = 0,
    **options: object,
) -> Kept:
    """Keep the few tokens of a video that best represent all the others.

    Exactly one of `ratio`, `budget` and `coverage` sets how many; a method with thresholds also runs without them.

    Args:
        tokens: [T, H, W, D] or [T, N, D], torch or numpy, any float dtype, any device. They are not changed.
        ratio: Kept / total, in (0, 1]: 0.125 or "1/8".
        budget: Number of tokens to keep; more than there are keeps all.
        coverage: Mean cosine between tokens and their representatives to reach, with as few tokens as possible.
        method: See `floc.methods.list_methods()`.
        merge: Share of each kept token's features that is replaced by the mean of the tokens it represents, from 0
            (default) to 1; for methods that select. Its position stays. The result has no `at`.
        **options: The method's own. For "floc":
            horizon: Frames between a token and its representative at most; "auto" (default) is 1 / (8 ratio), from
                4 to 16; None is no limit.
            detail: How much more badly covered tokens weigh (3); 1 turns it off.
            block: In place of a horizon: frames selected from together (32); "scene" follows scene changes found in the
                tokens; a list holds the first frame of each block; None selects from the whole video at once.
            dedupe: With blocks: survivors per token kept that go into a second pass; 1, the default, is no second pass.
            metric: "cosine", or with blocks "gaussian".
            query: [Q, D] embeddings of the words of a question, in the space of the tokens, which steer the selection.
            query_weight: Weight of the question; all tokens of the video together weigh 1. 0, the default, is for no
                question; try 0.1 to 1.
            backend: "auto", "cpu", "torch", "gpu" or "reference".
            progress: A function that is called with the fraction of the work done.

    Selection from tokens on an NVIDIA GPU runs there, and the call returns before it is done; reading a value of the
    result waits for it. Tokens that are not finite are then reported by `coverage`, `represents`, `bound` and `at`.

    Returns:
        Kept: indices, features, positions, order, gains, represents, coverage, bound, and `at` for smaller budgets.

    >>> import numpy as np
    >>> frames = np.repeat(np.eye(3, dtype=np.float32)[None], 4, axis=0)  # four frames of the same three tokens
    >>> compress(frames, budget=3).indices.tolist()
    [0, 1, 2]
    """
    started = time.perf_counter()
    made = methods.make(method, options)
    check_merge(method, merge)
    sizes_itself = ratio is None and budget is None and coverage is None and isinstance(made, methods.SelfSizing)
    target = None if sizes_itself else Budget.parse(ratio, budget, coverage)
    searched = () if target is None else methods.get_info(method).searched
    if both := [name for name in searched if name in options]:
        listed = ", ".join(f"{name}={shorten(options[name])}" for name in both)
        what = f"{target} sets {' and '.join(both)} of method {method!r}"
        raise ValueError(f"{what}; give one or the other, not both (got {listed})")
    require_dense(tokens)
    # a method that never waits for the GPU reports values that are not finite when a result is fetched
    stays = isinstance(tokens, torch.Tensor) and methods.stays_on(made, tokens.device)
    grid = TokenGrid.from_array(tokens, check_finite=not stays or coverage is not None or tokens.dtype == torch.float64)
    with torch.no_grad():
        if methods.get_info(method).kind == "merge":
            kept = grid.run_scaled(lambda scaled: _run(made, scaled, target))
        else:
            kept = _run(made, grid, target)
        if merge:
            kept = grid.blend(kept, float(merge))
    options = {name: getattr(made, name) for name in methods.list_options(method) if name != "progress"}
    arrays = {name: f"array {tuple(value.shape)}" for name, value in options.items() if isinstance(value, Array)}
    settings = options | arrays | dict(kept.settings)  # arrays as a file can store them; what a budget set
    if "backend" in settings:
        settings["backend"] = resolve_backend(str(settings["backend"]), grid.tokens.device)
    return replace(kept, method=method, settings=settings, seconds=time.perf_counter() - started)


def check_merge(method: str, merge: object) -> None:
    """Raise ValueError unless tokens that a method kept can be merged by this share."""
    if not (is_number(merge) and 0 <= merge <= 1):  # type: ignore[operator]  # a number
        raise ValueError(f"merge must be a number from 0 to 1, the share of the mean; got {shorten(merge)}")
    if merge and methods.get_info(method).kind == "merge":
        raise ValueError(f"method {method!r} merges tokens itself; remove merge={shorten(merge)}")


def _run(method: methods.Method, grid: TokenGrid, target: Budget | None) -> Kept:
    if target is None:
        assert isinstance(method, methods.SelfSizing), "only these run without a budget"
        return method.keep_by_options(grid)
    if target.coverage is None:
        return method(grid, target.count(grid.n))
    if isinstance(method, methods.CoverageSearch):
        return method.reach_coverage(grid, target.coverage)

    def measure_coverage(count: int) -> float:
        try:
            return method(grid, count).coverage
        except ValueError:  # fewer than the method can keep
            return 0.0

    return method(grid, find_fewest(measure_coverage, grid.n, target.coverage))
