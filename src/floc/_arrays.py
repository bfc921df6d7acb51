"""Conversions between numpy and torch, and tiles of rows. Outputs have the type, dtype and device of the input."""

import warnings
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import torch

Array: TypeAlias = torch.Tensor | np.ndarray
TILE_BYTES = 1 << 26  # of temporaries at a time: large enough for a fast matrix product


def require_dense(array: object, name: str = "tokens") -> None:
    """Raise TypeError or ValueError unless `array` is a numpy array or a torch tensor whose values are in memory."""
    if not isinstance(array, (torch.Tensor, np.ndarray)):
        raise TypeError(f"{name} must be a torch tensor or a numpy array, got {type(array).__name__}")
    if isinstance(array, np.ndarray):
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"{name} must not be masked; select or fill them first: {name}.filled(0)")
    elif array.is_nested or array.layout != torch.strided:
        kind = "a nested tensor" if array.is_nested else f"layout {array.layout}"
        raise TypeError(f"{name} must be a dense tensor, got {kind}; convert them first: {name}.to_dense()")
    elif array.is_quantized:
        raise TypeError(f"{name} must be floating point, got {array.dtype}; convert them first: {name}.dequantize()")
    elif array.is_meta:
        raise ValueError(f"{name} must hold values, but a tensor on the device 'meta' has none; load them first")


def to_tensor(array: Array) -> torch.Tensor:
    """Convert an array to a tensor, sharing its memory if torch can. The tensor must not be written to."""
    if isinstance(array, torch.Tensor):
        return array.resolve_neg()  # a lazily negated view has no memory that numpy can share
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


def iterate_tiles(count: int, row_bytes: int, tile_bytes: int = TILE_BYTES) -> Iterator[slice]:
    """Yield slices that cover `count` rows of `row_bytes`, each of at most `tile_bytes` and of at least one row.

    >>> list(iterate_tiles(5, row_bytes=100, tile_bytes=250))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, tile_bytes // row_bytes)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
