"""V-CAST compared with outputs of the published program."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import floc
from floc.methods import vcast


@pytest.mark.parametrize("case", "abc")
@pytest.mark.parametrize("prefix", ["", "floor_", "high_"])
def test_matches_published_program(read_golden, case: str, prefix: str) -> None:
    golden = read_golden(f"vcast_{case}")
    ratio = float(golden[f"{prefix}retain_ratio"])
    kept = floc.compress(golden["tokens"], method="vcast", retain_ratio=ratio, strict=True)
    np.testing.assert_array_equal(kept.indices, golden[f"{prefix}kept"])
    same = floc.compress(golden["tokens"], method="vcast", budget=len(kept), strict=True)
    np.testing.assert_array_equal(same.indices, kept.indices)
    corrected = floc.compress(golden["tokens"], method="vcast", retain_ratio=ratio)
    assert len(corrected) == len(kept)


def test_curvature_is_the_change_of_direction() -> None:
    path = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [2.0, 1.0], [2.0, 0.0], [2.0, 0.0]])
    assert vcast.compute_curvature(path).tolist() == [1, 0, 1, 2, 1, 1]


def test_remainder_goes_to_one_frame_only_if_strict() -> None:
    raw = np.array([3.25, 1.5, 2.5, 3.75])
    assert vcast._share(raw, 20, 14, strict=True).tolist() == [3, 1, 2, 8]
    assert vcast._share(raw, 5, 14, strict=True).tolist() == [3, 4, 2, 5]
    assert vcast._share(raw, 20, 14, strict=False).tolist() == [4, 2, 3, 5]
    assert vcast._share(raw, 4, 14, strict=False).tolist() == [4, 3, 3, 4]


def test_minimum_is_given_up_if_it_does_not_fit(tokens: np.ndarray) -> None:
    kept = floc.compress(tokens, method="vcast", budget=69)
    assert len(kept) == 69
    assert kept.settings["min_k"] == 0
    least = floc.compress(tokens, method="vcast", retain_ratio=0.0, min_k=2)
    assert np.bincount(least.positions[:, 0], minlength=70).tolist() == [2] * 70
    assert len(floc.compress(tokens, method="vcast", retain_ratio=0.0, min_k=0)) == 1


def test_single_frame_is_kept_whole_only_if_strict() -> None:
    tokens = np.random.default_rng(0).standard_normal((1, 4, 5, 6)).astype(np.float32)
    assert len(floc.compress(tokens, method="vcast")) == 5
    assert len(floc.compress(tokens, method="vcast", strict=True)) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [({"retain_ratio": 2}, "retain_ratio must"), ({"min_k": -1}, "min_k must"), ({"temperature": 0}, "temperature")],
)
def test_rejects_invalid_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floc.compress(np.ones((4, 2, 3, 5)), method="vcast", **options)
