"""Tiles of the fixed-point similarity matrix on the CPU.

The matrix product dominates the cost of selection on a CPU. BLAS computes it, one tile per thread. For a symmetric
matrix only one triangle is computed; tiles on the diagonal are `X @ X.T`, which numpy passes to SYRK. A tile is rounded
to int16 and mirrored while it is in cache, so memory holds the int16 matrix and one float32 tile per thread. Tiles
depend on the size of the matrix only, so the result is the same for any number of threads.
"""

import itertools
import threading
from typing import NamedTuple

import numba as nb
import numpy as np
from numba.extending import register_jitable

from floc._arrays import iterate_tiles
from floc.selection.engine import Band
from floc.selection.objective import PLAIN, SCALE

# Two threads at d = 3584 (OpenBLAS, AVX-512): triangles in columns of 480 take 3% longer than whole SYRKs, in columns
# of 256 7%; rectangles of 1280 x 1280 run at 206 GFLOP/s, of 480 x 1920 at 200.
TILE_COLUMNS = 480
TILE_ROWS = 1920
RECTANGLE_SIDE = 1280
# 60 rows a slice: tiles of one slice take 137 ms, of two 162 ms, of four 202 ms, as more pairs lie beyond the horizon
BAND_ROWS = 64
_scratch = threading.local()


class Tile(NamedTuple):
    """Rows x columns of the matrix; with `mirror` the transposed tile is written as well."""

    rows: slice
    columns: slice
    mirror: bool


def split_triangle(n: int) -> list[Tile]:
    """Split a symmetric [n, n] matrix into tiles, the largest first, so that workers finish at about the same time."""
    tiles = []
    for columns in iterate_tiles(n, 1, TILE_COLUMNS):
        tiles += [Tile(rows, columns, True) for rows in iterate_tiles(columns.start, 1, TILE_ROWS)]
        tiles.append(Tile(columns, columns, False))
    return sorted(tiles, key=count_cells, reverse=True)


def split_rectangle(m: int, n: int) -> list[Tile]:
    """Split an [m, n] matrix into tiles, the largest first."""
    sides = (iterate_tiles(length, 1, RECTANGLE_SIDE) for length in (m, n))
    tiles = [Tile(rows, columns, False) for rows, columns in itertools.product(*sides)]
    return sorted(tiles, key=count_cells, reverse=True)


def count_band_slices(band: Band) -> int:
    """Return how many slices a task of a band handles; it also normalizes those of their horizon."""
    return max(24, band.horizon, BAND_ROWS // band.cells)


def count_cells(tile: Tile) -> int:
    """Return the number of matrix cells in a tile."""
    return (tile.rows.stop - tile.rows.start) * (tile.columns.stop - tile.columns.start)


def borrow_scratch(name: str, shape: tuple[int, int]) -> np.ndarray:
    """Return an uninitialised float32 array from this thread's buffer of that name.

    Buffers are reused: allocating new memory for every tile would take longer than filling it.
    """
    buffers, size = vars(_scratch), shape[0] * shape[1]
    if name not in buffers or buffers[name].size < size:
        buffers[name] = np.empty(size, np.float32)
    return buffers[name][:size].reshape(shape)


@register_jitable
def _snap(row, power, out):
    # scaling by a power of two does not change how a product is rounded
    scale, one, zero = np.float32(SCALE), np.float32(1), np.float32(0)
    plain, rest = np.float32(SCALE * PLAIN), np.float32(SCALE * (1 - PLAIN))
    if power == 2:
        for c in range(row.shape[0]):
            gap = max(min(one - row[c], one), zero)
            out[c] = np.int32(np.rint(scale - gap * (plain + rest * gap)))
    elif power == 3:
        for c in range(row.shape[0]):
            gap = max(min(one - row[c], one), zero)
            out[c] = np.int32(np.rint(scale - gap * (plain + rest * (gap * gap))))
    else:
        for c in range(row.shape[0]):
            out[c] = np.int32(np.rint(max(min(row[c], one), -one) * scale))


@register_jitable
def _copy(source, target):
    for c in range(target.shape[0]):
        target[c] = source[c]


@register_jitable
def _transpose(square, quads):
    """Transpose a square of 16-bit values, four per 64-bit word: a quarter of the scattered stores."""
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
def store_tile(tile, power, matrix, first_row, first_column, mirror):
    """Round a float32 tile of similarities to int16 in `matrix` and, with `mirror`, in its transposed place.

    A `power` of 2 or 3 also applies this `detail` (see `Similarity`) without another pass; 1 does not.
    """
    rows, columns = tile.shape
    side = 64  # a square of this side and its transpose fit the first-level cache
    strip = np.zeros((side, columns + side), np.int16)
    quads = np.empty((side, side // 4), np.uint64)
    transposed = quads.view(np.int16)
    for r0 in range(0, rows, side):
        r1 = min(r0 + side, rows)
        for r in range(r0, r1):
            line = strip[r - r0, :columns]
            _snap(tile[r], power, line)
            _copy(line, matrix[first_row + r, first_column : first_column + columns])
        if mirror:
            for c0 in range(0, columns, side):
                _transpose(strip[:, c0 : c0 + side], quads)
                for c in range(c0, min(c0 + side, columns)):
                    _copy(transposed[c - c0], matrix[first_column + c, first_row + r0 : first_row + r1])


@nb.njit(nogil=True, cache=True)
def store_band(tile, power, band, cells, first):
    """Round a float32 tile of similarities to int16 in a band, and in its transposed place; negative ones become 0.

    The rows of the tile are the tokens of some slices from slice `first` on, its columns those of the same and later
    slices. Pairs of slices beyond the horizon are left out. `band` and `power`: see `Band` and `store_tile`.
    """
    rows, columns = tile.shape[0] // cells, tile.shape[1] // cells
    horizon = (band.shape[1] // cells - 1) // 2
    strip = np.empty((cells, tile.shape[1]), np.int16)
    for t in range(rows):
        count = min(columns - t, horizon + 1)
        for r in range(cells):
            line = strip[r, : count * cells]
            _snap(tile[t * cells + r, t * cells : (t + count) * cells], power, line)
            for c in range(line.shape[0]):
                line[c] = max(line[c], 0)
        for r in range(cells):  # rows times columns need not be exactly symmetric
            for c in range(r):
                strip[r, c] = strip[c, r]
        for r in range(cells):
            _copy(strip[r], band[(first + t) * cells + r, horizon * cells : (horizon + count) * cells])
        for s in range(1, count):
            place = (horizon - s) * cells
            for c in range(cells):
                line = band[(first + t + s) * cells + c, place : place + cells]
                for r in range(cells):
                    line[r] = strip[r, s * cells + c]
