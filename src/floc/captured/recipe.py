"""How to compress a video: the dial, the method and its options, for one that is there, or one that is on its way.

A video that is still being decoded is compressed a segment at a time, so that it needs no more memory than a segment
and what was kept. Up to `SEGMENT_TOKENS` it is one segment, and the result that of `floc.compress`. Beyond, with a
budget and a method that can do it, the video goes through a `floc.Stream`, which chooses across all of it in memory
for about twice the budget. Else every segment has its share of the budget, or its ratio or coverage, and chooses for
itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch

from floc import methods
from floc.budget import Budget
from floc.compression import compress
from floc.encoders.vision_tower import Visual
from floc.kept import Kept
from floc.streaming.stream import Stream
from floc.tokens import TokenGrid

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
        if isinstance(self.options.get("block"), list | tuple):
            raise ValueError(
                f"block={self.options['block']!r}: first frames are those of one video, and a model is given any; "
                "pass a number of frames, or 'scene'"
            )
        has_dial = (self.ratio, self.budget, self.coverage) != (None, None, None)
        if has_dial or not isinstance(made, methods.Native):
            Budget.parse(self.ratio, self.budget, self.coverage)

    def __call__(self, tokens: torch.Tensor) -> Kept:
        """[T, H, W, D] -> what is kept of a whole video."""
        dial: Any = {"ratio": self.ratio, "budget": self.budget, "coverage": self.coverage}
        return compress(tokens, **dial, method=self.method, **self.options)

    def indices(self, tokens: torch.Tensor) -> torch.Tensor:
        """[T, H, W, D] -> [K] int64 ascending, what a call keeps, and nothing on who stands for whom."""
        made = methods.make(self.method, dict(self.options))
        if not isinstance(made, methods.Naming):
            return torch.as_tensor(self(tokens).indices)
        grid = TokenGrid.from_array(tokens, check_finite=not methods.stays_on(made, tokens.device))
        with torch.no_grad():
            return made.indices(grid, self.count(grid.n))

    def streaming(self) -> dict[str, Any] | None:
        """The options of a stream that chooses as this does; None where none can."""
        made = methods.make(self.method, dict(self.options))
        if self.budget is None or not isinstance(made, methods.Streaming):
            return None
        return made.streaming()

    def count(self, tokens: int) -> int:
        """How many of a video's tokens are kept, where a ratio or a budget says it."""
        return Budget.parse(self.ratio, self.budget, None).count(tokens)

    def due(self, tokens: int, planned: int) -> int | None:
        """How many of the first `tokens` of `planned` to keep; None where that is not a matter of counting."""
        if self.budget is not None and tokens < planned:
            return self.budget * tokens // planned
        return None if self.ratio is None and self.budget is None else self.count(tokens)


class Part(NamedTuple):
    """What is kept of a segment."""

    kept: Kept
    deep: tuple[torch.Tensor, ...]  # [K, D] each, what goes with the tokens in the first layers of some models


class Taker(Protocol):
    """Takes a video on its way, a few frames at a time."""

    def add(self, seen: Visual) -> Iterator[Part]:
        """Take more frames, and give what can be given already: to be used before the next is asked for."""
        ...

    def finish(self) -> Iterator[Part]:
        """Give what is left."""
        ...


def create_taker(recipe: Recipe, seen: Visual, planned: int) -> Taker:
    """Who takes a video that begins like this, of so many planned frames of tokens; 0 where that is not known."""
    cells = seen.tokens.shape[1] * seen.tokens.shape[2]
    is_short = 0 < planned * cells <= SEGMENT_TOKENS
    options = None if is_short else recipe.streaming()
    return Segments(recipe, planned) if options is None else Streamed(recipe, options, seen.tokens.shape[-1])


class Streamed:
    """A video on its way that is chosen from as it comes."""

    def __init__(self, recipe: Recipe, options: Mapping[str, Any], dim: int) -> None:
        """Args:
        recipe: how to compress it, with a budget.
        options: of the stream that does so.
        dim: features of a token; what goes with the tokens in deeper layers has as many.
        """
        self.recipe, self.dim = recipe, dim
        self.stream = Stream(budget=recipe.budget, dim=dim, **options)

    def add(self, seen: Visual) -> Iterator[Part]:
        """Take more frames; what is kept of them shows at the end."""
        self.stream.push(torch.cat(_all(seen), -1))
        yield from ()

    def finish(self) -> Iterator[Part]:
        """Give what is kept of all."""
        if self.stream.frames:
            kept = self.stream.close()
            features, *deep = torch.as_tensor(kept.features).split(self.dim, -1)
            settings = {name: value for name, value in kept.settings.items() if name != "dim"}
            kept = replace(kept, features=features.contiguous(), method=self.recipe.method, settings=settings)
            yield Part(kept, tuple(each.contiguous() for each in deep))


