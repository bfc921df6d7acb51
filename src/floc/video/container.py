"""What a file says of the film in it: where the video is, its clock, which way up it is, how long it lasts."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from floc.video.sample import Ticks

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

# how many frames tell whether timestamps are in order: reordered frames are at most 16 apart
PROBED_FRAMES = 16
# codecs whose B-frames have no usable timestamps in AVI, which stores none
REORDERING_CODECS = ("h264", "hevc", "vvc")
# decoders that draw text files as pictures
TEXT_CODECS = ("ansi", "bintext", "idf", "xbin")


@dataclass(frozen=True)
class Clock:
    """When frames are shown, in ticks from the first."""

    time_base: Fraction  # seconds in a tick
    rate: Fraction  # frames a second, on average
    origin: int  # timestamp of the first frame
    counts: bool  # whether timestamps are missing or out of order, so that frames are counted instead

    @property
    def frame_ticks(self) -> Fraction:
        return 1 / (self.rate * self.time_base)

    def time(self, frame: VideoFrame, number: int, previous: Ticks) -> Ticks:
        """When a frame is shown that is the `number`-th and comes after one shown at `previous`."""
        if self.counts:
            return number * self.frame_ticks
        if frame.pts is None or frame.pts - self.origin <= previous:
            return previous + self.frame_ticks  # one stamp is missing, or the clock was set back
        return frame.pts - self.origin

    def seconds(self, ticks: Ticks) -> float:
        return float(ticks * self.time_base)


@dataclass(frozen=True)
class Upright:
    """How a stored picture becomes the one to look at: rows and columns swapped, then either order reversed."""

    swaps: bool
    mirrors_x: bool
    mirrors_y: bool
    rotation: int  # the clockwise turn in it: 0, 90, 180 or 270

    @classmethod
    def of(cls, frame: VideoFrame) -> Upright:
        matrix: Any = frame.side_data.get("DISPLAYMATRIX")
        if matrix is None:
            return cls(False, False, False, 0)
        # a stored (x, y) is shown at (a x + c y, b x + d y)
        a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].tolist()
        swaps = abs(b) > abs(a)
        x, y = (c, b) if swaps else (a, d)
        return cls(swaps, x < 0, y < 0, round(-frame.rotation / 90) % 4 * 90)

    def turned(self, width: int, height: int) -> tuple[int, int]:
        """A stored size as it is shown, or a shown size as it is stored."""
        return (height, width) if self.swaps else (width, height)

    def size_of(self, frame: VideoFrame, stream: VideoStream) -> tuple[int, int]:
        """Width and height of the film as it is shown, in square pixels."""
        # a pixel is as wide as the sample aspect ratio says, before the picture is turned
        return self.turned(max(1, round(frame.width * (stream.sample_aspect_ratio or 1))), frame.height)

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        pixels = pixels.swapaxes(0, 1) if self.swaps else pixels
        pixels = pixels[:, ::-1] if self.mirrors_x else pixels
        return pixels[::-1] if self.mirrors_y else pixels


def check_file(path: Path) -> None:
    """Refuse what cannot be a film before ffmpeg looks at it."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(f"{path}: this is a folder; give a video file in it")
    if not path.is_file():
        raise ValueError(f"{path}: not a regular file; save the video to one first, since it is read more than once")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty; copy or download it again")


@contextmanager
def opened(path: Path) -> Iterator[InputContainer]:
    """The container, closed on leaving. PyAV keeps ffmpeg's own log silent, unless someone has turned it on."""
    try:
        import av
    except ImportError as error:
        raise ImportError("reading video needs PyAV: pip install 'floc-video[video]'") from error

    try:
        # the prefix and the list keep a name or a playlist from making ffmpeg open anything but files; and tags in an
        # odd encoding are no reason to refuse a film
        options = {"protocol_whitelist": "file,crypto,data"}
        container = av.open(f"file:{path}", "r", container_options=options, metadata_errors="replace")
    except PermissionError:
        raise PermissionError(f"{path}: no permission to read this file") from None
    except av.FFmpegError as error:
        _check_moov(path)
        raise ValueError(f"{path}: not a video that ffmpeg can read ({error.strerror}); give a video file") from None
    with container:
        yield container


def _check_moov(path: Path) -> None:
    """Say of an mp4 that cannot be read whether that is for want of its index."""
    with path.open("rb") as file:
        place, end = 0, path.stat().st_size
        if file.read(8)[4:] != b"ftyp":
            return
        while place + 8 <= end:
            file.seek(place)
            header = file.read(16)
            size = int.from_bytes(header[:4], "big")
            if size == 1:  # the true one follows the name
                size = int.from_bytes(header[8:], "big")
            if header[4:8] == b"moov" and place + size <= end:
                return
            if size < 8:  # 0: up to the end of the file
                break
            place += size
    raise ValueError(
        f"{path}: this mp4 is cut off or its recording was never finished: the index (moov) without which it cannot be "
        "read is missing; copy it again from where it came"
    )


