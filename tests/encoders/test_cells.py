"""The grid of the built-in encoders."""

from __future__ import annotations

import pytest

from floc.encoders import base as cells


@pytest.mark.parametrize("width", [1, 7, 272, 640, 1080, 1920, 5000])
@pytest.mark.parametrize("height", [1, 9, 333, 480, 1080, 3840])
def test_cells_fit_the_video(width: int, height: int) -> None:
    rows, columns = cells.grid(width, height)
    assert 1 <= rows * columns <= cells.MAX_CELLS
    assert cells.grid(height, width) == (columns, rows)
    assert cells.CellLayout().frame_size(width, height) == (columns * 32, rows * 32)
    if 1 / 4 < width / height < 4:  # cells are nearly square, and nearly all are used
        assert 0.8 < (width / columns) / (height / rows) < 1.25
        assert rows * columns >= 108


def test_rejects_a_video_without_a_size() -> None:
    with pytest.raises(ValueError, match="got 0 x 5"):
        cells.grid(0, 5)
