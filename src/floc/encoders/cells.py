"""The grid that encoders of the library's own lay over a film: square cells, so that their reports line up."""

from __future__ import annotations

import math

import numpy as np

CELL = 32  # pixels on a side: the stride of MobileNetV2's last feature map
MOST = 144  # cells of a frame: 9 x 16 on a wide screen


def grid(width: int, height: int) -> tuple[int, int]:
    """Rows and columns for a film: as many cells as allowed, as square on the film as whole numbers let them be.

    >>> grid(1920, 1080), grid(1080, 1920), grid(640, 480), grid(5000, 10)
    ((9, 16), (16, 9), (10, 13), (1, 144))
    """
    if width < 1 or height < 1:
        raise ValueError(f"a film's width and height must be at least 1, got {width} x {height}")
    aspect = max(width, height) / min(width, height)
    short = max(1, round(math.sqrt(MOST / aspect)))
    long = min(round(short * aspect), MOST // short)
    return (short, long) if width >= height else (long, short)


def frame_size(width: int, height: int) -> tuple[int, int]:
    """Width and height in pixels of such a grid."""
    rows, columns = grid(width, height)
    return columns * CELL, rows * CELL


class Cells:
    """How frames must be for encoders of the library's own."""

    frames_per_token = 1

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        return frame_size(width, height)


def require_whole(pixels: np.ndarray) -> None:
    """Raise ValueError unless frames [B, height, width, 3] are uint8 and cut into whole cells."""
    if pixels.ndim != 4 or pixels.shape[-1] != 3 or pixels.dtype != np.uint8:
        raise ValueError(f"frames must be [B, height, width, 3] uint8 RGB, got {pixels.shape} {pixels.dtype}")
    height, width = pixels.shape[1:3]
    if height % CELL or width % CELL or not height or not width:
        raise ValueError(
            f"the sides of a frame must be multiples of {CELL} pixels, got {width} x {height}; "
            "frame_size(width, height) of the encoder names the size for a film"
        )
