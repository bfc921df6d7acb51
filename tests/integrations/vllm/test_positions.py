"""Tests of positions against loops that compute them one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.integrations.vllm.positions import (
    CHANNELS,
    MediaItem,
    append_positions,
    check_placeholders,
    compute_framed_positions,
    compute_grid_positions,
    compute_prompt_positions,
    decode_digits,
    encode_digits,
    fill_positions,
)

WIDTH = 8
VIDEO, OTHER = (5, 2, 3, 2.5), (4, 3, 2, 300.0)
KEPT, OTHERS = [0, 7, 8, 21, 29], [3, 4, 23]


def by_hand(parts: list) -> list[tuple[int, int, int]]:
    """Compute the positions of a prompt. A part is a number of text tokens, or a grid and its kept tokens."""
    positions, start = [], 0
    for part in parts:
        if isinstance(part, int):
            positions += [(start + i,) * 3 for i in range(part)]
            start += part
            continue
        (frames, rows, columns, pace), kept = part
        cells = [
            (start + int(t * pace), start + y, start + x)
            for t in range(frames)
            for y in range(rows)
            for x in range(columns)
        ]
        positions += [cells[i] for i in kept]
        start = max(max(cell) for cell in cells) + 1
    return positions


def stamped(leads: list[int], rows: int, columns: int, kept: list[int]) -> list:
    """Return the parts of a video with text before each frame."""
    cells = rows * columns
    parts: list = []
    for frame, lead in enumerate(leads):
        frame_tokens = [index - frame * cells for index in kept if index // cells == frame]
        parts += [lead, ((1, rows, columns, 1.0), frame_tokens), 1]
    return parts


def process(parts: list, chunk: int, dtype: torch.dtype = torch.bfloat16, times: int = 1) -> tuple[list, list[int]]:
    """Return the positions of a prompt that is processed in chunks, and the answer's start after each chunk."""
    media, embeds, marks, length = [], [], [], 0
    for part in parts:
        if isinstance(part, int):
            marks += [False] * part
            embeds += [None] * part
            length += part
            continue
        shape, kept = part
        places = compute_grid_positions(*shape)
        media.append(MediaItem(length, len(kept), places))
        video_embeds = torch.zeros(len(kept), WIDTH, dtype=dtype)
        embeds.append(video_embeds if len(kept) == places.shape[1] else append_positions(video_embeds, places[:, kept]))
        marks += [True] * len(kept)
        length += len(kept)
    offsets = iter(each.offset for each in media)
    items = [(next(offsets), each) for each in embeds if each is not None]
    now, ends = torch.from_numpy(compute_prompt_positions(length, media)[0]), []
    for start in [*range(0, length, chunk)] * times:
        stop = start + chunk
        coming = [each[max(0, start - at) : stop - at] for at, each in items if at < stop and at + len(each) > start]
        alone, now, end = fill_positions(now, torch.tensor(marks), start, coming, WIDTH)
        assert all(each.shape[1] == WIDTH for each in alone)
        ends.append(end + length)
    return [tuple(each) for each in now.T.tolist()], ends


PROMPTS = {
    "a video": [3, (VIDEO, KEPT), 4],
    "video first": [(VIDEO, KEPT), 1],
    "two in a row": [2, (VIDEO, KEPT), (OTHER, OTHERS), 2],
    "images around": [1, ((1, 2, 3, 1.0), [*range(6)]), 2, (VIDEO, KEPT), 1, ((1, 4, 2, 1.0), [*range(8)]), 3],
    "all of it": [1, (VIDEO, [*range(30)]), 2],
    "no video": [5],
}


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("parts", PROMPTS.values(), ids=PROMPTS)
def test_kept_tokens_keep_their_positions(parts: list, chunk: int) -> None:
    positions, ends = process(parts, chunk)
    expected = by_hand(parts)
    assert positions == expected
    assert ends[-1] == max(max(each) for each in expected) + 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_large_positions_are_exact(dtype: torch.dtype) -> None:
    parts = [3, ((40, 2, 3, 160.0), [*range(0, 240, 7)]), 4]
    positions, _ = process(parts, 100, dtype)
    assert positions == by_hand(parts)
    assert max(max(each) for each in positions) > 6000


@pytest.mark.parametrize(("ids", "token"), [([9, 5, 9, 9, 6], 0), ([5, 8, 9, 9, 6], 1), ([5, 6, 9, 9, 9], 4)])
def test_rejects_placeholders_in_text(ids: list, token: int) -> None:
    check_placeholders([5, 6, 9, 9, 6], (8, 9), [(2, 2)])
    with pytest.raises(ValueError, match=f"contains an image or video placeholder, at token {token}"):
        check_placeholders(ids, (8, 9), [(2, 2)])


