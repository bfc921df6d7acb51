"""What an ingest has done so far: pieces come in in any order, and whole videos go to the store, several at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from floc.archive.ingest.order import Brief, Ended, Event, Failed, Kept, Planned, Skipped, Source, Span
from floc.archive.store import Store
from floc.archive.tables import Piece, Video

COMMIT_S = 2.0  # between commits, so that there are not as many versions of the store as pieces


@dataclass
class Status:
    """Where an ingest stands."""

    videos: int
    done: int = 0
    skipped: int = 0  # in the store already
    failed: int = 0
    footage_s: float = 0.0  # of videos that were taken in, by this ingest
    frames: int = 0
    tokens: int = 0
    kept: int = 0
    bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by stage, of all workers together
    since: float = field(default_factory=time.monotonic)
    failures: list[tuple[str, str]] = field(default_factory=list)  # uri and reason
    warnings: list[tuple[str, str]] = field(default_factory=list)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.since

    @property
    def left(self) -> int:
        """Videos that are not done with."""
        return self.videos - self.done - self.skipped - self.failed

    @property
    def hours_per_hour(self) -> float:
        """Of footage."""
        return self.footage_s / max(self.elapsed_s, 1e-9)

    def summary(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        return {
            "videos": self.videos,
            "done": self.done,
            "skipped": self.skipped,
            "failed": self.failed,
            "footage_s": self.footage_s,
            "frames": self.frames,
            "tokens": self.tokens,
            "kept": self.kept,
            "bytes": self.bytes,
            "elapsed_s": self.elapsed_s,
            "hours_per_hour": self.hours_per_hour,
            "seconds": dict(self.seconds),
            "failures": [{"uri": uri, "reason": reason} for uri, reason in self.failures],
            "warnings": [{"uri": uri, "warning": warning} for uri, warning in self.warnings],
        }


@dataclass
class _Open:
    """A video of which some is still to come."""

    planned: Planned
    ended: dict[int, Ended]  # spans
    pieces: dict[int, Piece]
    nested: bool = True
    made: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def is_whole(self) -> bool:
        """Whether all is there: where many work at it, a span may end before its pieces have come."""
        return len(self.ended) == len(self.planned.spans) and all(
            range_of(ended) <= self.pieces.keys() for ended in self.ended.values()
        )


def range_of(ended: Ended) -> set[int]:
    """The numbers of a span's pieces."""
    first = ended.span.first_piece
    return set(range(first, first + ended.pieces))


class Ledger:
    """Takes events as they come, and commits."""

    def __init__(self, store: Store, brief: Brief, videos: int) -> None:
        self.store, self.brief = store, brief
        self.status = Status(videos)
        self.open: dict[str, _Open] = {}
        self._closed: set[str] = set()  # videos that are done with
        self._failed: dict[str, str] = {}  # why, of those that failed among them
        self._told: set[str] = set()  # uris of failures: the spans of a video may fail each for itself
        self._twins: dict[Source, str] = {}  # other names of the same content, and which video it is
        self._early: dict[str, list[Kept | Ended]] = {}  # what came before the plan of its video
        self._pieces: list[Piece] = []
        self._videos: list[Video] = []
        self._committed = time.monotonic()

    def add(self, event: Event) -> None:
        """Note what a worker tells."""
        if isinstance(event, Skipped):
            self.status.skipped += 1
        elif isinstance(event, Failed):
            self._fail(event)
        elif isinstance(event, Planned):
            self._plan(event)
        else:
            self._note(event)
        if time.monotonic() - self._committed > COMMIT_S:
            self.flush()

    def flush(self) -> None:
        """Commit what there is: pieces, and the videos that are whole with them."""
        if self._pieces or self._videos:
            self.store.commit(self._pieces, self._videos)
            self._pieces, self._videos = [], []
        self._committed = time.monotonic()

    def end(self) -> None:
        """All has been told: what is not whole by now never will be."""
        for video in list(self.open.values()):
            self._fail(Failed(video.planned.source, "RuntimeError: parts of it never came back; ingest it again"))

    def wants(self, span: Span) -> bool:
        """Whether a stretch of film is still of use: its video has not failed."""
        return span.video in self.open

    def have(self, video: str) -> frozenset[int]:
        """The pieces of a video that are there."""
        return frozenset(self.open[video].pieces)

    def _plan(self, event: Planned) -> None:
        if event.video in self.open or event.video in self._closed:
            self._twin(event)
            return
        self.open[event.video] = _Open(event, {}, dict(event.pieces))
        for early in self._early.pop(event.video, ()):
            self._note(early)

    def _twin(self, event: Planned) -> None:
        """The same content under another name: what becomes of the one becomes of the other."""
        if event.video in self._failed:
            self._record_failure(event.source, self._failed[event.video], event.content)
        elif event.source not in self._twins:
            self._twins[event.source] = event.video
            self.status.skipped += 1

    def _note(self, event: Kept | Ended) -> None:
        name = event.piece.video if isinstance(event, Kept) else event.span.video
        if name in self._closed:
            return
        if name not in self.open:
            self._early.setdefault(name, []).append(event)
            return
        video = self.open[name]
        if isinstance(event, Kept):
            self._keep(video, event)
        else:
            video.ended[event.span.number] = event
            _add(video.seconds, {"decode": event.decode_s})
            self.status.warnings += [(event.span.source.uri, each) for each in event.warnings]
        if video.is_whole():
            self._close(name)
            self._finish(video)

    def _keep(self, video: _Open, event: Kept) -> None:
        if event.piece.piece in video.pieces:
            return
        video.pieces[event.piece.piece] = event.piece
        video.nested = video.nested and event.nested
        video.made = dict(event.made)
        _add(video.seconds, event.seconds)
        self._pieces.append(event.piece)

    def _close(self, name: str) -> _Open:
        self._closed.add(name)
        return self.open.pop(name)

    def _finish(self, video: _Open) -> None:
        planned, pieces = video.planned, [piece for _, piece in sorted(video.pieces.items())]
        if not pieces:
            self._give_up(planned, "ValueError: the video gave no frames")
            return
        if len({piece.shape[1:] for piece in pieces}) > 1:
            self._give_up(planned, "ValueError: frames changed their size")
            return
        kept = video_of(self.brief, video.planned, pieces, video.nested, video.made, video.seconds)
        self._videos.append(kept)
        status = self.status
        status.done += 1
        status.footage_s += kept.duration_s
        status.frames += kept.frames
        status.tokens += kept.tokens
        status.kept += kept.kept
        status.bytes += sum(piece.bytes for piece in pieces)
        _add(status.seconds, kept.seconds)

    def _fail(self, event: Failed) -> None:
        mine = [name for name, video in self.open.items() if video.planned.source == event.source]
        if mine:
            self._give_up(self._close(mine[0]).planned, event.reason)
        elif event.source not in self._twins and event.source.uri not in self._told:
            self._record_failure(event.source, event.reason, event.content)

    def _give_up(self, planned: Planned, reason: str) -> None:
        self._failed[planned.video] = reason
        twins = [source for source, video in self._twins.items() if video == planned.video]
        for twin in twins:
            del self._twins[twin]
            self.status.skipped -= 1
        for source in (*twins, planned.source):
            self._record_failure(source, reason, planned.content)

    def _record_failure(self, source: Source, reason: str, content: str) -> None:
        self.status.failed += 1
        self._told.add(source.uri)
        self.status.failures.append((source.uri, reason))
        self._videos.append(failure_of(self.brief, source, reason, content))


