"""Positions of a prompt whose videos are short of tokens: every token that is left has the position it always had.

vLLM writes positions before it knows which tokens are kept. What stands around videos does not depend on that, and is
right from the start. A video's own tokens are marked with where the video begins, until the embeddings come, which
bring each token's place in the grid along as extra channels. Some models write the time before every frame: what a
video takes in a prompt is text and tokens by turns then, and embeddings come for all of it.

Embeddings may be bfloat16, which has no whole numbers beyond 256. So places are written in digits to the base 256.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

BASE = 256
DIGITS = 3
AXES = 3
CHANNELS = AXES * DIGITS + 1  # the last says where embeddings belong
INSIDE = -1  # there, of all but the first in a video of text and tokens


class Medium(NamedTuple):
    """A picture or a video in a prompt."""

    offset: int  # of its first placeholder
    length: int  # how many placeholders it has
    grid: np.ndarray  # [3, n] int64, the places of all its tokens, as if it came first


def grid_places(frames: int, rows: int, columns: int, per_frame: float) -> np.ndarray:
    """[3, T*H*W] int64: time, row and column of every token; `per_frame` is how far a frame is from the next in time.

    >>> grid_places(2, 1, 2, per_frame=2.5).tolist()
    [[0, 0, 2, 2], [0, 0, 0, 0], [0, 1, 0, 1]]
    """
    places = np.indices((frames, rows, columns)).reshape(AXES, -1)
    if per_frame != 1:
        places[0] = (places[0] * per_frame).astype(np.int64)
    return places


def framed_places(leads: Sequence[int], rows: int, columns: int) -> np.ndarray:
    """[3, L] int64: all places of a video with so many text tokens before each frame, and one after it.

    >>> framed_places([2, 1], 1, 2).tolist()
    [[0, 1, 2, 2, 4, 5, 6, 6, 8], [0, 1, 2, 2, 4, 5, 6, 6, 8], [0, 1, 2, 3, 4, 5, 6, 7, 8]]
    """
    frame = grid_places(1, rows, columns, per_frame=1)
    starts = np.cumsum(leads) + np.arange(len(leads)) * (rows * columns + 1)
    length = int(starts[-1]) + rows * columns + 1
    return of_prompt(length, (Medium(int(start), rows * columns, frame) for start in starts))[0]


def of_prompt(length: int, media: Iterable[Medium]) -> tuple[np.ndarray, int]:
    """Positions of a prompt, and what to add to the number of a later token for its position.

    >>> video = Medium(offset=1, length=2, grid=grid_places(2, 2, 2, per_frame=3))
    >>> positions, delta = of_prompt(5, [video])
    >>> positions[0].tolist(), delta
    ([0, -2, -2, 5, 6], 2)
    """
    positions = np.empty((AXES, length), np.int64)
    done = first = 0  # tokens, and the position of the next
    for medium in media:
        text = medium.offset - done
        positions[:, done : medium.offset] = np.arange(first, first + text)
        first += text
        done = medium.offset + medium.length
        is_whole = medium.grid.shape[1] == medium.length
        positions[:, medium.offset : done] = medium.grid + first if is_whole else _mark(first)
        first += int(medium.grid.max()) + 1
    positions[:, done:] = np.arange(first, first + length - done)
    return positions, first - done


def require_marks_of_media(ids: Sequence[int], marks: Sequence[int], spans: Iterable[tuple[int, int]]) -> None:
    """Complain of a prompt where what stands for pictures and videos also stands elsewhere, so that none can be told.

    Args:
        ids: the prompt.
        marks: the tokens that stand for pictures and videos.
        spans: the first placeholder of each picture and video, and how many there are.

    >>> require_marks_of_media([5, 9, 9, 6], [9], [(1, 2)])
    """
    is_stray = np.isin(np.asarray(ids), marks)
    for offset, length in spans:
        is_stray[offset : offset + length] = False
    if is_stray.any():
        raise ValueError(
            f"the prompt has what stands for pictures and videos in its text, at token {is_stray.argmax()}: write it "
            "another way, or send as many pictures and videos as it has"
        )


def with_places(embeds: torch.Tensor, places: np.ndarray, lead: int = 0) -> torch.Tensor:
    """[K, D] and their [3, K] places -> [K, D + CHANNELS]; `lead` is how many text tokens come before placeholders."""
    before = torch.full((len(embeds), 1), INSIDE if lead else 0)
    before[0] = lead
    return torch.cat([embeds, torch.cat([digits(places), before], 1).to(embeds.device, embeds.dtype)], dim=1)


def digits(places: np.ndarray) -> torch.Tensor:
    """[3, K] -> [K, 9] int64

    >>> digits(np.array([[1198], [3], [4]])).tolist()
    [[0, 4, 174, 0, 0, 3, 0, 0, 4]]
    """
    if places.max(initial=0) >= BASE**DIGITS:
        raise ValueError(f"a video must have positions below {BASE**DIGITS}, got {places.max()}: take fewer frames")
    powers = BASE ** np.arange(DIGITS)[::-1]
    return torch.from_numpy((places.T[:, :, None] // powers % BASE).reshape(-1, AXES * DIGITS))


def places_of(channels: torch.Tensor) -> torch.Tensor:
    """[K, 9] -> [3, K] int64"""
    written = channels.round().long().view(-1, AXES, DIGITS)
    powers = BASE ** torch.arange(DIGITS - 1, -1, -1, device=channels.device)
    return (written * powers).sum(-1).T


def placed(
    positions: torch.Tensor, is_visual: torch.Tensor, done: int, embeds: Sequence[torch.Tensor], width: int
) -> tuple[list[torch.Tensor], torch.Tensor, int]:
    """Put videos where their embeddings say.

    Args:
        positions: [3, L] int64 of the whole prompt, as `of_prompt` made them or this function left them.
        is_visual: [L] bool, placeholders.
        done: how many tokens of the prompt were read before.
        embeds: what comes now, in order: [k, width], or [k, width + CHANNELS] for a video that is short of tokens.
        width: of an embedding alone.

    Returns:
        The embeddings alone, the positions, and what to add to the number of a later token for its position. That
        follows the last token of the prompt, also where it is one of a video.
    """
    positions = positions.clone()
    placeholders = is_visual.nonzero()[:, 0]
    for each in embeds:
        coming = placeholders[placeholders >= done]
        if each.shape[1] == width:
            done = int(coming[len(each) - 1]) + 1
            continue
        before = int(each[0, -1])
        start = done if before == INSIDE else int(coming[0]) - before
        done = start + len(each)
        here = positions[:, start:done]
        # a prompt that was stopped and is read again has its places already
        positions[:, start:done] = torch.where(here < 0, _mark_read(here) + places_of(each[:, width:-1]).to(here), here)
    return [each[:, :width] for each in embeds], positions, answer_offset(positions)


def answer_offset(positions: torch.Tensor) -> int:
    """What to add to the number of a token after a prompt for its position."""
    return int(positions[:, -1].max()) + 1 - positions.shape[1]


def _mark(first: int) -> int:
    """What stands for a token of a video that begins at a position, until its place is known."""
    return -1 - first


def _mark_read(marks: torch.Tensor) -> torch.Tensor:
    return -1 - marks
