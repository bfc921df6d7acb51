"""Work on a few items at a time, to bound memory and to stay in the CPU's cache."""

from __future__ import annotations

import torch

CPU_BYTES = 1 << 23  # larger tiles spend as much time on fresh memory as on arithmetic
GPU_BYTES = 1 << 28  # smaller tiles do not keep a GPU busy


def split_tiles(count: int, item_bytes: int, device: torch.device) -> list[slice]:
    """Split `count` items of `item_bytes` each into consecutive tiles.

    >>> split_tiles(5, CPU_BYTES // 2, torch.device("cpu"))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, (CPU_BYTES if device.type == "cpu" else GPU_BYTES) // item_bytes)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def to_float(x: torch.Tensor) -> torch.Tensor:
    """Convert half precision to float32; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()
