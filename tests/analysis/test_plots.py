"""Drawing kept tokens on frames."""

from __future__ import annotations

import numpy as np
import pytest

import floc
from floc import analysis
from floc.analysis.plots import GREEN


@pytest.mark.parametrize(("height", "width"), [(90, 160), (91, 163), (9, 16)])
def test_kept_patches_are_boxed_and_others_dimmed(height: int, width: int) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((4, 9, 16, 8))
    kept = floc.compress(tokens, budget=100)
    pixels = rng.integers(100, 255, (height, width, 3), dtype=np.uint8)
    before = pixels.copy()
    for t in range(4):
        picture = analysis.overlay(pixels, kept, t)
        cells = {(y, x) for frame, y, x in kept.positions.tolist() if frame == t}
        for y in range(9):
            for x in range(16):
                row, column = round((y + 0.5) * height / 9 - 0.5), round((x + 0.5) * width / 16 - 0.5)
                corner = picture[round(y * height / 9), round(x * width / 16)]
                if (y, x) in cells:
                    assert tuple(corner) == GREEN
                    if height > 9:
                        assert (picture[row, column] == pixels[row, column]).all()
                else:
                    assert (picture[row, column] < pixels[row, column] * 0.4).all()
    np.testing.assert_array_equal(pixels, before)


def test_rejects_frame_out_of_range() -> None:
    kept = floc.compress(np.ones((4, 2, 3, 8)), budget=3)
    with pytest.raises(ValueError, match=r"one of the 4 frames.*0 to 3; got 4"):
        analysis.overlay(np.zeros((20, 30, 3), np.uint8), kept, 4)
