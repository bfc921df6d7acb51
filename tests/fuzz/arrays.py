"""Strategies for values and arrays, sensible and odd, and how an array is built from its recipe."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

numbers = st.one_of(
    st.integers(-3, 70),
    st.sampled_from((2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400, 0, 1)),
    st.floats(0, 1, exclude_min=True),
    st.sampled_from((0.0, -0.0, 0.5, 1.0, 1.5, 1e-320, 1e-9, 1e308, math.inf, -math.inf, math.nan)),
    st.sampled_from((np.float32(0.5), np.float64("nan"), np.int64(7), np.int8(-1), np.bool_(True), True, False)),
)
odd = st.one_of(
    numbers,
    st.none(),
    st.text(max_size=5),
    st.sampled_from(
        ("1/8", "1/0", "0.125", "1e-99999999", "1e99999999", "-1/8", "scene", "floc", " 1/2 ", "nan", "0x1")
    ),
    st.lists(st.integers(-2, 20), max_size=4),
    st.sampled_from(({}, (), b"1", 1j, object, print, range(3), "x" * 10_000, "9" * 5000, "\x1b[2J", "\ud800")),
    st.builds(torch.tensor, st.sampled_from((1, 0.5, [1, 2], math.nan))),
    st.builds(np.array, st.sampled_from((1, 0.5, [1, 2], "a"))),
)
odd_arrays = st.fixed_dictionaries(
    {
        "shape": st.one_of(
            st.tuples(st.integers(1, 40), st.integers(1, 4), st.integers(1, 4), st.integers(1, 20)),
            st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(1, 20)),
            st.lists(st.integers(0, 5), max_size=5).map(tuple),
            st.sampled_from(((1, 1, 1, 1), (33, 1, 1, 1), (2, 700, 2), (70, 2, 2, 3), (3, 1, 1, 5000))),
        ),
        "dtype": st.one_of(
            st.sampled_from(("float32", "float16", "float64")),
            st.sampled_from(
                [
                    "bfloat16",
                    "float8_e4m3fn",
                    "float8_e5m2",
                    "int8",
                    "int16",
                    "int32",
                    "int64",
                    "uint8",
                    "uint16",
                    "bool",
                    "complex64",
                    "longdouble",
                    "object",
                    "str",
                    ">f4",
                    "datetime64[s]",
                    "quint8",
                ]
            ),
        ),
        "kind": st.sampled_from(("numpy", "torch")),
        "layout": st.one_of(
            st.just("plain"),
            st.sampled_from(
                [
                    "plain",
                    "negative",
                    "transposed",
                    "expanded",
                    "step",
                    "sparse",
                    "csr",
                    "meta",
                    "grad",
                    "readonly",
                    "matrix",
                    "masked",
                    "nested",
                    "list",
                    "subclass",
                    "conj",
                    "inference",
                    "mmap",
                ]
            ),
        ),
        "values": st.one_of(
            st.sampled_from(("normal", "clusters")),
            st.sampled_from(
                ("zeros", "ones", "nan", "inf", "-inf", "huge", "tiny", "mixed", "one-hot", "denormal", "unit")
            ),
        ),
        "number": st.integers(0, 1000),
    }
)
good_arrays = st.fixed_dictionaries(
    {
        "shape": st.tuples(st.integers(1, 70), st.integers(1, 4), st.integers(1, 4), st.integers(1, 20)),
        "dtype": st.sampled_from(("float32", "float16", "float64", "bfloat16")),
        "kind": st.sampled_from(("numpy", "torch")),
        "layout": st.sampled_from(
            ("plain", "negative", "transposed", "expanded", "step", "grad", "readonly", "inference")
        ),
        "values": st.sampled_from(("normal", "clusters", "zeros", "ones", "huge", "tiny", "one-hot", "unit")),
        "number": st.integers(0, 1000),
    }
)


def mostly(good: st.SearchStrategy[Any], other: st.SearchStrategy[Any] = odd) -> st.SearchStrategy[Any]:
    """Draw a sensible value in four of five cases."""
    return st.integers(0, 4).flatmap(lambda number: other if number == 4 else good)


arrays = mostly(good_arrays, odd_arrays)
matrices = st.tuples(
    arrays,
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
).map(
    lambda drawn: {
        **drawn[0],
        "shape": drawn[1],
        "values": "unit" if drawn[0]["values"] in ("normal", "clusters") else drawn[0]["values"],
    }
)
counts = st.tuples(st.integers(1, 60), st.integers(0, 9)).map(
    lambda drawn: {
        "shape": drawn[:1],
        "dtype": "int64",
        "kind": "numpy",
        "layout": "plain",
        "values": "ones",
        "number": drawn[1],
    }
)


def make_array(recipe: dict[str, Any]) -> Any:
    """Build an array from its recipe."""
    rng = np.random.default_rng(recipe["number"])
    shape = recipe["shape"]
    values = rng.standard_normal(shape)
    name = recipe["values"]
    if name == "clusters" and len(shape) > 1:
        values = values * 0.1 + rng.standard_normal(shape[1:])
    elif name in ("zeros", "ones"):
        values = np.full(shape, float(name == "ones"))
    elif name in ("nan", "inf", "-inf", "mixed") and values.size:
        values.flat[rng.integers(values.size)] = float("nan" if name == "mixed" else name)
        if name == "mixed":
            values.flat[0] = math.inf
    elif name in ("huge", "tiny", "denormal"):
        values = values * {"huge": 1e38, "tiny": 1e-30, "denormal": 1e-42}[name]
    elif name == "one-hot":
        values = (rng.random(shape) < 0.2).astype(float)
    elif name == "unit":
        values = np.clip(values / 3, -1, 1)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _lay_out(values, recipe)
        except (RuntimeError, IndexError, TypeError, ValueError):  # this dtype has no such layout
            return values.astype(np.float32)


def _lay_out(values: np.ndarray, recipe: dict[str, Any]) -> Any:
    dtype, layout = recipe["dtype"], recipe["layout"]
    if layout == "list":
        return values.tolist()
    if recipe["kind"] == "numpy":
        known = dtype if dtype not in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "quint8") else "float32"
        array = values.astype(np.longdouble if known == "longdouble" else known)
        match layout:
            case "negative":
                return array[::-1]
            case "transposed":
                return np.swapaxes(np.ascontiguousarray(np.swapaxes(array, 0, -1)), 0, -1) if array.ndim else array
            case "expanded":
                return np.broadcast_to(array[None], (5, *array.shape))
            case "step":
                return np.repeat(array, 2, 0)[::2] if array.ndim else array
            case "readonly":
                array.flags.writeable = False
            case "masked":
                return np.ma.masked_array(array, mask=np.zeros(array.shape, bool))
            case "matrix":
                return array.view(np.recarray) if array.ndim else array
        return array
    numpy_only = ("longdouble", "object", "str", ">f4", "datetime64[s]", "uint16", "quint8")
    tensor = torch.from_numpy(np.array(values)).to(getattr(torch, "float32" if dtype in numpy_only else dtype))
    match layout:
        case "transposed":
            return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.ndim else tensor
        case "expanded":
            return tensor[None].expand(5, *tensor.shape)
        case "step":
            return tensor.repeat_interleave(2, 0)[::2] if tensor.ndim else tensor
        case "sparse":
            return tensor.to_sparse()
        case "csr":
            return tensor.to_sparse_csr() if tensor.ndim == 2 else tensor.to_sparse()
        case "meta":
            return tensor.to("meta")
        case "grad":
            return tensor.requires_grad_() if tensor.is_floating_point() else tensor
        case "nested":
            return torch.nested.nested_tensor([tensor, tensor])
        case "subclass":
            return torch.nn.Parameter(tensor, requires_grad=False)
        case "conj":
            return tensor.to(torch.complex64).conj()
        case "negative":
            return torch._neg_view(tensor) if tensor.dtype.is_floating_point else tensor
        case "inference":
            with torch.inference_mode():
                return tensor.clone()
    return tensor
