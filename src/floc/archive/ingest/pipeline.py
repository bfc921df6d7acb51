"""What is done with a video: look at it, decode it, encode it, choose from it, write what was kept.

Every engine runs these functions, in whatever processes it has. A video is cut into spans, which may be decoded side by
side, and a span into pieces, which are chosen from each by itself. Where the cuts are depends on the film and the
encoder alone, so every engine keeps the same tokens, and a piece that an earlier ingest made can be taken as it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import torch

from floc import encoders
from floc._system import release_memory
from floc.archive.ingest import sources
from floc.archive.ingest.order import (
    PIECE_BYTES,
    PIECE_LIMIT,
    PIECE_STEP,
    SPAN_S,
    Brief,
    Ended,
    Event,
    Failed,
    Kept,
    Order,
    Planned,
    Skipped,
    Source,
    Span,
)
from floc.archive.store import Store
from floc.archive.tables import Damaged, StoreError, video_id
from floc.captured.identity import Identity
from floc.captured.recipe import merge_values
from floc.captured.segments import FrameLog, capture_kept, join_segments
from floc.captured.timing import StageTimer
from floc.encoders.base import Encoder, FrameTokens, group_frames
from floc.encoders.vision_tower import VisionTower
from floc.tokens import Frames
from floc.video import Video, read

BATCH = 16  # frames that are decoded and encoded in a go
# what concerns all videos; whatever else goes wrong is wrong with one of them, and no reason to stop
STORES_OWN = (StoreError, Damaged)
MOST_SPANS = 1000  # of a film: one that is said to be longer than six weeks is not


def plan(brief: Brief, source: Source) -> Planned | Skipped | Failed:
    """Look at a video: whether it is in the store, and how to cut it."""
    content = ""
    store = Store(brief.store)
    try:
        layout = encoders.get_layout(brief.order.encoder)
        source = sources.renewed(source)
        with sources.fetched(source) as path:
            content = sources.content_of(path)
            video = video_id(content, brief.model, brief.order.options())
            if store.has(video):
                return Skipped(source)
            film = _film(brief.order, path)
            sources.require_unchanged(source)
        pieces = store.pieces(video)
        # the last is made again: how a video was made is told with a piece, and all may have been there
        pieces.pop(max(pieces, default=0), None)
        spans = _spans(brief.order, source, video, film, layout.frames_per_token)
        return Planned(source, video, content, spans, film.duration_s, film.taken_fps, layout.frames_per_token, pieces)
    except STORES_OWN:
        raise
    except Exception as error:
        return Failed(source, in_words(error), content)


def _film(order: Order, path: Path) -> Video:
    frame_size = encoders.get_layout(order.encoder).frame_size
    return read(path, fps=order.fps, max_frames=None, size=frame_size, batch=BATCH)


def _spans(order: Order, source: Source, video: str, film: Video, frames_per_token: int) -> tuple[Span, ...]:
    frames = piece_frames(film.width * film.height * 3, frames_per_token)
    if order.fps is None:
        return (Span(source, video, 0, 0, frames),)
    pieces = max(1, round(SPAN_S * order.fps / frames))  # of a span
    targets = pieces * frames
    count = max(1, math.ceil(film.duration_s * order.fps / targets))
    if count > MOST_SPANS:
        count = 1
    # half-way between two moments that frames are taken at, so that rounding does not move one to another span
    starts_s = [0.0, *((number * targets - 0.5) / order.fps for number in range(1, count))]
    return tuple(
        Span(source, video, number, number * pieces, frames, start_s, end_s)
        for number, (start_s, end_s) in enumerate(pairwise([*starts_s, math.inf]))
    )


def piece_frames(frame_bytes: int, frames_per_token: int) -> int:
    """How many frames of so many bytes make a piece.

    >>> piece_frames(504 * 280 * 3, 2), piece_frames(512 * 288 * 3, 1), piece_frames(4096 * 2160 * 3, 1)
    (256, 288, 32)
    """
    step = PIECE_STEP * frames_per_token
    return max(step, min(PIECE_LIMIT, PIECE_BYTES // frame_bytes) // step * step)


def pieces_of(brief: Brief, span: Span) -> Iterator[tuple[int, Iterator[Frames]] | Ended | Failed]:
    """Decode a span: the number of each piece and its frames, to be used before the next is asked for; then its end."""
    started, used_s, count = time.perf_counter(), 0.0, 0
    try:
        with sources.fetched(span.source) as path:
            film = _film(brief.order, path)
            part = film if span.end_s is None else film.between(span.start_s, span.end_s)
            for frames in _cut(_unchanged(part, span.source), span.piece_frames):
                given = time.perf_counter()
                yield span.first_piece + count, frames
                used_s += time.perf_counter() - given
                count += 1
    except STORES_OWN:
        raise
    except Exception as error:
        yield Failed(span.source, in_words(error))
        return
    # what whoever uses the frames takes for that is not decoding; waiting for frames inside a piece is told there
    yield Ended(span, count, time.perf_counter() - started - used_s, tuple(part.warnings))


def _unchanged(film: Iterable[Frames], source: Source) -> Iterator[Frames]:
    """The same frames, as long as they are of the content that the video is known by."""
    for batch in film:
        sources.require_unchanged(source)
        yield batch
    sources.require_unchanged(source)


def _cut(film: Iterable[Frames], size: int) -> Iterator[Iterator[Frames]]:
    """Batches in groups of so many frames; a group must be used up before the next."""
    batches = iter(group_frames(film, 1))
    for first in batches:
        # every batch but the last of a film is whole, and pieces are whole batches
        yield chain([first], islice(batches, size // BATCH - 1))


class Keeper:
    """Holds the encoder, and makes of the frames of a piece what is written."""

    def __init__(self, brief: Brief, encoder: Encoder | None = None) -> None:
        self.brief = brief
        self.encoder = encoder or loaded(brief.order)
        self.store = Store(brief.store)

    def try_to_keep(self, span: Span, number: int, frames: Iterable[Frames], about: Mapping[str, Any]) -> Kept | Failed:
        """The same as `keep`, or why that cannot be."""
        try:
            return self.keep(span, number, frames, about)
        except STORES_OWN:
            raise
        except Exception as error:
            return Failed(span.source, in_words(error))

    def keep(self, span: Span, number: int, frames: Iterable[Frames], about: Mapping[str, Any]) -> Kept:
        """Encode, choose and write a piece.

        Args:
            span: what it is a part of.
            number: of the piece.
            frames: its frames, a few at a time.
            about: fps and duration_s of the film.
        """
        joined = self.encoder.frames_per_token
        stages = StageTimer(torch.device("cpu"))
        seen, times = [], []
        for batch in stages.measure_items("decode", group_frames(frames, joined)):
            times.append(batch.times_s)
            with stages.measure("encode"):
                seen.append(_look(self.encoder, batch))
        with stages.measure("choose"):
            tokens, *deep = (torch.cat(each) for each in zip(*(each.all for each in seen), strict=True))
            kept = self.brief.order.recipe()(tokens)
            part = capture_kept(kept, self.brief.model, [merge_values(each.flatten(0, 2), kept) for each in deep])
        log = FrameLog(joined, times, about["fps"], about["duration_s"])
        captured = join_segments([part], log, {})
        with stages.measure("write"):
            piece = self.store.write_piece(span.video, number, captured)
        release_memory()  # else it scatters, piece after piece
        return Kept(piece, captured.nested, captured.made, stages.seconds)


def loaded(order: Order) -> Encoder:
    """The encoder that was asked for; a model's gives features in the model's own format."""
    encoder = encoders.get(order.encoder, device=order.device)
    if isinstance(encoder, VisionTower):
        return replace(encoder, is_half=False)
    return encoder


def _look(encoder: Encoder, batch: Frames) -> FrameTokens:
    if isinstance(encoder, VisionTower):
        return encoder.encode(batch.pixels)
    return FrameTokens(torch.as_tensor(encoder(batch.pixels)))


class Worker:
    """All of it in one process."""

    def __init__(self, order: Order, store: str) -> None:
        encoder = loaded(order)
        self.brief = Brief(order, store, Identity.from_encoder(encoder))
        self.keeper = Keeper(self.brief, encoder)

    def plan(self, source: Source) -> Iterator[Event]:
        """Look at a video."""
        yield plan(self.brief, source)

    def keep(self, span: Span, about: Mapping[str, Any], have: Collection[int]) -> Iterator[Event]:
        """Take in a stretch of film, but for the pieces that are there already."""
        for each in pieces_of(self.brief, span):
            if not isinstance(each, tuple):
                yield each
                return
            number, frames = each
            if number in have:
                for _ in frames:
                    pass
                continue
            event = self.keeper.try_to_keep(span, number, frames, about)
            yield event
            if isinstance(event, Failed):
                return


def in_words(error: BaseException) -> str:
    """What went wrong, in a line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no more is known'}"
