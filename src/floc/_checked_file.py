"""Read safetensors files that may come from a stranger.

safetensors checks every tensor against the length of the file before it takes memory. `open_checked` also limits the
header, and `Fields` gives each value of the JSON metadata a type and a range. All errors are ValueError.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

from floc._checks import require, shorten

HEADER_BYTES = 16 << 20  # names, shapes and metadata; files of floc have a few KB
LARGEST = 2**53  # integers up to it are exact in float64, too
# the smallest and the largest allowed values of fields that several formats share
FPS, COVERAGE, FRAMES_PER_SLICE = (1e-9, 1e9), (-1.01, 1.01), (1, 1 << 16)
MAX_S = 1e12  # seconds
MAX_SIDE = 1 << 24  # slices, rows, columns or features


class Fields:
    """The values of a JSON object, each read with a check. A value of null counts as missing."""

    def __init__(self, values: object, name: str = "metadata") -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{name} must be a JSON object, got {shorten(values)}")
        self.values: dict[str, Any] = values
        self.prefix = "" if name == "metadata" else f"{name}."

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, least: int = 0, most: int = LARGEST) -> int:
        value: Any = self.values.get(name)
        is_valid = type(value) is int and least <= value <= most
        return value if is_valid else self._fail(name, f"a whole number from {least} to {most}")

    def number(self, name: str, least: float = -1e15, most: float = 1e15) -> float:
        """Return a finite number within [least, most]."""
        value: Any = self.values.get(name)
        if type(value) is int and abs(value) > sys.float_info.max:
            self._fail(name, "a number that fits a float")
        is_valid = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
        return float(value) if is_valid else self._fail(name, f"a number from {least:g} to {most:g}")

    def flag(self, name: str) -> bool:
        value: Any = self.values.get(name)
        return value if type(value) is bool else self._fail(name, "true or false")

    def text(self, name: str, longest: int = 10_000) -> str:
        """Return a string of at most `longest` characters."""
        value: Any = self.values.get(name)
        is_valid = type(value) is str and len(value) <= longest
        return value if is_valid else self._fail(name, f"text of at most {longest} characters")

    def section(self, name: str) -> "Fields":
        return Fields(self.values.get(name), f"{self.prefix}{name}")

    def integers(self, name: str, count: int, least: int = 0, most: int = LARGEST) -> list[int]:
        """Return a list of `count` integers within [least, most]."""
        values = self.sequence(name, count)
        return [values.integer(i, least, most) for i in values.values]

    def numbers(self, name: str, count: int | range, least: float = -1e15, most: float = 1e15) -> list[float]:
        """Return a list of `count` finite numbers within [least, most]."""
        values = self.sequence(name, count)
        return [values.number(i, least, most) for i in values.values]

    def shape(self, name: str, least: int = 1, longest: int = LARGEST) -> tuple[int, int, int]:
        """Return frames, rows and columns, each within [least, longest]."""
        frames, rows, columns = self.integers(name, 3, least, longest)
        if frames * rows * columns > LARGEST:
            self._fail(name, f"frames, rows and columns of at most {LARGEST} tokens")
        return frames, rows, columns

    def check_format(self, known: int, missing: int | None = None) -> None:
        """Raise ValueError unless "format" is `known`; a file without it has the format `missing`."""
        value = self.values.get("format", missing)
        if type(value) is not int or value != known:
            raise ValueError(f"it has format {shorten(value)}, but this version of floc reads {known}; update floc")

    def sequence(self, name: str, count: int | range) -> "Fields":
        """Return a list of `count` values, or as many as a range has, as fields "0", "1" and so on."""
        values: Any = self.values.get(name)
        counts = range(count, count + 1) if isinstance(count, int) else count
        if type(values) is not list or len(values) not in counts:
            expected = count if isinstance(count, int) else f"at most {counts[-1]}"
            self._fail(name, f"a list of {expected} values")
        return Fields({str(i): value for i, value in enumerate(values)}, f"{self.prefix}{name}")

    def _fail(self, name: str, expected: str) -> NoReturn:
        raise ValueError(f"{self.prefix}{name} must be {expected}, got {shorten(self.values.get(name))}")


class CheckedFile:
    """An open safetensors file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.names = frozenset(file.keys())
        self.entries: dict[str, str] = file.metadata() or {}

    def fields(self, entry: str) -> "Fields":
        """Parse a metadata entry, which is a JSON object."""
        require(entry in self.entries, f"it has no metadata called {entry!r}")
        try:
            values = json.loads(self.entries[entry])
            if len(self.entries[entry]) > HEADER_BYTES >> 4 and len(json.dumps(values)) > HEADER_BYTES >> 2:
                raise OverflowError  # written again, with other spaces and escapes, it might not fit the header
            return Fields(values)
        except OverflowError:
            raise ValueError(f"its metadata {entry!r} has more than {HEADER_BYTES >> 2} characters") from None
        except RecursionError:
            raise ValueError(f"its metadata {entry!r} is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"its metadata {entry!r} is not JSON ({error})") from None

    def tensor(self, name: str, shape: tuple[int | None, ...], dtype: torch.dtype | str) -> torch.Tensor:
        """Load a tensor of a known shape and dtype; None matches any length, "float" any floating-point dtype.

        Floating-point values must be finite.
        """
        require(name in self.names, f"tensor {name} is missing")
        actual = tuple(self._file.get_slice(name).get_shape())
        if len(actual) != len(shape) or any(want not in (None, got) for want, got in zip(shape, actual, strict=True)):
            expected = "x".join("any" if size is None else str(size) for size in shape)
            raise ValueError(f"tensor {name} must have shape {expected}, got {'x'.join(map(str, actual))}")
        tensor: torch.Tensor = self._file.get_tensor(name)
        if not (tensor.is_floating_point() if dtype == "float" else tensor.dtype == dtype):
            expected = "a floating-point dtype" if dtype == "float" else f"dtype {dtype}"
            raise ValueError(f"tensor {name} must have {expected}, got {tensor.dtype}")
        if tensor.is_floating_point() and not is_finite(tensor):
            raise ValueError(f"tensor {name} has values that are not finite")
        return tensor

    def any_tensor(self, name: str) -> torch.Tensor:
        """Load a tensor of any shape and dtype, whose values are not checked."""
        return self._file.get_tensor(name)


def is_finite(values: torch.Tensor) -> bool:
    """Return whether all floating-point values are finite, a hundred times as fast as `isfinite` on a CPU.

    >>> is_finite(torch.tensor([1.0, 2.0])), is_finite(torch.tensor([1.0, torch.nan])), is_finite(torch.tensor([]))
    (True, False, True)
    """
    values = values if values.element_size() > 1 else values.float()  # torch cannot test 8-bit floats
    return not values.numel() or bool(torch.stack(torch.aminmax(values)).isfinite().all())


def check_selection(indices: torch.Tensor, order: torch.Tensor, n: int) -> None:
    """Raise ValueError unless [K] indices ascend within 0..n-1, and [K] order holds each of their places once."""
    k = len(indices)
    if not k or int(indices[0]) < 0 or int(indices[-1]) >= n or bool((indices[1:] <= indices[:-1]).any()):
        raise ValueError(f"indices must be ascending, within 0..{n - 1}")
    if not torch.equal(order.sort().values, torch.arange(k, device=order.device)):
        raise ValueError(f"order must be a permutation of 0..{k - 1}")


def check_regular_file(path: Path, what: str) -> None:
    """Raise OSError or ValueError unless `path` is a file; opening a pipe would wait forever."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    require(path.is_file(), f"{path}: not a regular file; give {what}")


@contextmanager
def open_checked(path: Path, what: str) -> Iterator[CheckedFile]:
    """Open a safetensors file; turn errors about it inside the block into ValueError that starts with the path.

    The error also says `what` the file should be, such as "a .floc file".
    """
    from safetensors import SafetensorError, safe_open

    check_regular_file(path, what)
    try:
        with path.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            rest = os.fstat(opened.fileno()).st_size - 8
        if not 0 < length <= min(rest, HEADER_BYTES):
            raise ValueError(f"its header should have {length} bytes, but has {max(rest, 0)} of at most {HEADER_BYTES}")
        with safe_open(path, framework="pt") as file:
            yield CheckedFile(file)
    except (SafetensorError, OSError, ValueError) as error:
        problem = f"not {what}, or damaged: {str(error) or type(error).__name__}"
        raise ValueError(f"{path}: {problem}; write the file again, or ask who made it") from error
