"""numpy and torch, side by side: what comes in as one goes out as the same."""

from __future__ import annotations

import warnings
from typing import TypeAlias

import numpy as np
import torch

Array: TypeAlias = torch.Tensor | np.ndarray


def to_tensor(array: Array) -> torch.Tensor:
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


def to_numpy(array: Array) -> np.ndarray:
    """A small array on the host."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def convert_like(reference: Array, array: np.ndarray) -> Array:
    """`array` as the kind of array, and on the device, of `reference`."""
    if isinstance(reference, np.ndarray):
        return array
    if reference.device.type == "mps" and array.dtype == np.float64:  # it has no float64
        array = array.astype(np.float32)
    return torch.from_numpy(array).to(reference.device)


def to_input_type(values: torch.Tensor, numpy_dtype: np.dtype | None) -> Array:
    """A tensor as it is, or as an array of the dtype that the caller's arrays had."""
    return values if numpy_dtype is None else to_numpy(values).astype(numpy_dtype, copy=False)


def copy_rows(target: torch.Tensor, start: int, rows: torch.Tensor) -> None:
    """target[start : start + len(rows)] = rows

    On the host by one thread: torch would wake all of its own for it, and on a busy machine wait for them longer than
    the copy takes.
    """
    if target.device.type == "cpu":
        _bits(target)[start : start + len(rows)] = _bits(rows)
    else:
        target[start : start + len(rows)] = rows


def take_rows(rows: torch.Tensor, places: np.ndarray) -> torch.Tensor:
    """rows[places], by one thread on the host for the same reason."""
    if rows.device.type == "cpu":
        return torch.from_numpy(_bits(rows)[places]).view(rows.dtype)
    return rows[torch.from_numpy(places).to(rows.device)]


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """A tensor on the host as numpy sees its memory: numpy has no bfloat16, but it can copy one."""
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().view(same_size).numpy()
