"""Properties of the device that kernels are launched on, and whether they run in Triton's interpreter."""

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import torch
import triton

LIMIT_BYTES = 4 << 30  # limit of the matrices in memory at a time, unless a single one is larger


def is_interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter on the CPU: TRITON_INTERPRET=1 when Triton was imported."""
    return bool(triton.knobs.runtime.interpret)


@lru_cache
def count_multiprocessors(device: torch.device) -> int:
    """Return the number of programs that are guaranteed to run at the same time."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@lru_cache
def supports_tma(device: torch.device) -> bool:
    """Return whether the device has the Tensor Memory Accelerator (Hopper and later), or is interpreted."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)


def use_device(device: torch.device) -> AbstractContextManager:
    """Make `device` current: Triton launches on the current device, wherever the tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
