"""The layout of sets: no overlaps, no gaps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.selection.gpu.sets import TILE, Sets

CPU = torch.device("cpu")


@pytest.mark.parametrize("symmetric", [True, False])
def test_matrices_do_not_overlap(symmetric: bool) -> None:
    sizes = (1, 64, 65, 7)
    sets = Sets(sizes, sizes if symmetric else (3, 1, 130, 64), sizes, symmetric, CPU)
    written = torch.zeros(sets.elements, dtype=torch.int16)
    for matrix in sets.matrices(written):
        matrix += 1
    if not symmetric:
        for transpose in sets.transposes(written):
            transpose += 1
    assert written.max() == 1
    assert written.sum() == sum(m * n for m, n in zip(sizes, sets.tokens, strict=True)) * (1 if symmetric else 2)


@pytest.mark.parametrize("symmetric", [True, False])
def test_tiles_cover_every_matrix_once(symmetric: bool) -> None:
    sizes = (1, TILE, TILE + 1, 20 * TILE)  # the last has more tiles per side than a group of tiles
    sets = Sets(sizes, sizes, sizes, symmetric, CPU)
    for b, size in enumerate(sizes):
        covered = np.zeros((-(-size // TILE), -(-size // TILE)), int)
        for index, row, column in sets.tiles.tolist():
            if index == b:
                covered[row // TILE, column // TILE] += 1
                if symmetric and row != column:
                    covered[column // TILE, row // TILE] += 1
        assert (covered == 1).all()


def test_chunks_cover_everything_once() -> None:
    sets = Sets((33, 1), (65, 64), (1, 1), False, CPU)
    assert sets.candidate_chunks.tolist() == [[0, 0], [0, 16], [0, 32], [1, 0]]
    assert sets.token_chunks.tolist() == [[0, 0], [0, 64], [1, 0]]
