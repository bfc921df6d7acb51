"""Greedy selection in blocks: the nested order of the picks, and the greedy maximum of a coverage."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F

from floc import blocks, scenes
from floc._arrays import TILE_BYTES, iterate_tiles
from floc._system import check_memory
from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.ranking import Ranking
from floc.representatives import normalize
from floc.selection.engine import History, Solution
from floc.tokens import TokenGrid

CANDIDATES = 32  # evaluated at a time
# A GPU would wait for every number that is read: more candidates are evaluated, and several picks made, at a time.
GPU_CANDIDATES, GPU_STEPS = 256, 32
# Gains in float64 are equal if they differ by less than this, relative to them, plus this, relative to the first gain.
RELATIVE, NOISE = 1e-12, 1e-15


def keep_in_blocks(grid: TokenGrid, block: BlockSpec, budget: int, select: Callable[[slice, int], Solution]) -> Kept:
    """Keep `select(span, k)` of every block, whose share of the budget is k."""
    spans = scenes.find_blocks(grid, block)
    sizes = np.array([(span.stop - span.start) * grid.cells for span in spans])
    shares = blocks.share_budget(sizes, budget)
    choices = [select(span, int(k)) if k else None for span, k in zip(spans, shares, strict=True)]
    return grid.keep_ranked(Ranking.merge(choices, sizes), budget)


def normalize_precisely(rows: torch.Tensor) -> torch.Tensor:
    """Scale [n, D] tokens to unit length in float64; zero tokens stay."""
    if rows.device.type == "mps":  # has no float64
        return normalize(rows)
    return F.normalize(rows.detach().double().contiguous(), dim=-1, eps=1e-300)


def make_solution(x: torch.Tensor, picks: torch.Tensor, gains: torch.Tensor) -> Solution:
    """Make the solution of [k] picks from [n, D] unit tokens; the most similar pick represents a token."""
    x = x.float()
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
    cover = _Cover(values, weights)
    take = _take_on_cpu if values.device.type == "cpu" else _take_on_gpu
    picks, gains = [values.new_empty(0, dtype=torch.int64)], [cover.bounds[:0]]
    for start in range(0, k, GPU_STEPS):
        for pick, gain in take(cover, min(GPU_STEPS, k - start)):
            picks.append(pick)
            gains.append(gain)
    return torch.cat(picks), torch.cat(gains)


class _Cover:
    """The best value of each row so far, and an upper bound of the gain of each candidate, -inf once it is picked."""

    def __init__(self, values: torch.Tensor, weights: torch.Tensor | None) -> None:
        precise = torch.float32 if values.device.type == "mps" else torch.float64
        self.values = values
        self.weights = values.new_ones(len(values), dtype=precise) if weights is None else weights.to(precise)
        self.best = values.new_zeros(values.shape[1])
        self.bounds = self._evaluate(torch.arange(len(values), device=values.device))
        self.noise = NOISE * self.bounds.max()

    def _evaluate(self, candidates: torch.Tensor) -> torch.Tensor:
        """Return the gains of [c] candidates."""
        row_bytes = self.values.element_size() * max(1, self.values.shape[1])
        parts = candidates.split(max(1, TILE_BYTES // row_bytes))
        sums = [(self.values[part] - self.best).clamp_(min=0).sum(1, dtype=self.weights.dtype) for part in parts]
        return self.weights[candidates] * torch.cat(sums)

    def tighten(self, count: int) -> torch.Tensor:
        """Evaluate the `count` candidates with the largest bounds; return whether no other can be better, as a bool."""
        limits, part = self.bounds.topk(min(count + 1, len(self.bounds)))
        part, others = part[:count], limits[count:]
        gains = torch.minimum(self._evaluate(part), limits[:count])
        self.bounds = self.bounds.index_copy(0, part, gains)
        self.gain = gains.max(0, keepdim=True).values
        self.least = self.gain - RELATIVE * self.gain - self.noise
        # once nothing is left to cover, the first of the others follow
        return (others < self.least).all() | (self.bounds.max() <= self.noise)

    def take(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Pick the candidate with the largest bound, the first on ties; return it and its gain, [1] each."""
        pick = (self.bounds >= self.least).byte().argmax(0, keepdim=True)
        self.best = torch.maximum(self.best, self.values.index_select(0, pick)[0])
        self.bounds = self.bounds.index_fill(0, pick, -torch.inf)
        return pick, self.gain


def _take_on_cpu(cover: _Cover, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(steps):
        count = CANDIDATES
        while not cover.tighten(count):
            count *= 2
        yield cover.take()


def _take_on_gpu(cover: _Cover, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Evaluate a fixed number of candidates for each pick, and all for each if that was too few for one."""
    best, bounds = cover.best, cover.bounds
    for count in (GPU_CANDIDATES, len(bounds)):
        cover.best, cover.bounds = best, bounds
        is_certain, taken = [], []
        for _ in range(steps):
            is_certain.append(cover.tighten(count))
            taken.append(cover.take())
        if count == len(bounds) or bool(torch.stack(is_certain).all()):  # the only number that is read
            break
    return taken
