"""The maths of one set of tokens: similarities in, picks out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from floc._arrays import to_tensor
from floc.selection.backends import check_headroom, resolve_backend
from floc.selection.objective import SCALE


class Selection(NamedTuple):
    """Candidates in the order they were picked, and what each added."""

    picks: torch.Tensor | np.ndarray  # [k] int64
    gains: torch.Tensor | np.ndarray  # [k] int64, in units of 1 / 2**14 of similarity x weight


def select(
    similarity: torch.Tensor | np.ndarray,
    k: int,
    weights: torch.Tensor | np.ndarray | None = None,
    backend: str = "auto",
) -> Selection:
    """Pick the `k` candidates that together cover all tokens best: greedy facility location, exact.

    All backends make the same picks with the same gains on the same input, bit for bit; ties go to the lowest index.

    Args:
        similarity: [M, N], how well candidate i stands in for token j. Floats in [-1, 1] are snapped to multiples of
            2**-14; integers are taken as such fixed point and must fit int16.
        k: how many to pick, 1 <= k <= M.
        weights: [N] whole numbers >= 0, how much each token counts; 1 each where not given.
        backend: "reference", "cpu" (compiled, needs numba), "torch" (any device), "gpu" (needs Triton), or "auto".

    Returns:
        Selection(picks, gains): torch tensors on the same device for a torch input, numpy arrays otherwise.

    >>> select(np.array([[.9, .9, 0], [0, 0, .5], [.1, .1, .1]]), k=2).picks.tolist()
    [0, 1]
    """
    matrix = _fixed_point(similarity)
    m, n = matrix.shape
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= m:
        raise ValueError(f"k must be a whole number in 1..{m}, the candidates there are; got {k!r}")
    counts = None if weights is None else _whole_weights(weights, m, n)
    name = resolve_backend(backend, matrix.device)
    if name == "gpu":
        from floc.selection.gpu.engine import select as select_on_gpu

        on_device = None if counts is None else torch.from_numpy(counts).to(matrix.device)
        picks, gains = select_on_gpu([matrix], [int(k)], on_device)
    elif name == "torch":
        from floc.selection.torch import greedy as batched

        on_device = None if counts is None else torch.from_numpy(counts).to(matrix.device)[None]
        picks, gains = (each[0] for each in batched.greedy(matrix[None], int(k), on_device))
    else:
        if name == "cpu":
            from floc.selection.cpu.greedy import lazily as greedy
        else:
            from floc.selection.reference import greedy
        picks, gains = map(torch.from_numpy, greedy(np.ascontiguousarray(matrix.cpu().numpy()), int(k), counts))
    if isinstance(similarity, torch.Tensor):
        return Selection(picks.to(similarity.device), gains.to(similarity.device))
    return Selection(picks.cpu().numpy(), gains.cpu().numpy())


def _fixed_point(similarity: torch.Tensor | np.ndarray) -> torch.Tensor:
    """[M, N] int16, checked."""
    if not isinstance(similarity, (torch.Tensor, np.ndarray)):
        raise TypeError(f"similarity must be a torch tensor or a numpy array, got {type(similarity).__name__}")
    if isinstance(similarity, np.ndarray) and similarity.dtype.kind not in "fiub":
        raise TypeError(f"similarity must be float or integer, got {similarity.dtype}")
    if isinstance(similarity, np.ndarray) and similarity.dtype.kind == "f" and similarity.dtype.itemsize > 8:
        similarity = similarity.astype(np.float64)
    matrix = to_tensor(similarity).detach()
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"similarity must be [M, N], candidates x tokens, neither 0; got {list(matrix.shape)}")
    if matrix.is_floating_point():
        matrix = matrix.float()
        low, high = (float(each) for each in torch.aminmax(matrix))
        if not (low >= -1.001 and high <= 1.001):  # also where one is NaN
            raise ValueError(f"similarity must be finite and in [-1, 1], got {low:g} to {high:g}; scale it first")
        return (matrix.clamp(-1, 1) * SCALE).round().to(torch.int16)
    if matrix.dtype == torch.int16:
        return matrix
    if matrix.dtype == torch.bool or matrix.is_complex():
        raise TypeError(f"similarity must be float or integer, got {matrix.dtype}")
    low, high = (int(each) for each in torch.aminmax(matrix.to(torch.int64)))
    if low < -32768 or high > 32767:
        raise ValueError(f"integer similarity is fixed point at 2**14 and must fit int16, got {low} to {high}")
    return matrix.to(torch.int16)


def _whole_weights(weights: torch.Tensor | np.ndarray, m: int, n: int) -> np.ndarray:
    """[n] int64 on the CPU, checked."""
    if not isinstance(weights, (torch.Tensor, np.ndarray)):
        weights = np.asarray(weights)
    given = to_tensor(weights).detach().cpu()
    counts = given.to(torch.int64)
    if given.shape != (n,):
        raise ValueError(f"weights must be [{n}], one for each token; got {list(given.shape)}")
    if given.is_complex() or not bool((counts == given).all()) or bool((counts < 0).any()):
        raise ValueError("weights must be whole numbers >= 0, so that gains stay exact; scale and round them first")
    check_headroom(counts.numpy(), m)
    return counts.numpy()
