"""The grid of the built-in encoders: square cells, the same for all of them, so that reports can be compared."""

import math

import numpy as np

CELL = 32  # pixels on a side: the stride of MobileNetV2's last feature map
MAX_CELLS = 144  # of a frame: 9 x 16 for a wide screen


def grid(width: int, height: int) -> tuple[int, int]:
    """Return the rows and columns for a video: as many cells as allowed, as square as whole numbers permit.

    >>> grid(1920, 1080), grid(1080, 1920), grid(640, 480), grid(5000, 10)
    ((9, 16), (16, 9), (10, 13), (1, 144))
    """
    if width < 1 or height < 1:
        raise ValueError(f"width and height of a video must be at least 1, got {width} x {height}")
    aspect = max(width, height) / min(width, height)
    short = max(1, round(math.sqrt(MAX_CELLS / aspect)))
    long = min(round(short * aspect), MAX_CELLS // short)
    return (short, long) if width >= height else (long, short)


class CellLayout:
    """The frame layout of the built-in encoders."""

    frames_per_token = 1

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        rows, columns = grid(width, height)
        return columns * CELL, rows * CELL

    def crop(self, pixels: np.ndarray) -> np.ndarray:
        return pixels
