"""How many operations a method takes: counted where torch does the work, estimated where something else does.

torch's flop counter counts products of matrices, a multiplication and an addition as two. Beside them, here, it counts
one for every element that a sum, a product or a quotient of elements reads or writes: methods that compare neighbours
only have nothing else. FLoC is counted on the torch backend, which fills the same similarities as the compiled ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import floc
from floc import blocks

COUNTED, ESTIMATED = "counted", "estimated"
# scikit-learn's and kmedoids' own work is out of the counter's sight, and so is all that is done in other threads
OUTSIDE_TORCH = ("kmeans", "kmedoids", "spectral")


def operations(method: str, tokens: torch.Tensor, ratio: str, **options: Any) -> tuple[float, str]:
    """Floating-point operations of keeping `ratio` of [T, H, W, D] tokens, and whether counted or estimated."""
    if method in OUTSIDE_TORCH:
        return _distances(method, tokens), ESTIMATED
    if "backend" in floc.methods.options(method):
        options["backend"] = "torch"
    with FlopCounterMode(display=False, custom_mapping=_elementwise()) as counter:
        floc.compress(tokens, ratio=ratio, method=method, **options)
    return float(counter.get_total_flops()), COUNTED


def _distances(method: str, tokens: torch.Tensor) -> float:
    """Of the distances between all tokens of a block alone: what clustering does with them comes on top."""
    frames, height, width, dim = tokens.shape
    spans = blocks.split_blocks(frames, floc.methods.get(method)().block)
    return float(sum(2 * ((span.stop - span.start) * height * width) ** 2 * dim for span in spans))


def _elementwise() -> dict[Any, Callable[..., int]]:
    aten = torch.ops.aten
    counted = (aten.add, aten.sub, aten.mul, aten.div, aten.rsub, aten.pow, aten.exp, aten.sqrt, aten.sum, aten.mean)
    return dict.fromkeys((*counted, aten.linalg_vector_norm, aten.cumsum, aten._adaptive_avg_pool2d), _largest)


def _largest(*arguments: Any, out_val: Any = None, **options: Any) -> int:
    """One for each element of the largest tensor that is read or written; whole numbers are no floating point."""
    read = [each for each in (*arguments, out_val) if isinstance(each, torch.Tensor) and each.is_floating_point()]
    return max((each.numel() for each in read), default=0)


_largest._get_raw = True  # type: ignore[attr-defined]  # by this the counter hands over tensors, not only their shapes
