"""Decoding: which packets are decoded, pixel conversion, and warnings about damaged files."""

from __future__ import annotations

import os
import sys
import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from floc import video  # noqa: E402
from floc.video.container import Clock  # noqa: E402
from floc.video.decode import FrameDecoder  # noqa: E402
from floc.video.sample import Sampler  # noqa: E402
from tests.video.conftest import list_times  # noqa: E402


def test_part_is_decoded_from_the_keyframe_before_it(film, numbers, decoded_packets) -> None:
    path = film("a.mp4", 200, options={"g": "10", "bf": "0"})
    assert numbers(video.read(path, fps=10).part(150, 160)) == list(range(150, 160))
    assert len(decoded_packets) < 60


def test_frames_shown_before_but_stored_after_a_keyframe(film, numbers, decoded_packets) -> None:
    """Such B-frames depend on frames before the keyframe. In MPEG-2 every group of pictures has them."""
    path = film("led.mkv", 200, codec="mpeg2video", rate=25, options={"g": "12", "bf": "2"})
    assert numbers(video.read(path, max_frames=3)) == [0, 66, 133]
    assert len(decoded_packets) < 3 * (12 + 4 + 2 * os.cpu_count())
    every_eighth = Fraction(25, 8)
    assert numbers(video.read(path, fps=float(every_eighth))) == list(range(0, 200, 8))


def test_decodes_packets_beyond_the_memory_limit(film, numbers, decoded_packets, monkeypatch) -> None:
    path = film("a.mp4", 67, options={"g": "30", "bf": "2"})
    monkeypatch.setattr(sys.modules[FrameDecoder.__module__], "HELD_BYTES", 200)
    assert numbers(video.read(path, max_frames=2)) == [0, 33]
    assert len(decoded_packets) > 33


def test_rolling_refresh_is_decoded_completely(film, decoded_packets) -> None:
    """Streams with rolling refresh mark packets as keyframes from which a decoder cannot start."""
    options = {"x264-params": "intra-refresh=1:keyint=10:bframes=0:scenecut=0"}
    path = film("rolling.mp4", 67, options=options)
    (few,) = video.read(path, max_frames=2)
    assert len(decoded_packets) > 33
    every = np.concatenate([frames.pixels for frames in video.read(path, fps=None)])
    np.testing.assert_array_equal(few.pixels, every[[0, 33]])


def test_edit_list_that_starts_between_keyframes(film, numbers, decoded_packets) -> None:
    """The frames before the start of the edit are decoded but not shown."""
    path = film("trimmed.mp4", 60, stamps=range(-7, 53), options={"g": "20"})
    assert numbers(video.read(path, fps=None)) == list(range(7, 60))
    decoded_packets.clear()
    assert numbers(video.read(path, fps=2)) == list(range(7, 60, 5))
    assert len(decoded_packets) <= 61  # one pass: the first keyframe, which is not shown, does not restart decoding


def test_decodes_only_needed_packets(film, numbers, decoded_packets) -> None:
    path = film("long.mp4", 400, options={"g": "10", "bf": "0", "preset": "ultrafast", "sc_threshold": "0"})
    assert numbers(video.read(path, max_frames=4)) == [0, 100, 200, 300]
    # each target is a keyframe; a decoder with threads returns it some packets later
    assert len(decoded_packets) < 4 * (4 + 2 * os.cpu_count())
    decoded_packets.clear()
    assert numbers(video.read(path, fps=None)) == list(range(400))
    assert len(decoded_packets) == 401


@pytest.mark.parametrize(
    ("codec", "pixels", "name"),
    [
        ("libx264", "yuv444p", "a.mp4"),
        ("libx264", "yuv444p10le", "a.mkv"),
        ("ffv1", "gray", "a.mkv"),
        ("ffv1", "bgr0", "a.mkv"),
    ],
)
@pytest.mark.parametrize("size", [(271, 639), (65, 33)])
def test_odd_sizes_and_pixel_formats(film, numbers, codec: str, pixels: str, name: str, size) -> None:
    opened = video.read(film(name, 4, codec=codec, pixels=pixels, size=size, first=21), fps=None)
    assert (opened.width, opened.height) == size
    assert numbers(opened) == [21, 22, 23, 24]
    brightest = next(iter(opened)).pixels
    assert brightest.shape == (4, *size[::-1], 3)
    # black squares have noise of 0..39, white ones of 215..254: the value range must not change
    assert brightest.min() < 10
    assert 235 < brightest.max() < 256


@pytest.mark.parametrize("size", [(1, 1), (3, 65535), (16000, 1), (65535, 1)])
@pytest.mark.parametrize("shown", [None, lambda *_: (1, 1), lambda *_: (4608, 32)])
def test_extreme_shapes_are_read_or_refused(film, size: tuple[int, int], shown) -> None:
    path = film("odd.mkv", 2, codec="ffv1", pixels="bgr0", size=size)
    opened = video.read(path, fps=None, size=shown)
    try:
        (frames,) = opened
    except ValueError as error:
        assert f"{path}: a frame of {size[0]} x {size[1]} pixels, bgr0, cannot be converted to" in str(error)  # noqa: PT017
    else:
        assert frames.pixels.shape == (2, opened.height, opened.width, 3)


