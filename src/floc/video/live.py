"""Sources that may not end: a camera, an address, a file that still grows. Frames come one by one, with their times.

A film that is complete is read as `read` does. All others are read once, as they come: nothing is opened twice or
skipped ahead, and whatever was read to find out what is in it is decoded again as its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import numpy as np

from floc._checks import check_choice
from floc.video.container import Upright, check_file, probe, video_stream
from floc.video.read import Run, check_sampling, converter, read, taken, wanted_size
from floc.video.sample import ROUNDING_S, Sampler, Ticks

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

ANSWER_S = 10.0  # how long an address or a device may keep us waiting, to open it and for each packet
PATIENCE_S = 10.0  # how long a file that does not grow any more is waited for
POLL_S = 0.1  # between two looks at a file that grows
# what an address may make ffmpeg open: a playlist from elsewhere has no business with the files here
PROTOCOLS = {
    "rtsp": "rtsp,rtp,tcp,udp,tls",
    "rtsps": "rtsp,rtp,tcp,udp,tls",
    "http": "http,https,httpproxy,tcp,tls,crypto,data",
    "https": "http,https,httpproxy,tcp,tls,crypto,data",
}
FOLLOWED = {"mode": "r", "metadata_errors": "replace", "container_options": {"protocol_whitelist": "file,crypto,data"}}


def kind(source: str) -> Literal["address", "device", "file"]:
    """What is meant by a name.

    >>> kind("rtsp://camera/1"), kind("/dev/video0"), kind("talk.mp4")
    ('address', 'device', 'file')
    """
    if "://" in source:
        return "address"
    if source.startswith("/dev/video") or Path(source).is_char_device():
        return "device"
    return "file"


def public_name(source: str) -> str:
    """The source as it may be shown and noted: addresses of cameras carry passwords.

    >>> public_name("rtsp://admin:secret@10.0.0.7:554/main?token=1"), public_name("talk.mp4")
    ('rtsp://10.0.0.7:554/main', 'talk.mp4')
    """
    if kind(source) != "address":
        return source
    address = urlsplit(source)
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"


def arguments(source: str) -> dict[str, Any]:
    """What `av.open` is called with for a device or an address.

    >>> arguments("/dev/video0")["format"]
    'v4l2'
    """
    given: dict[str, Any] = {"file": source, "mode": "r", "timeout": (ANSWER_S, ANSWER_S), "metadata_errors": "replace"}
    if kind(source) == "device":
        return {**given, "format": "v4l2"}
    scheme = urlsplit(source).scheme.lower()
    check_choice("address", scheme, list(PROTOCOLS))
    options = {"protocol_whitelist": PROTOCOLS[scheme]}
    if scheme.startswith("rtsp"):
        options["rtsp_transport"] = "tcp"  # with UDP, a lost packet is a broken picture until the next keyframe
    return {**given, "container_options": options}


def check(source: str, *, follow: bool) -> None:
    """Refuse what cannot be read, as far as that shows without opening it."""
    what = kind(source)
    if what == "address":
        arguments(source)
    elif what == "device":
        if not Path(source).exists():
            raise FileNotFoundError(f"{source}: no such device; ls /dev/video* shows those there are")
    elif not (follow and Path(source).is_file()):  # one that is to grow may be empty yet
        check_file(Path(source))
    if follow and what != "file":
        raise ValueError(f"{public_name(source)}: --follow is for files; {what}s go on by themselves, leave it out")


def frames(
    source: str,
    *,
    fps: float | None,
    size: Callable[[int, int], tuple[int, int]],
    follow: bool = False,
    patience_s: float = PATIENCE_S,
    stopped: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[np.ndarray, float]]:
    """[height, width, 3] uint8 RGB of each frame, and the seconds from the first at which it is shown.

    Args:
        source: a file, a v4l2 device, or an RTSP or HTTP address.
        fps: frames a second to take, by the source's clock; None takes every frame.
        size: (width, height) of the upright film, in square pixels -> (width, height) of the pictures wanted.
        follow: wait for more where a file ends.
        patience_s: for so long, unless it grows.
        stopped: asked every now and then whether to end.
        warn: called with what went wrong, but is no reason to end, and with why a source ended before its time.
    """
    check_sampling(fps)
    check(source, follow=follow)
    if kind(source) == "file" and not follow:
        film = read(source, fps=fps, max_frames=None, size=size, batch=1)
        for each in film:
            yield each.pixels[0], float(each.times_s[0])
        for warning in film.warnings:
            warn(warning)
        return
    try:
        with _opened(source, patience_s, stopped) as container:
            yield from _as_they_come(_Rewound(container), public_name(source), fps, size, stopped, warn)
    except (OSError, ValueError):
        if not stopped():  # what is too short to be read because nobody waited for the rest is no mistake
            raise


@contextmanager
def _opened(source: str, patience_s: float, stopped: Callable[[], bool]) -> Iterator[InputContainer]:
    try:
        import av
    except ImportError as error:
        raise ImportError("reading video needs PyAV: pip install 'floc-video[video]'") from error

    name = public_name(source)
    with ExitStack() as held:
        given: dict[str, Any]
        if kind(source) == "file":
            growing = _Growing(Path(source), patience_s, stopped)
            held.callback(growing.close)
            given = {**FOLLOWED, "file": growing}
        else:
            given = arguments(source)
        try:
            container = held.enter_context(av.open(**given))
        except av.FFmpegError as error:
            advice = {
                "file": "a file can be followed in a container that is readable while it is written: MPEG-TS, Matroska",
                "device": "look whether another program has it open, and whether it is a camera",
                "address": "look whether the address is right and the camera can be reached from here",
            }[kind(source)]
            raise OSError(f"{name}: cannot be opened ({_in_words(error.strerror)}); {advice}") from None
        yield container


class _Growing:
    """A file in which the end is waited at: until there is more, or for long enough."""

    def __init__(self, path: Path, patience_s: float, stopped: Callable[[], bool]) -> None:
        self._file = path.open("rb", buffering=0)
        self._patience_s, self._stopped = patience_s, stopped
        self._ended = False  # for good: ffmpeg asks more than once

    def read(self, size: int) -> bytes:
        until = time.monotonic() + self._patience_s
        while not self._ended:
            if data := self._file.read(size):
                return data
            self._ended = self._stopped() or time.monotonic() >= until
            if not self._ended:
                time.sleep(POLL_S)
        return b""

    def close(self) -> None:
        self._file.close()


class _Rewound:
    """A container of which packets can be read a second time from the start, where no file can be opened again."""

    def __init__(self, container: InputContainer) -> None:
        self.format, self.streams = container.format, container.streams
        self._container = container
        self._packets: Iterator[Packet] | None = None
        self._read: list[Packet] = []

    def demux(self, *streams: VideoStream) -> Iterator[Packet]:
        if self._packets is None:
            self._packets = self._container.demux(*streams)
            for packet in self._packets:
                self._read.append(packet)
                yield packet
        else:
            before, self._read = self._read, []
            yield from before
            yield from self._packets


def _as_they_come(
    container: Any,
    name: str,
    fps: float | None,
    size: Callable[[int, int], tuple[int, int]],
    stopped: Callable[[], bool],
    warn: Callable[[str], None],
) -> Iterator[tuple[np.ndarray, float]]:
    stream = video_stream(container, name)
    first, clock = probe(container, stream, name)
    stream.codec_context.flush_buffers()
    upright = Upright.of(first)
    convert = converter(upright, *wanted_size(size, upright.size_of(first, stream)))
    step = None if fps is None else 1 / Fraction(fps) / clock.time_base
    sampler = Sampler(step, ROUNDING_S / clock.time_base, None)
    run = Run(container, stream, clock, sampler, skipping=False)

    told = 0

    def tell(at_least: int) -> None:
        nonlocal told
        if run.damaged >= at_least:
            told = run.damaged
            count = "1 frame" if told == 1 else f"{told} frames"
            warn(f"{name}: {count} damaged and skipped so far ({run.damage})")

    def whole() -> Iterator[tuple[Ticks, VideoFrame]]:
        for ticks, frame in run.frames(whole_file=False):
            tell(max(1, 2 * told))  # each doubling: a bad line must not flood the screen
            if not frame.is_corrupt:
                yield ticks, frame
            if stopped():
                return

    for ticks, frame in taken(whole(), sampler, clock):
        yield convert(frame), clock.seconds(ticks)
    tell(told + 1)
    if run.stopped and not stopped():
        warn(f"{name}: ended early ({_in_words(run.stopped)})")


def _in_words(reason: str | None) -> str:
    """Why ffmpeg stopped; a time limit makes it speak of an exit."""
    return f"no answer in {ANSWER_S:g} s" if reason == "Immediate exit requested" else str(reason)
