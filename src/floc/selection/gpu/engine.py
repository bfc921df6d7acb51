"""The gpu backend for callers that work on the host: similarity matrices by torch, selection by the kernels.

Methods that stay on the device use floc.selection.gpu.run instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from floc.selection.engine import split_next_gain
from floc.selection.gpu import greedy
from floc.selection.gpu.launch import LIMIT_BYTES, use_device
from floc.selection.gpu.sets import Sets
from floc.selection.objective import Similarity
from floc.selection.torch.engine import TorchEngine


class GpuEngine(TorchEngine):
    """The torch engine with selection by the kernels; see `TorchEngine`."""

    name = "gpu"

    def bytes_needed(self, n: int, dim: int, similarity: Similarity, *, weighted: bool = False) -> int:
        if similarity.metric == "gaussian":
            return super().bytes_needed(n, dim, similarity) + 4 * n * n
        return (4 if weighted else 2) * n * n + 4 * n * dim  # a matrix that is not symmetric is stored twice

    def survivors_together(self, sizes: np.ndarray, survivors: int) -> int:
        # the matrices of all blocks of a window exist together
        return max(1, int(LIMIT_BYTES / (2 * int(sizes.max())) * survivors / int(sizes.sum())))

    def _select(
        self, matrices: Sequence[torch.Tensor], budgets: Sequence[int], weights: np.ndarray | None = None
    ) -> list[tuple[np.ndarray, np.ndarray, int]]:
        depths = [min(budget + 1, len(matrix)) for matrix, budget in zip(matrices, budgets, strict=True)]
        device_weights = None if weights is None else torch.from_numpy(weights).to(matrices[0].device)
        picks, gains = (column.cpu().numpy() for column in select(matrices, depths, device_weights))
        ends = np.cumsum(depths)
        return [
            split_next_gain(picks[end - depth : end], gains[end - depth : end], budget)
            for end, depth, budget in zip(ends, depths, budgets, strict=True)
        ]


def select(
    matrices: Sequence[torch.Tensor], depths: Sequence[int], weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Select from each of several [M, N] int16 similarity matrices.

    Args:
        depths: Number of picks from each.
        weights: [tokens of all matrices] int64.

    Returns:
        int64 picks and gains of all matrices, concatenated.
    """
    device = matrices[0].device
    sets = Sets(
        tuple(len(matrix) for matrix in matrices),
        tuple(matrix.shape[1] for matrix in matrices),
        tuple(depths),
        False,  # the library that computed a product does not guarantee exact symmetry
        device,
    )
    laid_out = torch.empty(sets.elements, dtype=torch.int16, device=device)
    for matrix, place, transpose in zip(matrices, sets.matrices(laid_out), sets.transposes(laid_out), strict=True):
        place.copy_(matrix)
        transpose.copy_(matrix.T)
    with use_device(device):
        picked = greedy.greedy(laid_out, sets, weights, spread=1 << 16)
        greedy.fill_up(picked, sets)
    return picked.picks.long(), picked.gains.long()
