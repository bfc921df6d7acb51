"""Read a video file as sampled frames, in batches.

The file is demuxed from start to end. Only the packets that sampled frames depend on are decoded (see
`floc.video.decode`), and only sampled frames are converted to pixels. If a packet marked as a keyframe turns out not to
be one (streams with rolling intra refresh), the whole video is decoded instead. Memory does not grow with the length of
the video: it holds one batch, one frame, the packets held back and the decoder's buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from floc._checks import check_count, is_number, is_positive_int, shorten
from floc.tokens import Frames
from floc.video.container import PacketReader, find_video_stream, open_container, probe, read_duration, scan_file
from floc.video.decode import FalseKeyframeError, FrameDecoder, FrameSize, make_converter, resolve_size, select_frames
from floc.video.sample import ALL_TARGETS, ROUNDING_S, Sampler, Ticks, compute_step, count_samples

if TYPE_CHECKING:
    import av

    from floc.video.container import Clock, Orientation

FPS_LIMITS = (1e-12, 1e6)
BATCH_BYTES = 1 << 30


def read(
    path: Path | str,
    *,
    fps: float | None = 1.0,
    max_frames: int | None = 7200,
    size: FrameSize | None = None,
    batch: int = 16,
) -> Video:
    """Open a video, check that it can be read, and plan the sampling.

    Args:
        path: a video file that holds its frames, such as mp4, mov, mkv, webm, avi or ts, in any codec of ffmpeg.
        fps: frames to sample per second of video. Each sample is the frame on screen at that time, and no frame is
            returned twice. None takes every frame.
        max_frames: maximum number of frames; if there would be more, they are spread evenly over the whole video.
            None for no limit.
        size: maps (width, height) of the upright video, in square pixels, to (width, height) of the frames to return.
        batch: frames in each `Frames`. The last batch may be shorter; all are if they would take more than 1 GiB.
    """
    check_sampling(fps, max_frames, batch)
    # numpy numbers would overflow in fractions
    fps = fps if fps is None or isinstance(fps, int | Fraction) else float(fps)
    max_frames = None if max_frames is None else int(max_frames)
    path = Path(path)
    with open_container(path) as container:
        stream = find_video_stream(container, path)
        frame, orientation, clock = probe(container, PacketReader(container, stream), stream, path)
        source = orientation.display_size(frame, stream)
        duration_s, whole_file = read_duration(container, stream, clock)
        count = stream.frames if stream.frames > 0 else None
        codec, rotation = stream.codec_context.name, round(-frame.rotation / 90) % 4 * 90
    if duration_s is None or (count is None and (fps is None or fps > clock.rate)):
        scanned_s, count = scan_file(path, clock)
        duration_s = scanned_s if duration_s is None else duration_s
    step = compute_step(fps, max_frames, duration_s, count)
    width, height = resolve_size(size, source)
    # a frame takes at least a byte of the file, whatever the header states
    planned = min(path.stat().st_size, count_samples(step, max_frames, duration_s, count))
    batch = min(batch, max(1, BATCH_BYTES // (3 * width * height)))
    coding: dict[str, Any] = dict(codec=codec, rotation=rotation, _orientation=orientation, _clock=clock)
    sampling: dict[str, Any] = dict(planned=planned, fps=fps, max_frames=max_frames, batch=batch, _step_s=step)
    length: dict[str, Any] = dict(duration_s=float(duration_s), native_fps=float(clock.rate), _whole_file=whole_file)
    return Video(path, width, height, source[0], source[1], **length, **coding, **sampling)


@dataclass
class Video:
    """A video file with a sampling. Each iteration decodes it from the start and yields `Frames`, one per batch."""

    path: Path
    width: int  # of the returned frames, upright
    height: int
    source_width: int  # of the video, upright and in square pixels
    source_height: int
    duration_s: float  # from the first frame to the end, as the container states
    native_fps: float  # average
    codec: str
    rotation: int  # clockwise rotation applied to stored frames: 0, 90, 180 or 270 degrees
    # Expected number of frames. An iteration returns fewer if the file is cut off or damaged, and more (up to
    # `max_frames`) if the video is longer than stated.
    planned: int
    fps: float | None  # as requested
    max_frames: int | None  # as requested
    batch: int
    warnings: list[str] = field(default_factory=list)  # problems found by the last iteration
    frames: int | None = None  # number of frames returned by the last complete iteration
    _step_s: Fraction | None = field(kw_only=True, repr=False)
    _orientation: Orientation = field(kw_only=True, repr=False)
    _clock: Clock = field(kw_only=True, repr=False)
    _whole_file: bool = field(kw_only=True, repr=False)  # `duration_s` is the end of the longest stream
    _targets: range | None = field(default=None, kw_only=True, repr=False)  # numbers of the targets; None for all

    def between(self, start_s: float, end_s: float) -> Video:
        """Return the part of the video from `start_s` to `end_s`.

        Adjacent parts return the frames of the whole video, each once. The packets before `start_s` are read but not
        decoded, so a later part takes longer to start.
        """
        if self._step_s is None:
            raise ValueError("cannot split a video that is read with fps=None; call read with a number for fps")
        if not (is_number(start_s) and is_number(end_s) and 0 <= start_s < end_s and start_s < self.duration_s):
            problem = f"{shorten(start_s)} s to {shorten(end_s)} s is not a part of a video of {self.duration_s:g} s"
            raise ValueError(f"{problem}; give 0 <= start < end, and a start before the end of the video")
        total = count_samples(self._step_s, None, Fraction(self.duration_s), None)
        times_s = (Fraction(float(start_s)), Fraction(float(min(end_s, self.duration_s))))
        first, last = (min(total, math.ceil(time_s / self._step_s)) for time_s in times_s)
        # the last part includes any frames after the stated end
        targets = range(first, last if end_s < self.duration_s else ALL_TARGETS.stop)
        return replace(self, planned=min(self.planned, last - first), _targets=targets, warnings=[], frames=None)

    def __iter__(self) -> Iterator[Frames]:
        self.warnings, self.frames = [], None
        count = 0
        convert = make_converter(self._orientation, self.width, self.height, self.path)
        for ticks, frame in self._sample():
            place = count % self.batch
            if place == 0:
                pixels = np.empty((self.batch, self.height, self.width, 3), np.uint8)
                times_s = np.empty(self.batch)
            pixels[place] = convert(frame)
            times_s[place] = self._clock.seconds(ticks)
            count += 1
            if count % self.batch == 0:
                yield Frames(pixels, times_s)
        if rest := count % self.batch:
            yield Frames(pixels[:rest], times_s[:rest])
        self.frames = count

    @property
    def sampled_fps(self) -> float:
        """The effective sampling rate: at most `native_fps`, and lower if `max_frames` limits it."""
        rate = self.native_fps if self.fps is None else min(self.fps, self.native_fps)
        is_full = self.planned > 0.95 * rate * self.duration_s or not self.duration_s
        return rate if is_full else self.planned / self.duration_s

    def describe(self) -> dict[str, Any]:
        """Return JSON-serialisable metadata of the video and its sampling."""
        count = self.planned if self.frames is None else self.frames
        size = dict(name=self.path.name, duration_s=self.duration_s, width=self.source_width, height=self.source_height)
        coding = {name: getattr(self, name) for name in ("codec", "native_fps", "rotation", "fps", "max_frames")}
        frames = dict(frames=count, frame_width=self.width, frame_height=self.height, warnings=list(self.warnings))
        return {**size, **coding, **frames}

    def _sample(self) -> Iterator[tuple[Ticks, av.VideoFrame]]:
        """Yield the sampled frames and their display times."""
        count = 0
        try:
            for sample in self._decode(skipping=True):
                count += 1
                yield sample
        except FalseKeyframeError:
            # the frames so far were decoded from true keyframes, so a full decode starts with the same ones
            yield from islice(self._decode(skipping=False), count, None)

    def _decode(self, skipping: bool) -> Iterator[tuple[Ticks, av.VideoFrame]]:
        step = None if self._step_s is None else self._step_s / self._clock.time_base
        rounding = ROUNDING_S / self._clock.time_base
        targets = ALL_TARGETS if self._targets is None else self._targets
        if not targets:
            return
        limit = self.max_frames if self._targets is None else None  # in a part, the step already respects max_frames
        sampler = Sampler(step, rounding, limit, targets)
        with open_container(self.path) as container:
            stream = find_video_stream(container, self.path)
            packets = PacketReader(container, *(() if self._whole_file else (stream,)))
            decoder = FrameDecoder(packets, stream, self._clock, sampler, skipping)
            for ticks, frame in select_frames(decoder, sampler, self._clock):
                # a frame on screen at an earlier target belongs to the part before
                if step is None or not targets.start or ticks > (targets.start - 1) * step + rounding:
                    yield ticks, frame
        self.warnings.extend(decoder.warnings(self.path.name, self.duration_s))


def check_sampling(fps: float | None, max_frames: int | None = None, batch: int = 1) -> None:
    """Raise ValueError if a sampling option is invalid."""
    if fps is not None and not (is_number(fps) and FPS_LIMITS[0] <= fps <= FPS_LIMITS[1]):
        allowed = "a number above 0, from 1e-12 to 1e6, the frames per second, or None for all"
        raise ValueError(f"fps must be {allowed}; got {shorten(fps)}")
    if max_frames is not None and not is_positive_int(max_frames):
        allowed = "a whole number, at least 1, or None for no limit"
        raise ValueError(f"max_frames must be {allowed}; got {shorten(max_frames)}")
    check_count("batch", batch, "frames")
