"""Splitting frames into blocks, and budgets among blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floc import blocks

sizes_and_budget = st.lists(st.integers(1, 500), min_size=1, max_size=30).flatmap(
    lambda sizes: st.tuples(st.just(sizes), st.integers(0, sum(sizes)))
)


@given(sizes_and_budget)
def test_share_budget_sums_to_the_budget_and_is_within_one_of_exact(given_: tuple[list[int], int]) -> None:
    sizes, budget = given_
    shares = blocks.share_budget(sizes, budget)
    assert shares.sum() == budget
    exact = np.array(sizes) * budget / sum(sizes)
    assert (np.abs(shares - exact) < 1 + 1e-9).all()
    assert (shares <= sizes).all()
    assert (shares >= 0).all()


@given(sizes_and_budget, st.integers(0, 99), st.data())
def test_share_budget_stays_within_room(given_: tuple[list[int], int], seed: int, data: st.DataObject) -> None:
    sizes, _ = given_
    room = np.random.default_rng(seed).integers(0, np.array(sizes) + 1)
    budget = data.draw(st.integers(0, int(room.sum())))
    shares = blocks.share_budget(sizes, budget, room)
    assert shares.sum() == budget
    assert (shares <= room).all()
    free = blocks.share_budget(sizes, budget)
    if (free <= room).all():
        np.testing.assert_array_equal(shares, free)


@given(st.integers(1, 400), st.one_of(st.none(), st.integers(1, 90)))
def test_split_blocks_covers_every_frame_once(frames: int, block: int | None) -> None:
    spans = blocks.split_blocks(frames, block)
    assert [t for span in spans for t in range(span.start, span.stop)] == list(range(frames))
    assert all(span.stop - span.start <= (block or frames) for span in spans)


@given(st.integers(1, 8), st.integers(1, 12), st.integers(1, 96))
def test_prefixes_of_interleave_equal_shares_of_equal_blocks(count: int, size: int, prefix: int) -> None:
    sizes = [size] * count
    block = np.repeat(np.arange(count), size)
    rank = np.tile(np.arange(size), count)
    order = blocks.interleave(sizes, rank, block)
    prefix = min(prefix, count * size)
    taken = np.bincount(block[order[:prefix]], minlength=count)
    np.testing.assert_array_equal(taken, blocks.share_budget(sizes, prefix))


@given(st.sets(st.integers(1, 99)), st.integers(1, 50))
def test_split_blocks_at_first_frames(later: set[int], rest: int) -> None:
    starts = [0, *sorted(later)]
    spans = blocks.split_blocks(starts[-1] + rest, starts)
    assert [span.start for span in spans] == starts
    assert [span.stop for span in spans] == [*starts[1:], starts[-1] + rest]


def test_rejects_a_block_after_the_end() -> None:
    assert blocks.split_blocks(58, [0, 57])[-1] == slice(57, 58)
    with pytest.raises(ValueError, match="starts at frame 57, but the video has 57 frames, counted from 0"):
        blocks.split_blocks(57, [0, 57])


def test_share_budget_rejects_more_than_the_room() -> None:
    with pytest.raises(ValueError, match="room for 6, not for 7"):
        blocks.share_budget([3, 3], 7)


@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=7), min_size=1, max_size=5), st.data())
def test_merge_by_gain_takes_the_best_next_pick_of_any_block(tails: list[list[int]], data: st.DataObject) -> None:
    # gains never rise from the second on; the first may be anything
    gains = [np.array([data.draw(st.integers(-3, 9)), *sorted(tail, reverse=True)]) for tail in tails]
    heads = [0] * len(gains)
    want = []
    for _ in range(sum(map(len, gains))):
        open_ = [b for b in range(len(gains)) if heads[b] < len(gains[b])]
        best = max(open_, key=lambda b: (min(gains[b][: heads[b] + 1]), -heads[b], -b))
        want.append((best, heads[best]))
        heads[best] += 1
    got = list(zip(*(each.tolist() for each in blocks.merge_by_gain(gains)), strict=True))
    assert got == want


@pytest.mark.parametrize("counts", [[5], [3] * 10, [20, 1, 1, 20], [1, 2, 3, 4, 5, 6, 7], [9, 9, 9]])
@pytest.mark.parametrize("most", [1, 8, 9, 1000])
def test_pack_blocks_respects_the_limit(counts: list[int], most: int) -> None:
    groups = blocks.pack_blocks(np.array(counts), most)
    assert [b for group in groups for b in group] == list(range(len(counts)))
    assert all(sum(counts[b] for b in group) <= most or len(group) == 1 for group in groups)
