"""The Gaussian metric on the CPU: exp(-distance^2 / 2 sigma^2), sigma the median distance in the set.

Distances come from cosines and lengths, |x - y|^2 = (|x| - |y|)^2 + 2 |x| |y| (1 - cos). What float32 cannot tell from
0 is 0: tokens nearer to each other than 0.0014 of their length are the same.

The median needs all distances before any similarity can be written; kept as a float32 triangle they take just the room
of the int16 matrix. It is found exactly: the upper 16 bits of a float32 >= 0 order like the number itself, so a
histogram of them leaves one bin to sort.
"""

from __future__ import annotations

import numba as nb
import numpy as np

_BINS = 1 << 16
_NOISE = np.float32(1e-6)  # of a float32 cosine, and of a length, relative


@nb.njit(nogil=True, cache=True)
def square_distances(tile, row_lengths, column_lengths):
    """Turn a tile of cosines into squared distances, in place."""
    for r in range(tile.shape[0]):
        a = row_lengths[r]
        for c in range(tile.shape[1]):
            b = column_lengths[c]
            gap = np.float32(1) - tile[r, c]
            if gap < _NOISE:
                gap = np.float32(0)
            longer = a - b
            if abs(longer) <= _NOISE * (a + b):
                longer = np.float32(0)
            tile[r, c] = longer * longer + np.float32(2) * a * b * gap


def similarities(tile: np.ndarray, sigma: float) -> None:
    """Turn a tile of squared distances, in units of the greatest length, into similarities, in place."""
    # where more than half of the pairs coincide sigma is 0, and only what coincides is alike
    np.multiply(tile, np.float32(-0.5 / max(sigma * sigma, 1e-30)), out=tile)
    np.exp(tile, out=tile)


def median_distance(tiles: list[np.ndarray], diagonal: list[bool], pairs: int) -> float:
    """The median distance over all pairs, from tiles of squared distances.

    Args:
        tiles: the lower triangle of the matrix in pieces.
        diagonal: for each tile, whether it is a symmetric one, of which only the part above its diagonal counts.
        pairs: how many pairs there are in all.
    """
    if pairs == 0:
        return 1.0
    counts = np.zeros(_BINS, np.int64)
    for tile, symmetric in zip(tiles, diagonal, strict=True):
        _count(tile.view(np.uint32), symmetric, counts)
    below = np.concatenate([[0], counts.cumsum()])
    middle = []
    for rank in ((pairs - 1) // 2, pairs // 2):
        bin_ = int(np.searchsorted(below, rank, side="right")) - 1
        found = np.empty(counts[bin_], np.float32)
        filled = 0
        for tile, symmetric in zip(tiles, diagonal, strict=True):
            filled = _collect(tile, tile.view(np.uint32), symmetric, bin_, found, filled)
        middle.append(np.sqrt(float(np.partition(found, rank - below[bin_])[rank - below[bin_]])))
    return sum(middle) / 2


@nb.njit(nogil=True, cache=True)
def _count(words, symmetric, counts):
    for r in range(words.shape[0]):
        for c in range(r + 1 if symmetric else 0, words.shape[1]):
            counts[words[r, c] >> np.uint32(16)] += 1


@nb.njit(nogil=True, cache=True)
def _collect(tile, words, symmetric, bin_, found, filled):
    for r in range(words.shape[0]):
        for c in range(r + 1 if symmetric else 0, words.shape[1]):
            if words[r, c] >> np.uint32(16) == bin_:
                found[filled] = tile[r, c]
                filled += 1
    return filled