def test_downscaling_averages_pixels(film) -> None:
    """A frame scaled to one pixel is the mean of all pixels."""
    opened = video.read(film("a.mkv", 3, codec="ffv1", pixels="bgr0"), fps=None)
    means = np.concatenate([frames.pixels.mean((1, 2)) for frames in opened])
    dots = video.read(opened.path, fps=None, size=lambda *_: (1, 1))
    np.testing.assert_allclose(np.concatenate([frames.pixels[:, 0, 0] for frames in dots]), means, atol=3)


def test_video_that_changes_its_size(film, numbers, tmp_path: Path) -> None:
    parts = [film("small.h264", 6), film("large.h264", 6, size=(128, 96), first=6)]
    both = tmp_path / "both.h264"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    opened = video.read(both, fps=None)
    assert (opened.width, opened.height) == (64, 48)
    assert numbers(opened) == list(range(12))


def test_clock_that_is_set_back(film, numbers, tmp_path: Path) -> None:
    """Two recordings in one file: no frame is lost, and times continue at the average rate."""
    parts = [film(f"{first}.ts", 30, first=first, options={"g": "5"}) for first in (0, 30)]
    both = tmp_path / "both.ts"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    opened = video.read(both, fps=None, max_frames=None)
    assert numbers(opened) == list(range(60))
    assert list_times(opened) == pytest.approx(np.arange(60) / 10)
    assert numbers(video.read(both, fps=2, max_frames=None)) == list(range(0, 60, 5))
    assert numbers(video.read(both, fps=2, max_frames=7)) == numbers(video.read(both, fps=2, max_frames=None))[:7]


@pytest.mark.parametrize(
    ("name", "codec", "container"),
    [
        ("cut.mp4", "libx264", {"movflags": "faststart"}),
        ("fragments.mp4", "libx264", {"movflags": "frag_keyframe+empty_moov"}),
        ("cut.mkv", "libx264", {}),
        ("cut.webm", "libvpx-vp9", {}),
        ("cut.avi", "mpeg4", {}),
    ],
)
@pytest.mark.parametrize("fps", [4, None])
def test_warns_about_a_file_that_is_cut_off(film, numbers, name, codec, container, fps) -> None:
    options = {"libx264": {}, "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"}, "mpeg4": {"qmax": "4"}}[codec]
    path = film(name, 120, codec=codec, container=container, options={"g": "15", **options})
    whole = video.read(path, fps=fps)
    all_numbers = numbers(whole)
    assert whole.warnings == []
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    opened = video.read(path, fps=fps)
    frames = numbers(opened)
    assert 0.25 * len(all_numbers) < len(frames) < 0.75 * len(all_numbers)
    assert frames == all_numbers[: len(frames)]
    (warning,) = opened.warnings
    assert f"{name} is damaged or cut off: decoding stopped at " in warning
    assert "the frames before are used" in warning
    if name != "fragments.mp4":  # a fragment states only its own length
        assert " s of 12.0 s (" in warning
    if name.endswith((".mp4", ".avi")):
        assert "(its last frame is incomplete)" in warning
    assert opened.describe()["warnings"] == [warning]
    assert opened.describe()["frames"] == len(frames)


def test_damage_record_has_constant_size() -> None:
    """A camera with a bad connection may run for days."""
    decoder = FrameDecoder(None, None, Clock(Fraction(1), Fraction(1), 0, False), Sampler(None, 0, None), False)
    tracemalloc.start()
    for number in range(5000):
        decoder._record_damage(f"error number {number}", number)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 20_000
    (warning,) = decoder.warnings("a.ts", 0.0)
    assert "5000 frames could not be decoded completely, the first at 0.0 s (error number 0)" in warning


@pytest.mark.parametrize(("name", "codec"), [("a.avi", "mpeg4"), ("a.mkv", "libx264"), ("a.mp4", "libx264")])
def test_counts_damaged_frames(film, numbers, name: str, codec: str) -> None:
    path = film(name, 90, codec=codec, options={"g": "10", "qmax": "4"})
    with av.open(path) as container:
        spoilt = [(packet.pos, packet.size) for packet in container.demux(video=0)][33:36]
    with path.open("r+b") as file:
        for place, size in spoilt:
            # keep the headers of the block and the frame intact, except in mp4, where the lengths break, too
            skipped = 0 if name == "a.mp4" else 24
            file.seek(place + skipped)
            file.write(b"\xff" * (size - skipped))
    opened = video.read(path, fps=None)
    frames = numbers(opened)
    assert set(range(30)) | set(range(45, 90)) <= set(frames)
    (warning,) = opened.warnings
    assert f"{name} is damaged: " in warning
    assert " could not be decoded completely, the first at 3." in warning
    limited = video.read(path, fps=10, max_frames=89)
    assert len(numbers(limited)) > 80
    (warning,) = limited.warnings
    assert f"{name} is damaged: " in warning
