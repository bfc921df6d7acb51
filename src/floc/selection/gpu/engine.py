"""The gpu backend for callers that work on the host; those that stay on the device use floc.selection.gpu.run."""

from collections.abc import Sequence

import numpy as np
import torch

from floc.selection.engine import Band, Job, Matrices
from floc.selection.gpu import band_selection, greedy
from floc.selection.gpu.launch import LIMIT_BYTES, use_device
from floc.selection.gpu.sets import Sets
from floc.selection.objective import Similarity
from floc.selection.torch.engine import Selected, TorchEngine


class GpuEngine(TorchEngine):
    """The torch engine with selection by the Triton kernels; see `TorchEngine`."""

    def estimate_bytes(self, n: int, dim: int, similarity: Similarity, *, weighted: bool = False) -> int:
        if similarity.metric == "gaussian":
            return super().estimate_bytes(n, dim, similarity) + 4 * n * n
        return (4 if weighted else 2) * n * n + 4 * n * dim  # a matrix that is not symmetric is stored twice

    def estimate_band_bytes(self, band: Band, dim: int) -> int:
        # every program keeps covers and changes of all tokens within the horizon of its own; there are no tiles
        return 2 * band.n * band.width + 64 * band.n + 10 * (2 * band.horizon + 1) * band.n

    def limit_survivors(self, sizes: np.ndarray, survivors: int) -> int:
        # the matrices of all blocks of a window exist together
        return max(1, int(LIMIT_BYTES / (2 * int(sizes.max())) * survivors / int(sizes.sum())))

    def _pick_in_band(
        self, job: Job, band: Band, similarity: Similarity
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if job.first or len(job.given) or job.question is not None:  # a part of a stream, or more targets
            return super()._pick_in_band(job, band, similarity)
        depth = min(job.budget + 1, band.n)
        with use_device(job.tokens.device):
            selection = band_selection.select(job.tokens, band, depth, similarity.detail)
            keys, picks = torch.sort(selection.picks.gains, descending=True, stable=True)
            return selection.values, picks[:depth], keys[:depth].clamp_min(0).long()

    def _select(self, matrices: Matrices, depths: Sequence[int], weights: np.ndarray | None) -> Selected:
        device = matrices[0].device
        # not symmetric: the library that computed a product does not guarantee exact symmetry
        sizes = tuple(len(matrix) for matrix in matrices), tuple(matrix.shape[1] for matrix in matrices)
        sets = Sets(*sizes, tuple(depths), False, device)
        laid_out = torch.empty(sets.elements, dtype=torch.int16, device=device)
        for matrix, place, transpose in zip(matrices, sets.matrices(laid_out), sets.transposes(laid_out), strict=True):
            place.copy_(matrix)
            transpose.copy_(matrix.T)
        device_weights = None if weights is None else torch.from_numpy(weights).to(device)
        with use_device(device):
            picked = greedy.greedy(laid_out, sets, device_weights, spread=1 << 16)
            greedy.fill_up(picked, sets)
        return picked.picks.long(), picked.gains.long()
