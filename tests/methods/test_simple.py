"""The methods that need no more than a line of arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

import floc


@pytest.mark.parametrize(
    ("spacing", "frames", "budget", "expected"),
    [
        ("ends", 11, 3, [0, 5, 10]),
        ("ends", 4, 3, [0, 2, 3]),  # 1.5 goes to the even frame
        ("ends", 9, 1, [0]),
        ("ends", 5, 5, [0, 1, 2, 3, 4]),
        ("middles", 10, 2, [2, 7]),
        ("middles", 9, 1, [4]),
    ],
)
def test_frames_are_spaced_evenly(spacing: str, frames: int, budget: int, expected: list[int]) -> None:
    tokens = np.random.default_rng(0).standard_normal((frames, 2, 3, 4))
    kept = floc.compress(tokens, budget=6 * budget + 5, method="frame_uniform", spacing=spacing)
    assert sorted(set(kept.positions[:, 0])) == expected
    assert len(kept) == 6 * len(expected)


def test_less_than_a_frame_is_an_error_that_names_the_floor_or_one_frame() -> None:
    tokens = np.ones((8, 2, 3, 4))
    with pytest.raises(ValueError, match=r"at least 6 of 48 tokens \(ratio 0.125\); got a budget of 5.*nearest=True"):
        floc.compress(tokens, budget=5, method="frame_uniform")
    assert len(floc.compress(tokens, budget=5, method="frame_uniform", nearest=True)) == 6


def test_random_draws_every_token_alike() -> None:
    tokens = np.ones((4, 5, 3))
    drawn = np.zeros(20)
    for seed in range(400):
        drawn[floc.compress(tokens, budget=5, method="random", seed=seed).indices] += 1
    assert abs(drawn - 100).max() < 45  # five standard deviations