def video_stream(container: InputContainer, path: Path | str) -> VideoStream:
    """The film in a container: its best video that is not a cover picture."""
    from av.stream import Disposition

    cover = Disposition.attached_pic | Disposition.timed_thumbnails
    films = [each for each in container.streams.video if not each.disposition & cover]
    if not films:
        if isinstance(path, Path):  # else it is no file, but the name of another source
            _check_moov(path)
        kinds = ["cover picture" if each.type == "video" else str(each.type) for each in container.streams]
        raise ValueError(f"{path}: there is no video in it, only {', '.join(kinds) or 'nothing'}; give a video file")
    best = container.streams.best("video")
    stream = next((each for each in films if each is best), films[0])
    if stream.codec_context is None:
        raise ValueError(f"{path}: this build of ffmpeg has no decoder for its video; convert it to h264 first")
    if stream.codec_context.name in TEXT_CODECS:
        raise ValueError(f"{path}: this is a text file; give a video file")
    stream.thread_type = "AUTO"
    return stream


def demuxed(container: InputContainer, *streams: VideoStream) -> Generator[Packet, None, str]:
    """The packets of these streams, or of all, that have something in them; at the end why they stopped, if early."""
    import av

    packets: Iterator[Packet] = container.demux(*streams)
    try:
        for packet in packets:
            if packet.size:
                yield packet
    except av.FFmpegError as error:
        return error.strerror or str(error)
    return ""


def probe(container: InputContainer, stream: VideoStream, path: Path | str) -> tuple[VideoFrame, Clock]:
    """The first frame, and the clock that the first few agree with."""
    import av

    frames: list[VideoFrame] = []
    stamps: list[int | None] = []
    reason: str | None = "there is no frame in it"

    def decode(packet: Packet | None) -> None:
        nonlocal reason
        try:
            decoded = stream.codec_context.decode(packet)
        except av.FFmpegError as error:
            reason = error.strerror
        else:
            frames.extend(decoded[: 1 - len(frames)])
            stamps.extend(frame.pts for frame in decoded)

    for packet in demuxed(container, stream):
        decode(packet)
        if len(stamps) >= PROBED_FRAMES:
            break
    else:
        decode(None)
    if not frames:
        raise ValueError(f"{path}: its {stream.codec_context.name} video cannot be decoded ({reason}); copy it again")
    known = [stamp for stamp in stamps if stamp is not None]
    ordered = len(known) == len(stamps) and all(one < next_one for one, next_one in pairwise(known))
    if container.format.name == "avi" and stream.codec_context.name in REORDERING_CODECS:
        ordered = ordered and not stream.codec_context.has_b_frames
    # the average of a film without timestamps is the demuxer's default, while the codec may know the rate
    rates = (stream.average_rate, stream.guessed_rate) if ordered else (stream.guessed_rate, stream.average_rate)
    rate = rates[0] or rates[1] or Fraction(25)  # ffmpeg, too, takes 25 where nothing is said
    return frames[0], Clock(stream.time_base or 1 / rate, rate, known[0] if ordered else 0, counts=not ordered)


def stated_duration(container: InputContainer, stream: VideoStream, clock: Clock) -> tuple[Fraction | None, bool]:
    """Seconds from the first frame to the end as the container says, and whether that is the end of any stream."""
    import av

    whole_file = False
    if stream.duration:
        end_s = ((stream.start_time or 0) + stream.duration) * clock.time_base
    elif (tagged_s := _tagged_end(stream.metadata)) is not None:
        end_s = tagged_s
    elif container.duration:
        end_s, whole_file = Fraction((container.start_time or 0) + container.duration, av.time_base), True
    else:
        return None, False
    duration_s = end_s - clock.origin * clock.time_base
    if container.format.name == "avi":
        # ffmpeg shortens the duration of one that is cut off, but its header still says how many frames there were
        duration_s = max(duration_s, stream.frames / clock.rate)
    return (duration_s, whole_file) if duration_s > 0 else (None, False)


def _tagged_end(metadata: dict[str, str]) -> Fraction | None:
    """When a Matroska stream ends, from its tag.

    >>> _tagged_end({"DURATION": "00:01:02.500000000"}), _tagged_end({"DURATION": "soon"}), _tagged_end({})
    (Fraction(125, 2), None, None)
    """
    tag = next((metadata[key] for key in metadata if key.startswith("DURATION")), "")
    try:
        hours, minutes, seconds = tag.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + Fraction(seconds)
    except ValueError:
        return None


def scan(path: Path, clock: Clock) -> tuple[Fraction, int]:
    """How many seconds and frames a film has, from reading its packets without decoding them."""
    count, end = 0, clock.origin
    with opened(path) as container:
        for packet in demuxed(container, video_stream(container, path)):
            count += 1
            if packet.pts is not None:
                end = max(end, packet.pts + (packet.duration or 0))
    stamped_s = (end - clock.origin) * clock.time_base
    return stamped_s if stamped_s > 0 and not clock.counts else count / clock.rate, count
