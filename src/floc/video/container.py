"""Open a video file and read its metadata: stream, clock, orientation and duration."""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from floc._text import redact_source
from floc.video.boxes import check_index, check_samples
from floc.video.limits import THREADED_BYTES, LimitedDecoder, LimitError, count_bytes
from floc.video.sample import Ticks

if TYPE_CHECKING:
    import av
    from av.container import InputContainer

# Frames to check for ordered timestamps: codecs reorder frames by at most 16 positions.
PROBED_FRAMES = 16
PROBED_BYTES = 64 << 20  # to find them
# Codecs whose B-frames have no usable timestamps in AVI, which stores none.
REORDERING_CODECS = ("h264", "hevc", "vvc")
# Limits on what a file may state; values outside them are errors or attacks.
MAX_PIXELS = 1 << 25  # of a frame: 8K
MAX_PICTURE_PIXELS = 1 << 26  # of a picture, which is decoded alone
MAX_SECONDS = 10**7  # of a video: four months
RATES = (Fraction(1, 10**6), 10**6)  # frames per second
ASPECTS = (Fraction(1, 16), 16)  # width of a pixel in units of its height
# Formats that ffmpeg may read. All of them hold the video itself; playlists and lists of files would open other files.
# Sound and subtitles are here for the error message.
FORMATS = (
    "mov,matroska,avi,mpegts,mpeg,flv,asf,ogg,mxf,gxf,wtv,dv,rm,nut,ivf,obu,h264,hevc,vvc,m4v,mpegvideo,mjpeg,mpjpeg,"
    "yuv4mpegpipe,gif,apng,png_pipe,jpeg_pipe,webp_pipe,bmp_pipe,tiff_pipe,ppm_pipe,pgm_pipe,jpegxl_pipe,"
    "mp3,flac,wav,aac,srt"
)
# Arguments of `av.open`; tags in an unknown encoding are no error.
OPEN_OPTIONS: dict[str, Any] = {"metadata_errors": "replace", "options": {"max_pixels": str(MAX_PICTURE_PIXELS)}}
OPEN_OPTIONS["container_options"] = {"protocol_whitelist": "file", "format_whitelist": FORMATS}


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
        shown = None if frame.pts is None else frame.pts - self.origin
        if shown is None or shown <= previous or shown * self.time_base > MAX_SECONDS:
            return previous + self.frame_ticks  # the timestamp is missing or absurd, or the clock was set back
        return shown

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
        try:
            matrix: Any = frame.side_data.get("DISPLAYMATRIX")
        except ValueError:  # PyAV does not know a kind of side data, such as EXIF
            turns = round(frame.rotation / 90) % 4  # counterclockwise
            return cls(turns % 2 == 1, mirrors_x=turns >= 2, mirrors_y=turns in (1, 2))
        if matrix is None:
            return cls()
        # a stored (x, y) is shown at (a x + c y, b x + d y)
        a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].tolist()
        swaps = abs(b) > abs(a)
        x, y = (c, b) if swaps else (a, d)
        return cls(swaps, x < 0, y < 0)

    @property
    def rotation(self) -> int:
        """Degrees clockwise, before a mirrored image is mirrored."""
        return (270 if self.mirrors_y else 90) if self.swaps else (180 if self.mirrors_x else 0)

    def swap_size(self, width: int, height: int) -> tuple[int, int]:
        """Convert a stored size to the displayed size, or back."""
        return (height, width) if self.swaps else (width, height)

    def display_size(self, frame: av.VideoFrame, stream: av.VideoStream) -> tuple[int, int]:
        """Return the displayed (width, height) in square pixels."""
        # the sample aspect ratio is the width of a stored pixel, before rotation
        aspect = _find_within(ASPECTS, stream.sample_aspect_ratio) or 1
        return self.swap_size(max(1, round(frame.width * aspect)), frame.height)

    def apply(self, pixels: np.ndarray) -> np.ndarray:
        """Turn stored pixels [h, w, 3] upright."""
        pixels = pixels.swapaxes(0, 1) if self.swaps else pixels
        pixels = pixels[:, ::-1] if self.mirrors_x else pixels
        return pixels[::-1] if self.mirrors_y else pixels


