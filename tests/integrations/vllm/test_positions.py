"""Positions against loops that write them down one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.integrations.vllm.positions import (
    CHANNELS,
    Medium,
    digits,
    framed_places,
    grid_places,
    of_prompt,
    placed,
    places_of,
    require_marks_of_media,
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


def stamped(leads: list[int], rows: int, columns: int, kept: list[int]) -> list:
    """The parts of a video with text before each frame."""
    cells = rows * columns
    parts: list = []
    for frame, lead in enumerate(leads):
        mine = [each - frame * cells for each in kept if each // cells == frame]
        parts += [lead, ((1, rows, columns, 1.0), mine), 1]
    return parts


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
        alone, now, end = placed(now, torch.tensor(marks), start, coming, WIDTH)
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


@pytest.mark.parametrize(("ids", "place"), [([9, 5, 9, 9, 6], 0), ([5, 8, 9, 9, 6], 1), ([5, 6, 9, 9, 9], 4)])
def test_what_stands_for_videos_must_not_stand_elsewhere(ids: list, place: int) -> None:
    require_marks_of_media([5, 6, 9, 9, 6], (8, 9), [(2, 2)])
    with pytest.raises(ValueError, match=f"stands for pictures and videos in its text, at token {place}"):
        require_marks_of_media(ids, (8, 9), [(2, 2)])


def test_a_prompt_that_is_read_again_after_it_was_stopped() -> None:
    parts = PROMPTS["two side by side"]
    assert read(parts, 4, times=2)[0] == by_hand(parts)


LEADS, OTHER_LEADS = [3, 4, 2, 5], [1, 2, 2]
SEEN, SEEN_TOO = [0, 3, 12, 13, 23], [5, 9, 10]
STAMPED = {
    "a video": [3, ("stamped", LEADS, 2, 3, SEEN), 4],
    "two side by side": [("stamped", LEADS, 2, 3, SEEN), ("stamped", OTHER_LEADS, 2, 2, SEEN_TOO), 2],
    "all of the first": [1, ("stamped", OTHER_LEADS, 2, 2, [*range(12)]), 2, ("stamped", LEADS, 2, 3, SEEN), 2],
    "a picture between": [
        *(1, ("stamped", LEADS, 2, 3, SEEN), 2, ("picture", 2, 3)),
        *(1, ("stamped", OTHER_LEADS, 2, 2, SEEN_TOO), 2),
    ],
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("chunk", [1, 2, 5, 7, 100])
@pytest.mark.parametrize("parts", STAMPED.values(), ids=STAMPED)
def test_videos_with_text_before_each_frame(parts: list, chunk: int, times: int) -> None:
    """Placeholders are written as if all tokens that are kept were in the first frame."""
    whole, media, items, marks = [], [], [], []
    for part in parts:
        at = len(marks)
        if isinstance(part, int):
            whole.append(part)
            marks += [False] * part
        elif part[0] == "picture":
            grid, cells = (1, *part[1:], 1.0), part[1] * part[2]
            whole.append((grid, [*range(cells)]))
            media.append(Medium(at, cells, grid_places(*grid)))
            items.append((at, torch.zeros(cells, WIDTH), [*range(at, at + cells)]))
            marks += [True] * cells
        else:
            _, leads, rows, columns, kept = part
            whole += (mine := stamped(leads, rows, columns, kept))
            length, places = len(by_hand(mine)), framed_places(leads, rows, columns)
            media.append(Medium(at, length, places))
            if length == places.shape[1]:  # embeddings come for placeholders alone
                for lead in leads:
                    marks += [False] * lead + [True] * rows * columns + [False]
                items.append((at, torch.zeros(len(kept), WIDTH), [i for i in range(at, len(marks)) if marks[i]]))
            else:
                there = np.array(by_hand(mine)).T
                lead = leads[0]
                items.append((at, with_places(torch.zeros(length, WIDTH), there, lead), [*range(at, at + length)]))
                marks += [False] * lead + [True] * len(kept) + [False] * (length - lead - len(kept))
    expected = by_hand(whole)
    now = torch.from_numpy(of_prompt(len(marks), media)[0])
    for start in [*range(0, len(marks), chunk)] * times:
        coming = [
            embeds[[i for i, place in enumerate(places) if start <= place < start + chunk]]
            for _, embeds, places in items
            if any(start <= place < start + chunk for place in places)
        ]
        _, now, end = placed(now, torch.tensor(marks), start, coming, WIDTH)
        assert [tuple(each) for each in now.T.tolist()][start : start + chunk] == expected[start : start + chunk]
    assert end + len(marks) == max(max(each) for each in expected) + 1


def test_all_places_of_a_video_with_text_before_each_frame() -> None:
    found = framed_places(LEADS, 3, 2)
    assert [tuple(each) for each in found.T.tolist()] == by_hand(stamped(LEADS, 3, 2, [*range(24)]))


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
    assert channels.shape == (1000, CHANNELS - 1)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert (places_of(channels.to(dtype)).numpy() == places).all()


def test_positions_that_no_digits_can_hold() -> None:
    with pytest.raises(ValueError, match="positions below 16777216, got 16777216: take fewer frames"):
        digits(np.full((3, 1), 256**3))
