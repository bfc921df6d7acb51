"""What was kept, drawn on the frames."""

from __future__ import annotations

import numpy as np

from floc._arrays import to_numpy
from floc.kept import Kept

GREEN = (34, 197, 94)
DIMMED = 0.35  # of the brightness that a dropped patch keeps


def overlay(pixels: np.ndarray, kept: Kept, t: int, *, line: int | None = None) -> np.ndarray:
    """Frame t with the patches that were kept boxed in green and the others dimmed.

    Args:
        pixels: [height, width, 3] uint8, the frame in any size.
        kept: what was kept of the video.
        t: which frame it is, as the tokens count them.
        line: the width of the boxes' lines in pixels; by default as fits the patch.

    Returns:
        [height, width, 3] uint8, a picture of its own.
    """
    frames, rows, columns = kept.shape
    if not 0 <= t < frames:
        raise ValueError(f"t must be one of the {frames} frames the tokens have, 0 to {frames - 1}; got {t}")
    height, width, _ = pixels.shape
    tops, lefts = edges(height, rows), edges(width, columns)
    line = max(1, round(min(height / rows, width / columns) / 16)) if line is None else line
    picture = (pixels * DIMMED).astype(np.uint8)
    positions = to_numpy(kept.positions)
    for y, x in positions[positions[:, 0] == t, 1:]:
        down, across = slice(tops[y], tops[y + 1]), slice(lefts[x], lefts[x + 1])
        picture[down, across] = GREEN
        inside = slice(tops[y] + line, tops[y + 1] - line), slice(lefts[x] + line, lefts[x + 1] - line)
        picture[inside] = pixels[inside]
    return picture


def edges(length: int, cells: int) -> np.ndarray:
    """[cells + 1] where the cells of a grid begin and end in a picture.

    >>> edges(10, 3).tolist()
    [0, 3, 7, 10]
    """
    return np.rint(np.arange(cells + 1) * length / cells).astype(np.int64)
