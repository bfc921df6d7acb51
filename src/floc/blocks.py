"""Splitting a video's frames into blocks, and a budget among them."""

import itertools
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from floc._checks import is_int, is_positive_int, shorten

Counts: TypeAlias = Sequence[int] | np.ndarray
# frames in a block; "scene": blocks follow scenes; the first frame of each block; None: the whole video is one block
BlockSpec: TypeAlias = int | Literal["scene"] | Sequence[int] | None


def split_blocks(frames: int, block: int | Sequence[int] | None) -> list[slice]:
    """Split frames into blocks of `block` frames, the last one possibly shorter, or at given first frames.

    >>> split_blocks(70, 32)
    [slice(0, 32, None), slice(32, 64, None), slice(64, 70, None)]
    >>> split_blocks(70, [0, 57])
    [slice(0, 57, None), slice(57, 70, None)]
    """
    starts = block if isinstance(block, Sequence) else range(0, frames, frames if block is None else block)
    if (last := starts[-1]) >= frames:
        raise ValueError(
            f"block: the last starts at frame {shorten(last)}, but the video has {frames} frames, counted from 0"
        )
    return list(itertools.starmap(slice, itertools.pairwise([*starts, frames])))


def check_block(block: object) -> None:
    """Raise ValueError if `block` is not a BlockSpec."""
    if isinstance(block, list | tuple):
        if not (block and all(map(is_int, block)) and block[0] == 0):
            content = "the first frame of each block, starting with 0: [0, 57, 120]"
            raise ValueError(f"block: a list must hold {content}; got {shorten(block)}")
        for before, start in itertools.pairwise(block):
            if not before < start:
                raise ValueError(
                    f"block: first frames must ascend, but {shorten(start)} comes after {shorten(before)}; sort them"
                )
    elif not (block is None or is_positive_int(block) or (isinstance(block, str) and block == "scene")):
        allowed = (
            "a number of frames, at least 1, 'scene', a list of the blocks' first frames, or None for the whole video"
        )
        raise ValueError(f"block must be {allowed}; got {shorten(block)}")


def share_budget(sizes: Counts, budget: int, room: Counts | None = None) -> np.ndarray:
    """Split `budget` in proportion to the [B] sizes of blocks, by largest remainder; ties go to the earlier block.

    `room` is the [B] upper limit of each share, by default `sizes`; what does not fit goes to the next largest
    remainders. Returns [B] int64 shares that sum to `budget`.

    >>> share_budget([1920, 1920, 360], 525).tolist()
    [240, 240, 45]
    >>> share_budget([10, 10, 10], 2).tolist()
    [1, 1, 0]
    """
    sizes = np.asarray(sizes, np.int64)
    room = sizes if room is None else np.asarray(room, np.int64)
    total = int(sizes.sum())
    exact = sizes * int(budget)
    if budget > room.sum():
        raise ValueError(f"there is room for {room.sum()}, not for {budget}")
    share = exact // total
    by_remainder = np.argsort(share * total - exact, kind="stable")
    share[by_remainder[: int(budget) - int(share.sum())]] += 1
    share = np.minimum(share, room)
    return raise_in_rounds(share, room, int(budget) - int(share.sum()), by_remainder)


def raise_in_rounds(
    counts: np.ndarray, room: np.ndarray, missing: int, order: np.ndarray | slice = slice(None)
) -> np.ndarray:
    """Raise [G] counts by `missing` in total, or as far as [G] room allows: each by one in turn, in an order.

    >>> raise_in_rounds(np.array([0, 0, 0]), np.array([1, 5, 2]), 5).tolist()
    [1, 2, 2]
    """
    counts, order = counts.copy(), np.arange(len(counts))[order]
    while missing > 0 and len(turns := order[counts[order] < room[order]][:missing]):
        counts[turns] += 1
        missing -= len(turns)
    return counts


def interleave(sizes: Counts, ranks: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Order the picks of all blocks so that every prefix is split, as nearly as possible, like `share_budget`.

    Args:
        sizes: [B] tokens of each block.
        ranks: [P] rank of each pick in its block.
        block: [P] block of each pick.

    Returns:
        [P] places in `ranks` and `block`, in the new order.
    """
    # a pick is due when its block's running share passes the middle of its rank; ties go to the earlier block
    return np.lexsort((block, (ranks + 0.5) / np.asarray(sizes)[block]))


def merge_by_gain(gains: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Order the picks of all blocks as greedy selection over all blocks at once would make them.

    Blocks share no tokens, so the best next pick overall is the best next pick of some block. Ties go to the lower
    rank, so that blocks without further gains fill up evenly, then to the earlier block. Returns the [P] block and the
    [P] rank in its block of each pick, first to last.

    >>> merge_by_gain([np.array([5, 9]), np.array([7, 5])])[0].tolist()
    [1, 0, 0, 1]
    """
    block = np.concatenate([np.full(len(block_gains), b) for b, block_gains in enumerate(gains)])
    rank = np.concatenate([np.arange(len(block_gains)) for block_gains in gains])
    # a pick cannot come before the picks it builds on, even if the first gain of its block is smaller than later ones
    due = np.concatenate([np.minimum.accumulate(block_gains) for block_gains in gains])
    order = np.lexsort((block, rank, -due))
    return block[order], rank[order]


def pack_blocks(counts: np.ndarray, most: int) -> list[range]:
    """Group consecutive blocks that hold at most `most` together; a single block may hold more.

    Groups are filled about equally, so that the last one is not much smaller.

    >>> pack_blocks(np.array([3, 3, 3, 3, 3]), 8)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    ends = counts.cumsum()
    target = ends[-1] / np.ceil(ends[-1] / most)
    groups: list[range] = []
    start = held = 0
    for b, count in enumerate(counts):
        is_full = held + count > most or (b > start and ends[b] - count / 2 > target * (len(groups) + 1))
        if b > start and is_full:
            groups.append(range(start, b))
            start, held = b, 0
        held += count
    return [*groups, range(start, len(counts))]
