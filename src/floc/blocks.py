"""A video's frames in blocks, and each block's share of the budget."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from floc._checks import is_int, is_positive_int

# how a video is cut: into so many frames each, along scenes, from these first frames on, or not at all
BlockSpec: TypeAlias = int | Literal["scene"] | Sequence[int] | None


def split_blocks(frames: int, block: int | Sequence[int] | None) -> list[slice]:
    """Blocks of `block` frames, the last one shorter where it does not divide; or from each of some first frames on.

    >>> split_scenes(70, 32)
    [slice(0, 32, None), slice(32, 64, None), slice(64, 70, None)]
    >>> split_scenes(70, [0, 57])
    [slice(0, 57, None), slice(57, 70, None)]
    """
    if isinstance(block, Sequence):
        if block[-1] >= frames:
            raise ValueError(f"block: the last one begins at frame {block[-1]}, but the video has {frames}, from 0 on")
        starts = block
    else:
        starts = range(0, frames, frames if block is None else block)
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], frames], strict=True)]


def check_block(block: object) -> None:
    """Complain of what is no way to cut a video."""
    if isinstance(block, list | tuple):
        _require_first_frames(block)
    elif not (block is None or is_positive_int(block) or (isinstance(block, str) and block == "scene")):
        raise ValueError(
            "block must be a number of frames, at least 1, 'scene', a list of the blocks' first frames, "
            f"or None for the whole video; got {block!r}"
        )


def _require_first_frames(starts: Sequence[object]) -> None:
    if not (starts and all(map(is_int, starts)) and starts[0] == 0):
        raise ValueError(f"block: a list names the first frame of each block, from 0 on: [0, 57, 120]; got {starts!r}")
    for before, start in itertools.pairwise(starts):
        if not before < start:  # type: ignore[operator]  # they are numbers
            raise ValueError(f"block: first frames must ascend, but {start} comes after {before}; sort them")


def share_budget(
    sizes: Sequence[int] | np.ndarray, budget: int, room: Sequence[int] | np.ndarray | None = None
) -> np.ndarray:
    """Shares of `budget` in proportion to `sizes` that sum to it exactly: largest remainder, ties to the earlier.

    Args:
        sizes: [B] tokens in each block.
        budget: at most what there is room for.
        room: [B] the most that each share can be; what does not fit goes to the next largest remainders.

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
    while (missing := int(budget) - int(share.sum())) > 0:
        share[by_remainder[share[by_remainder] < room[by_remainder]][:missing]] += 1
    return share


def interleave(sizes: Sequence[int] | np.ndarray, ranks: np.ndarray, block: np.ndarray) -> np.ndarray:
    """An order of picks in which every prefix is, as nearly as whole tokens allow, shared out like `shares`.

    Args:
        sizes: [B] tokens in each block.
        ranks: [P] each pick's rank in its block.
        block: [P] the block it belongs to.

    Returns:
        [P] places, first to last.
    """
    sizes = np.asarray(sizes, np.int64)
    # a pick is due when the running share of its block passes the middle of its rank; ties to the earlier block
    return np.lexsort((block, (ranks + 0.5) / sizes[block]))


def merge_by_gain(gains: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Greedy over all blocks at once, from each block's own gains: [P] the block and [P] the rank, first to last.

    Blocks do not share tokens, so the best next pick overall is the best next pick of some block; ties go to the lower
    rank, so that blocks which have nothing more to gain fill up alike, then to the earlier block.

    >>> merge_values([np.array([5, 9]), np.array([7, 5])])[0].tolist()
    [1, 0, 0, 1]
    """
    block = np.concatenate([np.full(len(each), b) for b, each in enumerate(gains)])
    rank = np.concatenate([np.arange(len(each)) for each in gains])
    # a pick cannot come before the ones it builds on, also where the first gain, taken from nothing, is the smaller
    due = np.concatenate([np.minimum.accumulate(each) for each in gains])
    order = np.lexsort((block, rank, -due))
    return block[order], rank[order]


def pack_blocks(counts: np.ndarray, most: int) -> list[range]:
    """Consecutive blocks in groups that hold at most `most` together, unless one block alone holds more.

    Groups are made about equally full, so that none is left with a small rest.

    >>> pack_blocks(np.array([3, 3, 3, 3, 3]), 8)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    ends = counts.cumsum()
    target = ends[-1] / np.ceil(ends[-1] / most)
    found: list[range] = []
    start = held = 0
    for b, count in enumerate(counts):
        full = held + count > most or (b > start and ends[b] - count / 2 > target * (len(found) + 1))
        if b > start and full:
            found.append(range(start, b))
            start, held = b, 0
        held += count
    return [*found, range(start, len(counts))]


def plan_windows(sizes: np.ndarray, survivors: int, most: int) -> list[tuple[range, int]]:
    """Consecutive blocks whose survivors are chosen from together, and how many survive in each such window.

    Survivors are shared out by size, at most `most` to a window unless one block has more, and at least one to a block.

    >>> plan_windows(np.array([100, 100, 50]), 50, 40)
    [(range(0, 1), 20), (range(1, 3), 30)]
    """
    each = np.maximum(share_budget(sizes, survivors), 1)
    return [(together, int(each[together.start : together.stop].sum())) for together in pack_blocks(each, most)]
