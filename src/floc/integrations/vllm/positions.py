"""Positions (M-RoPE) of prompts whose videos were compressed: every kept token keeps its position in the whole video.

vLLM computes positions before it knows which tokens are kept. Text positions do not depend on that and are final at
once. The tokens of a compressed video get a negative mark, -1 - (first position of the video), until its embeddings
arrive. Those carry each token's position within the video as extra channels.

Some models write a timestamp before every frame. The placeholder span of a video then alternates between text and
tokens, and its embeddings cover the whole span.

Embeddings may be bfloat16, which is exact for integers up to 256 only, so positions are written as base-256 digits.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

BASE = 256
DIGITS = 3
AXES = 3
CHANNELS = AXES * DIGITS + 1  # the last channel locates the embeddings in the prompt: see `append_positions`
INSIDE = -1  # its value for all but the first embedding of a video with timestamps


class MediaItem(NamedTuple):
    """An image or a video in a prompt."""

    offset: int  # of its first placeholder
    length: int  # number of placeholders
    grid: np.ndarray  # [3, n] int64, positions of all its tokens relative to its start


def compute_grid_positions(frames: int, rows: int, columns: int, time_step: float) -> np.ndarray:
    """Return [3, T*H*W] int64: time, row and column of every token. Frames are `time_step` positions apart.

    >>> compute_grid_positions(2, 1, 2, time_step=2.5).tolist()
    [[0, 0, 2, 2], [0, 0, 0, 0], [0, 1, 0, 1]]
    """
    positions = np.indices((frames, rows, columns)).reshape(AXES, -1)
    if time_step != 1:
        positions[0] = (positions[0] * time_step).astype(np.int64)
    return positions


def compute_framed_positions(leads: Sequence[int], rows: int, columns: int) -> np.ndarray:
    """Return [3, L] int64: positions of a video with `leads[t]` text tokens before frame t and one after each frame.

    >>> compute_framed_positions([2, 1], 1, 2).tolist()
    [[0, 1, 2, 2, 4, 5, 6, 6, 8], [0, 1, 2, 2, 4, 5, 6, 6, 8], [0, 1, 2, 3, 4, 5, 6, 7, 8]]
    """
    frame = compute_grid_positions(1, rows, columns, time_step=1)
    starts = np.cumsum(leads) + np.arange(len(leads)) * (rows * columns + 1)
    length = int(starts[-1]) + rows * columns + 1
    return compute_prompt_positions(length, (MediaItem(int(start), rows * columns, frame) for start in starts))[0]


def compute_prompt_positions(length: int, media: Iterable[MediaItem]) -> tuple[np.ndarray, int]:
    """Compute the positions of a prompt, with marks for the tokens of compressed videos.

    Returns:
        [3, length] int64 positions, and the delta: position minus index of the tokens after the prompt.

    >>> video = MediaItem(offset=1, length=2, grid=compute_grid_positions(2, 2, 2, time_step=3))
    >>> positions, delta = compute_prompt_positions(5, [video])
    >>> positions[0].tolist(), delta
    ([0, -2, -2, 5, 6], 2)
    """
    positions = np.empty((AXES, length), np.int64)
    done = start = 0  # tokens done, and the position of the next one
    for item in media:
        text = item.offset - done
        positions[:, done : item.offset] = np.arange(start, start + text)
        start += text
        done = item.offset + item.length
        is_whole = item.grid.shape[1] == item.length
        positions[:, item.offset : done] = item.grid + start if is_whole else -1 - start
        start += int(item.grid.max()) + 1
    positions[:, done:] = np.arange(start, start + length - done)
    return positions, start - done


def check_placeholders(ids: Sequence[int], placeholders: Sequence[int], spans: Iterable[tuple[int, int]]) -> None:
    """Raise ValueError if a prompt has placeholder ids outside of the (offset, length) spans of its images and videos.

    >>> check_placeholders([5, 9, 9, 6], [9], [(1, 2)])
    """
    is_stray = (np.asarray(ids)[:, None] == placeholders).any(1)
    for offset, length in spans:
        is_stray[offset : offset + length] = False
    if is_stray.any():
        problem = f"the text of the prompt contains an image or video placeholder, at token {is_stray.argmax()}"
        raise ValueError(f"{problem}: remove it, or send one image or video for each placeholder")


def append_positions(embeds: torch.Tensor, positions: np.ndarray, lead: int = 0) -> torch.Tensor:
    """Append each embedding's position as channels: [K, D] and [3, K] -> [K, D + CHANNELS].

    `lead` is the number of text tokens before the first placeholder, which the last channel of the first row holds.
    """
    location = torch.full((len(embeds), 1), INSIDE if lead else 0)
    location[0] = lead
    return torch.cat([embeds, torch.cat([encode_digits(positions), location], 1).to(embeds.device, embeds.dtype)], 1)


def encode_digits(positions: np.ndarray) -> torch.Tensor:
    """Write positions in base-256 digits: [3, K] -> [K, 9] int64.

    >>> encode_digits(np.array([[1198], [3], [4]])).tolist()
    [[0, 4, 174, 0, 0, 3, 0, 0, 4]]
    """
    if positions.max(initial=0) >= BASE**DIGITS:
        raise ValueError(f"positions in a video must be below {BASE**DIGITS}, got {positions.max()}: use fewer frames")
    powers = BASE ** np.arange(DIGITS)[::-1]
    return torch.from_numpy((positions.T[:, :, None] // powers % BASE).reshape(-1, AXES * DIGITS))


def decode_digits(channels: torch.Tensor) -> torch.Tensor:
    """Read positions from their digits: [K, 9] -> [3, K] int64."""
    digits = channels.round().long().view(-1, AXES, DIGITS)
    powers = BASE ** torch.arange(DIGITS - 1, -1, -1, device=channels.device)
    return (digits * powers).sum(-1).T


def fill_positions(
    positions: torch.Tensor, is_visual: torch.Tensor, done: int, embeds: Sequence[torch.Tensor], width: int
) -> tuple[list[torch.Tensor], torch.Tensor, int]:
    """Replace the marks of compressed videos with the positions that their embeddings carry.

    Args:
        positions: [3, L] int64 of the whole prompt, from `compute_prompt_positions` or an earlier call.
        is_visual: [L] bool, placeholders.
        done: how many tokens of the prompt were processed before.
        embeds: the next embeddings in order: [k, width], or [k, width + CHANNELS] of a compressed video.
        width: channels of an embedding without its position.

    Returns:
        The embeddings without the extra channels, the positions, and the delta for the tokens after the prompt. The
        delta follows the last token of the prompt, even if that is a video token.
    """
    positions = positions.clone()
    placeholders = is_visual.nonzero()[:, 0]
    for item in embeds:
        remaining = placeholders[placeholders >= done]
        if item.shape[1] == width:
            done = int(remaining[len(item) - 1]) + 1
            continue
        lead = int(item[0, -1])
        start = done if lead == INSIDE else int(remaining[0]) - lead
        done = start + len(item)
        span = positions[:, start:done]
        # a preempted request is processed again and has its positions already
        positions[:, start:done] = torch.where(span < 0, -1 - span + decode_digits(item[:, width:-1]).to(span), span)
    return [item[:, :width] for item in embeds], positions, compute_delta(positions)


def compute_delta(positions: torch.Tensor) -> int:
    """Return position minus index of the tokens after a prompt of [3, L] positions."""
    return int(positions[:, -1].max()) + 1 - positions.shape[1]
