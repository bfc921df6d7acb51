"""Positions against loops that write them down one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.integrations.vllm.positions import (
    CHANNELS,
    Medium,
    digits,
    grid_places,
    of_prompt,
    placed,
    places_of,
    with_places,
)

WIDTH = 8
VIDEO, OTHER = (5, 2, 3, 2.5), (4, 3, 2, 300.0)
KEPT, OTHERS = [0, 7, 8, 21, 29], [3, 4, 23]


def by_hand(parts: list) -> list[tuple[int, int, int]]:
    """Of a prompt in parts, a number of text tokens or a grid and which of its tokens are there."""
    found, first = [], 0
    for part in parts:
        if isinstance(part, int):
            found += [(first + i,) * 3 for i in range(part)]
            first += part
            continue
        (frames, rows, columns, pace), kept = part
        cells = [
            (first + int(t * pace), first + y, first + x)
            for t in range(frames)
            for y in range(rows)
            for x in range(columns)
        ]
        found += [cells[i] for i in kept]
        first = max(max(each) for each in cells) + 1
    return found


def read(parts: list, chunk: int, dtype: torch.dtype = torch.bfloat16, times: int = 1) -> tuple[list, list[int]]:
    """Positions of a prompt that is read in chunks, and where the answer begins after each."""
    media, embeds, marks, length = [], [], [], 0
    for part in parts:
        if isinstance(part, int):
            marks += [False] * part
            embeds += [None] * part
            length += part
            continue
        shape, kept = part
        places = grid_places(*shape)
        media.append(Medium(length, len(kept), places))
        mine = torch.zeros(len(kept), WIDTH, dtype=dtype)
        embeds.append(mine if len(kept) == places.shape[1] else with_places(mine, places[:, kept]))
        marks += [True] * len(kept)
        length += len(kept)
    offsets = iter(each.offset for each in media)
    items = [(next(offsets), each) for each in embeds if each is not None]
    now, ends = torch.from_numpy(of_prompt(length, media)[0]), []
    for start in [*range(0, length, chunk)] * times:
        stop = start + chunk
        coming = [each[max(0, start - at) : stop - at] for at, each in items if at < stop and at + len(each) > start]
        is_visual = torch.tensor(marks)
        is_visual[:start] = False
        alone, now, end = placed(now, is_visual, coming, WIDTH)
        assert all(each.shape[1] == WIDTH for each in alone)
        ends.append(end + length)
    return [tuple(each) for each in now.T.tolist()], ends


PROMPTS = {
    "a video": [3, (VIDEO, KEPT), 4],
    "it comes first": [(VIDEO, KEPT), 1],
    "two side by side": [2, (VIDEO, KEPT), (OTHER, OTHERS), 2],
    "pictures around": [1, ((1, 2, 3, 1.0), [*range(6)]), 2, (VIDEO, KEPT), 1, ((1, 4, 2, 1.0), [*range(8)]), 3],
    "all of it": [1, (VIDEO, [*range(30)]), 2],
    "no video": [5],
}


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("parts", PROMPTS.values(), ids=PROMPTS)
def test_kept_tokens_are_where_they_were(parts: list, chunk: int) -> None:
    positions, ends = read(parts, chunk)
    expected = by_hand(parts)
    assert positions == expected
    assert ends[-1] == max(max(each) for each in expected) + 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_no_rounding_of_late_positions(dtype: torch.dtype) -> None:
    parts = [3, ((40, 2, 3, 160.0), [*range(0, 240, 7)]), 4]
    positions, _ = read(parts, 100, dtype)
    assert positions == by_hand(parts)
    assert max(max(each) for each in positions) > 6000


def test_a_prompt_that_is_read_again_after_it_was_stopped() -> None:
    parts = PROMPTS["two side by side"]
    assert read(parts, 4, times=2)[0] == by_hand(parts)


def test_text_does_not_wait_for_videos() -> None:
    media = [Medium(2, 3, grid_places(*VIDEO))]
    positions, delta = of_prompt(9, media)
    text = [0, 1, 5, 6, 7, 8]
    expected = by_hand([2, (VIDEO, [0, 1, 2]), 4])
    assert [tuple(each) for each in positions.T[text]] == [expected[i] for i in text]
    assert delta == expected[-1][0] + 1 - 9


def test_digits_are_read_back() -> None:
    places = np.random.default_rng(0).integers(0, 256**3, (3, 1000))
    channels = digits(places)
    assert channels.shape == (1000, CHANNELS)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert (places_of(channels.to(dtype)).numpy() == places).all()


def test_positions_that_no_digits_can_hold() -> None:
    with pytest.raises(ValueError, match="positions below 16777216, got 16777216: take fewer frames"):
        digits(np.full((3, 1), 256**3))
