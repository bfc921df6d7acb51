"""Reading films: which frames come, when they say they are shown, and what is said of films that are not whole."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from floc import video  # noqa: E402
from floc.tokens import Frames  # noqa: E402
from floc.video.container import Clock  # noqa: E402
from floc.video.read import Run  # noqa: E402
from floc.video.sample import Sampler  # noqa: E402

FOOTAGE = Path(os.environ.get("FLOC_DATA", Path(__file__).parents[3] / "shared" / "data")) / "videos"
footage = pytest.mark.skipif(not FOOTAGE.is_dir(), reason=f"no real footage in {FOOTAGE}; set FLOC_DATA")


def expected(times: list[Fraction], step: Fraction, end: Fraction) -> list[int]:
    """For each target the last frame at or before it, each once: the definition, target by target."""
    shown = [
        max(i for i, time in enumerate(times) if time <= target * step + Fraction(1, 2000))
        for target in range(math.ceil(end / step))
    ]
    return sorted(set(shown))


def times_of(opened: Iterable[Frames]) -> list[float]:
    return [float(each) for frames in opened for each in frames.times_s]


@pytest.fixture
def fed(monkeypatch) -> list:
    """What decoders are given from here on."""
    decode, packets = Run._decode, []

    def noted(run, packet):
        packets.append(packet)
        return decode(run, packet)

    monkeypatch.setattr(Run, "_decode", noted)
    return packets


@pytest.fixture(
    scope="module",
    params=[
        "a.mp4",
        "open.mp4",
        "rolling.mp4",
        "a.mkv",
        "a.ts",
        "a.avi",
        "b.avi",
        "reordered.avi",
        "raw.h264",
        "a.webm",
    ],
)
def sixty_seven(request, film_in, tmp_path_factory) -> Path:
    """67 frames at 10 a second, in many wrappings."""
    codec, options = {
        "a.mp4": ("libx264", {}),
        "open.mp4": ("libx264", {"x264-params": "open-gop=1:keyint=12:min-keyint=4:bframes=3:b-pyramid=normal"}),
        "rolling.mp4": ("libx264", {"x264-params": "intra-refresh=1:keyint=10:bframes=0:scenecut=0"}),
        "a.mkv": ("libx264", {"g": "7", "bf": "3"}),
        "a.ts": ("libx264", {"g": "7"}),
        "a.avi": ("mpeg4", {"g": "8"}),
        "b.avi": ("mpeg4", {"g": "8", "bf": "2"}),
        "reordered.avi": ("libx264", {"g": "8", "bf": "3"}),  # AVI cannot say when B-frames are shown
        "raw.h264": ("libx264", {"g": "8", "bf": "3"}),  # neither does no container at all
        "a.webm": ("libvpx-vp9", {"g": "9", "deadline": "realtime", "cpu-used": "8"}),
    }[request.param]
    return film_in(tmp_path_factory.mktemp("films") / request.param, 67, codec=codec, options=options)


@pytest.mark.parametrize(
    ("fps", "max_frames"),
    [(1.0, 7200), (3, 7200), (0.1, None), (2.5, 7), (25, None), (None, None), (None, 1), (None, 9)],
)
def test_the_frame_on_screen_at_each_target(sixty_seven: Path, numbers, fps, max_frames) -> None:
    times, end = [Fraction(i, 10) for i in range(67)], Fraction(67, 10)
    step = Fraction(1, 10) if fps is None else 1 / Fraction(fps).limit_denominator(100)
    if max_frames and min(67, math.ceil(end / step)) > max_frames:
        step = end / max_frames
    opened = video.read(sixty_seven, fps=fps, max_frames=max_frames, batch=5)
    batches = list(opened)
    want = expected(times, step, end)
    assert numbers(batches) == want
    assert times_of(batches) == pytest.approx([float(times[i]) for i in want], abs=0.0006)
    assert opened.warnings == []
    assert len(want) == opened.planned == opened.about()["frames"]
    assert opened.duration_s == pytest.approx(6.7, abs=0.001)
    assert opened.native_fps == 10


@pytest.mark.parametrize("fps", [1.0, 3, 25])
@pytest.mark.parametrize("cuts", [(2.0,), (0.05, 0.1), (1, 3.3, 6.65), (3.0, 3.0 + 1 / 3)])
def test_parts_of_a_film_give_its_frames_once(sixty_seven: Path, numbers, fps, cuts) -> None:
    whole = video.read(sixty_seven, fps=fps, max_frames=None, batch=5)
    ends = [0.0, *cuts, 100.0]
    parts = [whole.between(*each) for each in pairwise(ends)]
    assert [number for part in parts for number in numbers(part)] == numbers(whole)
    assert sum(part.planned for part in parts) >= whole.planned
    assert [part.warnings for part in parts] == [[]] * len(parts)


@pytest.mark.parametrize("name", ["vfr.mp4", "vfr.mkv"])
def test_parts_of_a_film_with_long_pauses(film, numbers, name) -> None:
    """A frame that is on screen at a cut belongs to the part in which it was shown first."""
    gaps = np.random.default_rng(5).choice([1, 4, 40, 310], 50, p=[0.4, 0.4, 0.15, 0.05])
    stamps = [0, *accumulate(int(gap) for gap in gaps)]
    whole = video.read(film(name, 51, rate=100, stamps=stamps), fps=7, max_frames=None)
    ends = np.linspace(0, whole.duration_s, 9)
    assert [number for part in pairwise(ends) for number in numbers(whole.between(*part))] == numbers(whole)


def test_a_part_is_decoded_from_the_keyframe_before_it(film, numbers, fed) -> None:
    path = film("a.mp4", 200, options={"g": "10", "bf": "0"})
    assert numbers(video.read(path, fps=10).between(15, 16)) == list(range(150, 160))
    assert len(fed) < 60


@pytest.mark.parametrize("given", [(2, 1), (1, 1), (-1, 1), (7, 9), (float("nan"), 1), (0, float("nan"))])
def test_what_is_no_part_of_a_film(film, given) -> None:
    with pytest.raises(ValueError, match="is no part of a film of 6"):
        video.read(film("a.mp4")).between(*given)
    with pytest.raises(ValueError, match="give read an fps"):
        video.read(film("a.mp4"), fps=None).between(0, 1)


def test_frames_that_lead_a_keyframe(film, numbers, fed) -> None:
    """B-frames shown before a keyframe but stored after it need what is before it; in MPEG-2 all GOPs are like that."""
    path = film("led.mkv", 200, codec="mpeg2video", rate=25, options={"g": "12", "bf": "2"})
    assert numbers(video.read(path, max_frames=3)) == [0, 66, 133]
    assert len(fed) < 3 * (12 + 4 + 2 * os.cpu_count())
    every_eighth = Fraction(25, 8)
    assert numbers(video.read(path, fps=float(every_eighth))) == list(range(0, 200, 8))


def test_packets_too_many_to_hold_are_decoded(film, numbers, fed, monkeypatch) -> None:
    path = film("a.mp4", 67, options={"g": "30", "bf": "2"})
    monkeypatch.setattr(sys.modules[Run.__module__], "HELD_BYTES", 200)
    assert numbers(video.read(path, max_frames=2)) == [0, 33]
    assert len(fed) > 33


def test_rolling_refresh_is_decoded_whole(film, fed) -> None:
    """A stream that is renewed column by column marks packets as keyframes from which nothing can be decoded."""
    options = {"x264-params": "intra-refresh=1:keyint=10:bframes=0:scenecut=0"}
    path = film("rolling.mp4", 67, options=options)
    (few,) = video.read(path, max_frames=2)
    assert len(fed) > 33
    every = np.concatenate([frames.pixels for frames in video.read(path, fps=None)])
    np.testing.assert_array_equal(few.pixels, every[[0, 33]])


def test_a_film_whose_edit_begins_between_keyframes(film, numbers, fed) -> None:
    """The frames before the edit are decoded and not shown."""
    path = film("trimmed.mp4", 60, stamps=range(-7, 53), options={"g": "20"})
    assert numbers(video.read(path, fps=None)) == list(range(7, 60))
    fed.clear()
    assert numbers(video.read(path, fps=2)) == list(range(7, 60, 5))
    assert len(fed) <= 61  # in one go: the first keyframe, which is not shown, is no reason to start again


@pytest.mark.parametrize("name", ["vfr.mp4", "vfr.mkv"])
@pytest.mark.parametrize(("fps", "max_frames"), [(1, 7200), (7, 7200), (7, 11), (None, None), (None, 11)])
def test_variable_frame_rate(film, numbers, name, fps, max_frames) -> None:
    """Bursts and pauses, in hundredths of a second; nobody sees the long pauses twice."""
    gaps = np.random.default_rng(5).choice([1, 4, 40, 310], 50, p=[0.4, 0.4, 0.15, 0.05])
    stamps = [0, *accumulate(int(gap) for gap in gaps)]
    opened = video.read(film(name, 51, rate=100, stamps=stamps), fps=fps, max_frames=max_frames)
    times, end = [Fraction(stamp, 100) for stamp in stamps], Fraction(opened.duration_s).limit_denominator(1000)
    step = Fraction(1, 100) if fps is None else Fraction(1, fps)
    if max_frames and min(51, math.ceil(end / step)) > max_frames:
        step = end / max_frames
    want = expected(times, step, end)
    assert numbers(opened) == want
    assert times_of(opened) == pytest.approx([float(times[i]) for i in want])
    assert len(want) <= opened.planned


def test_times_start_at_the_first_frame(film, numbers) -> None:
    opened = video.read(film("late.mkv", 30, stamps=range(500, 530)), fps=5)
    assert numbers(opened) == list(range(0, 30, 2))
    assert times_of(opened) == pytest.approx(np.arange(15) / 5)


def test_a_frame_due_between_milliseconds_is_not_missed(film, numbers) -> None:
    """Matroska stamps the frame due at 2/3 s with 0.667 s."""
    assert numbers(video.read(film("thirds.mkv", 31, rate=30), fps=3)) == [0, 10, 20, 30]


@pytest.mark.parametrize("batch", [1, 3, 7, 12, 13, 100])
def test_batches(film, batch: int) -> None:
    opened = video.read(film("a.mp4", 60), fps=2, batch=batch)
    sizes = [(len(frames.pixels), len(frames.times_s)) for frames in opened]
    assert sizes == [(batch, batch)] * (12 // batch) + [(12 % batch, 12 % batch)] * (12 % batch > 0)


def test_batches_do_not_share_memory(film, numbers) -> None:
    kept = list(video.read(film("a.mp4", 60), fps=2, batch=4))
    assert numbers(kept) == list(range(0, 60, 5))
    assert all(frames.pixels.dtype == np.uint8 for frames in kept)


def test_two_iterations_give_the_same(film) -> None:
    opened = video.read(film("a.mkv", 60), fps=3)
    first, second = ([frames.pixels for frames in opened] for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_one_frame(film, numbers) -> None:
    for name in ("one.mp4", "one.mkv", "one.h264"):
        opened = video.read(film(name, 1, first=9))
        assert (numbers(opened), times_of(opened), opened.planned) == ([9], [0.0], 1)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("rotation", [0, 90, 180, -90])
def test_rotation_and_mirrors(film, numbers, rotation: int, mirrored: bool) -> None:
    path = film("turned.mp4", 12, size=(96, 48), rotation=rotation, mirrored=mirrored, first=40503)
    opened = video.read(path, fps=None)
    assert numbers(opened) == list(range(40503, 40515))
    assert (opened.width, opened.height) == ((48, 96) if rotation % 180 else (96, 48))
    assert next(iter(opened)).pixels.shape == (12, opened.height, opened.width, 3)
    if not mirrored:
        assert opened.rotation == -rotation % 360
    wide = video.read(path, fps=None, size=lambda width, height: (2 * width, height // 2))
    assert next(iter(wide)).pixels.shape == (12, opened.height // 2, 2 * opened.width, 3)
    assert numbers(wide) == numbers(opened)


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
    # black squares carry noise of 0..39, white ones of 215..254: neither range is squeezed nor stretched
    assert brightest.min() < 10
    assert 235 < brightest.max() < 256


def test_pixels_that_are_not_square(film, numbers) -> None:
    opened = video.read(film("dv.mkv", 5, size=(72, 56), aspect=Fraction(16, 11)), fps=None)
    assert (opened.source_width, opened.source_height) == (opened.width, opened.height) == (105, 56)
    assert numbers(opened) == list(range(5))


def test_shrinking_averages(film) -> None:
    """A picture of one pixel is the mean of all, which no single sample of a noisy board is."""
    opened = video.read(film("a.mkv", 3, codec="ffv1", pixels="bgr0"), fps=None)
    means = np.concatenate([frames.pixels.mean((1, 2)) for frames in opened])
    dots = video.read(opened.path, fps=None, size=lambda *_: (1, 1))
    np.testing.assert_allclose(np.concatenate([frames.pixels[:, 0, 0] for frames in dots]), means, atol=3)


def test_size_that_changes_on_the_way(film, numbers, tmp_path: Path) -> None:
    parts = [film("small.h264", 6), film("large.h264", 6, size=(128, 96), first=6)]
    both = tmp_path / "both.h264"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    opened = video.read(both, fps=None)
    assert (opened.width, opened.height) == (64, 48)
    assert numbers(opened) == list(range(12))


def test_a_clock_that_is_set_back(film, numbers, tmp_path: Path) -> None:
    """Two recordings in one file: no frame is lost, and time goes on at the average rate."""
    parts = [film(f"{first}.ts", 30, first=first, options={"g": "5"}) for first in (0, 30)]
    both = tmp_path / "both.ts"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    opened = video.read(both, fps=None, max_frames=None)
    assert numbers(opened) == list(range(60))
    assert times_of(opened) == pytest.approx(np.arange(60) / 10)
    assert numbers(video.read(both, fps=2, max_frames=None)) == list(range(0, 60, 5))
    assert numbers(video.read(both, fps=2, max_frames=7)) == numbers(video.read(both, fps=2, max_frames=None))[:7]


def test_only_what_is_needed_is_decoded(film, numbers, fed) -> None:
    path = film("long.mp4", 400, options={"g": "10", "bf": "0", "preset": "ultrafast", "sc_threshold": "0"})
    assert numbers(video.read(path, max_frames=4)) == [0, 100, 200, 300]
    # each target is a keyframe, and as many more as the decoder has threads show that it is over
    assert len(fed) < 4 * (4 + 2 * os.cpu_count())
    fed.clear()
    assert numbers(video.read(path, fps=None)) == list(range(400))
    assert len(fed) == 401


def test_about_is_json(film) -> None:
    opened = video.read(film("a.mp4", 25, size=(96, 64)), fps=2, size=lambda width, height: (width // 2, height // 2))
    about = json.loads(json.dumps(opened.about()))
    assert about == {
        "name": "a.mp4",
        "duration_s": 2.5,
        "width": 96,
        "height": 64,
        "codec": "h264",
        "native_fps": 10.0,
        "rotation": 0,
        "fps": 2,
        "max_frames": 7200,
        "frames": 5,
        "frame_width": 48,
        "frame_height": 32,
        "warnings": [],
    }


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
def test_cut_off_half_way(film, numbers, name, codec, container, fps) -> None:
    options = {"libx264": {}, "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"}, "mpeg4": {"qmax": "4"}}[codec]
    path = film(name, 120, codec=codec, container=container, options={"g": "15", **options})
    whole = video.read(path, fps=fps)
    all_numbers = numbers(whole)
    assert whole.warnings == []
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    opened = video.read(path, fps=fps)
    got = numbers(opened)
    assert 0.25 * len(all_numbers) < len(got) < 0.75 * len(all_numbers)
    assert got == all_numbers[: len(got)]
    (said,) = opened.warnings
    assert f"{name} is damaged or cut off: decoding stopped at " in said
    assert "the frames up to there are used" in said
    if name != "fragments.mp4":  # each fragment knows only its own length
        assert " s of 12.0 s (" in said
    if name.endswith((".mp4", ".avi")):
        assert "(its last frame is incomplete)" in said
    assert opened.about()["warnings"] == [said]
    assert opened.about()["frames"] == len(got)


def test_what_is_remembered_of_damage_does_not_grow() -> None:
    """A camera on a bad line goes on for days."""
    run = Run(None, None, Clock(Fraction(1), Fraction(1), 0, False), Sampler(None, 0, None), False)
    tracemalloc.start()
    for number in range(5000):
        run._note(f"error number {number}", number)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 20_000
    (said,) = run.complaints("a.ts", 0.0)
    assert "5000 frames could not be decoded, or not whole, the first at 0.0 s (error number 0)" in said


def test_sound_that_runs_on_is_no_damage(film_with_sound, numbers, monkeypatch) -> None:
    path = film_with_sound("talk.mkv", frames=20, sound_s=6)
    opened = video.read(path)
    assert (numbers(opened), opened.warnings, opened.duration_s) == ([0, 10], [], 2.0)
    # where the video has no tag that says when it ends, only the longest stream's end is known
    monkeypatch.setattr("floc.video.container._tagged_end", lambda metadata: None)
    opened = video.read(path)
    assert (numbers(opened), opened.warnings) == ([0, 10], [])
    assert opened.duration_s == pytest.approx(6, abs=0.1)


@pytest.mark.parametrize(("name", "codec"), [("a.avi", "mpeg4"), ("a.mkv", "libx264"), ("a.mp4", "libx264")])
def test_damage_in_the_middle_is_counted(film, numbers, name: str, codec: str) -> None:
    path = film(name, 90, codec=codec, options={"g": "10", "qmax": "4"})
    with av.open(path) as container:
        spoilt = [(packet.pos, packet.size) for packet in container.demux(video=0)][33:36]
    with path.open("r+b") as file:
        for place, size in spoilt:
            # past the headers of the block and the frame, but in mp4, where even the frame's lengths go wrong
            skipped = 0 if name == "a.mp4" else 24
            file.seek(place + skipped)
            file.write(b"\xff" * (size - skipped))
    opened = video.read(path, fps=None)
    got = numbers(opened)
    assert set(range(30)) | set(range(45, 90)) <= set(got)
    (said,) = opened.warnings
    assert f"{name} is damaged: " in said
    assert " could not be decoded, or not whole, the first at 3." in said
    up_to_a_limit = video.read(path, fps=10, max_frames=89)
    assert len(numbers(up_to_a_limit)) > 80
    (said,) = up_to_a_limit.warnings
    assert f"{name} is damaged: " in said


def test_a_film_that_stops_early_is_closed(film) -> None:
    path = film("a.mp4", 60)

    def is_open() -> bool:
        return str(path) in {os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")}

    opened = video.read(path, batch=1)
    assert not is_open()
    batches = iter(opened)
    next(batches)
    assert is_open()
    batches.close()
    assert not is_open()

    def fail_at_the_second() -> None:
        for frames in opened:
            if frames.times_s[0] > 0:
                raise RuntimeError("the consumer gave up")

    with pytest.raises(RuntimeError, match="gave up"):
        fail_at_the_second()
    assert not is_open()
    assert len(list(opened)) == 6
    assert not is_open()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(fps=0), "fps must be a number above 0"),
        (dict(fps=-1), "got -1"),
        (dict(fps=math.nan), "got nan"),
        (dict(fps=math.inf), "got inf"),
        (dict(fps=True), "got True"),
        (dict(fps="1"), "got '1'"),
        (dict(max_frames=0), "max_frames must be a whole number, at least 1"),
        (dict(max_frames=2.5), "got 2.5"),
        (dict(batch=0), "batch must be a whole number of frames, at least 1; got 0"),
        (dict(size=lambda width, height: (width, 0)), "a width and a height of at least 1, got 64 x 0"),
        (dict(size=lambda width, height: (width / 2, height)), "got 32.0 x 48"),
    ],
)
def test_bad_arguments(film, options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        video.read(film("a.mp4", 3), **options)


def test_fps_so_small_that_its_fraction_is_nothing(film, numbers) -> None:
    assert numbers(video.read(film("a.mp4", 3), fps=1e-12)) == [0]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("folder.mp4", "this is a folder"),
        ("empty.mp4", "the file is empty"),
        ("notes.txt", "this is a text file"),
        ("notes.mp4", "not a video that ffmpeg can read (Invalid data"),
        ("pipe.mp4", "not a regular file"),
        ("subtitles.srt", "there is no video in it, only subtitle"),
        ("sound.m4a", "there is no video in it, only audio"),
        ("song.mp3", "there is no video in it, only audio, cover picture"),
        ("unfinished.mp4", "cut off or its recording was never finished: the index (moov)"),
        ("cut_index.mp4", "cut off or its recording was never finished: the index (moov)"),
        ("header.avi", "its mpeg4 video cannot be decoded (there is no frame in it)"),
    ],
)
def test_what_is_not_a_film(film, film_with_sound, tmp_path: Path, name: str, says: str, capfd) -> None:
    path = tmp_path / name
    if name == "folder.mp4":
        path.mkdir()
    elif name == "empty.mp4":
        path.touch()
    elif name.startswith("notes"):
        path.write_text("What was said.\n" * 50)
    elif name == "pipe.mp4":
        os.mkfifo(path)
    elif name == "subtitles.srt":
        path.write_text("1\n00:00:00,000 --> 00:00:02,000\nWhat was said.\n")
    elif name in ("sound.m4a", "song.mp3"):
        film_with_sound(name, cover=name == "song.mp3")
    elif name == "unfinished.mp4":
        film(name, 30)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif name == "cut_index.mp4":
        film(name, 30, container={"movflags": "faststart"})
        path.write_bytes(path.read_bytes()[:300])
    else:
        film(name, 30, codec="mpeg4")
        path.write_bytes(path.read_bytes()[: path.read_bytes().index(b"movi") + 4])
    with pytest.raises(ValueError) as caught:
        video.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.mp4: no such file"):
        video.read(tmp_path / "no.mp4")


def test_film_with_sound_and_odd_names(film_with_sound, numbers, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a b#%03d?.mp4", "concat:x|y.mkv", "-ü[1].mp4"):
        assert numbers(video.read(film_with_sound(name, frames=20).name)) == [0, 10]


def test_missing_package_names_the_command(film, monkeypatch) -> None:
    path = film("a.mp4", 3)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"pip install 'floc-video\[video\]'"):
        video.read(path)


def test_memory_does_not_grow_with_length(film, tmp_path: Path) -> None:
    """Peak memory after a short film, and after one of the same frames thirty times over."""
    once = film("once.mkv", 50, size=(320, 240), options={"g": "50", "preset": "ultrafast", "crf": "35"})
    paths = {}
    for loops in (2, 60):
        paths[loops] = tmp_path / f"{loops}.mkv"
        with av.open(once) as source, av.open(paths[loops], "w") as output:
            stream = output.add_stream_from_template(source.streams.video[0])
            for loop in range(loops):
                source.seek(0)
                for packet in source.demux(video=0):
                    if packet.size:
                        packet.pts, packet.dts = packet.pts + 5000 * loop, (packet.dts or 0) + 5000 * loop
                        packet.stream = stream
                        output.mux(packet)
    script = """
