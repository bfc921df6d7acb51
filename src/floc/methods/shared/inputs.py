"""Checks of the options of methods, and of the arrays that they take besides the tokens, such as attention."""

import numpy as np
import torch

from floc._arrays import Array, require_dense, to_tensor
from floc.methods.shared.frames import to_float
from floc.tokens import TokenGrid

Layout = tuple[int | str, ...]  # sizes of the axes; text is any size of at least 1, "m" also 0


def check_shares(method: object, *names: str) -> None:
    """Raise ValueError unless these options of a method are in [0, 1]."""
    for name in names:
        if not 0 <= getattr(method, name) <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {getattr(method, name)}")


def check_least(method: object, least: int, unit: str, *names: str) -> None:
    """Raise ValueError unless these options of a method are at least `least`."""
    for name in names:
        if not getattr(method, name) >= least:
            raise ValueError(f"{name} must be at least {least}{unit and f' {unit}'}, got {getattr(method, name)}")


def read_array(
    grid: TokenGrid, name: str, array: Array | None, *layouts: Layout, nonnegative: bool = False
) -> torch.Tensor | None:
    """Check an optional array and move it to the device of the grid's tokens; see `read_floats`."""
    return read_floats(array, name, *layouts, device=grid.tokens.device, nonnegative=nonnegative)


def read_floats(
    array: Array | None, name: str, *layouts: Layout, device: torch.device, nonnegative: bool = False
) -> torch.Tensor | None:
    """Check an optional array and move it to a device; raise if it fits no layout.

    Returns:
        The array in float32 or float64, with its own shape; None if there is none.
    """
    if array is None:
        return None
    require_dense(array, name)
    if not any(_fits(tuple(array.shape), layout) for layout in layouts):
        wanted = " or ".join(f"[{', '.join(map(str, layout))}]" for layout in layouts)
        raise ValueError(f"{name} must be {wanted}, to fit the tokens; got {tuple(array.shape)}")
    is_float = array.dtype.kind == "f" if isinstance(array, np.ndarray) else array.is_floating_point()
    if not is_float or array.dtype.itemsize > 8:
        raise TypeError(f"{name} must be floating point, got {array.dtype}; convert it first, for example to float32")
    tensor = to_float(to_tensor(array).detach().to(device))
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} must be finite, but has infinite values or NaN; replace them first")
    if nonnegative and bool((tensor < 0).any()):
        raise ValueError(f"{name} must not be negative, got a least value of {float(tensor.min()):g}; shift it first")
    return tensor


def _fits(shape: tuple[int, ...], layout: Layout) -> bool:
    if len(shape) != len(layout):
        return False
    pairs = zip(shape, layout, strict=True)
    return all(size == wanted or (isinstance(wanted, str) and size >= (wanted != "m")) for size, wanted in pairs)


def read_salience(grid: TokenGrid, attn: Array | None) -> torch.Tensor | None:
    """Check `attn`, the [T, N] salience of each token; None if there is none."""
    return read_array(grid, "attn", attn, (grid.shape[0], grid.cells), nonnegative=True)


def read_features(grid: TokenGrid, name: str, array: Array | None) -> torch.Tensor | None:
    """Check other features of the tokens, [T, H, W, C] or [T, N, C], and return them as [T, N, C]."""
    features = read_array(grid, name, array, (*grid.shape, "C"), (grid.shape[0], grid.cells, "C"))
    return None if features is None else features.reshape(grid.shape[0], grid.cells, -1)
