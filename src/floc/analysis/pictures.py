"""Draw kept tokens on video frames."""

import numpy as np

from floc._arrays import to_numpy
from floc.kept import Kept

GREEN = (34, 197, 94)
DIMMED = 0.35  # brightness of dropped patches


def overlay(pixels: np.ndarray, kept: Kept, t: int) -> np.ndarray:
    """Return a copy of frame t with kept patches boxed in green and dropped patches dimmed.

    Args:
        pixels: [height, width, 3] uint8, the frame in any size.
        kept: the kept tokens of the video.
        t: frame number in the token grid, from 0.
    """
    frames, rows, columns = kept.shape
    if not 0 <= t < frames:
        raise ValueError(f"t must be one of the {frames} frames of the tokens, 0 to {frames - 1}; got {t}")
    height, width, _ = pixels.shape
    tops = np.rint(np.arange(rows + 1) * height / rows).astype(np.int64)
    lefts = np.rint(np.arange(columns + 1) * width / columns).astype(np.int64)
    line = max(1, round(min(height / rows, width / columns) / 16))
    picture = (pixels * DIMMED).astype(np.uint8)
    positions = to_numpy(kept.positions)
    for y, x in positions[positions[:, 0] == t, 1:]:
        picture[tops[y] : tops[y + 1], lefts[x] : lefts[x + 1]] = GREEN
        inside = slice(tops[y] + line, tops[y + 1] - line), slice(lefts[x] + line, lefts[x + 1] - line)
        picture[inside] = pixels[inside]
    return picture
