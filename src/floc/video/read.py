"""Read a video file as sampled frames, in batches.

The file is demuxed from start to end. Only the packets that sampled frames depend on are decoded (see
`floc.video.decode`), and only sampled frames are converted to pixels. If a packet marked as a keyframe turns out not to
be one (streams with rolling intra refresh), the whole video is decoded instead. Memory does not grow with the length of
the video: it holds one batch, one frame, the packets held back and the decoder's buffers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from floc._checks import check_count, is_number, is_positive_int, shorten
from floc.tokens import Frames
from floc.video.choice import ChooseFrames, FrameChoice, VideoFacts
from floc.video.container import PacketReader, find_video_stream, open_container, probe, read_duration, scan_file
from floc.video.decode import FalseKeyframeError, FrameDecoder, FrameSize, make_converter, resolve_size, select_frames
from floc.video.sample import ALL_TARGETS, ROUNDING_S, ListSampler, Sampler, Ticks, compute_step, count_samples

if TYPE_CHECKING:
    import av

    from floc.video.container import Clock, Orientation

FPS_LIMITS = (1e-12, 1e6)
BATCH_BYTES = 1 << 27


def read(
    path: Path | str,
    *,
    fps: float | None = 1.0,
    max_frames: int | None = 7200,
    size: FrameSize | None = None,
    batch: int = 16,
    choose: ChooseFrames | None = None,
) -> Video:
    """Open a video, check that it can be read, and plan the sampling.

    Args:
        path: a video file that holds its frames, such as mp4, mov, mkv, webm, avi or ts, in any codec of ffmpeg.
        fps: frames to sample per second of video. Each sample is the frame on screen at that time, and no frame is
            returned twice. None takes every frame.
        max_frames: maximum number of frames; if there would be more, they are spread evenly over the whole video.
            None for no limit.
        size: maps (width, height) of the upright video, in square pixels, to (width, height) of the frames to return.
        batch: frames in each `Frames`. The last batch may be shorter; all are if they would take more than 128 MiB.
        choose: chooses the frames and their size from the facts of the video, instead of `fps`, `max_frames` and
            `size`; all packets of the file are then read once before, to number the frames.
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
        codec, rotation = stream.codec_context.name, orientation.rotation
    stamps = array("q")
    if choose is not None or duration_s is None or (count is None and (fps is None or fps > clock.rate)):
        scanned_s, stamps = scan_file(path, clock)
        duration_s, count = scanned_s if duration_s is None else duration_s, len(stamps)
    coding: dict[str, Any] = dict(codec=codec, rotation=rotation, _orientation=orientation, _clock=clock)
    length: dict[str, Any] = dict(duration_s=float(duration_s), native_fps=float(clock.rate), _whole_file=whole_file)
    if choose is None:
        step = compute_step(fps, max_frames, duration_s, count)
        width, height = resolve_size(size, source)
        # a frame takes at least a byte of the file, whatever the header states
        planned = min(path.stat().st_size, count_samples(step, max_frames, duration_s, count))
        sampling: dict[str, Any] = dict(fps=fps, max_frames=max_frames, _step_s=step)
    else:
        choice = choose(VideoFacts(len(stamps), float(clock.rate), *source))
        width, height, planned = choice.width, choice.height, len(choice.indices)
        sampling = dict(fps=None, max_frames=None, _step_s=None, _resize=choice.resize, _draw=choice.draw)
        sampling |= dict(_times=_find_times(stamps, choice.indices, clock))
    batch = min(batch, max(1, BATCH_BYTES // (3 * width * height)))
    return Video(
        path, width, height, source[0], source[1], **length, **coding, planned=planned, batch=batch, **sampling
    )


def read_facts(path: Path | str) -> VideoFacts:
    """Count the frames of a video, and find their rate and size, without decoding more than the first frames."""
    facts = []

    def note(found: VideoFacts) -> FrameChoice:
        facts.append(found)
        return FrameChoice(np.zeros(1, np.int64), found.width, found.height)

    read(path, choose=note)
    return facts[0]


def _find_times(stamps: array[int], indices: np.ndarray, clock: Clock) -> list[Ticks]:
    """Return the display times, in ticks, of frames with these numbers."""
    if len(indices) == 0 or not 0 <= indices.min() <= indices.max() < len(stamps) or (np.diff(indices) < 0).any():
        raise ValueError(
            f"chosen frames must be ascending numbers below {len(stamps)}, got {shorten(indices.tolist())}"
        )
    if clock.counts:
        return [int(index) * clock.frame_ticks for index in indices]
    return np.sort(np.frombuffer(stamps, np.int64))[indices].tolist()


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
    _times: Sequence[Ticks] | None = field(default=None, kw_only=True, repr=False)  # of chosen frames
    _resize: Callable[[np.ndarray], np.ndarray] | None = field(default=None, kw_only=True, repr=False)
    _draw: Callable[[np.ndarray, int], np.ndarray] | None = field(default=None, kw_only=True, repr=False)

    def part(self, first: int, stop: int | None = None) -> Video:
        """Return the part of the video with the samples from number `first` to before `stop`, None for the last.

        Adjacent parts return the frames of the whole video, each once. The packets before a part are read but not
        decoded, so a later part takes longer to start.
        """
        if not self.can_split:
            raise ValueError("cannot split a video that is read with fps=None; call read with a number for fps")
        total = self._count_samples()
        is_part = is_number(first) and 0 <= first < total and (stop is None or (is_number(stop) and first < stop))
        if not is_part or first != int(first) or (stop is not None and stop != int(stop)):
            problem = f"{shorten(first)} to {shorten(stop)} are not the numbers of samples of this video"
            raise ValueError(f"{problem}; give 0 <= first < stop, and a first sample below {total}")
        last = total if stop is None else min(total, int(stop))
        # the last part includes any frames after the stated end
        targets = range(int(first), last if last < total else ALL_TARGETS.stop)
        return replace(self, planned=min(self.planned, last - first), _targets=targets, warnings=[], frames=None)

    @property
    def can_split(self) -> bool:
        """Whether `part` can be used: the number of frames is known."""
        return self._step_s is not None or self._times is not None

    def _count_samples(self) -> int:
        if self._times is not None:
            return len(self._times)
        return count_samples(self._step_s, None, Fraction(self.duration_s), None)

    def __iter__(self) -> Iterator[Frames]:
        self.warnings, self.frames = [], None
        count = 0
        is_native = self._resize is not None or self._draw is not None
        size = (self.source_width, self.source_height) if is_native else (self.width, self.height)
        convert = make_converter(self._orientation, *size, self.path)
        first = 0 if self._targets is None else self._targets.start
        shown = None
        for ticks, frame in self._sample():
            place = count % self.batch
            if place == 0:
                pixels = np.empty((self.batch, self.height, self.width, 3), np.uint8)
                times_s = np.empty(self.batch)
            if frame is not shown:  # a chosen frame may be repeated
                shown, image = frame, convert(frame)
                image = image if self._draw is None else self._draw(image, first + count)
                image = image if self._resize is None else self._resize(image)
            pixels[place] = image
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
        sampler: Sampler | ListSampler
        if self._times is not None:
            sampler = ListSampler(self._times[targets.start : targets.stop])
        else:  # in a part, the step already respects max_frames
            sampler = Sampler(step, rounding, self.max_frames if self._targets is None else None, targets)
        with open_container(self.path) as container:
            stream = find_video_stream(container, self.path)
            packets = PacketReader(container, *(() if self._whole_file else (stream,)))
            decoder = FrameDecoder(packets, stream, self._clock, sampler, skipping)
            for ticks, frame in select_frames(decoder, sampler, self._clock):
                # a frame on screen at an earlier target belongs to the part before
                first = targets.start
                if step is None or not first or ticks > (first - 1) * step + (first > 1) * rounding:
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
