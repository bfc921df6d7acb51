"""Conversions between numpy and torch. A function's output has the type, dtype and device of the caller's input."""

from __future__ import annotations

import warnings
from typing import TypeAlias

import numpy as np
import torch

Array: TypeAlias = torch.Tensor | np.ndarray


def to_tensor(array: Array) -> torch.Tensor:
    """Convert an array to a tensor, sharing its memory if torch can. The tensor must not be written to."""
    if isinstance(array, torch.Tensor):
        return array
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy(order="C")  # always, unlike ascontiguousarray
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def to_numpy(array: Array) -> np.ndarray:
    """Convert an array to numpy, copying it from its device if necessary."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def convert_like(reference: Array, array: np.ndarray) -> Array:
    """Convert `array` to the array type and device of `reference`."""
    if isinstance(reference, np.ndarray):
        return array
    if reference.device.type == "mps" and array.dtype == np.float64:  # MPS has no float64
        array = array.astype(np.float32)
    return torch.from_numpy(array).to(reference.device)


def to_input_type(values: torch.Tensor, numpy_dtype: np.dtype | None) -> Array:
    """Convert a tensor to a numpy array of `numpy_dtype`; return it unchanged if `numpy_dtype` is None."""
    return values if numpy_dtype is None else to_numpy(values).astype(numpy_dtype, copy=False)


def copy_rows(target: torch.Tensor, start: int, rows: torch.Tensor) -> None:
    """Set `target[start : start + len(rows)] = rows`.

    On the CPU one thread copies: waking torch's thread pool on a busy machine takes longer than the copy.
    """
    if target.device.type == "cpu":
        _view_bits(target)[start : start + len(rows)] = _view_bits(rows)
    else:
        target[start : start + len(rows)] = rows


def take_rows(rows: torch.Tensor, places: np.ndarray) -> torch.Tensor:
    """Return `rows[places]`. On the CPU one thread copies, as in `copy_rows`."""
    if rows.device.type == "cpu":
        return torch.from_numpy(_view_bits(rows)[places]).view(rows.dtype)
    return rows[torch.from_numpy(places).to(rows.device)]


def _view_bits(tensor: torch.Tensor) -> np.ndarray:
    """View a CPU tensor as integers of the same width: numpy has no bfloat16, but it can copy the bits."""
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().view(same_size).numpy()
