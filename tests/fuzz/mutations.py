"""Mutations of bytes, of JSON values and of safetensors files. All depend on the random generator alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64),
    *(10**10, -(2**63), 10**30, 0.0, -0.0, 0.5, 1.5, -1.5, 1e-320, 1e-12, 1e15, 1e308, -1e308),
    *(float("inf"), float("-inf"), float("nan")),
    *("", "0", "1/8", "1/0", "nan", "scene", "floc", "../../etc/passwd", "hf:a/b", "\x1b[2J", "\u202e", "\ud800"),
    *("x" * 100_000, "1e99999999", [], [[]], [0], [-1, 0], [1, 2, 3], [1, 2, 3, 4], [None], [[[[[1]]]]], {}),
    *({"": {}}, {"a": 1}, [float("nan")] * 3, [2**40] * 3, [0] * 1000, ["a", "b", "c"], {"budget": 1}),
)
ODD_INTEGERS = (0, 1, 2, 3, 127, 128, 255, 256, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
ODD_FLOATS = (float("nan"), float("inf"), float("-inf"), 1e38, -1e38, 1e-40, 0.0, -1.0, 1e300, 5e-324)
NESTED = "[" * 100_000 + "]" * 100_000
SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2, "I8": 1}
SIZES |= {"U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}
NUMPY = {"F64": "<f8", "I64": "<i8", "F32": "<f4", "I32": "<i4", "F16": "<f2", "I16": "<i2", "U8": "u1", "BOOL": "u1"}


def mutate_bytes(data: bytes, rng: Random) -> bytes:
    """Change bytes without regard to a format."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        length = len(changed)
        if not length:
            return bytes(changed)
        at = rng.randrange(length) if rng.random() < 0.6 else rng.randrange(min(length, 512))
        size = rng.choice((1, 1, 2, 4, 8, 16, 100, 1000))
        match rng.randrange(9):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del changed[at:]
            case 3:
                del changed[at : at + size]
            case 4:
                start = rng.randrange(length)
                changed[at:at] = changed[start : start + size]
            case 5:
                changed[at : at + size] = rng.randbytes(min(size, length - at))
            case 6:
                changed[at : at + size] = bytes([rng.choice((0, 0xFF))]) * min(size, length - at)
            case 7:
                width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
                value = rng.choice(ODD_INTEGERS) % (1 << 8 * width)
                changed[at : at + width] = value.to_bytes(width, order)  # type: ignore[arg-type]
            case 8:
                changed += changed[at : at + size] * rng.choice((1, 10, 1000)) if length < 1 << 20 else b"\0"
    return bytes(changed)


def list_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a JSON value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield from list_places(child, (*path, key))


def mutate_json(value: Any, rng: Random) -> tuple[str, str]:
    """Change one value of a JSON object; return the new text, and what was changed."""
    copy = json.loads(json.dumps(value))
    path = rng.choice(list(list_places(copy)))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    name, key = ".".join(map(str, path)), path[-1]
    match rng.randrange(12):
        case 0:
            del parent[key]
            return json.dumps(copy), f"{name} deleted"
        case 1:
            parent[key] = "@@"
            return json.dumps(copy).replace('"@@"', NESTED), f"{name} nested 100,000 deep"
        case 2 if isinstance(parent, dict):
            parent[f"{key}_"] = rng.choice(ODD_VALUES)
            return json.dumps(copy), f"{name}_ added"
        case 3 if isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            old = parent[key]
            parent[key] = rng.choice((old + 1, old - 1, -old, old * 2, old * 1000, float(old), str(old), [old]))
        case 4 if isinstance(parent[key], list) and parent[key]:
            items = parent[key]
            parent[key] = rng.choice((items[:-1], items + items[-1:], items[::-1], items * 1000, [items], []))
        case _:
            parent[key] = rng.choice(ODD_VALUES)
    return json.dumps(copy), f"{name} = {json.dumps(parent[key])[:40]}"


@dataclass
class Tensor:
    """A tensor of a safetensors file."""

    dtype: str
    shape: list[int]
    data: bytes


@dataclass
class SafeFile:
    """A safetensors file in parts."""

    tensors: dict[str, Tensor]
    entries: dict[str, Any]  # the metadata

    @classmethod
    def parse(cls, data: bytes) -> SafeFile:
        """Split a valid file."""
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + length])
        body = data[8 + length :]
        entries = header.pop("__metadata__", {})
        tensors = {
            name: Tensor(entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
            for name, entry in header.items()
        }
        return cls(tensors, entries)

    def make_header(self) -> dict[str, Any]:
        """Return the header of the file."""
        header: dict[str, Any] = {"__metadata__": self.entries} if self.entries else {}
        at = 0
        for name, tensor in self.tensors.items():
            header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, at + len(tensor.data)]}
            at += len(tensor.data)
        return header

    def join(self, header: str | None = None) -> bytes:
        """Return the bytes of the file, with another header if given."""
        text = (json.dumps(self.make_header()) if header is None else header).encode(errors="surrogatepass")
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + b"".join(tensor.data for tensor in self.tensors.values())


