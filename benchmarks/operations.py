"""Count the floating-point operations of a method, or estimate them if it does not run in torch.

torch's FLOP counter counts matrix products, a multiplication and an addition as two. In addition, one operation is
counted for each element that an elementwise sum, product or quotient reads or writes: methods that only compare
neighbours have nothing else. FLoC is counted on the torch backend, which computes the same similarities as the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import floc
from floc import blocks

COUNTED, ESTIMATED = "counted", "estimated"
# the counter sees neither scikit-learn nor kmedoids, nor other threads
OUTSIDE_TORCH = ("kmeans", "kmedoids", "spectral")


def count_operations(method: str, tokens: torch.Tensor, ratio: str, **options: Any) -> tuple[float, str]:
    """Return the operations of keeping `ratio` of [T, H, W, D] tokens, and COUNTED or ESTIMATED."""
    if method in OUTSIDE_TORCH:
        return _estimate_distances(method, tokens), ESTIMATED
    if "backend" in floc.methods.list_options(method):
        options["backend"] = "torch"
    with FlopCounterMode(display=False, custom_mapping=_map_elementwise()) as counter:
        floc.compress(tokens, ratio=ratio, method=method, **options)
    return float(counter.get_total_flops()), COUNTED


def _estimate_distances(method: str, tokens: torch.Tensor) -> float:
    """Return the operations of all distances within blocks. The clustering itself is not included."""
    frames, height, width, dim = tokens.shape
    spans = blocks.split_blocks(frames, floc.methods.get(method)().block)
    return float(sum(2 * ((span.stop - span.start) * height * width) ** 2 * dim for span in spans))


def _map_elementwise() -> dict[Any, Callable[..., int]]:
    aten = torch.ops.aten
    counted = (aten.add, aten.sub, aten.mul, aten.div, aten.rsub, aten.pow, aten.exp, aten.sqrt, aten.sum, aten.mean)
    return dict.fromkeys((*counted, aten.linalg_vector_norm, aten.cumsum, aten._adaptive_avg_pool2d), _count_elements)


def _count_elements(*arguments: Any, out_val: Any = None, **options: Any) -> int:
    """Return the size of the largest floating-point tensor that is read or written."""
    values = (*arguments, out_val)
    return max((x.numel() for x in values if isinstance(x, torch.Tensor) and x.is_floating_point()), default=0)


_count_elements._get_raw = True  # type: ignore[attr-defined]  # makes the counter pass tensors, not only their shapes
