"""The work on one video: plan it, decode it, encode it, select tokens, and write what was kept.

Both engines run these functions. A video is split into spans, which can be decoded in parallel, and a span into pieces,
whose tokens are selected together. The boundaries depend only on the video and the encoder, so both engines keep the
same tokens, and pieces of an interrupted ingest can be used again.
"""

import math
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from floc import encoders
from floc._system import release_memory
from floc._text import hide_secrets, redact_source
from floc.archive.ingest import job as events
from floc.archive.ingest.job import PIECE_BYTES, PIECE_LIMIT, PIECE_STEP, SPAN_S, IngestJob, IngestOptions, VideoSpan
from floc.archive.ingest.sources import VideoFile, fetch_file, refresh_file, require_unchanged
from floc.archive.schema import DamagedStoreError, StoreError, hash_file, video_id
from floc.archive.store import Store
from floc.captured.identity import Identity
from floc.captured.pieces import FrameLog, StageTimer, capture_kept, join_pieces
from floc.captured.recipe import merge_values
from floc.encoders.base import Encoder, FrameLayout, FrameTokens, Layout, group_frames, open_video
from floc.encoders.vision_tower import VisionLayout, VisionTower
from floc.families.preparation import Preparation
from floc.tokens import Frames
from floc.video import Video

BATCH = 16  # frames decoded at a time
MAX_SPANS = 1000  # a video that claims to be longer than six weeks has a wrong duration


def plan_video(job: IngestJob, file: VideoFile) -> events.VideoPlan | events.VideoSkipped | events.VideoFailed:
    """Check whether a video is in the store, and otherwise split it into spans."""
    content, store = "", Store(job.store)
    try:
        file = refresh_file(file)
        with fetch_file(file) as path:
            content = hash_file(path)
            video = video_id(content, job.model, job.options.as_dict())
            if store.has(video):
                return events.VideoSkipped(file)
            source, layout = _open_video(job.options, path, encoders.get_layout(job.options.encoder))
            require_unchanged(file)
        pieces = store.pieces(video)
        # write the last piece again: its event says how the video was made, even if all pieces exist
        pieces.pop(max(pieces, default=0), None)
        frames_per_slice = layout.frames_per_token
        spans = split_spans(file, video, source, frames_per_slice, _record(layout))
        duration_s, fps = source.duration_s, source.sampled_fps
        return events.VideoPlan(file, video, content, spans, duration_s, fps, frames_per_slice, pieces)
    except Exception as error:
        return report_failure(file, error, content)


def report_failure(file: VideoFile, error: Exception, content: str = "") -> events.VideoFailed:
    """Report that a video failed. Errors of the store are raised again, because they affect every video."""
    if isinstance(error, StoreError | DamagedStoreError):
        raise error
    text = next(iter(str(error).strip().splitlines()), "no details")
    text = hide_secrets(text.replace(file.uri, redact_source(file.uri)))[:1000]
    return events.VideoFailed(file, f"{type(error).__name__}: {text}", content)


def _open_video(options: IngestOptions, path: Path, layout: Layout) -> tuple[Video, Layout]:
    return open_video(path, layout, fps=options.fps, max_frames=options.max_frames, batch=BATCH)


def _record(layout: FrameLayout) -> dict[str, Any] | None:
    """Return how the processor of a model prepares the video of a layout; None for other encoders."""
    if not isinstance(layout, VisionLayout):
        return None
    assert layout.plan is not None
    return layout.preparer.record(layout.plan).as_dict()


def split_spans(
    file: VideoFile, video: str, source: Video, frames_per_slice: int, preparation: dict[str, Any] | None = None
) -> tuple[VideoSpan, ...]:
    """Split a video into spans of about an hour."""
    frames = count_piece_frames(source.width * source.height * 3, frames_per_slice)
    whole = VideoSpan(file, video, source.sampled_fps, source.duration_s, 0, 0, frames, preparation)
    if not source.can_split:
        return (whole,)
    pieces = max(1, round(SPAN_S * source.sampled_fps / frames))  # of a span
    span_frames = pieces * frames
    count = math.ceil(source.planned / span_frames)
    count = count if 1 <= count <= MAX_SPANS else 1
    return tuple(
        replace(
            whole,
            number=number,
            first_piece=number * pieces,
            first=number * span_frames,
            stop=None if number == count - 1 else (number + 1) * span_frames,
        )
        for number in range(count)
    )


