"""numpy and torch, side by side: what comes in as one goes out as the same."""

from __future__ import annotations

import warnings
from typing import TypeAlias

import numpy as np
import torch

Array: TypeAlias = torch.Tensor | np.ndarray


def tensor_of(array: Array) -> torch.Tensor:
    """An array as a tensor, without a copy where torch can look at its memory; nothing here writes to it."""
    if isinstance(array, torch.Tensor):
        return array
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def numpy_of(array: Array) -> np.ndarray:
    """A small array on the host."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def like(reference: Array, array: np.ndarray) -> Array:
    """`array` as the kind of array, and on the device, of `reference`."""
    if isinstance(reference, np.ndarray):
        return array
    if reference.device.type == "mps" and array.dtype == np.float64:  # it has no float64
        array = array.astype(np.float32)
    return torch.from_numpy(array).to(reference.device)


def as_given(values: torch.Tensor, numpy_dtype: np.dtype | None) -> Array:
    """A tensor as it is, or as an array of the dtype that the caller's arrays had."""
    return values if numpy_dtype is None else numpy_of(values).astype(numpy_dtype, copy=False)
