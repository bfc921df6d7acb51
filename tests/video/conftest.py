"""Test videos whose frames show their own number, so that a frame is identified by its pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from floc.tokens import Frames

BITS = 4  # per row and column: a 4 x 4 board of black and white squares encodes 16 bits


def picture(number: int, width: int, height: int) -> np.ndarray:
    """Draw a number as a board, [height, width, 3] uint8. The noise keeps packets from being tiny."""
    rows, columns = np.arange(height) * BITS // height, np.arange(width) * BITS // width
    board = number >> (rows[:, None] * BITS + columns) & 1
    noise = np.random.default_rng(number).integers(0, 40, (height, width))
    return np.repeat((board * 215 + noise)[..., None], 3, 2).astype(np.uint8)


def number_on(pixels: np.ndarray) -> int:
    """Read the number drawn by `picture` from the middle of each square.

    >>> number_on(picture(40503, 271, 639))
    40503
    """
    height, width = pixels.shape[:2]
    middles = (np.arange(BITS) * 2 + 1) / (2 * BITS)
    squares = pixels[(middles * height).astype(int)][:, (middles * width).astype(int)].mean(-1) > 127
    return int((squares.ravel() << np.arange(BITS * BITS)).sum())


def make_film(
    path: Path,
    frames: int = 60,
    *,
    rate: Fraction | int = 10,
    codec: str = "libx264",
    size: tuple[int, int] = (64, 48),
    pixels: str = "yuv420p",
    stamps: Iterable[int] | None = None,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
    rotation: int = 0,
    mirrored: bool = False,
    aspect: Fraction | None = None,
    first: int = 0,
) -> Path:
    """Encode a video of frames numbered from `first`; `stamps` are their times in units of 1 / rate."""
    import av

    with av.open(path, "w", container_options=container or {}) as output:
        quick = {"preset": "veryfast"} if codec == "libx264" else {}
        stream = output.add_stream(codec, rate=rate, options={**quick, **(options or {})})
        stream.width, stream.height, stream.pix_fmt = *size, pixels
        if stamps is not None:
            stream.codec_context.time_base = 1 / Fraction(rate)
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        if rotation or mirrored:
            stream.set_display_rotation(rotation, hflip=mirrored)
        for i, stamp in enumerate(range(frames) if stamps is None else stamps):
            frame = av.VideoFrame.from_ndarray(_stored(first + i, size, rotation, mirrored), "rgb24")
            frame.pts = stamp
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def _stored(number: int, size: tuple[int, int], rotation: int, mirrored: bool) -> np.ndarray:
    """Draw a picture that is upright after rotating `rotation` degrees counterclockwise and then mirroring."""
    shown = picture(number, *(size if rotation % 180 == 0 else size[::-1]))
    shown = shown[:, ::-1] if mirrored else shown
    return np.ascontiguousarray(np.rot90(shown, -rotation // 90))


def list_times(video: Iterable[Frames]) -> list[float]:
    return [float(time_s) for frames in video for time_s in frames.times_s]


@pytest.fixture
def decoded_packets(monkeypatch: pytest.MonkeyPatch) -> list:
    """The packets that any decoder receives from now on."""
    from floc.video.decode import FrameDecoder

    decode, packets = FrameDecoder._decode, []

    def record(decoder, packet):
        packets.append(packet)
        return decode(decoder, packet)

    monkeypatch.setattr(FrameDecoder, "_decode", record)
    return packets


@pytest.fixture(scope="session")
def film_in() -> Callable[..., Path]:
    return make_film


@pytest.fixture
def film(tmp_path: Path) -> Callable[..., Path]:
    return lambda name, *arguments, **options: make_film(tmp_path / name, *arguments, **options)


@pytest.fixture(scope="session")
def numbers() -> Callable[[Iterable], list[int]]:
    """Return a function that reads the numbers of all frames of a video."""
    return lambda video: [number_on(pixels) for frames in video for pixels in frames.pixels]


@pytest.fixture
def film_with_sound(tmp_path: Path) -> Callable[..., Path]:
    """Make a file of `frames` frames at 10 fps and silent audio, or audio alone, or audio with a cover picture."""

    def make(name: str, frames: int = 0, sound_s: int = 1, cover: bool = False) -> Path:
        import av

        # without the prefix, ffmpeg reads a colon in a name as a protocol
        with av.open(f"file:{tmp_path / name}", "w") as output:
            if frames or cover:
                pictures = output.add_stream("png" if cover else "libx264", rate=10)
                pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "rgb24" if cover else "yuv420p"
            if cover:
                pictures.disposition = av.stream.Disposition.attached_pic
            sound = output.add_stream("libmp3lame" if cover else "aac", rate=44100)
            size = sound.codec_context.frame_size or 1152
            for i in range(sound_s * 44100 // size):
                silence = av.AudioFrame.from_ndarray(np.zeros((2, size), np.float32), "fltp", "stereo")
                silence.sample_rate, silence.pts = 44100, i * size
                output.mux(sound.encode(silence))
            for i in range(frames + cover):
                frame = av.VideoFrame.from_ndarray(picture(i, 64, 48), "rgb24")
                frame.pts = i
                output.mux(pictures.encode(frame))
            for stream in output.streams:
                output.mux(stream.encode())
        return tmp_path / name

    return make