class Segments:
    """A video on its way, of which every segment is chosen from by itself."""

    def __init__(self, recipe: Recipe, planned: int) -> None:
        """Args:
        recipe: how to compress it.
        planned: how many frames of tokens it will have, 0 where that is not known; a budget is shared out by that.
        """
        self.recipe = recipe
        self.planned = planned
        self.room: Visual | None = None  # for one segment
        self.filled = 0  # frames in it
        self.tokens = self.kept = 0  # in segments that are done

    def add(self, seen: Visual) -> Iterator[Part]:
        """Take more frames, and give the segments that are complete with them: to be used before the next is asked for,
        since tokens of the next one take the place of theirs.
        """
        if self.room is None:
            self.room = self._make_room(seen)
        start, size = 0, len(self.room.tokens)
        while start < len(seen.tokens):
            stop = min(len(seen.tokens), start + size - self.filled)
            for room, new in zip(_all(self.room), _all(seen), strict=True):
                room[self.filled : self.filled + stop - start] = new[start:stop]
            self.filled += stop - start
            start = stop
            if self.filled == size:
                yield self._close(is_last=False)

    def finish(self) -> Iterator[Part]:
        """Give the last segment, where there is something left."""
        if self.filled:
            yield self._close(is_last=True)

    def _close(self, *, is_last: bool) -> Part:
        assert self.room is not None
        tokens, *deep = (each[: self.filled] for each in _all(self.room))
        self.filled = 0
        cells = tokens.shape[1] * tokens.shape[2]
        self.tokens += len(tokens) * cells
        planned = self.tokens if is_last else self.planned * cells  # a film may end before its time
        due = self.recipe.due(self.tokens, planned)
        dial = {"coverage": self.recipe.coverage} if due is None else {"budget": max(1, due - self.kept)}
        kept = compress(tokens, **dial, method=self.recipe.method, **self.recipe.options)
        self.kept += len(kept)
        return Part(kept, tuple(merge_values(each.flatten(0, 2), kept) for each in deep))

    def _make_room(self, seen: Visual) -> Visual:
        """Memory for a segment in one piece: many small ones among large ones that come and go would scatter it."""
        frames = segment_frames(seen.tokens.shape[1] * seen.tokens.shape[2], self.planned)
        budget, segments = self.recipe.budget, math.ceil(self.planned / frames)
        if budget is not None and budget < segments:
            raise ValueError(
                f"a video of {self.planned} slices is chosen from in {segments} segments, and each keeps a token: "
                f"budget must be at least {segments}, got {budget}"
            )
        tokens, *deep = (each.new_empty(frames, *each.shape[1:]) for each in _all(seen))
        return Visual(tokens, tuple(deep))


def _all(seen: Visual) -> tuple[torch.Tensor, ...]:
    return (seen.tokens, *seen.deep)


def segment_frames(cells: int, planned: int) -> int:
    """How many frames of so many tokens make a segment: segments of about one size, so that the last is no mere rest.

    >>> segment_frames(60, planned=784), segment_frames(60, planned=3600), segment_frames(60, planned=0)
    (784, 928, 1088)
    """
    most = max(1, SEGMENT_TOKENS // cells)
    if planned and planned <= most:
        return planned
    even = math.ceil(planned / math.ceil(planned / most)) if planned else most
    whole = math.ceil(even / SEGMENT_FRAMES) * SEGMENT_FRAMES
    return whole if whole <= most else max(1, most // SEGMENT_FRAMES * SEGMENT_FRAMES or most)


def merge_values(values: torch.Tensor, kept: Kept) -> torch.Tensor:
    """[n, D] beside tokens -> [K, D] beside what was kept: of merged tokens the mean."""
    if not kept.merged:
        return values[torch.as_tensor(kept.indices)]
    represents = torch.as_tensor(kept.represents)
    members = represents.bincount(minlength=len(kept)).clamp(min=1)[:, None]
    sums = values.new_zeros(len(kept), values.shape[-1]).index_add(0, represents, values)
    return (sums / members).to(values.dtype)