def _find_within(limits: tuple[Fraction, int], *values: Fraction | None) -> Fraction | None:
    """Return the first value that is within limits, or None."""
    return next((value for value in values if value is not None and limits[0] <= value <= limits[1]), None)


def check_file(path: Path) -> None:
    """Raise if `path` is not a readable, non-empty regular file, before ffmpeg opens it."""
    if not path.exists():
        # the Path of an address has only one slash after the scheme
        name = redact_source(re.sub(r"^([a-zA-Z]\w+):/", r"\1://", str(path)))
        raise FileNotFoundError(f"{name}: no such file")
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
        check_samples(path)
        container = av.open(f"file:{path}", **OPEN_OPTIONS)  # without the prefix, a name may select a protocol
    except PermissionError:
        raise PermissionError(f"{path}: no permission to read this file") from None
    except av.ArgumentError:  # not in FORMATS
        problem = "not a video file that floc reads; playlists and other files that refer to files are not read"
        raise ValueError(f"{path}: {problem}; give the video itself, such as an mp4, mkv or avi file") from None
    except av.FFmpegError as error:
        check_index(path)
        raise ValueError(f"{path}: not a video that ffmpeg can read ({error.strerror}); give a video file") from None
    with container:
        yield container


def find_video_stream(container: InputContainer, name: Path | str) -> av.VideoStream:
    """Return the best video stream that is not a cover picture. Errors start with `name`, a file or another source."""
    from av.stream import Disposition

    cover = Disposition.attached_pic | Disposition.timed_thumbnails
    streams = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not streams:
        if isinstance(name, Path):
            check_index(name)
        kinds = dict.fromkeys("cover picture" if part.type == "video" else part.type for part in container.streams)
        raise ValueError(f"{name}: there is no video in it, only {', '.join(kinds) or 'nothing'}; give a video file")
    best = container.streams.best("video")
    stream = best if best in streams else streams[0]
    if stream.codec_context is None:
        raise ValueError(f"{name}: this build of ffmpeg has no decoder for its video; convert it to h264 first")
    limit_size(stream, name, MAX_PIXELS)
    return stream


def limit_size(stream: av.VideoStream, name: Path | str, max_pixels: int) -> None:
    """Raise ValueError if the frames have more pixels; let the decoder refuse them if the header was wrong."""
    width, height = stream.codec_context.width, stream.codec_context.height
    if width * height > max_pixels:
        problem = f"frames of {width} x {height} pixels are too large; the limit is {max_pixels:,} pixels"
        raise ValueError(f"{name}: {problem}; make them smaller first")
    stream.codec_context.options = {"max_pixels": str(max_pixels)}
    frame_bytes = count_bytes(width, height, stream.codec_context.format)
    stream.thread_type = "AUTO" if frame_bytes <= THREADED_BYTES else "SLICE"


def describe_error(error: av.FFmpegError) -> str:
    """Return why ffmpeg could not decode; for a frame above the limit of pixels it says only "Invalid argument"."""
    text = error.strerror or "unknown error"
    return "the frames are damaged or too large" if text == "Invalid argument" else text


class PacketReader:
    """Iterates over the non-empty packets of some streams of a container, by default all."""

    def __init__(self, container: InputContainer, *streams: av.VideoStream) -> None:
        self._packets = container.demux(*streams)
        self._held: deque[av.Packet] = deque()
        self.stop_reason = ""  # why ffmpeg stopped before the end

    def __iter__(self) -> Iterator[av.Packet]:
        while self._held:
            yield self._held.popleft()
        yield from self._read()

    def peek(self) -> Iterator[av.Packet]:
        """Yield packets that a later iteration returns again: a live source cannot be read twice."""
        for packet in self._read():
            self._held.append(packet)
            yield packet

    def _read(self) -> Iterator[av.Packet]:
        import av

        try:
            for packet in self._packets:
                if packet.size:
                    yield packet
        except av.FFmpegError as error:
            self.stop_reason = error.strerror or "unknown error"


