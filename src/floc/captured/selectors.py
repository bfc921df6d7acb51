"""Select tokens while a video is being encoded, a few frames at a time.

A video of up to `SEGMENT_TOKENS` tokens is one segment, and the result equals `floc.compress`. A longer video with a
budget goes through a `floc.Stream`, if the method supports it, which selects from the whole video in memory for about
twice the budget. Otherwise each segment is compressed alone, with its share of the budget, or at the ratio or coverage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from floc.captured.recipe import Recipe, merge_values
from floc.captured.segments import SegmentTokens
from floc.compression import compress
from floc.encoders.base import FrameTokens
from floc.streaming.stream import Stream

SEGMENT_TOKENS = 65_536
SEGMENT_FRAMES = 32  # segments are multiples of it, so that blocks of the usual length do not cross segments


class StreamSelector:
    """Selects from the whole video with a `floc.Stream`."""

    def __init__(self, recipe: Recipe, options: Mapping[str, Any], dim: int) -> None:
        """Args:
        recipe: with a budget.
        options: of the stream, from `recipe.streaming`.
        dim: features of a token.
        """
        self.recipe, self.dim = recipe, dim
        self.stream = Stream(budget=recipe.budget, dim=dim, **options)

    def add(self, encoded: FrameTokens) -> list[SegmentTokens]:
        """Add frames."""
        self.stream.push(torch.cat(encoded.all, -1))
        return []

    def finish(self) -> list[SegmentTokens]:
        """Return the selected tokens as one segment."""
        if not self.stream.frames:
            return []
        kept = self.stream.close()
        features, *deep = torch.as_tensor(kept.features).split(self.dim, -1)
        settings = {name: value for name, value in kept.settings.items() if name != "dim"}
        kept = replace(kept, features=features.contiguous(), method=self.recipe.method, settings=settings)
        return [SegmentTokens.from_kept(kept, [layer.contiguous() for layer in deep])]


class SegmentSelector:
    """Compresses every segment of the video alone."""

    def __init__(self, recipe: Recipe, planned: int) -> None:
        """Args:
        recipe: how to compress a segment.
        planned: expected slices of the video, to share out a budget; 0 if unknown.
        """
        self.recipe = recipe
        self.planned = planned
        self.buffer: FrameTokens | None = None  # of one segment
        self.filled = 0  # slices in it
        self.tokens = self.kept = 0  # of finished segments

    def add(self, encoded: FrameTokens) -> list[SegmentTokens]:
        """Add frames, and return the segments that they complete."""
        if self.buffer is None:
            self.buffer = self._allocate(encoded)
        segments = []
        start, size = 0, len(self.buffer.tokens)
        while start < len(encoded.tokens):
            stop = min(len(encoded.tokens), start + size - self.filled)
            for buffer, tokens in zip(self.buffer.all, encoded.all, strict=True):
                buffer[self.filled : self.filled + stop - start] = tokens[start:stop]
            self.filled += stop - start
            start = stop
            if self.filled == size:
                segments.append(self._select(is_last=False))
        return segments

    def finish(self) -> list[SegmentTokens]:
        """Return the last segment, if frames are left."""
        return [self._select(is_last=True)] if self.filled else []

    def _select(self, *, is_last: bool) -> SegmentTokens:
        assert self.buffer is not None
        tokens, *deep = (layer[: self.filled] for layer in self.buffer.all)
        self.filled = 0
        cells = tokens.shape[1] * tokens.shape[2]
        self.tokens += len(tokens) * cells
        planned = self.tokens if is_last else self.planned * cells  # a video may be shorter than announced
        due = self.recipe.due(self.tokens, planned)
        budget = {"coverage": self.recipe.coverage} if due is None else {"budget": max(1, due - self.kept)}
        kept = compress(tokens, **budget, method=self.recipe.method, **self.recipe.options)
        self.kept += len(kept)
        return SegmentTokens.from_kept(kept, [merge_values(layer.flatten(0, 2), kept) for layer in deep])

    def _allocate(self, encoded: FrameTokens) -> FrameTokens:
        """Allocate one segment at once: many small tensors between large ones would fragment the memory."""
        frames = segment_frames(encoded.tokens.shape[1] * encoded.tokens.shape[2], self.planned)
        budget, segments = self.recipe.budget, math.ceil(self.planned / frames)
        if budget is not None and budget < segments:
            raise ValueError(
                f"a video of {self.planned} slices is compressed in {segments} segments, and each keeps a token: "
                f"budget must be at least {segments}, got {budget}"
            )
        tokens, *deep = (layer.new_empty(frames, *layer.shape[1:]) for layer in encoded.all)
        return FrameTokens(tokens, tuple(deep))


def create_selector(recipe: Recipe, encoded: FrameTokens, planned: int) -> StreamSelector | SegmentSelector:
    """Create the selector for a video.

    Args:
        recipe: how to compress it.
        encoded: its first frames.
        planned: expected slices of tokens, 0 if unknown.
    """
    _, rows, columns, dim = encoded.tokens.shape
    is_short = 0 < planned * rows * columns <= SEGMENT_TOKENS
    options = None if is_short else recipe.streaming()
    return SegmentSelector(recipe, planned) if options is None else StreamSelector(recipe, options, dim)


def segment_frames(cells: int, planned: int) -> int:
    """Return the slices of a segment, such that all segments of a video are about equally long.

    >>> segment_frames(60, planned=784), segment_frames(60, planned=3600), segment_frames(60, planned=0)
    (784, 928, 1088)

    Args:
        cells: tokens of a slice.
        planned: expected slices, 0 if unknown.
    """
    most = max(1, SEGMENT_TOKENS // cells)
    if planned and planned <= most:
        return planned
    even = math.ceil(planned / math.ceil(planned / most)) if planned else most
    whole = math.ceil(even / SEGMENT_FRAMES) * SEGMENT_FRAMES
    return whole if whole <= most else max(1, most // SEGMENT_FRAMES * SEGMENT_FRAMES or most)
