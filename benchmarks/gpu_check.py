"""Check GPU selections pick by pick against the torch backend's greedy on the same similarities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import floc

if TYPE_CHECKING:
    from floc.selection.engine import Band
    from floc.selection.gpu.run import DeviceWindow
    from floc.selection.gpu.similarity import Rows


def has_second_pass(sizes: tuple[int, ...], options: Mapping[str, Any]) -> bool:
    """Return whether a call with these block sizes and options of `floc` selects in two passes."""
    return len(sizes) > 1 and options.get("dedupe", 1) > 1


def check_picks(tokens: torch.Tensor, kept: floc.Kept, sizes: tuple[int, ...], options: dict[str, Any]) -> float:
    """Raise unless every pick is exact greedy's. Returns the mean number of picks in a step.

    Args:
        tokens: [T, H, W, D] on the GPU.
        kept: What `floc.compress` kept of them.
        sizes: Tokens in each block.
        options: Arguments of `floc.compress` besides the budget.
    """
    picks = torch.as_tensor(kept.indices[kept.order])
    select = _select_second_pass if has_second_pass(sizes, options) else _select_blocks
    expected, made, steps = select(tokens, sizes, len(picks), options)
    if not torch.equal(picks, expected):
        wrong = int((picks != expected).sum())
        raise AssertionError(f"{options}: {wrong} of {len(picks)} picks are not greedy's")
    return made / max(1, steps)


def check_band_picks(tokens: torch.Tensor, kept: floc.Kept, band: Band, detail: float = 3) -> float:
    """Raise unless every pick within a horizon is exact greedy's. Returns the mean number of picks in a round."""
    from floc.selection.gpu.band_selection import select
    from floc.selection.torch import band_rounds

    picks = torch.as_tensor(kept.indices[kept.order])
    selection = select(tokens.reshape(-1, tokens.shape[-1]), band, len(picks), detail)
    expected, _ = band_rounds.greedy(selection.values, band, len(picks))
    if not torch.equal(picks, expected):
        wrong = int((picks != expected).sum())
        raise AssertionError(f"{band}: {wrong} of {len(picks)} picks are not greedy's")
    return int((selection.picks.gains > 0).sum()) / max(1, int(selection.picks.rounds.max()))


def _select_blocks(
    tokens: torch.Tensor, sizes: tuple[int, ...], budget: int, options: dict[str, Any]
) -> tuple[torch.Tensor, int, int]:
    """Return the picks of the torch backend, and the picks and steps of the GPU kernel."""
    from floc.selection.gpu import greedy, run, similarity
    from floc.selection.gpu.similarity import Rows
    from floc.selection.torch import greedy as torch_greedy

    rows = Rows.measure(tokens.reshape(-1, tokens.shape[-1]))
    detail = float(options.get("detail", 2))
    plan = run.plan_blocks(sizes, budget, run.LIMIT_BYTES, tokens.device)
    expected = []
    made = steps = 0
    for start, sets in plan.parts:
        matrix = torch.empty(sets.elements, dtype=torch.int16, device=tokens.device)
        part = rows.slice(start, start + sum(sets.tokens))
        similarity.fill(matrix, part, part, sets, detail)
        picked = greedy.greedy(matrix, sets)
        made, steps = made + int(picked.counts.sum()), steps + int(picked.steps.sum())
        for block, depth in zip(sets.matrices(matrix), sets.depths, strict=True):
            expected.append(torch_greedy.greedy(block[None].contiguous(), depth)[0][0])
    return plan.lists.start[plan.order] + torch.cat(expected)[plan.order], made, steps


def _select_second_pass(
    tokens: torch.Tensor, sizes: tuple[int, ...], budget: int, options: dict[str, Any]
) -> tuple[torch.Tensor, int, int]:
    """Return the picks of the torch backend, and the picks and steps of the GPU kernel."""
    from floc.selection.gpu import greedy, run
    from floc.selection.gpu.similarity import Rows
    from floc.selection.torch import greedy as torch_greedy

    rows = Rows.measure(tokens.reshape(-1, tokens.shape[-1]))
    detail = float(options.get("detail", 2))
    method: Any = floc.methods.make("floc", options)
    windows = method.plan_windows(tokens, budget)
    [window] = run.plan_windows(sizes, tuple(windows), budget, tokens.device).windows
    _check_first_pass(window.rows(rows), window, detail)
    survivors = run.select_survivors(window.rows(rows), window, detail)
    [matrix] = window.second.matrices(survivors.matrix)
    expected = torch_greedy.greedy(matrix[None].contiguous(), budget, survivors.weights[None])[0][0]
    picked = greedy.greedy(survivors.matrix, window.second, survivors.weights)
    return survivors.places[expected], int(picked.counts.sum()), int(picked.steps.sum())


def _check_first_pass(rows: Rows, window: DeviceWindow, detail: float) -> None:
    """Raise unless the survivors of each block are greedy's picks."""
    from floc.selection.gpu import greedy, similarity
    from floc.selection.torch import greedy as torch_greedy

    sets = window.first
    matrix = torch.empty(sets.elements, dtype=torch.int16, device=sets.device)
    similarity.fill(matrix, rows, rows, sets, detail)
    picked = greedy.greedy(matrix, sets, stop_count=window.survivors)
    ends = np.cumsum(sets.depths)
    for b, (block, made) in enumerate(zip(sets.matrices(matrix), picked.counts.tolist(), strict=True)):
        picks = picked.picks[ends[b] - sets.depths[b] :][:made]
        if not torch.equal(picks.long(), torch_greedy.greedy(block[None].contiguous(), made)[0][0].long()):
            raise AssertionError(f"the first pass in block {b} is not greedy's")
