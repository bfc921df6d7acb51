"""The gpu engine, as methods see it that keep their books on the host: torch's matrices, choices by the kernels.

Methods that can stay on the device do not come through here; see run.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from floc.selection.engine import until_next
from floc.selection.gpu import greedy
from floc.selection.gpu.launch import LIMIT_BYTES, use_device
from floc.selection.gpu.sets import Sets
from floc.selection.objective import Similarity
from floc.selection.torch.engine import TorchEngine


class GpuEngine(TorchEngine):
    """See `Engine`."""

    name = "gpu"

    def bytes_needed(self, n: int, dim: int, similarity: Similarity, *, weighted: bool = False) -> int:
        if similarity.metric == "gaussian":
            return super().bytes_needed(n, dim, similarity) + 4 * n * n
        return (4 if weighted else 2) * n * n + 4 * n * dim  # what is not its own transpose is there twice

    def survivors_together(self, sizes: np.ndarray, survivors: int) -> int:
        # the matrices of all blocks of a window exist together
        return max(1, int(LIMIT_BYTES / (2 * int(sizes.max())) * survivors / int(sizes.sum())))

    def _select(
        self, matrices: Sequence[torch.Tensor], budgets: Sequence[int], weights: np.ndarray | None = None
    ) -> list[tuple[np.ndarray, np.ndarray, int]]:
        depths = [min(budget + 1, len(matrix)) for matrix, budget in zip(matrices, budgets, strict=True)]
        given = None if weights is None else torch.from_numpy(weights).to(matrices[0].device)
        picks, gains = (each.cpu().numpy() for each in select(matrices, depths, given))
        ends = np.cumsum(depths)
        return [
            until_next(picks[end - depth : end], gains[end - depth : end], budget)
            for end, depth, budget in zip(ends, depths, budgets, strict=True)
        ]


def select(
    matrices: Sequence[torch.Tensor], depths: Sequence[int], weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick from each of some [M, N] int16 matrices: the picks and gains of all, end to end, int64.

    Args:
        depths: how many from each.
        weights: [tokens of all] int64.
    """
    device = matrices[0].device
    sets = Sets(
        tuple(len(each) for each in matrices),
        tuple(each.shape[1] for each in matrices),
        tuple(depths),
        False,  # whether a product is its own transpose to the last bit is up to the library that made it
        device,
    )
    laid_out = torch.empty(sets.elements, dtype=torch.int16, device=device)
    for matrix, place, turned in zip(matrices, sets.matrices(laid_out), sets.transposes(laid_out), strict=True):
        place.copy_(matrix)
        turned.copy_(matrix.T)
    with use_device(device):
        picked = greedy.greedy(laid_out, sets, weights, spread=1 << 16)
        greedy.fill_up(picked, sets)
    return picked.picks.long(), picked.gains.long()
