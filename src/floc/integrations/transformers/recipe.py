"""How to compress a video: the dial, the method and its options, in segments that bound memory.

A video of many tokens is compressed a segment at a time, so that one that is still being decoded needs no more memory
than a segment and what was kept. A video of up to `SEGMENT_TOKENS` is one segment: the same as `floc.compress`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ... import methods
from ...compress import compress
from ...dials import Dial
from ...types import Kept, join

SEGMENT_TOKENS = 65_536
SEGMENT_FRAMES = 32  # segments are multiples of it, so that blocks of the usual length do not straddle two


@dataclass(frozen=True)
class Recipe:
    """What `floc.compress` is asked for."""

    ratio: float | str | None = None
    budget: int | None = None
    coverage: float | None = None
    method: str = "floc"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made = methods.make(self.method, dict(self.options))  # complains of names that do not exist
        has_dial = (self.ratio, self.budget, self.coverage) != (None, None, None)
        if has_dial or not isinstance(made, methods.Native):
            Dial.of(self.ratio, self.budget, self.coverage)

    def __call__(self, tokens: torch.Tensor) -> Kept:
        """[T, H, W, D] -> what is kept of a whole video."""
        segments = Segments(self, tokens.shape[0])
        segments.add(tokens)
        return segments.finish()


class Segments:
    """A video on its way, a few frames at a time."""

    def __init__(self, recipe: Recipe, planned: int) -> None:
        """Args:
        recipe: how to compress it.
        planned: how many frames of tokens it will have; a budget is shared out by that.
        """
        self.recipe = recipe
        self.planned = planned
        self.waiting: list[torch.Tensor] = []
        self.parts: list[Kept] = []
        self.frames = 0  # in parts
        self.spent = 0  # of the budget, in parts

    def add(self, tokens: torch.Tensor) -> list[Kept]:
        """Take [t, H, W, D], and give the segments that are complete now; more than one where t is large."""
        size = segment_frames(tokens.shape[1] * tokens.shape[2])
        done = []
        for frames in tokens.split(1) if len(self.waiting) else tokens.split(size):
            self.waiting.append(frames)
            if sum(map(len, self.waiting)) >= size:
                done.append(self._close())
        return done

    def finish(self) -> Kept:
        """What is kept of all there was."""
        if self.waiting:
            self._close()
        if not self.parts:
            raise ValueError("there is nothing to keep: the video has no frames")
        return self.parts[0] if len(self.parts) == 1 else join(self.parts)

    def _close(self) -> Kept:
        tokens = self.waiting[0] if len(self.waiting) == 1 else torch.cat(self.waiting)
        self.waiting = []
        self.frames += len(tokens)
        kept = compress(tokens, **self._dial(tokens), method=self.recipe.method, **self.recipe.options)
        self.parts.append(kept)
        return kept

    def _dial(self, tokens: torch.Tensor) -> dict[str, Any]:
        recipe = self.recipe
        if recipe.coverage is not None:
            return {"coverage": recipe.coverage}
        if recipe.ratio is None and recipe.budget is None:
            return {}
        cells = math.prod(tokens.shape[1:3])
        if recipe.ratio is not None:
            due = Dial.of(recipe.ratio, None, None).count(self.frames * cells)
        else:
            assert recipe.budget is not None
            due = min(recipe.budget, recipe.budget * self.frames // max(self.planned, self.frames))
        count, self.spent = max(1, due - self.spent), due
        return {"budget": count}


def segment_frames(cells: int) -> int:
    """How many frames of so many tokens make a segment."""
    frames = max(1, SEGMENT_TOKENS // cells)
    return frames if frames < SEGMENT_FRAMES else frames // SEGMENT_FRAMES * SEGMENT_FRAMES
