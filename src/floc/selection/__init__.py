"""The maths of one set of tokens: similarities in, picks out."""

from __future__ import annotations

import importlib.util
import warnings
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from ..arrays import tensor_of
from ..naming import require_known
from .engine import Engine
from .objective import SCALE

BACKENDS = ("auto", "reference", "cpu", "torch", "gpu")
OLDEST_TRITON = (3, 6)


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
    name = resolve(backend, matrix.device)
    if name == "gpu":
        from .gpu.engine import select as select_on_gpu

        on_device = None if counts is None else torch.from_numpy(counts).to(matrix.device)
        picks, gains = select_on_gpu([matrix], [int(k)], on_device)
    elif name == "torch":
        from . import batched

        on_device = None if counts is None else torch.from_numpy(counts).to(matrix.device)[None]
        picks, gains = (each[0] for each in batched.greedy(matrix[None], int(k), on_device))
    else:
        if name == "cpu":
            from .picking import lazily as greedy
        else:
            from .reference import greedy
        picks, gains = map(torch.from_numpy, greedy(np.ascontiguousarray(matrix.cpu().numpy()), int(k), counts))
    if isinstance(similarity, torch.Tensor):
        return Selection(picks.to(similarity.device), gains.to(similarity.device))
    return Selection(picks.cpu().numpy(), gains.cpu().numpy())


def resolve(backend: str, device: torch.device) -> str:
    """The backend to run: what was asked for, checked, or the best one for `device`."""
    require_known("backend", backend, BACKENDS)
    if backend == "auto":
        if device.type == "cpu":
            return "cpu" if _installed("numba") else "torch"
        why_not = _why_no_kernels(device)
        if why_not:
            _say_once(f"floc chooses with backend='torch' on {device.type}, which is slower: {why_not}")
        return "torch" if why_not else "gpu"
    if backend == "gpu" and (why_not := _why_no_kernels(device)):
        raise ValueError(f"backend 'gpu' cannot run on {device}: {why_not}; pass backend='auto'")
    if backend == "cpu" and not _installed("numba"):
        raise ImportError("backend 'cpu' needs numba: pip install 'floc[cpu]', or pass backend='torch'")
    return backend


def engine(backend: str, device: torch.device) -> Engine:
    """The engine behind a backend's name, for tokens on `device`."""
    name = resolve(backend, device)
    if name == "cpu":
        from .cpu import CpuEngine

        return CpuEngine()
    if name == "gpu":
        from .gpu.engine import GpuEngine

        return GpuEngine()
    from .tensors import ReferenceEngine, TorchEngine

    return TorchEngine() if name == "torch" else ReferenceEngine()


@lru_cache
def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@lru_cache
def _why_no_kernels(device: torch.device) -> str:
    """What keeps the kernels from running on a device; empty where nothing does."""
    if device.type not in ("cpu", "cuda") or torch.version.hip is not None:
        return "its kernels are for NVIDIA GPUs"
    if not _installed("triton"):
        return "Triton is not installed (pip install triton)"
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST_TRITON:
        return f"it needs Triton {'.'.join(map(str, OLDEST_TRITON))} or newer, and this is {triton.__version__}"
    if device.type == "cpu":
        from .gpu.launch import interpreted

        return "" if interpreted() else "the tokens are on the CPU"
    capability = torch.cuda.get_device_capability(device)
    return (
        ""
        if capability >= (8, 0)
        else f"it needs compute capability 8.0, this one has {'.'.join(map(str, capability))}"
    )


@lru_cache
def _say_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)


def _fixed_point(similarity: torch.Tensor | np.ndarray) -> torch.Tensor:
    """[M, N] int16, checked."""
    if not isinstance(similarity, (torch.Tensor, np.ndarray)):
        raise TypeError(f"similarity must be a torch tensor or a numpy array, got {type(similarity).__name__}")
    if isinstance(similarity, np.ndarray) and similarity.dtype.kind not in "fiub":
        raise TypeError(f"similarity must be float or integer, got {similarity.dtype}")
    if isinstance(similarity, np.ndarray) and similarity.dtype.kind == "f" and similarity.dtype.itemsize > 8:
        similarity = similarity.astype(np.float64)
    matrix = tensor_of(similarity).detach()
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
    given = tensor_of(weights).detach().cpu()
    counts = given.to(torch.int64)
    if given.shape != (n,):
        raise ValueError(f"weights must be [{n}], one for each token; got {list(given.shape)}")
    if given.is_complex() or not bool((counts == given).all()) or bool((counts < 0).any()):
        raise ValueError("weights must be whole numbers >= 0, so that gains stay exact; scale and round them first")
    require_headroom(counts.numpy(), m)
    return counts.numpy()


def require_headroom(weights: np.ndarray, candidates: int) -> None:
    """Backends order candidates by gain and index in one int64, of which the GPU keeps three bits for itself.

    Similarities are below 2**15, and what a pick adds to others below 2**16 for each token; but the first pick has the
    largest sum, so no later one gains more than half of that.
    """
    largest = float(weights.sum(dtype=np.float64)) * (1 << 18) * (1 << max(1, (candidates - 1).bit_length()))
    if largest >= 2.0**63:
        raise ValueError(
            f"weights add up to {weights.sum():.3g}: too much for exact 64-bit gains with {candidates} candidates; "
            "scale them down"
        )
