"""Processing many rows in tiles, so that temporaries stay small beside the tokens."""

from collections.abc import Iterator

TILE_BYTES = 1 << 26  # of temporaries at a time: large enough for a fast matrix product


def iterate_tiles(count: int, row_bytes: int, tile_bytes: int = TILE_BYTES) -> Iterator[slice]:
    """Yield slices that cover `count` rows of `row_bytes`, each of at most `tile_bytes` and of at least one row.

    >>> list(iterate_tiles(5, row_bytes=100, tile_bytes=250))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, tile_bytes // row_bytes)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
