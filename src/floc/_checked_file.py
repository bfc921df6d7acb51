"""Read safetensors files that may come from a stranger.

safetensors checks every tensor against the length of the file before it takes memory. `open_checked` also limits the
header, and `Fields` gives each value of the JSON metadata a type and a range. All errors are ValueError.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

from floc._checks import shorten

HEADER_BYTES = 16 << 20  # names, shapes and metadata; files of floc have a few KB
LARGEST = 2**53  # integers up to it are exact in float64, too


class Fields:
    """The values of a JSON object, each read with a check. A value of null counts as missing."""

    def __init__(self, values: object, name: str = "metadata") -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{name} must be a JSON object, got {shorten(values)}")
        self.values: dict[str, Any] = values
        self.prefix = "" if name == "metadata" else f"{name}."

    def has(self, name: str) -> bool:
        """Return whether a value is present."""
        return self.values.get(name) is not None

    def integer(self, name: str, least: int = 0, most: int = LARGEST) -> int:
        """Return an integer within [least, most]."""
        value: Any = self.values.get(name)
        if type(value) is not int or not least <= value <= most:
            self._fail(name, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, least: float = -1e15, most: float = 1e15) -> float:
        """Return a finite number within [least, most]."""
        value: Any = self.values.get(name)
        if type(value) not in (int, float) or not least <= value <= most:  # false for NaN, too
            self._fail(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return True or False."""
        value: Any = self.values.get(name)
        if type(value) is not bool:
            self._fail(name, "true or false")
        return value

    def text(self, name: str, longest: int = 10_000) -> str:
        """Return a string of at most `longest` characters."""
        value: Any = self.values.get(name)
        if type(value) is not str or len(value) > longest:
            self._fail(name, f"text of at most {longest} characters")
        return value

    def section(self, name: str) -> Fields:
        """Return a JSON object."""
        return Fields(self.values.get(name), f"{self.prefix}{name}")

    def integers(self, name: str, count: int, least: int = 0, most: int = LARGEST) -> list[int]:
        """Return a list of `count` integers within [least, most]."""
        values = self._sequence(name, count)
        return [values.integer(str(i), least, most) for i in range(count)]

    def numbers(self, name: str, count: int, least: float = -1e15, most: float = 1e15) -> list[float]:
        """Return a list of `count` finite numbers within [least, most]."""
        values = self._sequence(name, count)
        return [values.number(str(i), least, most) for i in range(count)]

    def _sequence(self, name: str, count: int) -> Fields:
        values: Any = self.values.get(name)
        if type(values) is not list or len(values) != count:
            self._fail(name, f"a list of {count} values")
        return Fields({str(i): value for i, value in enumerate(values)}, f"{self.prefix}{name}")

    def _fail(self, name: str, expected: str) -> NoReturn:
        raise ValueError(f"{self.prefix}{name} must be {expected}, got {shorten(self.values.get(name))}")


class CheckedFile:
    """An open safetensors file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.names = frozenset(file.keys())
        self.entries: dict[str, str] = file.metadata() or {}

    def fields(self, entry: str) -> Fields:
        """Parse a metadata entry, which is a JSON object."""
        if entry not in self.entries:
            raise ValueError(f"it has no metadata called {entry!r}")
        try:
            return Fields(json.loads(self.entries[entry]))
        except RecursionError:
            raise ValueError(f"its metadata {entry!r} is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"its metadata {entry!r} is not JSON ({error})") from None

    def tensor(self, name: str, shape: tuple[int | None, ...], dtype: torch.dtype | str) -> torch.Tensor:
        """Load a tensor of a known shape; None matches any length.

        Args:
            dtype: A dtype, or "float" for any floating-point dtype that torch computes with; its values must be finite.
        """
        if name not in self.names:
            raise ValueError(f"tensor {name} is missing")
        found = tuple(self._file.get_slice(name).get_shape())
        expected = "x".join("any" if size is None else str(size) for size in shape)
        if len(found) != len(shape) or any(
            size not in (None, length) for size, length in zip(shape, found, strict=True)
        ):
            raise ValueError(f"tensor {name} must have shape {expected}, got {'x'.join(map(str, found))}")
        tensor = self._file.get_tensor(name)
        if dtype == "float":
            if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
                raise ValueError(f"tensor {name} must have a floating-point dtype, got {tensor.dtype}")
        elif tensor.dtype != dtype:
            raise ValueError(f"tensor {name} must have dtype {dtype}, got {tensor.dtype}")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"tensor {name} has values that are not finite")
        return tensor


@contextmanager
def open_checked(path: Path, what: str) -> Iterator[CheckedFile]:
    """Open a safetensors file; turn every error inside the block into ValueError that starts with the path.

    Args:
        what: What the file should be, such as "a .floc file"; part of the error.
    """
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: not a regular file; give {what}")
    try:
        _check_header(path)
        with safe_open(path, framework="pt") as file:
            yield CheckedFile(file)
    except (SafetensorError, OSError, ValueError, TypeError, LookupError, OverflowError, RuntimeError) as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path}: not {what}, or damaged: {reason}; write the file again") from error


def _check_header(path: Path) -> None:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        rest = os.fstat(file.fileno()).st_size - 8
    if not 0 < length <= min(rest, HEADER_BYTES):
        raise ValueError(
            f"its header should have {length} bytes, the file has {max(rest, 0)} of at most {HEADER_BYTES}"
        )
