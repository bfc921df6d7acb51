"""Read frames, one by one, from sources that may not end: a camera, a URL, a file that still grows.

A complete file is read with `floc.video.read`. All other sources are read once, in order: they cannot be reopened or
searched, so the packets read to probe the stream are decoded again as its start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from floc._checks import check_choice
from floc._text import redact_source
from floc.video.boxes import check_samples
from floc.video.container import FORMATS, OPEN_OPTIONS, PacketReader, check_file, find_video_stream, import_av, probe
from floc.video.decode import FrameDecoder, FrameSize, format_frames, make_converter, resolve_size, select_frames
from floc.video.read import check_sampling, read
from floc.video.sample import ROUNDING_S, Sampler, Ticks

if TYPE_CHECKING:
    import av

TIMEOUT_S = 10.0  # to open a URL or a device, and for each packet
PATIENCE_S = 10.0  # to wait for a file to grow
POLL_S = 0.1  # between two checks of a growing file
# Protocols that ffmpeg may open for a URL; no local files, since a remote playlist must not read them.
PROTOCOLS = dict.fromkeys(("rtsp", "rtsps"), "rtsp,rtp,tcp,udp,tls")
PROTOCOLS |= dict.fromkeys(("http", "https"), "http,https,httpproxy,tcp,tls,crypto,data")
OPEN_HINTS = {
    "file": "to follow a file, use a container that is readable while it is written: MPEG-TS or Matroska",
    "device": "check that it is a camera and that no other program has it open",
    "address": "check the address, and that the camera can be reached from this machine",
}
Stopped = Callable[[], bool]  # polled regularly; True stops the reading


def classify_source(source: str) -> Literal["address", "device", "file"]:
    """Return the kind of a source.

    >>> classify_source("rtsp://camera/1"), classify_source("/dev/video0"), classify_source("talk.mp4")
    ('address', 'device', 'file')
    """
    if "://" in source:
        return "address"
    return "device" if source.startswith("/dev/video") or Path(source).is_char_device() else "file"


def build_open_options(source: str) -> dict[str, Any]:
    """Return the arguments of `av.open` for a device or an address.

    >>> build_open_options("/dev/video0")["format"]
    'v4l2'
    """
    options = {**OPEN_OPTIONS, "file": source, "timeout": (TIMEOUT_S, TIMEOUT_S)}
    if classify_source(source) == "device":
        return {**options, "format": "v4l2", "container_options": {}}
    scheme = source.partition("://")[0].lower()
    check_choice("address", scheme, list(PROTOCOLS))
    limits = {"protocol_whitelist": PROTOCOLS[scheme], "format_whitelist": f"{FORMATS},hls,rtsp"}
    # over UDP, a lost packet breaks the picture until the next keyframe
    transport = {"rtsp_transport": "tcp"} if scheme.startswith("rtsp") else {}
    return {**options, "container_options": {**limits, **transport}}


def check_source(source: str, *, follow: bool) -> None:
    """Raise if a source cannot be read, as far as that is known without opening it."""
    kind = classify_source(source)
    if kind == "address":
        build_open_options(source)
    elif kind == "device":
        if not Path(source).exists():
            raise FileNotFoundError(f"{source}: no such device; list the devices with ls /dev/video*")
    elif not (follow and Path(source).is_file()):  # a growing file may still be empty
        check_file(Path(source))
    if follow and kind != "file":
        raise ValueError(f"{redact_source(source)}: --follow is for files; remove it, since this {kind} does not end")


def read_frames(
    source: str,
    *,
    fps: float | None,
    size: FrameSize,
    follow: bool = False,
    patience_s: float = PATIENCE_S,
    stopped: Stopped = lambda: False,
    warn: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[np.ndarray, float]]:
    """Yield frames as [height, width, 3] uint8 RGB, with their seconds from the first frame.

    Args:
        source: a file, a v4l2 device, or an RTSP or HTTP address.
        fps: frames to sample per second, by the source's clock; None takes every frame.
        size: maps (width, height) of the upright video, in square pixels, to (width, height) of the frames to return.
        follow: at the end of a file, wait for more.
        patience_s: with `follow`, stop if the file has not grown for this long.
        stopped: polled regularly; return True to stop.
        warn: called with problems that do not stop the reading, and with the reason if the source ended early.
    """
    check_sampling(fps)
    check_source(source, follow=follow)
    if classify_source(source) == "file" and not follow:
        video = read(source, fps=fps, max_frames=None, size=size, batch=1)
        for frames in video:
            yield frames.pixels[0], float(frames.times_s[0])
        for warning in video.warnings:
            warn(warning)
        return
    try:
        with _open(source, patience_s, stopped) as container:
            yield from _decode(container, redact_source(source), fps, size, stopped, warn)
    except (OSError, ValueError):
        if not stopped():  # a source that was stopped early may be too short to read, which is no error
            raise


@contextmanager
def _open(source: str, patience_s: float, stopped: Stopped) -> Iterator[av.container.InputContainer]:
    av = import_av()
    kind = classify_source(source)
    with ExitStack() as resources:
        options: dict[str, Any] = {**OPEN_OPTIONS} if kind == "file" else build_open_options(source)
        if kind == "file":
            check_samples(Path(source))
            file = resources.enter_context(Path(source).open("rb", buffering=0))
            options["file"] = growing = _GrowingFile(file, patience_s, stopped)
            resources.callback(growing.raise_error)
        try:
            container = resources.enter_context(av.open(**options))
        except av.FFmpegError as error:
            reason = _describe_stop(error.strerror)
            raise OSError(f"{redact_source(source)}: cannot be opened ({reason}); {OPEN_HINTS[kind]}") from None
        yield container


class _GrowingFile:
    """A file whose reads wait at the end for more data."""

    def __init__(self, file: FileIO, patience_s: float, stopped: Stopped) -> None:
        self._file, self._patience_s, self._stopped = file, patience_s, stopped
        self._ended = False  # permanent, since ffmpeg reads again after the end
        self._error: BaseException | None = None

    def read(self, size: int) -> bytes:
        deadline = time.monotonic() + self._patience_s
        try:
            while not self._ended:
                if data := self._file.read(size):
                    return data
                self._ended = self._stopped() or time.monotonic() >= deadline
                if not self._ended:
                    time.sleep(POLL_S)
        except BaseException as error:  # ffmpeg calls this function and would ignore an interrupt
            self._ended, self._error = True, error
        return b""

    def raise_error(self) -> None:
        """Raise the error or interrupt that ended a read."""
        if self._error is not None:
            raise self._error


def _decode(
    container: Any, name: str, fps: float | None, size: FrameSize, stopped: Stopped, warn: Callable[[str], None]
) -> Iterator[tuple[np.ndarray, float]]:
    stream = find_video_stream(container, name)
    packets = PacketReader(container, stream)
    first, orientation, clock = probe(container, packets, stream, name)
    stream.codec_context.flush_buffers()
    width, height = resolve_size(size, orientation.display_size(first, stream))
    convert = make_converter(orientation, width, height, name)
    step = None if fps is None else 1 / Fraction(float(fps)) / clock.time_base
    sampler = Sampler(step, ROUNDING_S / clock.time_base, None)
    decoder = FrameDecoder(packets, stream, clock, sampler, skipping=False)
    reported = 0  # damaged frames that were warned about

    def report_damage(minimum: int) -> None:
        nonlocal reported
        if decoder.damaged >= minimum:
            reported = decoder.damaged
            warn(f"{name}: {format_frames(reported)} damaged and skipped so far ({decoder.damage})")

    def intact_frames() -> Iterator[tuple[Ticks, av.VideoFrame]]:
        for ticks, frame in decoder:
            report_damage(max(1, 2 * reported))  # only when the count doubles, to limit the output
            if not frame.is_corrupt:
                yield ticks, frame
            if stopped():
                return

    for ticks, frame in select_frames(intact_frames(), sampler, clock):
        yield convert(frame), clock.seconds(ticks)
    report_damage(reported + 1)
    if decoder.stop_reason and not stopped():
        warn(f"{name}: ended early ({_describe_stop(decoder.stop_reason)})")


def _describe_stop(reason: str | None) -> str:
    """Return why ffmpeg stopped; after a timeout, ffmpeg's own text is misleading."""
    return f"no answer in {TIMEOUT_S:g} s" if reason == "Immediate exit requested" else str(reason)
