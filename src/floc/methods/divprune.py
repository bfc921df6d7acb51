"""DivPrune (Alvar et al., "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models", CVPR 2025)."""

from dataclasses import dataclass

import torch

from floc import blocks
from floc._arrays import TILE_BYTES, iterate_tiles
from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.greedy import keep_in_blocks, make_solution
from floc.representatives import normalize
from floc.selection.engine import Solution
from floc.tokens import TokenGrid

MATRIX_BYTES = 1 << 30  # the largest cosine matrix to store; above it, rows are computed when needed


@register("divprune", "Alvar et al., DivPrune, CVPR 2025", "select")
@dataclass(frozen=True)
class DivPrune:
    """Keep the most diverse tokens: each pick is the token farthest from all tokens picked before it.

    The first pick is the token whose nearest other token is farthest away. Distances are 1 - cosine. `block` sets the
    frames that are processed together: 32 as in the FLoC paper's comparison; `block=None`, the whole video, is the
    published setting.

    Differences from the published program:
    - Each token is kept at most once. The program repeats tokens if the input has fewer distinct tokens than the
      budget.
    - The cosine with a zero vector is 0. The program fails on zero vectors.
    - A ratio that asks for half a token rounds up, as in all methods here. The program rounds halves to even.
    """

    block: BlockSpec = 32

    def __post_init__(self) -> None:
        blocks.check_block(self.block)

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        return keep_in_blocks(
            grid, self.block, budget, lambda span, k: _select_farthest(normalize(grid.frames(span)), k)
        )


def _select_farthest(x: torch.Tensor, k: int) -> Solution:
    """Select k of [n, D] unit tokens."""
    matrix = x @ x.T if 4 * len(x) ** 2 <= MATRIX_BYTES else None
    picks = torch.empty(k, dtype=torch.int64, device=x.device)
    distances = torch.empty(k, device=x.device)
    closest = _find_closest(x, matrix)  # [n] cosine with the nearest other token, then with the nearest pick
    is_picked = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for i in range(k):
        # the argmax of distances, not the argmin of cosines: near 1 several cosines have the same distance
        distances[i], picks[i] = (1 - closest).max(0)
        pick = picks[i : i + 1]  # not an index of one number, for which a GPU would have to wait
        row = matrix.index_select(0, pick)[0] if matrix is not None else x @ x.index_select(0, pick)[0]
        closest = row.clone() if i == 0 else torch.maximum(closest, row, out=closest)
        closest.masked_fill_(is_picked.index_fill_(0, pick, True), torch.inf)  # never pick a token twice
    return make_solution(x, picks, distances)


def _find_closest(x: torch.Tensor, matrix: torch.Tensor | None) -> torch.Tensor:
    """Return each token's highest cosine with another token: [n]."""
    closest = []
    for tile in iterate_tiles(len(x), 4 * len(x), TILE_BYTES):
        cosine = matrix[tile].clone() if matrix is not None else x[tile] @ x.T
        cosine.diagonal(tile.start).fill_(-torch.inf)
        closest.append(cosine.max(1).values)
    return torch.cat(closest)
