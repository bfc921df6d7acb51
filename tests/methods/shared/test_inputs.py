"""Checks of optional arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.methods.shared.inputs import read_array, read_features
from floc.tokens import TokenGrid

GRID = TokenGrid.from_array(np.ones((2, 3, 4, 5), np.float32))


def test_accepts_arrays_of_any_float_dtype() -> None:
    array = np.arange(24.0).reshape(2, 12)
    kinds = (
        array,
        array.astype(np.float16),
        torch.from_numpy(array).bfloat16(),
        array.astype(">f4"),
        array[::-1][::-1],
    )
    for given in kinds:
        tensor = read_array(GRID, "attn", given, (2, 12))
        assert tensor is not None
        assert tensor.dtype in (torch.float32, torch.float64)
        np.testing.assert_allclose(tensor, array)
    assert read_array(GRID, "attn", None, (2, 12)) is None


def test_features_have_either_layout() -> None:
    array = np.random.default_rng(0).random((2, 3, 4, 7))
    for given in (array, array.reshape(2, 12, 7)):
        features = read_features(GRID, "metric", given)
        assert features is not None
        np.testing.assert_array_equal(features, array.reshape(2, 12, 7))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((2, 11)), r"x must be \[2, 12\] or \[C, 3\], to fit the tokens; got \(2, 11\)"),
        (np.ones((0, 3)), r"x must be \[2, 12\] or \[C, 3\]"),
        (np.ones(24), "x must be"),
        (np.ones((2, 12), np.complex64), "x must be floating point, got complex64; convert it first"),
        (torch.ones(2, 12, dtype=torch.int32), "x must be floating point, got torch.int32"),
        (np.full((2, 12), np.nan), "x must be finite"),
        (torch.full((2, 12), -0.5), "x must not be negative, got a least value of -0.5"),
        ([1.0], "x must be a torch tensor or a numpy array, got list"),
    ],
)
def test_rejects_what_does_not_fit(array: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        read_array(GRID, "x", array, (2, 12), ("C", 3), nonnegative=True)
