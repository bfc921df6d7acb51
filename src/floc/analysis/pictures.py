"""Draw kept tokens on video frames."""

from __future__ import annotations

import numpy as np

from floc._arrays import to_numpy
from floc.kept import Kept

GREEN = (34, 197, 94)
DIMMED = 0.35  # brightness of dropped patches


def overlay(pixels: np.ndarray, kept: Kept, t: int, *, line: int | None = None) -> np.ndarray:
    """Return frame t with kept patches boxed in green and dropped patches dimmed.

    Args:
        pixels: [height, width, 3] uint8, the frame in any size.
        kept: the kept tokens of the video.
        t: frame number in the token grid, from 0.
        line: line width of the boxes in pixels; by default a sixteenth of a patch.

    Returns:
        [height, width, 3] uint8, a new array.
    """
    frames, rows, columns = kept.shape
    if not 0 <= t < frames:
        raise ValueError(f"t must be one of the {frames} frames of the tokens, 0 to {frames - 1}; got {t}")
    height, width, _ = pixels.shape
    tops, lefts = _cell_edges(height, rows), _cell_edges(width, columns)
    line = max(1, round(min(height / rows, width / columns) / 16)) if line is None else line
    picture = (pixels * DIMMED).astype(np.uint8)
    positions = to_numpy(kept.positions)
    for y, x in positions[positions[:, 0] == t, 1:]:
        picture[tops[y] : tops[y + 1], lefts[x] : lefts[x + 1]] = GREEN
        inside = slice(tops[y] + line, tops[y + 1] - line), slice(lefts[x] + line, lefts[x + 1] - line)
        picture[inside] = pixels[inside]
    return picture


def _cell_edges(length: int, cells: int) -> np.ndarray:
    """Return the [cells + 1] pixel edges of grid cells.

    >>> _cell_edges(10, 3).tolist()
    [0, 3, 7, 10]
    """
    return np.rint(np.arange(cells + 1) * length / cells).astype(np.int64)
