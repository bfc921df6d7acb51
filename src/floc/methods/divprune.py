"""DivPrune (Alvar et al., "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models", CVPR 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from floc import blocks, scenes
from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.methods.base import Facts
from floc.methods.registry import register
from floc.ranking import Ranking
from floc.representatives import TILE_BYTES, normalize
from floc.selection.engine import History, Solution
from floc.tokens import TokenGrid

MATRIX_BYTES = 1 << 30  # the largest matrix of cosines to hold; above it a row is computed when it is needed


@register("divprune")
@dataclass(frozen=True)
class DivPrune:
    """Keep the tokens that are least alike: each pick is the one farthest from those kept so far.

    The first pick is the token whose nearest other token is farthest. The published program can pick a token again
    where fewer tokens are distinct than asked for, and fails on zero vectors; here a token is kept at most once, and
    the cosine with a zero vector is 0. It takes the whole input as one set, `block=None`; the FLoC paper runs it on
    blocks of 32 frames. It rounds the half of a token that a ratio can ask for to the even count, here all methods
    round it up.
    """

    facts: ClassVar[Facts] = Facts("Alvar et al., DivPrune, CVPR 2025", "select")

    block: BlockSpec = 32

    def __post_init__(self) -> None:
        blocks.check_block(self.block)

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        spans = scenes.find_blocks(grid, self.block)
        cells = grid.shape[1] * grid.shape[2]
        sizes = np.array([(span.stop - span.start) * cells for span in spans])
        choices = [
            _farthest(normalize(grid.frames(span)), int(k)) if k else None
            for span, k in zip(spans, blocks.share_budget(sizes, budget), strict=True)
        ]
        return grid.keep_ranked(Ranking.merge(choices, sizes), budget)


def _farthest(x: torch.Tensor, k: int) -> Solution:
    """Choose k of [n, D] tokens at length 1."""
    n = len(x)
    matrix = x @ x.T if 4 * n * n <= MATRIX_BYTES else None
    picks = torch.empty(k, dtype=torch.int64, device=x.device)
    distances = torch.empty(k, device=x.device)
    closest = _closest_other(x, matrix)  # [n] cosine with the nearest other token, then with the nearest pick
    for i in range(k):
        # the argmax of distances, not the argmin of cosines: near 1 several cosines have the same distance
        distances[i], picks[i] = (1 - closest).max(0)
        row = matrix[picks[i]] if matrix is not None else x @ x[picks[i]]
        closest = row.clone() if i == 0 else torch.maximum(closest, row, out=closest)
        closest[picks[: i + 1]] = torch.inf  # never again, also where nothing is left that differs
    history = History(*_history(x, x[picks]))
    return Solution(picks.cpu().numpy(), distances.double().cpu().numpy(), None, history)


def _closest_other(x: torch.Tensor, matrix: torch.Tensor | None) -> torch.Tensor:
    """[n] each token's highest cosine with another token."""
    step = max(1, TILE_BYTES // (4 * len(x)))
    best = []
    for start in range(0, len(x), step):
        tile = (matrix[start : start + step] if matrix is not None else x[start : start + step] @ x.T).clone()
        tile[torch.arange(len(tile)), torch.arange(start, start + len(tile))] = -torch.inf
        best.append(tile.max(1).values)
    return torch.cat(best)


def _history(x: torch.Tensor, picked: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Who came to represent whom: [E] token, [E] rank of the pick, [E] cosine, in the order of ranks."""
    tokens, ranks, cosines = [], [], []
    step = max(1, TILE_BYTES // (4 * len(picked)))
    for start in range(0, len(x), step):
        best = (picked @ x[start : start + step].T).cummax(0).values  # [k, part]
        better = torch.ones_like(best, dtype=torch.bool)
        better[1:] = best[1:] > best[:-1]
        changed = better.nonzero(as_tuple=True)
        ranks.append(changed[0])
        tokens.append(start + changed[1])
        cosines.append(best[changed].double())
    token, rank, cosine = (torch.cat(each).cpu().numpy() for each in (tokens, ranks, cosines))
    in_time = np.argsort(rank, kind="stable")
    return token[in_time], rank[in_time], cosine[in_time]