def test_preempted_prompt_is_processed_again() -> None:
    parts = PROMPTS["two in a row"]
    assert process(parts, 4, times=2)[0] == by_hand(parts)


LEADS, OTHER_LEADS = [3, 4, 2, 5], [1, 2, 2]
KEPT_FRAMED, KEPT_FRAMED_2 = [0, 3, 12, 13, 23], [5, 9, 10]
STAMPED = {
    "a video": [3, ("stamped", LEADS, 2, 3, KEPT_FRAMED), 4],
    "two in a row": [("stamped", LEADS, 2, 3, KEPT_FRAMED), ("stamped", OTHER_LEADS, 2, 2, KEPT_FRAMED_2), 2],
    "all of the first": [1, ("stamped", OTHER_LEADS, 2, 2, [*range(12)]), 2, ("stamped", LEADS, 2, 3, KEPT_FRAMED), 2],
    "an image between": [
        *(1, ("stamped", LEADS, 2, 3, KEPT_FRAMED), 2, ("image", 2, 3)),
        *(1, ("stamped", OTHER_LEADS, 2, 2, KEPT_FRAMED_2), 2),
    ],
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("chunk", [1, 2, 5, 7, 100])
@pytest.mark.parametrize("parts", STAMPED.values(), ids=STAMPED)
def test_videos_with_timestamps(parts: list, chunk: int, times: int) -> None:
    """All placeholders are written into the first frame."""
    whole, media, items, marks = [], [], [], []
    for part in parts:
        at = len(marks)
        if isinstance(part, int):
            whole.append(part)
            marks += [False] * part
        elif part[0] == "image":
            grid, cells = (1, *part[1:], 1.0), part[1] * part[2]
            whole.append((grid, [*range(cells)]))
            media.append(MediaItem(at, cells, compute_grid_positions(*grid)))
            items.append((at, torch.zeros(cells, WIDTH), [*range(at, at + cells)]))
            marks += [True] * cells
        else:
            _, leads, rows, columns, kept = part
            whole += (video_parts := stamped(leads, rows, columns, kept))
            length, places = len(by_hand(video_parts)), compute_framed_positions(leads, rows, columns)
            media.append(MediaItem(at, length, places))
            if length == places.shape[1]:  # embeddings only for placeholders
                for lead in leads:
                    marks += [False] * lead + [True] * rows * columns + [False]
                items.append((at, torch.zeros(len(kept), WIDTH), [i for i in range(at, len(marks)) if marks[i]]))
            else:
                kept_positions = np.array(by_hand(video_parts)).T
                lead = leads[0]
                items.append(
                    (at, append_positions(torch.zeros(length, WIDTH), kept_positions, lead), [*range(at, at + length)])
                )
                marks += [False] * lead + [True] * len(kept) + [False] * (length - lead - len(kept))
    expected = by_hand(whole)
    now = torch.from_numpy(compute_prompt_positions(len(marks), media)[0])
    for start in [*range(0, len(marks), chunk)] * times:
        coming = [
            embeds[[i for i, place in enumerate(places) if start <= place < start + chunk]]
            for _, embeds, places in items
            if any(start <= place < start + chunk for place in places)
        ]
        _, now, end = fill_positions(now, torch.tensor(marks), start, coming, WIDTH)
        assert [tuple(each) for each in now.T.tolist()][start : start + chunk] == expected[start : start + chunk]
    assert end + len(marks) == max(max(each) for each in expected) + 1


def test_framed_positions() -> None:
    positions = compute_framed_positions(LEADS, 3, 2)
    assert [tuple(each) for each in positions.T.tolist()] == by_hand(stamped(LEADS, 3, 2, [*range(24)]))


def test_text_positions_are_final_at_once() -> None:
    media = [MediaItem(2, 3, compute_grid_positions(*VIDEO))]
    positions, delta = compute_prompt_positions(9, media)
    text = [0, 1, 5, 6, 7, 8]
    expected = by_hand([2, (VIDEO, [0, 1, 2]), 4])
    assert [tuple(each) for each in positions.T[text]] == [expected[i] for i in text]
    assert delta == expected[-1][0] + 1 - 9


def test_digits_round_trip() -> None:
    places = np.random.default_rng(0).integers(0, 256**3, (3, 1000))
    channels = encode_digits(places)
    assert channels.shape == (1000, CHANNELS - 1)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert (decode_digits(channels.to(dtype)).numpy() == places).all()


def test_rejects_positions_beyond_the_digits() -> None:
    with pytest.raises(ValueError, match="must be below 16777216, got 16777216: use fewer frames"):
        encode_digits(np.full((3, 1), 256**3))