def count_piece_frames(frame_bytes: int, frames_per_slice: int) -> int:
    """Return the number of frames in a piece, for frames of a given size.

    >>> count_piece_frames(504 * 280 * 3, 2), count_piece_frames(512 * 288 * 3, 1), count_piece_frames(1 << 25, 1)
    (256, 288, 32)
    """
    step = PIECE_STEP * frames_per_slice
    return max(step, min(PIECE_LIMIT, PIECE_BYTES // frame_bytes) // step * step)


def decode_span(job: IngestJob, span: VideoSpan) -> Iterator[tuple[int, Iterator[Frames]] | events.SpanFinished]:
    """Yield the number and the frames of each piece, to be used before the next, and at last that the span is done."""
    started, used_s, count = time.perf_counter(), 0.0, 0
    with fetch_file(span.file) as path:
        source, _ = _open_video(job.options, path, encoders.get_layout(job.options.encoder))
        part = source if span.first == 0 and span.stop is None else source.part(span.first, span.stop)
        batches = iter(group_frames(_require_unchanged_during(part, span.file), 1))
        for first in batches:
            yielded = time.perf_counter()
            # every batch but the last of a video is full, and a piece is a whole number of batches
            yield span.first_piece + count, chain([first], islice(batches, span.piece_frames // BATCH - 1))
            used_s += time.perf_counter() - yielded
            count += 1
    # the consumer measures its own time, including the time it waits for frames of a piece
    yield events.SpanFinished(span, count, time.perf_counter() - started - used_s, tuple(part.warnings))


def _require_unchanged_during(frames: Iterable[Frames], file: VideoFile) -> Iterator[Frames]:
    """Yield frames as long as the file is the one that was hashed."""
    for batch in frames:
        require_unchanged(file)
        yield batch
    require_unchanged(file)


class Worker:
    """Encodes, compresses and writes pieces of videos; holds the encoder."""

    def __init__(self, options: IngestOptions, store: str) -> None:
        slices: dict[str, Any] = {"reuse": options.slices.reuse, "encode": options.slices.encode}
        self.encoder = encoders.get(options.encoder, device=options.device, **slices, fast_vision=options.fast_vision)
        if isinstance(self.encoder, VisionTower):
            self.encoder = replace(self.encoder, is_half=False)  # features in the dtype of the model
        self.planned: tuple[str, VisionTower] | None = None  # the last video, and the encoder for it
        self.job = IngestJob(options, store, Identity.from_encoder(self.encoder))
        self.store = Store(store)

    def write_span(self, span: VideoSpan, existing: Collection[int]) -> Iterator[events.IngestEvent]:
        """Write the pieces of a span, except those that exist."""
        try:
            for item in decode_span(self.job, span):
                if isinstance(item, events.SpanFinished):
                    yield item
                elif item[0] in existing:
                    deque(item[1], maxlen=0)  # decode and discard
                else:
                    yield self.write_piece(span, *item)
        except Exception as error:
            yield report_failure(span.file, error)

    def write_piece(self, span: VideoSpan, number: int, frames: Iterable[Frames]) -> events.PieceWritten:
        """Encode the frames of a piece, select tokens, and write them."""
        frames_per_slice = self.encoder.frames_per_token
        stages = StageTimer(torch.device("cpu"))
        encoded, times = [], []
        encoder = self._plan_encoder(span)
        batches: Iterable[Frames] = group_frames(frames, frames_per_slice)
        if isinstance(encoder, VisionTower):
            encoder.forget()  # a piece does not depend on others, which another worker may encode
            batches = encoder.join(batches)
        for batch in stages.measure_items("decode", batches):
            times.append(batch.times_s)
            with stages.measure("encode"):
                if isinstance(encoder, VisionTower):
                    encoded.append(encoder.encode(batch.pixels))
                else:
                    encoded.append(FrameTokens(torch.as_tensor(encoder(batch.pixels))))
        with stages.measure("select"):
            tokens, *deep = map(torch.cat, zip(*((batch.tokens, *batch.deep) for batch in encoded), strict=True))
            kept = self.job.options.recipe()(tokens)
            part = capture_kept(kept, self.job.model, [merge_values(layer.flatten(0, 2), kept) for layer in deep])
        about: dict[str, Any] = {} if span.preparation is None else {"preparation": span.preparation}
        about |= self.job.options.slices.describe()
        # the preparation is of the whole video
        captured = join_pieces([part], FrameLog(frames_per_slice, times, span.fps, span.duration_s), {})
        with stages.measure("write"):
            piece = self.store.write_piece(span.video, number, captured)
        release_memory()  # otherwise the heap fragments from piece to piece
        return events.PieceWritten(piece, captured.nested, {**captured.made, **about}, stages.seconds)

    def _plan_encoder(self, span: VideoSpan) -> Encoder:
        """Return the encoder for a span's video."""
        if not isinstance(self.encoder, VisionTower):
            return self.encoder
        assert span.preparation is not None
        if self.planned is None or self.planned[0] != span.video:
            plan = self.encoder.preparer.restore(Preparation.from_dict(span.preparation))
            self.planned = span.video, replace(self.encoder, plan=plan)
        return self.planned[1]
