"""Pieces of a long video."""

from __future__ import annotations

from floc.captured import pieces


def test_pieces_are_about_equally_long() -> None:
    for cells in (1, 7, 60, 729, 70_000):
        for planned in (1, 31, 32, 33, 1025, 3600, 7200):
            size = pieces.count_piece_frames(cells, planned)
            assert size * cells <= max(pieces.PIECE_TOKENS, cells)
            rest = planned % size or size
            assert rest >= size - 32 * -(-planned // size) or size < 64, (cells, planned, size, rest)
