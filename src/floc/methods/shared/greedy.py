"""Greedy selection in blocks: the nested order of the picks, and the greedy maximum of a coverage."""

from collections.abc import Callable

import numpy as np
import torch

from floc import blocks, scenes
from floc._arrays import TILE_BYTES, iterate_tiles
from floc._system import check_memory
from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.ranking import Ranking
from floc.selection.engine import History, Solution
from floc.tokens import TokenGrid

CANDIDATES = 32  # evaluated at a time
ROUNDING = 1e-12  # gains in float64 that differ by less, relative to them or 1, are equal


def keep_in_blocks(grid: TokenGrid, block: BlockSpec, budget: int, select: Callable[[slice, int], Solution]) -> Kept:
    """Keep `select(span, k)` of every block, whose share of the budget is k."""
    spans = scenes.find_blocks(grid, block)
    cells = grid.shape[1] * grid.shape[2]
    sizes = np.array([(span.stop - span.start) * cells for span in spans])
    shares = blocks.share_budget(sizes, budget)
    choices = [select(span, int(k)) if k else None for span, k in zip(spans, shares, strict=True)]
    return grid.keep_ranked(Ranking.merge(choices, sizes), budget)


def make_solution(x: torch.Tensor, picks: torch.Tensor, gains: torch.Tensor) -> Solution:
    """Make the solution of [k] picks from [n, D] unit tokens; the most similar pick represents a token."""
    history = _trace_representatives(x, x[picks])
    return Solution(picks.cpu().numpy(), gains.cpu().double().numpy(), None, history)


def _trace_representatives(x: torch.Tensor, picked: torch.Tensor) -> History:
    """Return every change of a token's representative, sorted by the rank of the pick."""
    changes = []
    for tile in iterate_tiles(len(x), 4 * len(picked), TILE_BYTES):
        best = (picked @ x[tile].T).cummax(0).values  # [k, tile]
        better = torch.ones_like(best, dtype=torch.bool)
        better[1:] = best[1:] > best[:-1]
        ranks, tokens = better.nonzero(as_tuple=True)
        changes.append((tile.start + tokens, ranks, best[ranks, tokens].double()))
    token, rank, cosine = (torch.cat(parts).cpu().numpy() for parts in zip(*changes, strict=True))
    by_rank = np.argsort(rank, kind="stable")
    return History(token[by_rank], rank[by_rank], cosine[by_rank])


def check_matrix(n: int, columns: int, device: torch.device) -> None:
    """Raise MemoryError if an [n, columns] float64 matrix does not fit."""
    check_memory(n, 8 * n * columns, device, "block=8, or fewer frames")


def cover_greedily(
    values: torch.Tensor, k: int, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick the candidates that best cover a set of rows, one after the other, the first on ties.

    The gain of candidate j is weights[j] * sum over rows i of max(values[j, i] - best[i], 0), where best[i] is the
    largest value of a picked candidate, 0 before the first. Gains only fall, so that earlier gains are upper bounds:
    only candidates whose bound is not below the best gain are evaluated.

    Args:
        values: [n, rows] float32 or float64, how well each candidate covers each row.
        k: Number of picks, at most n.
        weights: [n], not negative; 1 if None.

    Returns:
        [k] int64 picks, and [k] their gains.

    >>> cover_greedily(torch.tensor([[1.0, 0.0], [0.9, 0.9], [0.0, 1.0]]), 2)[0].tolist()
    [1, 0]
    """
    n, rows = values.shape
    precise = torch.float32 if values.device.type == "mps" else torch.float64
    weights = values.new_ones(n, dtype=precise) if weights is None else weights.to(precise)
    best = values.new_zeros(rows)

    def evaluate(candidates: torch.Tensor) -> torch.Tensor:
        parts = candidates.split(max(1, TILE_BYTES // (4 * max(1, rows))))
        sums = [(values[part] - best).clamp_(min=0).sum(1, dtype=precise) for part in parts]
        return weights[candidates] * torch.cat(sums)

    bounds = evaluate(torch.arange(n, device=values.device))
    picks, gains = [], []
    for step in range(k):
        pick, gain = _find_best(bounds, evaluate if step else None)
        if gain <= 0:  # nothing is left to cover: the first of the others follow
            break
        picks.append(pick)
        gains.append(gain)
        torch.maximum(best, values[pick], out=best)
        bounds[pick] = -torch.inf
    picked = torch.tensor(picks, dtype=torch.int64, device=values.device)
    is_left = torch.ones(n, dtype=torch.bool, device=values.device)
    is_left[picked] = False
    picked = torch.cat([picked, is_left.nonzero()[: k - len(picks), 0]])
    return picked, torch.tensor(gains + [0.0] * (k - len(picks)), dtype=precise)


def _find_best(bounds: torch.Tensor, evaluate: Callable[[torch.Tensor], torch.Tensor] | None) -> tuple[int, float]:
    """Return the candidate with the largest gain, the first on ties, and its gain; update [n] bounds on the way."""
    order, count, known = bounds.sort(descending=True, stable=True).indices, CANDIDATES, 0
    limits = bounds[order]
    while known < len(order):
        part = order[known : known + count]
        if evaluate is not None:  # else the bounds are the gains
            bounds[part] = torch.minimum(evaluate(part), limits[known : known + count])
        known, count = known + len(part), 2 * count
        gain = float(bounds[order[:known]].max())
        least = gain - ROUNDING * max(1.0, gain)
        following = float(limits[known]) if known < len(order) else -torch.inf
        if following < least or max(gain, following) <= 0:
            break
    return int((bounds >= least).nonzero()[0, 0]), gain