def video_of(
    brief: Brief, planned: Planned, pieces: list[Piece], nested: bool, made: dict[str, Any], seconds: dict[str, float]
) -> Video:
    """The row of a video that was taken in."""
    tokens = sum(piece.tokens for piece in pieces)
    coverages = [piece.coverage for piece in pieces]
    known = [each for each in coverages if each is not None]
    coverage = (
        float(np.average(known, weights=[piece.tokens for piece in pieces])) if len(known) == len(pieces) else None
    )
    return Video(
        **_of(brief, planned.source, planned.content),
        id=planned.video,
        status="done",
        duration_s=planned.duration_s,
        fps=planned.fps,
        frames=sum(piece.frames for piece in pieces),
        frames_per_slice=planned.frames_per_slice,
        shape=(sum(piece.shape[0] for piece in pieces), *pieces[0].shape[1:]),
        tokens=tokens,
        kept=sum(piece.kept for piece in pieces),
        coverage=coverage,
        nested=nested,
        made={name: value for name, value in made.items() if name not in ("coverage", "seconds")},
        pieces=tuple(piece.attempt for piece in pieces),
        seconds=dict(seconds),
    )


def failure_of(brief: Brief, source: Source, reason: str, content: str) -> Video:
    """The row of a video that could not be taken in."""
    from floc.archive.tables import video_id

    # what cannot be read has no content to tell it by
    told = video_id(content or f"unreadable {source.uri}", brief.model, brief.order.options())
    return Video(**_of(brief, source, content), id=told, status="failed", error=readable(reason))


def _of(brief: Brief, source: Source, content: str) -> dict[str, Any]:
    from floc._version import __version__

    return {
        "uri": readable(source.uri),
        "content": content,
        "size": source.size,
        "modified_s": source.modified_s,
        "encoder": brief.order.encoder,
        "model": brief.model,
        "options": brief.order.options(),
        "written_s": time.time(),
        "version": __version__,
    }


def readable(text: str) -> str:
    r"""What a table takes: names of files need not be text.

    >>> readable("caf\udce9.mp4") == r"caf\udce9.mp4"
    True
    """
    return text.encode(errors="backslashreplace").decode()


def known(done: Iterable[Video], brief: Brief, sources: Iterable[Source]) -> list[Source]:
    """Of sources those that are among videos as they are: the same name, size and time of change."""
    order = brief.order
    options = order.options()
    there = {
        (video.uri, video.size, video.modified_s)
        for video in done
        if video.encoder == order.encoder and dict(video.options) == options and video.model == brief.model
    }
    return [source for source in sources if (readable(source.uri), source.size, source.modified_s) in there]


def _add(sums: dict[str, float], more: Any) -> None:
    for name, seconds in more.items():
        sums[name] = sums.get(name, 0.0) + seconds