import resource, sys
from floc import video
for path in sys.argv[1:]:
    for options in ({"fps": None}, {"max_frames": 2}):
        frames = sum(len(each.times_s) for each in video.read(path, **options))
        print(frames, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    command = [sys.executable, "-c", script, *map(str, paths.values())]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said[::2] == ["100", "2", "3000", "2"]
    short_mb, long_mb = int(said[3]), int(said[7])
    assert long_mb - short_mb < 20  # all the frames of the long film would be 691


@footage
@pytest.mark.parametrize(
    ("name", "size", "seconds", "frames", "max_frames"),
    [
        ("vtest.avi", (768, 576), 79.5, 795, 7200),
        ("intel_person.mp4", (768, 432), 139.4, 1394, 40),
        ("bbb480.mp4", (854, 480), 30.0, 720, 5),
        ("bikes.mp4", (640, 272), 10.0, 250, 7200),
    ],
)
def test_real_footage(name: str, size: tuple[int, int], seconds: float, frames: int, max_frames: int) -> None:
    """The frames of decoding everything and picking by time, bit for bit."""
    opened = video.read(FOOTAGE / name, max_frames=max_frames, batch=7)
    assert (opened.width, opened.height, opened.duration_s) == (*size, pytest.approx(seconds))
    given = ((time, each) for batch in opened for time, each in zip(batch.times_s, batch.pixels, strict=True))
    with av.open(FOOTAGE / name) as container:
        stream = container.streams.video[0]
        tick = stream.time_base
        times = sorted(packet.pts * tick for packet in container.demux(stream) if packet.size)
        container.seek(0)
        stream.thread_type = "AUTO"
        end = Fraction(seconds).limit_denominator(10)
        wanted = {times[i] for i in expected(times, max(Fraction(1), end / max_frames), end)}
        assert (times[0], len(times), len(wanted)) == (0, frames, opened.planned)
        for frame in container.decode(stream):
            if frame.pts * tick in wanted:
                time, pixels = next(given)
                assert time == pytest.approx(float(frame.pts * tick))
                np.testing.assert_array_equal(pixels, frame.to_ndarray(format="rgb24"))
    assert next(given, None) is None
    assert opened.warnings == []
