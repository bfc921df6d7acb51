"""Limits on the memory and the work of decoders: small files must not hang, ordinary files are read."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from floc import video  # noqa: E402
from floc.video import limits, live  # noqa: E402
from floc.video.picture import read_picture  # noqa: E402


def count_frames(opened: video.Video) -> int:
    return sum(len(frames.times_s) for frames in opened)


def encode_blank(path: Path, frames: int, size: tuple[int, int], pixels: str, **options: str) -> Path:
    """Encode frames that all look the same, so that packets are as small as encoders can make them."""
    with av.open(path, "w") as output:
        stream = output.add_stream("libx264", rate=10, options={"preset": "ultrafast", **options})
        stream.width, stream.height, stream.pix_fmt = *size, pixels
        frame = av.VideoFrame(*size, pixels)
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        for number in range(frames):
            frame.pts = number
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


@pytest.mark.parametrize("fps", [1.0, None])
def test_a_small_file_of_many_large_frames_ends_early(tmp_path: Path, fps: float | None) -> None:
    path = tmp_path / "canvas.gif"
    frame = b"\x21\xf9\x04\0\x0a\0\0\0\x2c" + struct.pack("<4HB", 0, 0, 1, 1, 0) + b"\2\2\x44\1\0"
    head = b"GIF89a" + struct.pack("<2H3B", 5700, 5700, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    path.write_bytes(head + frame * 1000 + b";")
    started = time.process_time()
    opened = video.read(path, fps=fps, size=lambda width, height: (64, 64))
    assert 0 < count_frames(opened) < 50
    assert time.process_time() - started < 5
    [warning] = opened.warnings
    assert "its frames are too large and too many for 23,020 bytes" in warning
    warnings: list[str] = []
    sampling = dict(fps=fps, size=lambda *_: (64, 64), follow=True, patience_s=0, warn=warnings.append)
    assert 0 < len(list(live.read_frames(str(path), **sampling))) < 50
    assert "too large and too many" in warnings[-1]
    assert read_picture(path).shape == (5700, 5700, 3)


def test_a_small_file_cannot_make_a_decoder_hold_many_large_frames(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(limits, "MEMORY_BYTES", limits.MEMORY_BYTES // 4)  # of 5760 x 5760 pixels, to save time
    path = encode_blank(tmp_path / "deep.mkv", 4, (2880, 2880), "yuv444p10le", bf="2")
    for read in (video.read, read_picture):
        with pytest.raises(
            ValueError, match=r"deep\.mkv: .*its frames need \d+ MiB at once, too much for [\d,]+ bytes"
        ):
            read(path)


@pytest.mark.parametrize(("frames", "size", "pixels"), [(80, (1920, 1080), "yuv420p"), (12, (7680, 4320), "yuv420p")])
def test_blank_video_is_read_to_its_end(tmp_path: Path, frames: int, size: tuple[int, int], pixels: str) -> None:
    path = encode_blank(tmp_path / "blank.mkv", frames, size, pixels, g="250", bf="2")
    opened = video.read(path, size=lambda width, height: (32, 32))
    assert count_frames(opened) == frames // 10 + (frames % 10 > 0)
    assert opened.warnings == []


def test_frames_before_the_limit_are_used(film, numbers, monkeypatch) -> None:
    path = film("a.mp4", 60, options={"bf": "0"})
    monkeypatch.setattr(limits, "WORK_PER_BYTE", 0)
    monkeypatch.setattr(limits, "WORK_BYTES", 40 * 64 * 48 * 3 // 2)
    opened = video.read(path, fps=None)
    shown = numbers(opened)
    assert shown == list(range(len(shown)))
    assert 10 < len(shown) < 20
    assert "a.mp4 is damaged or cut off: decoding stopped at" in opened.warnings[0]
    monkeypatch.setattr(limits, "WORK_BYTES", 10**9)
    monkeypatch.setattr(limits, "MEMORY_PER_BYTE", 0)
    monkeypatch.setattr(limits, "MEMORY_BYTES", 0)
    with pytest.raises(ValueError, match=r"a\.mp4: its frames need 0 MiB at once"):
        video.read(path)


def test_a_video_shorter_than_the_rounding_of_timestamps_has_a_frame(film, numbers) -> None:
    path = film("short.mov", 20)
    data = bytearray(path.read_bytes())
    struct.pack_into(">I", data, data.index(b"mdhd") + 16, 2**31 - 1)  # ticks per second
    path.write_bytes(data)
    opened = video.read(path)
    assert (opened.planned, numbers(opened), opened.warnings) == (1, [0], [])
    assert len(list(live.read_frames(str(path), fps=1.0, size=lambda w, h: (w, h), follow=True, patience_s=0))) == 1
