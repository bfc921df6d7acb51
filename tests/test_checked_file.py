"""The reader of safetensors files that may come from a stranger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from floc._checked_file import HEADER_BYTES, Fields, check_selection, open_checked


@pytest.mark.parametrize(
    ("method", "good", "bad"),
    [
        ("integer", [0, 5, 2**53], [-1, 2**53 + 1, 1.0, True, "1", None, [1]]),
        ("number", [0, -1.5, 1e15], [float("nan"), float("inf"), 1e16, 10**400, True, "1", None]),
        ("flag", [True, False], [0, 1, "true", None]),
        ("text", ["", "a" * 10_000], ["a" * 10_001, 1, None, ["a"]]),
        ("shape", [[1, 2, 3], [2**53, 1, 1]], [[1, 2], [0, 1, 1], [1.0, 1, 1], [2**40, 2**20, 8], "abc", None]),
    ],
)
def test_fields_have_types_and_ranges(method: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        got = getattr(Fields({"a": value}), method)("a")
        assert got == (tuple(value) if method == "shape" else value)
    for value in bad:
        with pytest.raises(ValueError, match=r"^a(\.\d)? must be .*, got "):
            getattr(Fields({"a": value}), method)("a")


def test_fields_of_lists_and_sections() -> None:
    fields = Fields({"a": [1, 2], "b": {"c": {"d": "x"}}, "none": None})
    assert fields.integers("a", 2) == fields.integers("a", None) == [1, 2]
    assert fields.numbers("a", 2, 0, 2) == [1.0, 2.0]
    assert fields.has("a")
    assert not fields.has("none")
    with pytest.raises(ValueError, match="a must be a list of 3 values, got a list of 2 values"):
        fields.integers("a", 3)
    with pytest.raises(ValueError, match=r"a\.1 must be a number from 0 to 1, got 2"):
        fields.numbers("a", None, 0, 1)
    with pytest.raises(ValueError, match=r"b\.c\.d must be a whole number"):
        fields.section("b").section("c").integer("d")
    with pytest.raises(ValueError, match="missing must be a JSON object, got nothing"):
        fields.section("missing")


def test_format() -> None:
    Fields({"format": 2}).check_format(2)
    Fields({}).check_format(1, missing=1)
    for value in (1, "2", True, None):
        with pytest.raises(ValueError, match=r"it has format .*, but this version of floc reads 2; update floc"):
            Fields({"format": value}).check_format(2, missing=2)


def test_tensors_have_shapes_and_dtypes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save_file(
        {"x": torch.ones(2, 3), "i": torch.arange(2), "nan": torch.tensor([np.nan]), "h": torch.ones(1).half()}, path
    )
    with open_checked(path, "a file") as file:
        assert file.tensor("x", (2, None), "float").shape == (2, 3)
        assert file.tensor("h", (1,), "float").dtype == torch.float16
        assert file.tensor("i", (None,), torch.int64).tolist() == [0, 1]
        assert file.any_tensor("nan").isnan().all()
    for name, shape, dtype, message in (
        ("y", (1,), "float", "tensor y is missing"),
        ("x", (3, 3), "float", "tensor x must have shape 3x3, got 2x3"),
        ("x", (None,), "float", "tensor x must have shape any, got 2x3"),
        ("i", (2,), "float", "tensor i must have a floating-point dtype, got torch.int64"),
        ("x", (2, 3), torch.float64, "tensor x must have dtype torch.float64, got torch.float32"),
        ("nan", (1,), "float", "tensor nan has values that are not finite"),
    ):
        expected = pytest.raises(ValueError, match=f"a: not a file, or damaged: {message}; write the file again")
        with expected, open_checked(path, "a file") as file:
            file.tensor(name, shape, dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [b"", b"1234567", bytes(8), b"\xff" * 16, (HEADER_BYTES + 1).to_bytes(8, "little") + bytes(HEADER_BYTES + 9)],
)
def test_refuses_headers_that_do_not_fit(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with (
        pytest.raises(ValueError, match="not a file, or damaged: its header should have"),
        open_checked(tmp_path / "a", "a file"),
    ):
        pass


def test_refuses_metadata_that_is_not_an_object(tmp_path: Path) -> None:
    for text, message in (
        ("[" * 100_000, "nested too deeply"),
        ("{", "not JSON"),
        ("3", "must be a JSON object, got 3"),
    ):
        save_file({"x": torch.ones(1)}, tmp_path / "a", {"floc": text})
        with pytest.raises(ValueError, match=message), open_checked(tmp_path / "a", "a file") as file:
            file.fields("floc")
    with (
        pytest.raises(ValueError, match="it has no metadata called 'other'"),
        open_checked(tmp_path / "a", "a file") as file,
    ):
        file.fields("other")


@pytest.mark.parametrize(
    ("indices", "order", "message"),
    [
        ([], [], "indices must be ascending"),
        ([0, 0], [0, 1], "indices must be ascending"),
        ([-1, 3], [0, 1], r"within 0\.\.9"),
        ([0, 10], [0, 1], r"within 0\.\.9"),
        ([0, 2**62, 5], [0, 1, 2], "ascending"),
        ([0, 5], [0, 2], r"permutation of 0\.\.1"),
        ([0, 5], [0], "permutation"),
    ],
)
def test_check_selection(indices: list[int], order: list[int], message: str) -> None:
    check_selection(torch.tensor([0, 4, 9]), torch.tensor([2, 0, 1]), 10)
    with pytest.raises(ValueError, match=message):
        check_selection(torch.tensor(indices, dtype=torch.int64), torch.tensor(order, dtype=torch.int64), 10)
