"""Which backend selects on which device."""

from __future__ import annotations

import importlib.util
import warnings
from functools import lru_cache

import numpy as np
import torch

from floc._checks import check_choice
from floc.selection.engine import Engine

BACKENDS = ("auto", "reference", "cpu", "torch", "gpu")
OLDEST_TRITON = (3, 6)


def resolve_backend(backend: str, device: torch.device) -> str:
    """The backend to run: what was asked for, checked, or the best one for `device`."""
    check_choice("backend", backend, BACKENDS)
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
        raise ImportError("backend 'cpu' needs numba: pip install 'floc-video[cpu]', or pass backend='torch'")
    return backend


def create_engine(backend: str, device: torch.device) -> Engine:
    """The engine behind a backend's name, for tokens on `device`."""
    name = resolve_backend(backend, device)
    if name == "cpu":
        from floc.selection.cpu.engine import CpuEngine

        return CpuEngine()
    if name == "gpu":
        from floc.selection.gpu.engine import GpuEngine

        return GpuEngine()
    from floc.selection.torch.engine import ReferenceEngine, TorchEngine

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
        from floc.selection.gpu.launch import interpreted

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


def check_headroom(weights: np.ndarray, candidates: int) -> None:
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
