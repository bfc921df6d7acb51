"""Uniform frame sampling compared with outputs of a published program."""

from __future__ import annotations

import numpy as np
import pytest

import floc


@pytest.mark.parametrize(
    ("frames", "budget", "expected"),
    [
        (11, 3, [0, 5, 10]),
        (4, 3, [0, 2, 3]),  # 1.5 rounds to the even frame
        (9, 1, [0]),
        (5, 5, [0, 1, 2, 3, 4]),
    ],
)
def test_frames_are_evenly_spaced(frames: int, budget: int, expected: list[int]) -> None:
    tokens = np.random.default_rng(0).standard_normal((frames, 2, 3, 4))
    kept = floc.compress(tokens, budget=6 * budget + 5, method="frame_uniform")
    assert sorted(set(kept.positions[:, 0])) == expected
    assert len(kept) == 6 * len(expected)


def test_budget_below_one_frame_raises_or_keeps_one_frame() -> None:
    tokens = np.ones((8, 2, 3, 4))
    with pytest.raises(ValueError, match=r"at least 6 of 48 tokens \(ratio 0.125\); got a budget of 5.*nearest=True"):
        floc.compress(tokens, budget=5, method="frame_uniform")
    assert len(floc.compress(tokens, budget=5, method="frame_uniform", nearest=True)) == 6


def test_frame_uniform_matches_published_program(read_golden) -> None:
    for key, expected in read_golden("tsllava_frames").items():
        t, m = (int(size) for size in key.split("_")[1:3])
        tokens = np.ones((t, 2, 3, 4), np.float32)
        kept = floc.compress(tokens, budget=6 * m, method="frame_uniform")
        np.testing.assert_array_equal(kept.positions[::6, 0], expected, err_msg=f"{m} of {t}")
