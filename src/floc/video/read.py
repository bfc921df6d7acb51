"""A film, read a few frames at a time.

A film is demuxed from start to end, but only what has to be is decoded, and only what is taken becomes pixels. The rule
that saves the decoding: a keyframe that is shown at or before the next target makes every packet before it needless,
since what is on screen at the target is that keyframe or something after it. So packets are held back until one is
later than the target, and dropped when a keyframe comes first. That gives the frames that decoding everything gives,
without trusting a container's index the way seeking does, and works where there is no index. Where a "keyframe" turns
out not to be one (streams with rolling intra refresh), the film is decoded whole instead.

Memory is one batch, one frame not yet decided upon, the packets held back and what the decoder keeps, for any length.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from floc.tokens import Frames
from floc.video.container import Clock, Upright, check_file, demuxed, opened, probe, scan, stated_duration, video_stream
from floc.video.sample import ROUNDING_S, Sampler, Ticks, planned, step_s

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

# packets held back beyond this are decoded, needed or not: some ten seconds of 4K
HELD_BYTES = 32 << 20
LAST = sys.maxsize


def read(
    path: Path | str,
    *,
    fps: float | None = 1.0,
    max_frames: int | None = 7200,
    size: Callable[[int, int], tuple[int, int]] | None = None,
    batch: int = 16,
) -> Video:
    """Open a film, look whether it can be read, and say what sampling it will give.

    Args:
        path: a file in any container and codec that ffmpeg reads.
        fps: frames a second to take, by the clock; each is the one on screen then, and none is given twice. None takes
            every frame.
        max_frames: at most so many; where there would be more, they are spread evenly over the whole film. None: all.
        size: (width, height) of the upright film, in square pixels -> (width, height) of the pictures wanted.
        batch: frames in each `Frames`; the last has what is left.
    """
    check_sampling(fps, max_frames, batch)
    path = Path(path)
    check_file(path)
    with opened(path) as container:
        stream = video_stream(container, path)
        frame, clock = probe(container, stream, path)
        upright = Upright.of(frame)
        source = upright.size_of(frame, stream)
        duration_s, whole_file = stated_duration(container, stream, clock)
        count = stream.frames or None
        codec = stream.codec_context.name
    if duration_s is None or (count is None and (fps is None or fps > clock.rate)):
        scanned_s, count = scan(path, clock)
        duration_s = scanned_s if duration_s is None else duration_s
    step = step_s(fps, max_frames, duration_s, count)
    width, height = wanted_size(size, source)
    return Video(
        path=path,
        width=width,
        height=height,
        source_width=source[0],
        source_height=source[1],
        duration_s=float(duration_s),
        native_fps=float(clock.rate),
        codec=codec,
        rotation=upright.rotation,
        planned=planned(step, max_frames, duration_s, count),
        fps=fps,
        max_frames=max_frames,
        batch=batch,
        _step_s=step,
        _upright=upright,
        _clock=clock,
        _whole_file=whole_file,
    )


@dataclass
class Video:
    """A film that can be read: each iteration decodes it from the start and gives `Frames`, a batch at a time."""

    path: Path
    width: int  # of the pictures it gives, upright
    height: int
    source_width: int  # of the film, upright and in square pixels
    source_height: int
    duration_s: float  # from the first frame to the end, as the container says
    native_fps: float  # on average
    codec: str
    rotation: int  # degrees clockwise that the stored pictures are turned by: 0, 90, 180 or 270
    # The most frames that come as far as the container tells the truth: fewer where it is cut off or damaged, more
    # (but never above `max_frames`) where it runs on past its stated end.
    planned: int
    fps: float | None  # as asked
    max_frames: int | None  # as asked
    batch: int
    warnings: list[str] = field(default_factory=list)  # what the last iteration found wrong
    frames: int | None = None  # how many the last complete iteration gave
    _step_s: Fraction | None = field(kw_only=True, repr=False)
    _upright: Upright = field(kw_only=True, repr=False)
    _clock: Clock = field(kw_only=True, repr=False)
    _whole_file: bool = field(kw_only=True, repr=False)  # whether `duration_s` is the end of any stream, not the video
    _targets: range | None = field(default=None, kw_only=True, repr=False)  # moments to take frames at; None: all

    def between(self, start_s: float, end_s: float) -> Video:
        """The same film from one moment to another: films that follow one another give the frames of the whole, once.

        What comes before is read and left undecoded, so a later part takes longer to begin.
        """
        if self._step_s is None:
            raise ValueError("a film that is taken frame by frame has no moments to cut it at; give read an fps")
        if not (0 <= start_s < end_s and start_s < self.duration_s):  # also what is not a number
            raise ValueError(f"from {start_s:g} s to {end_s:g} s is no part of a film of {self.duration_s:g} s")
        whole = planned(self._step_s, None, Fraction(self.duration_s), None)
        ends = [min(whole, math.ceil(Fraction(each) / self._step_s)) for each in (start_s, min(end_s, self.duration_s))]
        # the last part has what comes after the stated end, too
        targets = range(ends[0], ends[1] if end_s < self.duration_s else LAST)
        return replace(self, planned=ends[1] - ends[0], _targets=targets, warnings=[], frames=None)

    def __iter__(self) -> Iterator[Frames]:
        self.warnings, self.frames = [], None
        given = filled = 0
        convert = converter(self._upright, self.width, self.height)
        for ticks, frame in self._wanted():
            if not filled:
                pixels = np.empty((self.batch, self.height, self.width, 3), np.uint8)
                times_s = np.empty(self.batch)
            pixels[filled] = convert(frame)
            times_s[filled] = self._clock.seconds(ticks)
            given += 1
            filled += 1
            if filled == self.batch:
                yield Frames(pixels, times_s)
                filled = 0
        if filled:
            yield Frames(pixels[:filled], times_s[:filled])
        self.frames = given

    @property
    def taken_fps(self) -> float:
        """Frames a second that come: no more than the film has, and fewer where there would be too many."""
        rate = self.native_fps if self.fps is None else min(self.fps, self.native_fps)
        whole = rate * self.duration_s
        return rate if self.planned > 0.95 * whole or not self.duration_s else self.planned / self.duration_s

    def about(self) -> dict[str, Any]:
        """What there is to say of the film and of what was taken from it, as JSON takes it."""
        return {
            "name": self.path.name,
            "duration_s": self.duration_s,
            "width": self.source_width,
            "height": self.source_height,
            "codec": self.codec,
            "native_fps": self.native_fps,
            "rotation": self.rotation,
            "fps": self.fps,
            "max_frames": self.max_frames,
            "frames": self.planned if self.frames is None else self.frames,
            "frame_width": self.width,
            "frame_height": self.height,
            "warnings": list(self.warnings),
        }

    def _wanted(self) -> Iterator[tuple[Ticks, VideoFrame]]:
        """The frames to take, with the ticks they are shown at."""
        given = 0
        try:
            for each in self._pass(skipping=True):
                given += 1
                yield each
        except _NoEntry:
            # what was given until now started from true keyframes, so the whole film's answer opens with it
            yield from islice(self._pass(skipping=False), given, None)

    def _pass(self, skipping: bool) -> Iterator[tuple[Ticks, VideoFrame]]:
        tick_s = self._clock.time_base
        step = None if self._step_s is None else self._step_s / tick_s
        rounding = ROUNDING_S / tick_s
        targets = range(LAST) if self._targets is None else self._targets
        if not targets:
            return
        end = math.inf if targets.stop == LAST else targets.stop
        limit = self.max_frames if self._targets is None else None  # the step says it already
        sampler = Sampler(step, rounding, limit, first=targets.start, end=end)
        with opened(self.path) as container:
            run = Run(container, video_stream(container, self.path), self._clock, sampler, skipping)
            for ticks, frame in taken(run.frames(self._whole_file), sampler, self._clock):
                if step is None or not targets.start or ticks > (targets.start - 1) * step + rounding:
                    yield ticks, frame  # else it was on screen before, and was given there
        self.warnings.extend(run.complaints(self.path.name, self.duration_s))


def wanted_size(size: Callable[[int, int], tuple[int, int]] | None, source: tuple[int, int]) -> tuple[int, int]:
    """The width and height of the pictures to give of a film of this size."""
    width, height = source if size is None else size(*source)
    if not (_is_count(width) and _is_count(height)):
        raise ValueError(f"size= must give a width and a height of at least 1, got {width!r} x {height!r}")
    return int(width), int(height)


def taken(
    frames: Iterable[tuple[Ticks, VideoFrame]], sampler: Sampler, clock: Clock
) -> Iterator[tuple[Ticks, VideoFrame]]:
    """Of frames in order those on screen when the sampler wants one."""
    on_screen: tuple[Ticks, VideoFrame] | None = None
    for ticks, frame in frames:
        if on_screen and sampler.wants(until=ticks):
            yield on_screen
            if sampler.done:
                return
        on_screen = ticks, frame
    if on_screen:
        ticks, frame = on_screen
        if sampler.wants(until=ticks + (frame.duration or clock.frame_ticks)):
            yield on_screen


def converter(upright: Upright, width: int, height: int) -> Callable[[VideoFrame], np.ndarray]:
    """From a decoded frame to [height, width, 3] uint8 RGB: colours and size in one step, then turned upright."""
    from av.video.reformatter import Interpolation, VideoReformatter

    reformatter = VideoReformatter()
    stored_width, stored_height = upright.turned(width, height)

    def convert(frame: VideoFrame) -> np.ndarray:
        # the film may change its size on the way, the pictures do not
        shrinks = stored_width < frame.width or stored_height < frame.height
        how = Interpolation.AREA if shrinks else Interpolation.BILINEAR
        rgb = reformatter.reformat(frame, stored_width, stored_height, "rgb24", interpolation=how)
        return upright(rgb.to_ndarray())

    return convert


class _NoEntry(Exception):
    """A packet is marked as a keyframe, but a decoder cannot start there."""


class Run:
    """One pass over a film: packets in, frames with their times out, and what went wrong on the way."""

    def __init__(
        self, container: InputContainer, stream: VideoStream, clock: Clock, sampler: Sampler, skipping: bool
    ) -> None:
        self._container, self._stream, self._clock, self._sampler = container, stream, clock, sampler
        # without timestamps to trust, a frame's time is known only from counting all before it
        self._skipping = skipping and not clock.counts
        self._shown: Ticks = -1  # when the last decoded frame was
        self._decoded = 0
        self._entry: int | None = None  # timestamp of the keyframe that the decoder was just started at
        self._end_s = Fraction(0)  # where the packets read so far end
        self.damaged = 0  # frames that could not be decoded, or not whole
        self.damage = ""  # what was wrong with the last of them
        self._first_damage, self._damage_s = "", 0.0  # what was wrong with the first, and where
        self._ended = False  # whether reading came to where the file ends, not only to the last frame wanted
        self.stopped = ""  # why that was before the film does

    def frames(self, whole_file: bool) -> Iterator[tuple[Ticks, VideoFrame]]:
        held: list[Packet] = []
        held_bytes, fresh, last_key = 0, False, -math.inf
        for packet in self._packets(whole_file):
            waits = False
            if self._skipping and packet.pts is not None:
                shown = packet.pts - self._clock.origin
                if packet.is_keyframe:
                    self._skipping = shown > last_key  # else the clock was set back, and times do not say what is first
                    last_key = shown
                waits = self._skipping and shown <= self._sampler.target
                if waits and packet.is_keyframe and not packet.is_discard:
                    held, held_bytes, fresh = [], 0, True
            held.append(packet)
            held_bytes += packet.size
            if not waits or held_bytes > HELD_BYTES:
                yield from self._feed(held, fresh)
                held, held_bytes, fresh = [], 0, False
        yield from self._feed(held, fresh)
        yield from self._decode(None)

    def _feed(self, packets: list[Packet], fresh: bool) -> Iterator[tuple[Ticks, VideoFrame]]:
        if fresh:
            self._stream.codec_context.flush_buffers()
            self._entry = packets[0].pts
        for packet in packets:
            yield from self._decode(packet)

    def _packets(self, whole_file: bool) -> Iterator[Packet]:
        """The film's packets, without the one in which a file was cut off."""
        torn: Packet | None = None
        packets = demuxed(self._container) if whole_file else demuxed(self._container, self._stream)
        while True:
            try:
                packet = next(packets)
            except StopIteration as end:
                self._ended = True
                self.stopped = end.value or ("its last frame is incomplete" if torn else "")
                return
            if packet.pts is not None and packet.time_base and not packet.is_corrupt:
                self._end_s = max(self._end_s, (packet.pts + (packet.duration or 0)) * packet.time_base)
            if packet.stream_index != self._stream.index:
                continue
            if torn:
                yield torn  # with more to come, it is for the decoder to say what is in it
            torn = packet if packet.is_corrupt else None
            if not torn:
                yield packet

    def _decode(self, packet: Packet | None) -> Iterator[tuple[Ticks, VideoFrame]]:
        import av
        from av.video.frame import PictureType

        try:
            frames = self._stream.codec_context.decode(packet)
        except av.FFmpegError as error:
            self._note(error.strerror or str(error), None if packet is None else packet.pts)
            return
        for frame in frames:
            if self._entry is not None:
                # decoders leave out what is shown before a keyframe they start at, so it comes first
                if frame.pts != self._entry or frame.pict_type != PictureType.I:
                    raise _NoEntry
                self._entry = None
            if frame.is_corrupt:
                self._note("data is missing or wrong", frame.pts)
            self._shown = self._clock.time(frame, self._decoded, self._shown)
            self._decoded += 1
            yield self._shown, frame

    def _note(self, reason: str, stamp: int | None) -> None:
        if not self.damaged:
            self._first_damage = reason
            shown = self._shown if stamp is None or self._clock.counts else stamp - self._clock.origin
            self._damage_s = self._clock.seconds(max(0, shown))
        self.damage = reason
        self.damaged += 1

    def complaints(self, name: str, duration_s: float) -> Iterator[str]:
        """What to tell of the film, as far as it was read."""
        if self.damaged:
            frames = "1 frame" if self.damaged == 1 else f"{self.damaged} frames"
            yield (
                f"{name} is damaged: {frames} could not be decoded, or not whole, the first at {self._damage_s:.1f} s "
                f"({self._first_damage}); the others are used"
            )
        if self._clock.counts:
            reached_s = self._clock.seconds(max(0, self._shown) + self._clock.frame_ticks)
        else:
            # not the last frame decoded: what comes after the last target need not be
            reached_s = float(self._end_s) - self._clock.seconds(self._clock.origin)
        if self._ended and not self.stopped and reached_s < duration_s - max(0.5, 2 / float(self._clock.rate)):
            self.stopped = "the file ends there"
        if self.stopped:
            yield (
                f"{name} is damaged or cut off: decoding stopped at {reached_s:.1f} s of {duration_s:.1f} s "
                f"({self.stopped}); the frames up to there are used"
            )


def check_sampling(fps: float | None, max_frames: int | None = None, batch: int = 1) -> None:
    """Complain of what cannot be sampled by."""
    if fps is not None and (isinstance(fps, bool) or not isinstance(fps, Real) or not 0 < fps < math.inf):
        raise ValueError(f"fps must be a number above 0, the frames to take a second, or None for all; got {fps!r}")
    if max_frames is not None and not _is_count(max_frames):
        raise ValueError(f"max_frames must be a whole number, at least 1, or None for no limit; got {max_frames!r}")
    if not _is_count(batch):
        raise ValueError(f"batch must be a whole number of frames, at least 1; got {batch!r}")


def _is_count(given: object) -> bool:
    return isinstance(given, Integral) and not isinstance(given, bool) and int(given) >= 1
