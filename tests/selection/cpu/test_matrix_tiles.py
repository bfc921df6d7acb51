"""Tiles cover a matrix exactly once."""

from __future__ import annotations

import numpy as np
import pytest

matrix_tiles = pytest.importorskip(
    "floc.selection.cpu.matrix_tiles", reason="backend 'cpu' needs numba: pip install 'floc-video[cpu]'"
)


@pytest.mark.parametrize("n", [1, 479, 480, 481, 2000])
def test_tiles_cover_matrix_once(n: int) -> None:
    covered = np.zeros((n, n), int)
    for tile in matrix_tiles.split_triangle(n):
        covered[tile.rows, tile.columns] += 1
        if tile.mirror:
            covered[tile.columns, tile.rows] += 1
    assert (covered == 1).all()
    covered[:] = 0
    for tile in matrix_tiles.split_rectangle(n, n):
        covered[tile.rows, tile.columns] += 1
    assert (covered == 1).all()
