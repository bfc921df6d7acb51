"""Encoders: frames in, tokens [T, H, W, D] out, one file each behind one protocol.

`pixels` is built in and needs no weights, `mobilenet` is a pretrained network that a small package carries, and
`hf:<model>` is what a transformers model would hand to its language model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import numpy as np
import torch

from floc._arrays import Array
from floc._checks import check_choice
from floc.tokens import Frames


class Layout(Protocol):
    """How frames must be for an encoder."""

    @property
    def frames_per_token(self) -> int:
        """How many frames one slice of tokens is made of: 1, or 2 where a model joins them in pairs."""
        ...

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        """The width and height in pixels that frames of such a film must be brought to."""
        ...


class Encoder(Layout, Protocol):
    """What turns frames into tokens."""

    @property
    def name(self) -> str:
        """The name it is asked for by."""
        ...

    def seen(self, pixels: np.ndarray) -> np.ndarray:
        """Of such frames the part that the grid of tokens covers: all, but where a model cuts out the middle."""
        ...

    def __call__(self, pixels: np.ndarray) -> Array:
        """[B, height, width, 3] uint8 of that size -> [B / frames_per_token, H, W, D] in a 16-bit float format."""
        ...


@dataclass(frozen=True)
class VideoTokens:
    """A film as tokens."""

    tokens: Array  # [T, H, W, D], in the memory of the host
    times_s: np.ndarray  # [T] float64, when the first frame of each slice is shown


def names() -> list[str]:
    """The encoders that need nothing but their name; `hf:<model>` is one more for every model there is."""
    return ["auto", "mobilenet", "pixels"]


def get(name: str, *, device: str | None = None) -> Encoder:
    """The encoder behind a name.

    Args:
        name: "pixels", "mobilenet", "hf:" and a folder or hub id, or "auto": mobilenet where its weights are installed,
            else pixels. The encoder's own `name` says which it is.
        device: where a network runs, such as "cuda:1"; the first GPU, else the CPU, where not given.
    """
    name = resolve_name(name)
    if device is not None and name != "pixels":
        _require_device(device)
    if name.startswith("hf:"):
        return import_module("floc.encoders.vision_tower").load(name, device)
    return import_module(f"floc.encoders.{name}").load(device)


def resolve_name(name: str) -> str:
    """The name of an encoder that there is: of "auto" the one that it stands for."""
    if not name.startswith("hf:"):
        check_choice("encoder", name, [*names(), "hf:<model>"])
    if name == "auto":
        return "mobilenet" if import_module("floc.encoders.mobilenet").weights_path() else "pixels"
    return name


def layout(name: str) -> Layout:
    """How frames must be for an encoder, without its weights."""
    name = resolve_name(name)
    if name.startswith("hf:"):
        return import_module("floc.encoders.vision_tower").layout(name)
    return import_module("floc.encoders.cells").Cells()


def _require_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts that it is there
        raise ValueError(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from None


def default_device() -> str:
    """The first GPU where there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def encode(
    frames: Iterable[Frames],
    encoder: Encoder,
    *,
    planned: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> VideoTokens:
    """Encode a film as it is read: a batch of its pixels is in memory at a time, and its tokens once.

    Tokens are gathered in host memory, wherever the encoder runs: those of a long film outgrow a GPU.

    Args:
        frames: batches in order, of any sizes, of the width and height that `encoder.frame_size` names.
        encoder: from `get`.
        planned: how many frames to reserve memory for; it may be wrong either way.
        progress: called after every batch with the frames encoded so far.
    """
    joined = encoder.frames_per_token
    gathered: _Gathered | None = None
    times: list[np.ndarray] = []
    done = 0
    for batch in group_frames(frames, joined):
        tokens = encoder(batch.pixels)  # [B / joined, H, W, D]
        if gathered is None:
            gathered = _Gathered(tokens, -(-planned // joined) if planned else len(tokens))
        gathered.add(tokens)
        times.append(batch.times_s[::joined])
        done += len(batch.times_s)
        if progress is not None:
            progress(done)
    if gathered is None:
        raise ValueError("no frames to encode: the film gave none")
    return VideoTokens(gathered.all(), np.concatenate(times))


def group_frames(frames: Iterable[Frames], size: int) -> Iterator[Frames]:
    """The same frames in batches that are multiples of `size`, the very last frame repeated to fill its group."""
    shape = None
    left: Frames | None = None  # fewer than `size` frames
    for batch in frames:
        _require_frames(batch, shape)
        if not len(batch.pixels):
            continue
        shape = batch.pixels.shape[1:]
        if left is not None:
            batch = Frames(np.concatenate([left.pixels, batch.pixels]), np.concatenate([left.times_s, batch.times_s]))
        whole = len(batch.pixels) // size * size
        # a copy, so that the batch it was part of can go
        left = Frames(batch.pixels[whole:].copy(), batch.times_s[whole:]) if whole < len(batch.pixels) else None
        if whole:
            yield Frames(batch.pixels[:whole], batch.times_s[:whole])
    if left is not None:
        repeated = left.pixels[-1:].repeat(size - len(left.pixels), 0)
        yield Frames(np.concatenate([left.pixels, repeated]), left.times_s)  # times are of frames that there were


def _require_frames(batch: Frames, shape: tuple[int, ...] | None) -> None:
    pixels = batch.pixels
    if pixels.ndim != 4 or pixels.shape[-1] != 3 or pixels.dtype != np.uint8:
        raise ValueError(f"frames must be [B, height, width, 3] uint8 RGB, got {pixels.shape} {pixels.dtype}")
    if len(batch.times_s) != len(pixels):
        raise ValueError(f"every frame needs its time: {len(pixels)} frames came with {len(batch.times_s)} times")
    if shape is not None and pixels.shape[1:] != shape:
        raise ValueError(
            f"all frames of a film must have one size: {pixels.shape[1:]} came after {shape}; resize them on reading"
        )


class _Gathered:
    """Tokens one after another in one piece of memory.

    It is numpy's, whose `resize` grows and cuts where the memory is: a list of pieces would need all of it twice when
    they are joined, and so does torch to resize a tensor. numpy has no bfloat16, so that is held as integers.
    """

    def __init__(self, like: Array, slices: int) -> None:
        self.dtype = like.dtype if isinstance(like, torch.Tensor) else None  # of the tensor to give back
        # pages that are never written to cost nothing
        self.buffer = np.empty((slices, *like.shape[1:]), _held(like[:0]).dtype)
        self.filled = 0

    def add(self, tokens: Array) -> None:
        end = self.filled + len(tokens)
        if end > len(self.buffer):
            # by an eighth: few moves, and little more than what is needed, since numpy writes zeros to all of it
            self._resize(max(end, len(self.buffer) * 9 // 8))
        self.buffer[self.filled : end] = _held(tokens)
        self.filled = end

    def all(self) -> Array:
        self._resize(self.filled)
        return self.buffer if self.dtype is None else torch.from_numpy(self.buffer).view(self.dtype)

    def _resize(self, slices: int) -> None:
        self.buffer.resize((slices, *self.buffer.shape[1:]), refcheck=False)  # nobody else has seen it yet


def _held(tokens: Array) -> np.ndarray:
    if isinstance(tokens, np.ndarray):
        return tokens
    return (tokens.view(torch.int16) if tokens.dtype == torch.bfloat16 else tokens).cpu().numpy()
