"""The fixed-point similarity matrix on the CPU, tile by tile.

The product is the cost of selection on a CPU, so it is left to BLAS, one thread a tile. Of a symmetric matrix only one
triangle is multiplied; on the diagonal a tile is `X @ X.T`, which numpy hands to SYRK. A tile is snapped to int16 and
mirrored while it is still in cache, so no float32 matrix exists: memory is the int16 matrix and one tile a thread.
Tiles are cut by size alone, never by the number of threads, so the matrix is the same for any number of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import NamedTuple

import numba as nb
import numpy as np
from numba.extending import register_jitable

from floc.selection.objective import SCALE

# Two threads with a tile each at d = 3584 (OpenBLAS, AVX-512): triangles in columns of 480 cost 3% over whole SYRKs, in
# columns of 256 7%; rectangles of 1280 x 1280 ran at 206 GFLOP/s, of 480 x 1920 at 200.
TILE_COLUMNS = 480
TILE_ROWS = 1920
RECTANGLE_SIDE = 1280


class Tile(NamedTuple):
    """Rows x columns of the matrix; `mirror` where the transposed place is this tile's to write as well."""

    rows: slice
    columns: slice
    mirror: bool


def triangle(n: int) -> list[Tile]:
    """Tiles that, mirrored, make up a symmetric [n, n] matrix: the large ones first, so that workers end together."""
    tiles = []
    for columns in slices(n, TILE_COLUMNS):
        tiles += [Tile(rows, columns, True) for rows in slices(columns.start, TILE_ROWS)]
        tiles.append(Tile(columns, columns, False))
    return sorted(tiles, key=area, reverse=True)


def rectangle(m: int, n: int) -> list[Tile]:
    """Tiles that make up an [m, n] matrix, the large ones first."""
    both = [(rows, columns) for rows in slices(m, RECTANGLE_SIDE) for columns in slices(n, RECTANGLE_SIDE)]
    return sorted((Tile(rows, columns, False) for rows, columns in both), key=area, reverse=True)


def area(tile: Tile) -> int:
    """How many cells of the matrix the tile computes."""
    return (tile.rows.stop - tile.rows.start) * (tile.columns.stop - tile.columns.start)


def slices(n: int, size: int) -> Iterator[slice]:
    """0..n in pieces of `size`."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


class Scratch(threading.local):
    """Memory that a thread writes over and over: fresh pages for every tile would cost more than filling them."""

    def __init__(self) -> None:
        self._flat: dict[str, np.ndarray] = {}

    def array(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        """A float32 array of that shape, with whatever was last written to that name."""
        size = shape[0] * shape[1]
        if name not in self._flat or self._flat[name].size < size:
            self._flat[name] = np.empty(size, np.float32)
        return self._flat[name][:size].reshape(shape)


@register_jitable
def _snap(row, squared, out):
    one, zero = np.float32(1), np.float32(0)
    if squared:
        for c in range(row.shape[0]):
            gap = one - max(min(row[c], one), zero)
            out[c] = np.int32(np.rint((one - gap * gap) * np.float32(SCALE)))
    else:
        for c in range(row.shape[0]):
            out[c] = np.int32(np.rint(max(min(row[c], one), -one) * np.float32(SCALE)))


@register_jitable
def _copy(source, target):
    for c in range(target.shape[0]):
        target[c] = source[c]


@register_jitable
def _turn(square, quads):
    """Transpose a square of 16-bit values, four to a 64-bit word: a quarter of the scattered stores."""
    bits = square.view(np.uint16)
    for r in range(0, bits.shape[0], 4):
        for c in range(bits.shape[1]):
            quads[c, r >> 2] = (
                np.uint64(bits[r, c])
                | np.uint64(bits[r + 1, c]) << np.uint64(16)
                | np.uint64(bits[r + 2, c]) << np.uint64(32)
                | np.uint64(bits[r + 3, c]) << np.uint64(48)
            )


@nb.njit(nogil=True, cache=True)
def store(tile, squared, matrix, first_row, first_column, mirror):
    """Snap a float32 tile of similarities into `matrix`, and into its mirror image where asked.

    `squared` turns a similarity s into 1 - (1 - max(s, 0))^2 on the way: the default detail, at no extra pass.
    """
    rows, columns = tile.shape
    side = 64  # a square of this side, and its transpose, stay in the first-level cache
    strip = np.zeros((side, columns + side), np.int16)
    quads = np.empty((side, side // 4), np.uint64)
    turned = quads.view(np.int16)
    for r0 in range(0, rows, side):
        r1 = min(r0 + side, rows)
        for r in range(r0, r1):
            line = strip[r - r0, :columns]
            _snap(tile[r], squared, line)
            _copy(line, matrix[first_row + r, first_column : first_column + columns])
        if mirror:
            for c0 in range(0, columns, side):
                _turn(strip[:, c0 : c0 + side], quads)
                for c in range(c0, min(c0 + side, columns)):
                    _copy(turned[c - c0], matrix[first_column + c, first_row + r0 : first_row + r1])
