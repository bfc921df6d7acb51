"""Record the events of an ingest. Events arrive in any order; complete videos are committed several at a time."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from floc._checks import require
from floc._text import redact_source
from floc._version import __version__
from floc.archive.ingest.job import IngestEvent, IngestJob, PieceWritten, SpanFinished, VideoFailed, VideoPlan
from floc.archive.ingest.sources import VideoFile
from floc.archive.schema import MAX_TEXT, StoredPiece, StoredVideo, check_video, escape_surrogates, video_id
from floc.archive.store import Store

COMMIT_INTERVAL_S = 2.0  # so that the store does not get a version for every piece


@dataclass
class IngestStatus:
    """The progress of an ingest."""

    videos: int
    done: int = 0
    skipped: int = 0  # in the store already
    failed: int = 0
    footage_s: float = 0.0  # total duration of the videos done by this ingest
    frames: int = 0
    tokens: int = 0
    kept: int = 0
    bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by stage, summed over all workers
    started: float = field(default_factory=time.monotonic)
    failures: list[tuple[str, str]] = field(default_factory=list)  # URI and reason
    warnings: list[tuple[str, str]] = field(default_factory=list)  # URI and warning

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def left(self) -> int:
        return self.videos - self.done - self.skipped - self.failed

    @property
    def hours_per_hour(self) -> float:
        return self.footage_s / max(self.elapsed_s, 1e-9)

    def summary(self) -> dict[str, Any]:
        """Return the status as a JSON-serialisable dictionary."""
        return {
            **{name: value for name, value in asdict(self).items() if name != "started"},
            "elapsed_s": self.elapsed_s,
            "hours_per_hour": self.hours_per_hour,
            "failures": [{"uri": uri, "reason": reason} for uri, reason in self.failures],
            "warnings": [{"uri": uri, "warning": warning} for uri, warning in self.warnings],
        }


@dataclass
class _OpenVideo:
    """A video that is not complete yet."""

    plan: VideoPlan
    pieces: dict[int, StoredPiece]  # that are written
    finished: dict[int, SpanFinished] = field(default_factory=dict)  # by number of the span
    nested: bool = True
    made: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def is_complete(self) -> bool:
        """Return whether all pieces are present: with many workers, a span may finish before its pieces arrive."""
        firsts = [(event.span.first_piece, event.pieces) for event in self.finished.values()]
        needed = {first + number for first, count in firsts for number in range(count)}
        return len(self.finished) == len(self.plan.spans) and needed <= self.pieces.keys()


class Ledger:
    """Collects the events of an ingest and commits pieces and videos to the store."""

    def __init__(self, store: Store, job: IngestJob, videos: int) -> None:
        self.store, self.job = store, job
        self.status = IngestStatus(videos)
        self.open: dict[str, _OpenVideo] = {}  # by id; a video that fails is removed
        self._outcomes: dict[str, str] = {}  # of finished videos: the reason of the failure, or "" if done
        self._failed_uris: set[str] = set()  # each span of a video may report the failure
        self._duplicates: dict[VideoFile, str] = {}  # other files with the same content, and their video id
        self._early: dict[str, list[PieceWritten | SpanFinished]] = {}  # events that arrived before the plan
        self._pieces: list[StoredPiece] = []
        self._videos: list[StoredVideo] = []
        self._committed = time.monotonic()

    def add(self, event: IngestEvent) -> None:
        """Record an event of a worker."""
        if isinstance(event, VideoPlan):
            self._add_plan(event)
        elif isinstance(event, PieceWritten | SpanFinished):
            self._add_progress(event)
        elif isinstance(event, VideoFailed):
            self._add_failure(event)
        else:
            self.status.skipped += 1
        if time.monotonic() - self._committed > COMMIT_INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        """Commit pieces, and the videos that are complete with them."""
        if self._pieces or self._videos:
            self.store.commit(self._pieces, self._videos)
            self._pieces, self._videos = [], []
        self._committed = time.monotonic()

    def finish(self) -> None:
        """Record videos that are still incomplete as failed, after the last event."""
        while self.open:
            self._fail(self.open.popitem()[1].plan, "RuntimeError: some pieces are missing; ingest it again")

    def _add_plan(self, plan: VideoPlan) -> None:
        if plan.video not in self.open and plan.video not in self._outcomes:
            self.open[plan.video] = _OpenVideo(plan, dict(plan.pieces))
            for early in self._early.pop(plan.video, ()):
                self._add_progress(early)
        # otherwise the same content is in another file, and shares its outcome
        elif reason := self._outcomes.get(plan.video):
            self._record_failure(plan.file, reason, plan.content)
        elif plan.file not in self._duplicates:
            self._duplicates[plan.file] = plan.video
            self.status.skipped += 1

    def _add_progress(self, event: PieceWritten | SpanFinished) -> None:
        name = event.piece.video if isinstance(event, PieceWritten) else event.span.video
        if (video := self.open.get(name)) is None:
            if name not in self._outcomes:
                self._early.setdefault(name, []).append(event)
            return
        if isinstance(event, SpanFinished):
            video.finished[event.span.number] = event
            _add_seconds(video.seconds, {"decode": event.decode_s})
            self.status.warnings += [(name_file(event.span.file.uri), warning) for warning in event.warnings]
        elif event.piece.piece not in video.pieces:
            video.pieces[event.piece.piece] = event.piece
            video.nested = video.nested and event.nested
            video.made = dict(event.made)
            _add_seconds(video.seconds, event.seconds)
            self._pieces.append(event.piece)
        if video.is_complete():
            self._close(self.open.pop(name))

    def _close(self, video: _OpenVideo) -> None:
        plan, pieces = video.plan, [piece for _, piece in sorted(video.pieces.items())]
        try:
            reason = "the frame size changes within the video" if pieces else "the video has no frames"
            require(len({piece.shape[1:] for piece in pieces}) == 1, reason)
            stored = build_stored_video(self.job, plan, pieces, video.nested, video.made, video.seconds)
            check_video(stored)  # one that cannot be stored must not stop the others
        except ValueError as error:
            self._fail(plan, f"ValueError: {error}")
            return
        self._outcomes[plan.video] = ""
        self._videos.append(stored)
        self.status.done += 1
        self.status.footage_s += stored.duration_s
        for name in ("frames", "tokens", "kept", "bytes"):
            setattr(self.status, name, getattr(self.status, name) + sum(getattr(piece, name) for piece in pieces))
        _add_seconds(self.status.seconds, stored.seconds)

    def _add_failure(self, event: VideoFailed) -> None:
        plan = next((video.plan for video in self.open.values() if video.plan.file == event.file), None)
        if plan is not None:
            del self.open[plan.video]
            self._fail(plan, event.reason)
        elif event.file not in self._duplicates and event.file.uri not in self._failed_uris:
            self._record_failure(event.file, event.reason, event.content)

    def _fail(self, plan: VideoPlan, reason: str) -> None:
        """Record that a planned video and all files with the same content failed."""
        self._outcomes[plan.video] = reason
        duplicates = [file for file, video in self._duplicates.items() if video == plan.video]
        self.status.skipped -= len(duplicates)
        for file in (*duplicates, plan.file):
            self._duplicates.pop(file, None)
            self._record_failure(file, reason, plan.content)

    def _record_failure(self, file: VideoFile, reason: str, content: str) -> None:
        self.status.failed += 1
        self._failed_uris.add(file.uri)
        self.status.failures.append((name_file(file.uri), escape_surrogates(reason)))
        self._videos.append(build_failed_video(self.job, file, reason, content))


def build_stored_video(
    job: IngestJob,
    plan: VideoPlan,
    pieces: Sequence[StoredPiece],
    nested: bool,
    made: Mapping[str, Any],
    seconds: Mapping[str, float],
) -> StoredVideo:
    """Build the row of a video that was ingested."""
    values = _shared_fields(job, plan.file, plan.content) | {"id": plan.video, "status": "done", "nested": nested}
    values |= {name: getattr(plan, name) for name in ("duration_s", "fps", "frames_per_slice")}
    values |= {name: sum(getattr(piece, name) for piece in pieces) for name in ("frames", "tokens", "kept")}
    values["shape"] = sum(piece.shape[0] for piece in pieces), *pieces[0].shape[1:]
    coverages, tokens = [piece.coverage for piece in pieces], [piece.tokens for piece in pieces]
    if None not in coverages:
        values["coverage"] = float(np.average(coverages, weights=tokens))  # type: ignore[arg-type]
    values["made"] = {name: value for name, value in made.items() if name not in ("coverage", "seconds")}
    return StoredVideo(**values, pieces=tuple(piece.attempt for piece in pieces), seconds=dict(seconds))


def build_failed_video(job: IngestJob, file: VideoFile, reason: str, content: str) -> StoredVideo:
    """Build the row of a video that could not be ingested."""
    # a file that cannot be read has no hash, so its URI identifies it
    name = video_id(content or f"unreadable {name_file(file.uri)}", job.model, job.options.as_dict())
    return StoredVideo(**_shared_fields(job, file, content), id=name, status="failed", error=reason)


def _shared_fields(job: IngestJob, file: VideoFile, content: str) -> dict[str, Any]:
    described = {"uri": name_file(file.uri), "content": content, "size": file.size, "modified_s": file.modified_s}
    made_by = {"encoder": job.options.encoder, "model": job.model, "options": job.options.as_dict()}
    return {**described, **made_by, "written_s": time.time(), "version": __version__}


def name_file(uri: str) -> str:
    """Return a URI as it is stored and shown: valid text without secrets."""
    return escape_surrogates(redact_source(uri))[:MAX_TEXT]


def _add_seconds(totals: dict[str, float], seconds: Mapping[str, float]) -> None:
    for stage, value in seconds.items():
        totals[stage] = totals.get(stage, 0.0) + value
