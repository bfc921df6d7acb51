"""Sampled videos, and numbers in words. The texts themselves are tested in tests/captured/test_prompts.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from floc.families.writers import SampledVideo, spell_number


def test_middles_follow_from_fps_without_last_times() -> None:
    video = SampledVideo((2, 1, 1), np.array([0.0, 1.0]), 2, 2.0, 2.0)

    np.testing.assert_array_equal(video.middles_s, [0.25, 1.25])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(shape=(0, 2, 2), times_s=np.zeros(0)), "shape must be"),
        (dict(shape=(2, 2)), "shape must be"),
        (dict(times_s=np.zeros(2)), r"times_s must have one time for each of 1 slices, got \(2,\)"),
        (dict(last_s=np.zeros(2)), "last_s must have one time"),
        (dict(fps=0.0), "fps above 0"),
        (dict(frames_per_slice=0), "frames_per_slice must be at least 1"),
    ],
)
def test_rejects_impossible_videos(change: dict[str, Any], message: str) -> None:
    arguments = dict(shape=(1, 2, 2), times_s=np.zeros(1), frames_per_slice=1, fps=1.0, duration_s=1.0)

    with pytest.raises(ValueError, match=message):
        SampledVideo(**(arguments | change))


@pytest.mark.parametrize(
    ("n", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (20, "twenty"),
        (99, "ninety-nine"),
        (100, "one hundred"),
        (768, "seven hundred and sixty-eight"),
        (1000, "one thousand"),
        (1007, "one thousand and seven"),
        (1042, "one thousand and forty-two"),
        (7200, "seven thousand, two hundred"),
        (21_345, "twenty-one thousand, three hundred and forty-five"),
    ],
)
def test_spells_numbers(n: int, words: str) -> None:
    assert spell_number(n) == words
