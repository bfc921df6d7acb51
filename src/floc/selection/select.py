"""`floc.select`: exact greedy facility location on a similarity matrix."""

from typing import NamedTuple

import numpy as np
import torch

from floc._arrays import Array, require_dense, to_tensor
from floc._checks import is_int, require
from floc._system import restore_interrupts
from floc.selection.backends import create_engine
from floc.selection.objective import SCALE


class Selection(NamedTuple):
    """The picked candidates, in the order they were picked, and the gain of each."""

    picks: Array  # [k] int64
    gains: Array  # [k] int64, in units of 2**-14 of similarity x weight


@restore_interrupts()
def select(similarity: Array, k: int, weights: Array | None = None, backend: str = "auto") -> Selection:
    """Pick the `k` candidates that together represent all tokens best, by exact greedy facility location.

    All backends return the same picks and gains for the same input, bit for bit. Ties go to the lowest index.

    Args:
        similarity: [M, N], how well candidate i represents token j. Floats in [-1, 1] are rounded to multiples of
            2**-14; integers are taken as fixed point with that unit and must fit int16.
        k: number of picks, 1 <= k <= M.
        weights: [N] whole numbers >= 0, how much each token counts; 1 by default.
        backend: "reference", "cpu" (compiled, needs numba), "torch" (any device), "gpu" (needs Triton), or "auto".

    Returns:
        Selection(picks, gains): torch tensors on the input's device for a torch input, numpy arrays otherwise.

    >>> select(np.array([[.9, .9, 0], [0, 0, .5], [.1, .1, .1]]), k=2).picks.tolist()
    [0, 1]
    """
    matrix = _to_fixed_point(similarity)
    m, n = matrix.shape
    require(is_int(k) and 1 <= k <= m, f"k must be a whole number in 1..{m}, the number of candidates; got {k!r}")
    counts = None if weights is None else _check_weights(weights, n)
    picks, gains = create_engine(backend, matrix.device).select([matrix], [int(k)], counts)
    if isinstance(similarity, torch.Tensor):
        return Selection(picks.to(similarity.device), gains.to(similarity.device))
    return Selection(picks.cpu().numpy(), gains.cpu().numpy())


def _to_fixed_point(similarity: Array) -> torch.Tensor:
    """Check the similarity matrix and convert it to [M, N] int16 fixed point."""
    require_dense(similarity, "similarity")
    dtype = similarity.dtype
    is_real = dtype.kind in "fiu" if isinstance(dtype, np.dtype) else not (dtype.is_complex or dtype == torch.bool)
    if not is_real:
        raise TypeError(f"similarity must be float or integer, got {dtype}")
    if isinstance(similarity, np.ndarray) and dtype.itemsize > 8:
        similarity = similarity.astype(np.float64)
    matrix = to_tensor(similarity).detach()
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"similarity must be a non-empty [M, N], candidates x tokens; got {list(matrix.shape)}")
    if matrix.is_floating_point():
        matrix = matrix.float()
        low, high = (float(limit) for limit in torch.aminmax(matrix))
        if not (low >= -1.001 and high <= 1.001):  # also true for NaN
            raise ValueError(f"similarity must be finite and in [-1, 1], got {low:g} to {high:g}; scale it first")
        return (matrix.clamp(-1, 1) * SCALE).round().to(torch.int16)
    if matrix.dtype == torch.int16:
        return matrix
    low, high = (int(limit) for limit in torch.aminmax(matrix.to(torch.int64)))
    if low < -32768 or high > 32767:
        raise ValueError(f"integer similarity is fixed point at 2**14 and must fit int16, got {low} to {high}")
    return matrix.to(torch.int16)


def _check_weights(weights: Array, n: int) -> np.ndarray:
    """Check the weights and convert them to [n] int64."""
    if isinstance(weights, torch.Tensor):
        require_dense(weights, "weights")
        weights = weights.detach().cpu().resolve_neg()
        weights = (weights.double() if weights.is_floating_point() else weights).numpy()
    values = np.asarray(weights)
    require(values.shape == (n,), f"weights must be [{n}], one for each token; got {list(values.shape)}")
    if values.dtype.kind not in "fiub" or not ((values >= 0) & (values < 2**62) & (values == np.rint(values))).all():
        raise ValueError("weights must be whole numbers >= 0, so that gains stay exact; scale and round them first")
    return values.astype(np.int64)