def probe(
    container: InputContainer, packets: PacketReader, stream: av.VideoStream, name: Path | str
) -> tuple[av.VideoFrame, Orientation, Clock]:
    """Decode the first frames; return the first one, its orientation, and the clock that fits their timestamps."""
    import av

    first: av.VideoFrame | None = None
    stamps: list[int | None] = []
    reason, probed_bytes = "there is no frame in it", 0
    decoder = LimitedDecoder(stream)
    for packet in chain(packets.peek(), [None]):  # None returns the decoder's last frames
        try:
            for frame in decoder.decode(packet):
                first = first or frame
                stamps.append(frame.pts)
        except LimitError as error:
            if first is None:
                raise ValueError(f"{name}: {error}; make them smaller first") from None
            break
        except av.FFmpegError as error:
            reason = describe_error(error)
        probed_bytes += packet.size if packet else 0
        if len(stamps) >= PROBED_FRAMES or probed_bytes > PROBED_BYTES:
            break
    if first is None:
        raise ValueError(f"{name}: its {stream.codec_context.name} video cannot be decoded ({reason}); copy it again")
    present = [stamp for stamp in stamps if stamp is not None]
    ordered = len(present) == len(stamps) and all(stamp < following for stamp, following in pairwise(present))
    if container.format.name == "avi" and stream.codec_context.name in REORDERING_CODECS:
        ordered = ordered and not stream.codec_context.has_b_frames
    # without timestamps, the average rate is only the demuxer's default, while the codec may know the real one
    rates = (stream.average_rate, stream.guessed_rate) if ordered else (stream.guessed_rate, stream.average_rate)
    rate = _find_within(RATES, *rates) or Fraction(25)  # ffmpeg's own default
    clock = Clock(1 / rate, rate, 0, counts=True)
    if stream.time_base and 0 < stream.time_base <= MAX_SECONDS:
        clock = Clock(stream.time_base, rate, present[0] if ordered else 0, counts=not ordered)
    return first, Orientation.from_frame(first), clock


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
    return (duration_s, whole_file) if 0 < duration_s <= MAX_SECONDS else (None, False)


def _parse_duration_tag(metadata: dict[str, str]) -> Fraction | None:
    """Return the end of a Matroska stream in seconds, from its tags.

    >>> _parse_duration_tag({"DURATION": "00:01:02.500000000"}), _parse_duration_tag({"DURATION": "soon"})
    (Fraction(125, 2), None)
    """
    tag = next((metadata[key] for key in metadata if key.startswith("DURATION")), "")
    match = re.fullmatch(r"(\d{1,4}):(\d{1,2}):(\d{1,2}(?:\.\d{1,9})?)", tag, re.ASCII)
    return match and int(match[1]) * 3600 + int(match[2]) * 60 + Fraction(match[3])


def scan_file(path: Path, clock: Clock) -> tuple[Fraction, array[int]]:
    """Read all packets without decoding them; return a video's seconds, and when each frame is shown, in ticks."""
    count, end = 0, clock.origin
    stamps = array("q")
    with open_container(path) as container:
        for packet in PacketReader(container, find_video_stream(container, path)):
            count += 1
            if packet.pts is not None:
                end = max(end, packet.pts + (packet.duration or 0))
                if packet.pts >= clock.origin and not packet.is_discard:
                    stamps.append(packet.pts - clock.origin)
    stamped_s = (end - clock.origin) * clock.time_base
    if clock.counts or not 0 < stamped_s <= MAX_SECONDS:
        return max(1, count) / clock.rate, array("q", range(count))
    return stamped_s, stamps
