"""Open a video file and read its metadata: stream, clock, orientation and duration."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from floc.video.sample import Ticks

if TYPE_CHECKING:
    import av
    from av.container import InputContainer

# Frames to check for ordered timestamps: codecs reorder frames by at most 16 positions.
PROBED_FRAMES = 16
# Codecs whose B-frames have no usable timestamps in AVI, which stores none.
REORDERING_CODECS = ("h264", "hevc", "vvc")
# Arguments of `av.open`: a playlist must not open anything but files, and tags in an unknown encoding are no error.
OPEN_OPTIONS = {"metadata_errors": "replace", "container_options": {"protocol_whitelist": "file,crypto,data"}}
# Decoders that render text files as images.
TEXT_CODECS = ("ansi", "bintext", "idf", "xbin")


@dataclass(frozen=True)
class Clock:
    """Converts timestamps to display times, in ticks from the first frame."""

    time_base: Fraction  # seconds per tick
    rate: Fraction  # average frames per second
    origin: int  # timestamp of the first frame
    counts: bool  # timestamps are missing or out of order: a frame's time is its number / rate

    @property
    def frame_ticks(self) -> Fraction:
        return 1 / (self.rate * self.time_base)

    def time(self, frame: av.VideoFrame, number: int, previous: Ticks) -> Ticks:
        """Return the display time of frame `number`, which follows a frame shown at `previous`."""
        if self.counts:
            return number * self.frame_ticks
        if frame.pts is None or frame.pts - self.origin <= previous:
            return previous + self.frame_ticks  # a timestamp is missing, or the clock was set back
        return frame.pts - self.origin

    def seconds(self, ticks: Ticks) -> float:
        return float(ticks * self.time_base)


@dataclass(frozen=True)
class Orientation:
    """Turns a stored image upright: optionally swap rows and columns, then reverse either axis."""

    swaps: bool = False
    mirrors_x: bool = False
    mirrors_y: bool = False

    @classmethod
    def from_frame(cls, frame: av.VideoFrame) -> Orientation:
        matrix: Any = frame.side_data.get("DISPLAYMATRIX")
        if matrix is None:
            return cls()
        # a stored (x, y) is shown at (a x + c y, b x + d y)
        a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].tolist()
        swaps = abs(b) > abs(a)
        x, y = (c, b) if swaps else (a, d)
        return cls(swaps, x < 0, y < 0)

    def swap_size(self, width: int, height: int) -> tuple[int, int]:
        """Convert a stored size to the displayed size, or back."""
        return (height, width) if self.swaps else (width, height)

    def display_size(self, frame: av.VideoFrame, stream: av.VideoStream) -> tuple[int, int]:
        """Return the displayed (width, height) in square pixels."""
        # the sample aspect ratio is the width of a stored pixel, before rotation
        return self.swap_size(max(1, round(frame.width * (stream.sample_aspect_ratio or 1))), frame.height)

    def apply(self, pixels: np.ndarray) -> np.ndarray:
        """Turn stored pixels [h, w, 3] upright."""
        pixels = pixels.swapaxes(0, 1) if self.swaps else pixels
        pixels = pixels[:, ::-1] if self.mirrors_x else pixels
        return pixels[::-1] if self.mirrors_y else pixels


def check_file(path: Path) -> None:
    """Raise if `path` is not a readable, non-empty regular file, before ffmpeg opens it."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(f"{path}: this is a folder; give a video file in it")
    if not path.is_file():
        raise ValueError(f"{path}: not a regular file; save the video to one first, since it is read more than once")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty; copy or download it again")


def import_av() -> Any:
    """Import PyAV, or raise ImportError with the install command."""
    try:
        import av
    except ImportError as error:
        raise ImportError("reading video needs PyAV: pip install 'floc-video[video]'") from error
    return av


@contextmanager
def open_container(path: Path) -> Iterator[InputContainer]:
    """Check a video file, open it with ffmpeg, and close it on exit."""
    check_file(path)
    av = import_av()
    try:
        container = av.open(f"file:{path}", **OPEN_OPTIONS)  # without the prefix, a name may select a protocol
    except PermissionError:
        raise PermissionError(f"{path}: no permission to read this file") from None
    except av.FFmpegError as error:
        _check_moov(path)
        raise ValueError(f"{path}: not a video that ffmpeg can read ({error.strerror}); give a video file") from None
    with container:
        yield container


def _check_moov(path: Path) -> None:
    """Raise ValueError if an mp4 file has no complete index (moov box)."""
    with path.open("rb") as file:
        offset, end = 0, path.stat().st_size
        if file.read(8)[4:] != b"ftyp":
            return
        while offset + 8 <= end:
            file.seek(offset)
            header = file.read(16)
            size = int.from_bytes(header[:4], "big")
            if size == 1:  # a 64-bit size follows the box name
                size = int.from_bytes(header[8:], "big")
            if header[4:8] == b"moov" and offset + size <= end:
                return
            if size < 8:  # 0: the box extends to the end of the file
                break
            offset += size
    raise ValueError(
        f"{path}: this mp4 is cut off or its recording was never finished: its index (moov) is missing, and it cannot "
        "be read without one; copy the file again"
    )


