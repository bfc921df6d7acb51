"""What launches depend on: the device, and whether kernels run on it or in Triton's interpreter."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from functools import lru_cache

import torch
import triton

LIMIT_BYTES = 4 << 30  # of matrices that exist at a time, unless one alone is larger


def interpreted() -> bool:
    """Whether kernels are interpreted, on the CPU: TRITON_INTERPRET=1 when Triton was imported."""
    return bool(triton.knobs.runtime.interpret)


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """How many programs run at once at least."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@lru_cache
def has_boxes(device: torch.device) -> bool:
    """Whether the device copies boxes of a matrix by itself, from Hopper on."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)


def on(device: torch.device) -> AbstractContextManager:
    """Launch there: Triton launches on the current device, whatever the tensors are on."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
