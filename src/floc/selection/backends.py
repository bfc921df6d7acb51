"""Choose the backend that selects on a device, and create its engine."""

import importlib.util
import warnings
from functools import lru_cache

import torch

from floc._checks import check_choice
from floc.selection.torch.engine import ReferenceEngine, TorchEngine

BACKENDS = ("auto", "reference", "cpu", "torch", "gpu")
OLDEST_TRITON = (3, 6)


def resolve_backend(backend: str, device: torch.device) -> str:
    """Return the backend to run: the requested one after a check, or for "auto" the fastest one on `device`."""
    check_choice("backend", backend, BACKENDS)
    if backend == "auto":
        if device.type == "cpu":
            return "cpu" if _is_installed("numba") else "torch"
        obstacle = _find_kernel_obstacle(device)
        if obstacle:
            _warn_once(f"floc selects with the slower backend='torch' on {device.type}: {obstacle}")
        return "torch" if obstacle else "gpu"
    if backend == "gpu" and (obstacle := _find_kernel_obstacle(device)):
        raise ValueError(f"backend 'gpu' cannot run on {device}: {obstacle}; pass backend='auto'")
    if backend == "cpu" and not _is_installed("numba"):
        raise ImportError("backend 'cpu' needs numba: pip install 'floc-video[cpu]', or pass backend='torch'")
    return backend


def create_engine(backend: str, device: torch.device) -> TorchEngine:
    """Create the engine of a backend for tokens on `device`."""
    name = resolve_backend(backend, device)
    if name == "cpu":
        from floc.selection.cpu.engine import CpuEngine

        return CpuEngine()
    if name == "gpu":
        from floc.selection.gpu.engine import GpuEngine

        return GpuEngine()
    return TorchEngine() if name == "torch" else ReferenceEngine()


@lru_cache
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@lru_cache
def _find_kernel_obstacle(device: torch.device) -> str:
    """Return why the Triton kernels cannot run on `device`, or an empty string if they can."""
    if device.type not in ("cpu", "cuda") or torch.version.hip is not None:
        return "its kernels are for NVIDIA GPUs"
    if not _is_installed("triton"):
        return "Triton is not installed (pip install triton)"
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST_TRITON:
        return f"it needs Triton {'.'.join(map(str, OLDEST_TRITON))} or newer, and {triton.__version__} is installed"
    if device.type == "cpu":
        from floc.selection.gpu.launch import is_interpreted

        return "" if is_interpreted() else "the tokens are on the CPU"
    major, minor = torch.cuda.get_device_capability(device)
    return "" if major >= 8 else f"it needs compute capability 8.0, and this GPU has {major}.{minor}"


@lru_cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)
