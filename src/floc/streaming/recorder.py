"""`floc stream`: encode the frames of a source, push them into a stream, and write the kept tokens in segments.

Every segment is a kept-tokens file of the video so far. The optional state file also stores how far the source was
read, so that another run continues with the next frame.
"""

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
from floc._atomic import check_writable, write_atomic
from floc._checked_file import Fields
from floc._system import resident_bytes
from floc.budget import Budget
from floc.encoders.base import Encoder
from floc.encoders.slice_choice import ALL_SLICES
from floc.kept import Kept
from floc.streaming.stream import Stream
from floc.video import live

LATEST = "latest.safetensors"
LAST_SEGMENT = 10**9
RECENT = 32  # pushes over which the rate is measured
SHORTEST_SEGMENT_S = 0.001
UNKNOWN_STEP_S = 0.04  # gap between two runs if every frame is taken, so that the step is unknown


@dataclass(frozen=True)
class StreamStatus:
    """The progress of a recorder."""

    time_s: float
    frames: int
    tokens: int  # input tokens
    kept: int
    pushes_per_s: float
    memory_bytes: int | None


@dataclass
class StreamRecorder:
    """Records a source: reads its frames, and writes segments and the state."""

    source: str
    encoder: Encoder
    stream: Stream
    budget: Budget
    folder: Path
    state: Path | None = None
    fps: float | None = 1.0
    segment_s: float = 300.0
    resumes: bool = False  # whether the stream was loaded from the state
    kept: Kept | None = None  # as last written
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("encode", "select", "write"), 0.0))
    written: list[Path] = field(default_factory=list)  # segments of this run
    is_ahead: bool = False  # whether the stream has frames that are in no segment
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.segment_s >= SHORTEST_SEGMENT_S:  # also true for NaN
            raise ValueError(f"a segment must have at least {SHORTEST_SEGMENT_S} seconds, got {self.segment_s:g}")

    @property
    def read_s(self) -> float:
        """The time in the stream up to which the source was read."""
        return self.stream.note.get("read_s", -math.inf)

    def run(
        self,
        *,
        follow: bool = False,
        patience_s: float = live.PATIENCE_S,
        seconds: float = math.inf,
        stopped: Callable[[], bool] = lambda: False,
        show: Callable[[StreamStatus], None] = lambda status: None,
        wrote: Callable[[Path], None] = lambda segment: None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Record until the source ends, `seconds` of video have been read, or `stopped` returns True.

        Calls `stopped` after every frame, `show` after every push, `wrote` with the path of every segment, and `warn`
        with problems that do not end the recording. For `follow` and `patience_s` see `live.read_frames`.
        """

        def store_warning(text: str) -> None:
            self.warnings.append(text)
            warn(text)

        options: dict[str, Any] = dict(follow=follow, patience_s=patience_s, stopped=stopped, warn=store_warning)
        frames = live.read_frames(self.source, fps=self.fps, size=self.encoder.frame_size, **options)
        per_slice = self.encoder.frames_per_token
        group_size = getattr(self.encoder, "call_frames", per_slice)
        pushed_at: deque[float] = deque(maxlen=RECENT)
        group: list[tuple[np.ndarray, float]] = []  # frames that are encoded together
        end_s = math.inf
        segment_end_s = self._find_segment_end(self.read_s)

        def push() -> None:
            pixels = [image for image, _ in group]
            started = time.perf_counter()
            tokens = self.encoder(np.stack(pixels + pixels[-1:] * (-len(pixels) % per_slice)))
            encoded = time.perf_counter()
            is_first = self.stream.frames == 0
            self.stream.push(tokens, time_s=[time_s for _, time_s in group[::per_slice]])
            self.seconds["encode"] += encoded - started
            self.seconds["select"] += time.perf_counter() - encoded
            self.stream.note["read_s"] = group[-1][1]
            self.is_ahead = True
            group.clear()
            if self.state is not None and is_first:
                # so that a run can resume after a power failure right after the first segment
                self.stream.save(self.state)
            pushed_at.append(time.monotonic())
            show(self._get_status(tokens.shape[1] * tokens.shape[2], pushed_at))

        for pixels, time_s in self._skip_read(frames):
            if math.isinf(end_s):
                end_s = time_s + seconds
            if time_s >= end_s or stopped():
                del group[len(group) // per_slice * per_slice :]  # the next run reads an incomplete slice again
                break
            if time_s >= segment_end_s and not group:
                if self.is_ahead:
                    wrote(self._write())
                segment_end_s = self._find_segment_end(time_s)
            group.append((pixels, time_s))
            if len(group) == group_size:
                push()
        if group:
            push()
        if pushed_at:
            wrote(self._write())
        elif not (self.resumes or stopped()):
            name = live.redact_source(self.source)
            raise ValueError(f"{name}: all frames are damaged, so nothing was written; copy or record it again")

    def _skip_read(self, frames: Iterator[tuple[np.ndarray, float]]) -> Iterator[tuple[np.ndarray, float]]:
        """Yield the frames that the stream does not have yet, with their time in the stream."""
        note, before_s = self.stream.note, self.read_s
        is_file = live.classify_source(self.source) == "file"  # a later run recognises it by its full path
        name = str(Path(self.source).resolve()) if is_file else live.redact_source(self.source)
        if not self.resumes:
            note["start_s"] = 0.0
        elif not (note["source"] == name and is_file):
            # a camera does not report the length of a pause, and a new file follows the one before
            note["start_s"] = before_s + (UNKNOWN_STEP_S if self.fps is None else 1 / self.fps)
        note["source"] = name
        timed = ((pixels, note["start_s"] + shown_s) for pixels, shown_s in frames)
        yield from (frame for frame in timed if frame[1] > before_s)

    def _find_segment_end(self, time_s: float) -> float:
        return (math.floor(max(0.0, time_s) / self.segment_s) + 1) * self.segment_s

    def _get_status(self, cells: int, pushed_at: deque[float]) -> StreamStatus:
        spent_s = pushed_at[-1] - pushed_at[0]
        frames, tokens = self.stream.frames * self.encoder.frames_per_token, self.stream.frames * cells
        pushes_per_s = (len(pushed_at) - 1) / spent_s if spent_s else 0.0
        return StreamStatus(self.read_s, frames, tokens, self.budget.count(tokens), pushes_per_s, resident_bytes())

    def _write(self) -> Path:
        """Write a segment, its copy as the latest one, and the state, in this order: the state counts the segment."""
        started = time.perf_counter()
        self.kept = self.stream.kept()
        selected = time.perf_counter()
        self.seconds["select"] += selected - started
        number = self.stream.note["segments"] + self.stream.note.get("first_segment", 1)  # older states start at 1
        segment = self.folder / f"segment-{number:06}.safetensors"
        if not self.written:
            self.folder.mkdir(parents=True, exist_ok=True)
        metadata = {**_describe_encoder(self.encoder), "fps": self.fps, "segment": number}
        files.write_kept(self.kept, segment, source=live.redact_source(self.source), made_from=metadata)
        write_atomic(self.folder / LATEST, lambda temporary: shutil.copyfile(segment, temporary))
        self.stream.note["segments"] += 1
        if self.state is not None:
            self.stream.save(self.state)
        self.written.append(segment)
        self.is_ahead = False
        self.seconds["write"] += time.perf_counter() - selected
        return segment


def open_recorder(
    source: str,
    encoder: Encoder,
    budget: Budget,
    *,
    folder: Path,
    state: Path | None = None,
    fps: float | None = 1.0,
    segment_s: float = 300.0,
    device: str | None = None,
    **options: Any,
) -> StreamRecorder:
    """Open a recorder with a new stream of these options or, if the state file exists, with the saved one."""
    stream = Stream(ratio=None if budget.ratio is None else str(budget.ratio), budget=budget.budget, **options)
    for path in (folder / LATEST if folder.is_dir() else None, state):
        if path is not None:
            check_writable(path)
    if resumes := state is not None and state.exists():
        assert state is not None
        stream = _load_stream(state, stream, encoder, device)
    else:
        stream.note = {**_describe_encoder(encoder), "segments": 0, "first_segment": 0}
        if before := sorted(folder.glob("segment-*.safetensors")):
            missing = "" if state is None else f", but {state}, the state to resume from, does not exist"
            remedy = "name another folder with -o, or the state to resume from with --state"
            raise ValueError(f"{folder} has segments already, such as {before[-1].name}{missing}; {remedy}")
    return StreamRecorder(source, encoder, stream, budget, folder, state, fps, segment_s, resumes)


def _describe_encoder(encoder: Encoder) -> dict[str, Any]:
    return {"encoder": encoder.name, **getattr(encoder, "slices", ALL_SLICES).describe()}


def _load_stream(state: Path, wanted: Stream, encoder: Encoder, device: str | None) -> Stream:
    """Load a saved stream; raise ValueError unless its encoder and settings are those of `wanted`."""
    stream = Stream.load(state, device=device)
    note = Fields(stream.note, "note")
    try:
        note.text("encoder")
        note.text("source")
        note.integer("segments", 0, LAST_SEGMENT)
        if note.has("first_segment"):
            note.integer("first_segment", 0, 1)
        note.number("start_s")
        note.number("read_s", least=stream.span_s[1])
    except ValueError as error:
        problem = f"{state}: a stream that `floc stream` did not save ({error})"
        raise ValueError(f"{problem}; name another file with --state") from error
    unset = {"reuse": None, "encode": None}
    saved = unset | {name: stream.note[name] for name in ("encoder", *unset) if name in stream.note} | stream.settings
    given = unset | _describe_encoder(encoder) | wanted.settings
    if different := [name for name in given if saved[name] != given[name]]:
        before, now = (", ".join(f"{name}={settings[name]!r}" for name in different) for settings in (saved, given))
        problem = f"{state}: saved with {before}, and cannot resume with {now}"
        raise ValueError(f"{problem}; give the same settings, or name another file with --state")
    return stream