def mutate_safetensors(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Change a safetensors file; return its bytes, and what was changed."""
    if rng.random() < 0.2:
        return mutate_bytes(data, rng), "bytes"
    file = SafeFile.parse(data)
    what = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        mutate = rng.choice((_change_entry,) * 5 + (_change_values,) * 4 + (_change_tensor,) * 4 + (None,))
        if mutate is None:  # the whole header, after which nothing else can be changed
            header, change = mutate_json(file.make_header(), rng)
            return file.join(header), "; ".join([*what, f"header {change}"])
        what.append(mutate(file, rng))
    return file.join(), "; ".join(what)


def _change_entry(file: SafeFile, rng: Random) -> str:
    """Change a value in the JSON of the metadata."""
    if not file.entries:
        return _change_values(file, rng)
    name = rng.choice(list(file.entries))
    match rng.randrange(20):
        case 0:
            del file.entries[name]
            return f"entry {name} deleted"
        case 1:
            file.entries[name] = rng.choice(("", "{}", "[]", "null", "1", "{", NESTED, '"floc"', "NaN", "\0" * 9))
            return f"entry {name} = {file.entries[name][:20]!r}"
        case _:
            try:
                value = json.loads(file.entries[name])
                file.entries[name], what = mutate_json(value, rng)
            except (ValueError, RecursionError, IndexError):
                return "nothing"
            return what


def _change_values(file: SafeFile, rng: Random) -> str:
    """Change values of a tensor."""
    names = [name for name, tensor in file.tensors.items() if tensor.dtype in NUMPY and tensor.data]
    if not names:
        return "nothing"
    name = rng.choice(names)
    tensor = file.tensors[name]
    values = np.frombuffer(tensor.data, NUMPY[tensor.dtype]).copy()
    at = rng.randrange(len(values))
    if values.dtype.kind == "f":
        if rng.random() < 0.2:
            values = values[::-1].copy()
        else:
            with np.errstate(over="ignore"):
                values[at] = np.float64(rng.choice(ODD_FLOATS)).astype(values.dtype)
    else:
        limits = np.iinfo(values.dtype)
        odd = (-1, 0, 1, int(values[at]) + 1, int(values[at]) - 1, int(values.max()) + 1, limits.min, limits.max, 2**40)
        match rng.randrange(4):
            case 0:
                values = values[::-1].copy()
            case 1:
                values[at] = values[rng.randrange(len(values))]
            case _:
                values[at] = min(max(rng.choice(odd), limits.min), limits.max)
    tensor.data = values.tobytes()
    return f"tensor {name}[{at}]"


def _change_tensor(file: SafeFile, rng: Random) -> str:
    """Change the shape, dtype or name of a tensor, so that the file stays a valid safetensors file, or nearly."""
    if not file.tensors:
        return "nothing"
    name = rng.choice(list(file.tensors))
    tensor = file.tensors[name]
    row = len(tensor.data) // tensor.shape[0] if tensor.shape and tensor.shape[0] else 0
    match rng.randrange(10):
        case 0:
            del file.tensors[name]
        case 1:
            file.tensors[rng.choice((f"{name}_", "deep.0", "deep.7", "", "room", "x" * 5000))] = tensor
        case 2 if row:
            tensor.data, tensor.shape = tensor.data[:-row], [tensor.shape[0] - 1, *tensor.shape[1:]]
        case 3 if row:
            tensor.data, tensor.shape = tensor.data + tensor.data[-row:], [tensor.shape[0] + 1, *tensor.shape[1:]]
        case 4:
            tensor.data, tensor.shape = b"", [0, *tensor.shape[1:]]
        case 5:
            tensor.shape = rng.choice(([*tensor.shape, 1], [1, *tensor.shape], tensor.shape[::-1], [2**40, 2**40], []))
        case 6 if tensor.dtype in NUMPY:
            other = rng.choice([dtype for dtype in NUMPY if dtype != "BOOL"])
            with np.errstate(all="ignore"):
                tensor.data = np.frombuffer(tensor.data, NUMPY[tensor.dtype]).astype(NUMPY[other]).tobytes()
            tensor.dtype = other
            return f"tensor {name} as {other}"
        case 7:
            same = [dtype for dtype, size in SIZES.items() if size == SIZES.get(tensor.dtype)]
            tensor.dtype = rng.choice([*same, *SIZES, "X"])
            return f"tensor {name} read as {tensor.dtype}"
        case 8:
            other = rng.choice(list(file.tensors))
            file.tensors[name], file.tensors[other] = file.tensors[other], tensor
            return f"tensors {name} and {other} swapped"
        case _:
            tensor.shape = [rng.choice((0, 1, -1, size + 1, 2**31, 2**62)) for size in tensor.shape]
    return f"tensor {name}: shape {tensor.shape}"


Mutation = Callable[[bytes, Random], tuple[bytes, str]]
