"""A source is watched: its frames are encoded and pushed into a stream, and what is kept is written as time goes by.

Every segment is a kept-tokens file of all that was seen until then. The state, where one is wanted, notes beside the
stream how far the source was read, so that another run goes on with the next frame.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from floc import files
from floc._system import resident_bytes
from floc.budget import Budget
from floc.encoders.base import Encoder
from floc.kept import Kept
from floc.streaming.stream import Stream
from floc.video import live

SEGMENT = "segment-{:06}.safetensors"
LATEST = "latest.safetensors"
RECENT = 32  # pushes that the rate is taken over
UNKNOWN_STEP_S = 0.04  # between two runs, where every frame is taken and so no step is known


@dataclass(frozen=True)
class Status:
    """Where a watch stands."""

    time_s: float
    frames: int
    tokens: int  # there were
    kept: int
    pushes_per_s: float
    memory_bytes: int | None


@dataclass
class Watch:
    """A source, what is kept of it, and where that goes."""

    source: str
    encoder: Encoder
    stream: Stream
    dial: Budget
    folder: Path
    state: Path | None = None
    fps: float | None = 1.0
    segment_s: float = 300.0
    resumes: bool = False  # whether the stream was there before
    kept: Kept | None = None  # as last written
    written: list[Path] = field(default_factory=list)  # the segments of this run
    is_ahead: bool = False  # whether the stream has frames that no segment has
    warnings: list[str] = field(default_factory=list)

    @property
    def read_s(self) -> float:
        """Until when the source was read, in the stream's time."""
        return self.stream.note.get("read_s", -math.inf)

    def run(
        self,
        *,
        follow: bool = False,
        patience_s: float = live.PATIENCE_S,
        seconds: float = math.inf,
        stopped: Callable[[], bool] = lambda: False,
        show: Callable[[Status], None] = lambda status: None,
        wrote: Callable[[Path], None] = lambda segment: None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Watch until the source ends, so many seconds of it have gone by, or it is stopped.

        Args:
            follow, patience_s: as in `live.read_frames`.
            seconds: of the video, from the first frame of this run.
            stopped: asked after every frame.
            show: called after every push.
            wrote: called with every segment.
            warn: called with what went wrong and is no reason to end.
        """

        def note_warning(text: str) -> None:
            self.warnings.append(text)
            warn(text)

        options: dict[str, Any] = dict(follow=follow, patience_s=patience_s, stopped=stopped, warn=note_warning)
        shots = live.read_frames(self.source, fps=self.fps, size=self.encoder.frame_size, **options)
        joined = self.encoder.frames_per_token
        pushed_at: deque[float] = deque(maxlen=RECENT)
        waiting: list[tuple[np.ndarray, float]] = []  # frames of a group that is not complete
        until_s = math.inf
        due_s = self._next_segment(self.read_s)

        def push() -> None:
            pixels = [each for each, _ in waiting]
            tokens = self.encoder(np.stack(pixels + pixels[-1:] * (joined - len(pixels))))
            self.stream.push(tokens, time_s=[waiting[0][1]])
            self.stream.note["read_s"] = waiting[-1][1]
            self.is_ahead = True
            waiting.clear()
            if self.state is not None and self.stream.frames == 1:
                # so that there is something to go on from should power fail right after the first segment
                self.stream.save(self.state)
            pushed_at.append(time.monotonic())
            show(self._status(tokens.shape[1] * tokens.shape[2], pushed_at))

        for pixels, time_s in self._continued(shots):
            if math.isinf(until_s):
                until_s = time_s + seconds
            if time_s >= until_s or stopped():
                waiting.clear()  # half a group is read again by the next run
                break
            if time_s >= due_s and not waiting:
                if self.is_ahead:
                    wrote(self._write())
                due_s = self._next_segment(time_s)
            waiting.append((pixels, time_s))
            if len(waiting) == joined:
                push()
        if waiting:
            push()
        if pushed_at:
            wrote(self._write())
        elif not (self.resumes or stopped()):
            name = live.redact_source(self.source)
            raise ValueError(f"{name}: every frame in it is damaged, so nothing is written; copy or record it again")

    def _continued(self, shots: Iterator[tuple[np.ndarray, float]]) -> Iterator[tuple[np.ndarray, float]]:
        """The frames that the stream does not have yet, in its time."""
        note, before = self.stream.note, self.read_s
        name = _identity(self.source)
        if not self.resumes:
            note["start_s"] = 0.0
        elif not (note["source"] == name and live.classify_source(self.source) == "file"):
            # a camera does not say how long nobody looked, and another file follows the one before
            note["start_s"] = before + (UNKNOWN_STEP_S if self.fps is None else 1 / self.fps)
        note["source"] = name
        for pixels, shown_s in shots:
            time_s = note["start_s"] + shown_s
            if time_s > before:
                yield pixels, time_s

    def _next_segment(self, time_s: float) -> float:
        return (math.floor(max(0.0, time_s) / self.segment_s) + 1) * self.segment_s

    def _status(self, cells: int, pushed_at: deque[float]) -> Status:
        spent_s = pushed_at[-1] - pushed_at[0]
        tokens = self.stream.frames * cells
        return Status(
            time_s=self.read_s,
            frames=self.stream.frames * self.encoder.frames_per_token,
            tokens=tokens,
            kept=self.dial.count(tokens),
            pushes_per_s=(len(pushed_at) - 1) / spent_s if spent_s else 0.0,
            memory_bytes=resident_bytes(),
        )

    def _write(self) -> Path:
        """One more segment, the same as the latest, and then the state: what it says was written, was."""
        self.kept = self.stream.kept()
        number = self.stream.note["segments"] + 1
        segment = self.folder / SEGMENT.format(number)
        if not self.written:
            self.folder.mkdir(exist_ok=True)
        about = {"encoder": self.encoder.name, "fps": self.fps, "segment": number}
        files.write_kept(self.kept, segment, source=live.redact_source(self.source), made_from=about)
        files.write_atomic(self.folder / LATEST, lambda temporary: shutil.copyfile(segment, temporary))
        self.stream.note["segments"] = number
        if self.state is not None:
            self.stream.save(self.state)
        self.written.append(segment)
        self.is_ahead = False
        return segment


def begin(
    source: str,
    encoder: Encoder,
    dial: Budget,
    *,
    folder: Path,
    state: Path | None = None,
    fps: float | None = 1.0,
    segment_s: float = 300.0,
    device: str | None = None,
    **options: Any,
) -> Watch:
    """A watch that can run: of a new stream or, where there is a state, of the one that was saved.

    `options` are those of `floc.Stream`.
    """
    stream = Stream(ratio=None if dial.ratio is None else str(dial.ratio), budget=dial.budget, **options)
    resumes = state is not None and state.exists()
    if resumes:
        assert state is not None
        stream = _resumed(state, stream, encoder, device)
    else:
        stream.note = {"encoder": encoder.name, "segments": 0}
        if before := sorted(folder.glob("segment-*.safetensors")):
            missing = "" if state is None else f", but {state}, which they would go on from, does not exist"
            raise ValueError(
                f"{folder} has segments already, such as {before[-1].name}{missing}; name another folder with -o, or "
                "with --state what they go on from"
            )
    return Watch(source, encoder, stream, dial, folder, state, fps, segment_s, resumes)


def _resumed(state: Path, wanted: Stream, encoder: Encoder, device: str | None) -> Stream:
    """The stream that was saved, if it was with the same encoder and the same settings as the one that is wanted."""
    stream = Stream.load(state, device=device)
    if not {"encoder", "segments", "read_s", "start_s", "source"} <= stream.note.keys():
        raise ValueError(f"{state}: a stream, but not one that `floc stream` saved; name another file with --state")
    had = {"encoder": stream.note["encoder"], **stream.settings}
    has = {"encoder": encoder.name, **wanted.settings}
    others = [name for name in has if had[name] != has[name]]
    if others:
        before, now = (", ".join(f"{name}={each[name]!r}" for name in others) for each in (had, has))
        raise ValueError(
            f"{state}: saved with {before}, and cannot go on with {now}; give the same, or name another file with "
            "--state"
        )
    return stream


def _identity(source: str) -> str:
    """What tells a source from others in a later run."""
    return str(Path(source).resolve()) if live.classify_source(source) == "file" else live.redact_source(source)
