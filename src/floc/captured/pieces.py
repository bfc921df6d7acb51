"""Select tokens while a video is being encoded, piece by piece, and join the pieces.

A video of up to `PIECE_TOKENS` tokens is one piece, and the result equals `floc.compress`. A longer video with a
budget or a horizon goes through a `floc.Stream`, if the method supports it, which selects from the whole video in
memory for about twice what is kept. Otherwise each piece is compressed alone, with its share of the budget, or at the
ratio or coverage.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch

from floc.blocks import interleave
from floc.captured.captured import Captured
from floc.captured.identity import Identity
from floc.captured.recipe import Recipe, merge_values
from floc.compression import compress
from floc.encoders.base import FrameTokens
from floc.kept import Kept
from floc.representatives import AssignedRepresentation, NearestRepresentation
from floc.streaming.stream import Stream

T = TypeVar("T")
PIECE_TOKENS = 65_536
PIECE_FRAMES = 32  # pieces are multiples of it, so that blocks of the usual length do not cross pieces


def capture_kept(kept: Kept, model: Identity, deep: Sequence[torch.Tensor] = ()) -> Captured:
    """Create a piece, without times, from a `Kept` and deep features of the kept tokens, for a model."""
    features, indices, order, gains = map(torch.as_tensor, (kept.features, kept.indices, kept.order, kept.gains))
    # for these, computing the coverage costs more than the selection
    is_cheap = not isinstance(kept.representation, AssignedRepresentation | NearestRepresentation)
    coverage = kept.coverage if is_cheap else None
    represents = kept.representation.represents if is_cheap else None
    members = None if represents is None else torch.from_numpy(np.bincount(represents, minlength=len(kept)))
    made = {"method": kept.method, "settings": dict(kept.settings), "coverage": coverage}
    arrays = features, indices, order, gains, tuple(deep)
    return Captured(*arrays, kept.shape, model, made, kept.nested, members=members)


class StreamSelector:
    """Selects from the whole video with a `floc.Stream`."""

    def __init__(self, recipe: Recipe, model: Identity, stream: Stream, dim: int) -> None:
        self.recipe, self.model, self.stream, self.dim = recipe, model, stream, dim

    def add(self, encoded: FrameTokens) -> list[Captured]:
        self.stream.push(torch.cat(encoded.all, -1))
        return []

    def finish(self) -> list[Captured]:
        kept = self.stream.close()
        if self.recipe.budget is not None and len(kept) > self.recipe.budget:  # the video is longer than announced
            kept = kept.at(budget=self.recipe.budget)
        features, *deep = torch.as_tensor(kept.features).split(self.dim, -1)
        settings = {name: value for name, value in kept.settings.items() if name != "dim"}
        kept = replace(kept, features=features.contiguous(), method=self.recipe.method, settings=settings)
        return [capture_kept(kept, self.model, [layer.contiguous() for layer in deep])]


class PieceSelector:
    """Compresses every piece of the video alone."""

    def __init__(self, recipe: Recipe, model: Identity, planned: int) -> None:
        self.recipe, self.model = recipe, model
        self.planned = planned  # expected slices of the video, to share out a budget; 0 if unknown
        self.buffer: list[torch.Tensor] = []  # tokens and deep features of one piece
        self.filled = 0  # slices in it
        self.tokens = self.kept = 0  # of finished pieces

    def add(self, encoded: FrameTokens) -> list[Captured]:
        """Add frames, and return the pieces that they complete."""
        self.buffer = self.buffer or self._allocate(encoded)
        pieces = []
        start, size = 0, len(self.buffer[0])
        while start < len(encoded.tokens):
            stop = min(len(encoded.tokens), start + size - self.filled)
            for buffer, tokens in zip(self.buffer, encoded.all, strict=True):
                buffer[self.filled : self.filled + stop - start] = tokens[start:stop]
            self.filled += stop - start
            start = stop
            if self.filled == size:
                pieces.append(self._select(is_last=False))
        return pieces

    def finish(self) -> list[Captured]:
        return [self._select(is_last=True)] if self.filled else []

    def _select(self, *, is_last: bool) -> Captured:
        tokens, *deep = (layer[: self.filled] for layer in self.buffer)
        self.filled = 0
        cells = tokens.shape[1] * tokens.shape[2]
        self.tokens += len(tokens) * cells
        planned = self.tokens if is_last else self.planned * cells  # a video may be shorter than announced
        due = self.recipe.count_so_far(self.tokens, planned)
        budget = {"coverage": self.recipe.coverage} if due is None else {"budget": max(1, due - self.kept)}
        kept = compress(tokens, **budget, method=self.recipe.method, **self.recipe.options)
        self.kept += len(kept)
        return capture_kept(kept, self.model, [merge_values(layer.flatten(0, 2), kept) for layer in deep])

    def _allocate(self, encoded: FrameTokens) -> list[torch.Tensor]:
        """Allocate one piece at once: many small tensors between large ones would fragment the memory."""
        frames = count_piece_frames(encoded.tokens.shape[1] * encoded.tokens.shape[2], self.planned)
        budget, pieces = self.recipe.budget, math.ceil(self.planned / frames)
        if budget is not None and budget < pieces:
            raise ValueError(f"each of {pieces} pieces keeps a token: budget must be at least {pieces}, got {budget}")
        return [layer.new_empty(frames, *layer.shape[1:]) for layer in encoded.all]


def create_selector(
    recipe: Recipe, model: Identity, encoded: FrameTokens, planned: int
) -> StreamSelector | PieceSelector:
    """Create the selector for a video with these first frames and `planned` slices, 0 if unknown."""
    _, rows, columns, dim = encoded.tokens.shape
    tokens = planned * rows * columns
    options = None if 0 < tokens <= PIECE_TOKENS else recipe.get_stream_options()
    if options is None:
        return PieceSelector(recipe, model, planned)
    ratio, budget = recipe.ratio, recipe.budget
    if budget is not None and tokens and "horizon" in options:
        # closer to one selection than a stream with a budget is
        ratio, budget = f"{min(budget, tokens)}/{tokens}", None
    return StreamSelector(recipe, model, Stream(ratio=ratio, budget=budget, dim=dim, **options), dim)


def count_piece_frames(cells: int, planned: int) -> int:
    """Return the slices of a piece, such that all pieces of a video are about equally long.

    >>> count_piece_frames(60, planned=784), count_piece_frames(60, planned=3600), count_piece_frames(60, planned=0)
    (784, 928, 1088)
    """
    most = max(1, PIECE_TOKENS // cells)
    if 0 < planned <= most:
        return planned
    even = math.ceil(planned / math.ceil(planned / most)) if planned else most
    whole = math.ceil(even / PIECE_FRAMES) * PIECE_FRAMES
    return whole if whole <= most else most // PIECE_FRAMES * PIECE_FRAMES or most


class StageTimer:
    """Adds up the seconds of each stage; waits for the GPU at the end of a stage."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started

    def split(self, stage: str, work: Mapping[str, float]) -> None:
        """Replace a stage in which this thread waited for another one by the stages of that thread, in proportion."""
        waited, worked = self.seconds.pop(stage, 0.0), sum(work.values())
        for name, seconds in work.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + waited * seconds / max(worked, 1e-12)

    def measure_items(self, stage: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; time how long it takes to get them, not how long they are used."""
        source, end = iter(items), object()
        while True:
            with self.measure(stage):
                item = next(source, end)
            if item is end:
                return
            yield item  # type: ignore[misc]  # an item, not `end`


@dataclass(eq=False)
class FrameLog:
    """Times and metadata of a video's frames, collected while they are read."""

    frames_per_slice: int
    times_s: list[np.ndarray] = field(default_factory=list)  # of each batch of frames
    fps: float | None = None  # from the times if None
    duration_s: float | None = None
    about: dict[str, Any] = field(default_factory=dict)  # added to `Captured.made`


def estimate_rate(times_s: np.ndarray) -> float:
    """Return the frames per second of frames at these times; 1 for a single frame."""
    return (len(times_s) - 1) / float(times_s[-1] - times_s[0]) if len(times_s) > 1 else 1.0


def join_pieces(pieces: Sequence[Captured], frames: FrameLog, seconds: dict[str, float]) -> Captured:
    """Join the pieces of a video, in order, with the seconds that were spent on each stage."""
    sizes, counts = [piece.n for piece in pieces], [len(piece) for piece in pieces]
    first_tokens, first_places = np.cumsum([0, *sizes[:-1]]).tolist(), np.cumsum([0, *counts[:-1]]).tolist()
    ranks = np.concatenate([np.arange(count) for count in counts])
    # a prefix has its share of every piece
    merged = torch.from_numpy(interleave(sizes, ranks, np.repeat(np.arange(len(pieces)), counts)))
    indices = [piece.indices.cpu() + first for piece, first in zip(pieces, first_tokens, strict=True)]
    order = [piece.order.cpu() + first for piece, first in zip(pieces, first_places, strict=True)]
    coverages = [piece.made["coverage"] for piece in pieces]
    coverage = None if None in coverages else float(np.average(coverages, weights=sizes))
    slices, per_slice = sum(piece.shape[0] for piece in pieces), frames.frames_per_slice
    times = np.concatenate(frames.times_s) if frames.times_s else None
    fps, duration_s = frames.fps, frames.duration_s
    if times is not None and fps is None:
        fps = estimate_rate(times)
        duration_s = float(times[-1]) + 1 / fps
    first_s = last_s = None
    if times is not None:
        first_s, last_s = times[::per_slice], times[np.minimum(np.arange(1, slices + 1) * per_slice, len(times)) - 1]
    features = torch.cat([piece.features for piece in pieces])
    gains = torch.cat([piece.gains.cpu() for piece in pieces])[merged]
    deep = tuple(torch.cat(layer) for layer in zip(*(piece.deep for piece in pieces), strict=True))
    counts_of = [piece.members for piece in pieces]
    members = None if any(part is None for part in counts_of) else torch.cat(counts_of)  # type: ignore[arg-type]
    shape, nested = (slices, *pieces[0].shape[1:]), all(piece.nested for piece in pieces)
    made = {**pieces[0].made, "coverage": coverage, "seconds": seconds, **frames.about}
    arrays = features, torch.cat(indices), torch.cat(order)[merged], gains
    joined = Captured(*arrays, deep, shape, pieces[0].model, made, nested, members=members)
    return replace(joined, times_s=first_s, last_s=last_s, frames_per_slice=per_slice, fps=fps, duration_s=duration_s)