def find_video_stream(container: InputContainer, name: Path | str) -> av.VideoStream:
    """Return the best video stream that is not a cover picture. Errors start with `name`, a file or another source."""
    from av.stream import Disposition

    cover = Disposition.attached_pic | Disposition.timed_thumbnails
    streams = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not streams:
        if isinstance(name, Path):
            _check_moov(name)
        kinds = ["cover picture" if stream.type == "video" else str(stream.type) for stream in container.streams]
        raise ValueError(f"{name}: there is no video in it, only {', '.join(kinds) or 'nothing'}; give a video file")
    best = container.streams.best("video")
    stream = best if best in streams else streams[0]
    if stream.codec_context is None:
        raise ValueError(f"{name}: this build of ffmpeg has no decoder for its video; convert it to h264 first")
    if stream.codec_context.name in TEXT_CODECS:
        raise ValueError(f"{name}: this is a text file; give a video file")
    stream.thread_type = "AUTO"
    return stream


def read_packets(container: InputContainer, *streams: av.VideoStream) -> Generator[av.Packet, None, str]:
    """Yield the non-empty packets of `streams`, by default all; return the reason if ffmpeg stopped early, or ""."""
    import av

    try:
        yield from (packet for packet in container.demux(*streams) if packet.size)
    except av.FFmpegError as error:
        return error.strerror or str(error)
    return ""


def probe(container: InputContainer, stream: av.VideoStream, name: Path | str) -> tuple[av.VideoFrame, Clock]:
    """Decode the first frames, and return the first one and the clock that fits their timestamps."""
    import av

    first: av.VideoFrame | None = None
    stamps: list[int | None] = []
    reason: str | None = "there is no frame in it"
    for packet in chain(read_packets(container, stream), [None]):  # None returns the decoder's last frames
        try:
            for frame in stream.codec_context.decode(packet):
                first = first or frame
                stamps.append(frame.pts)
        except av.FFmpegError as error:
            reason = error.strerror
        if len(stamps) >= PROBED_FRAMES:
            break
    if first is None:
        raise ValueError(f"{name}: its {stream.codec_context.name} video cannot be decoded ({reason}); copy it again")
    present = [stamp for stamp in stamps if stamp is not None]
    ordered = len(present) == len(stamps) and all(stamp < following for stamp, following in pairwise(present))
    if container.format.name == "avi" and stream.codec_context.name in REORDERING_CODECS:
        ordered = ordered and not stream.codec_context.has_b_frames
    # without timestamps, the average rate is only the demuxer's default, while the codec may know the real one
    rates = (stream.average_rate, stream.guessed_rate) if ordered else (stream.guessed_rate, stream.average_rate)
    rate = rates[0] or rates[1] or Fraction(25)  # ffmpeg's own default
    return first, Clock(stream.time_base or 1 / rate, rate, present[0] if ordered else 0, counts=not ordered)


def read_duration(container: InputContainer, stream: av.VideoStream, clock: Clock) -> tuple[Fraction | None, bool]:
    """Return the stated duration from the first frame in seconds, and whether it is that of the longest stream."""
    import av

    whole_file = False
    if stream.duration:
        end_s = ((stream.start_time or 0) + stream.duration) * clock.time_base
    elif (tag_s := _parse_duration_tag(stream.metadata)) is not None:
        end_s = tag_s
    elif container.duration:
        end_s, whole_file = Fraction((container.start_time or 0) + container.duration, av.time_base), True
    else:
        return None, False
    duration_s = end_s - clock.origin * clock.time_base
    if container.format.name == "avi":
        # ffmpeg reduces the duration of a file that is cut off, but the header still has the original frame count
        duration_s = max(duration_s, stream.frames / clock.rate)
    return (duration_s, whole_file) if duration_s > 0 else (None, False)


def _parse_duration_tag(metadata: dict[str, str]) -> Fraction | None:
    """Return the end of a Matroska stream in seconds, from its tags.

    >>> _parse_duration_tag({"DURATION": "00:01:02.500000000"}), _parse_duration_tag({"DURATION": "soon"})
    (Fraction(125, 2), None)
    """
    tag = next((metadata[key] for key in metadata if key.startswith("DURATION")), "")
    try:
        hours, minutes, seconds = tag.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + Fraction(seconds)
    except ValueError:
        return None


def scan_file(path: Path, clock: Clock) -> tuple[Fraction, int]:
    """Return a video's seconds and frame count by reading all packets without decoding them."""
    count, end = 0, clock.origin
    with open_container(path) as container:
        for packet in read_packets(container, find_video_stream(container, path)):
            count += 1
            if packet.pts is not None:
                end = max(end, packet.pts + (packet.duration or 0))
    stamped_s = (end - clock.origin) * clock.time_base
    return stamped_s if stamped_s > 0 and not clock.counts else count / clock.rate, count
