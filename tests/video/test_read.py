"""Reading videos: which frames are sampled, and at what times."""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from floc import video  # noqa: E402
from tests.video.conftest import list_times  # noqa: E402

FOOTAGE = Path(os.environ.get("FLOC_DATA", Path(__file__).parents[3] / "shared" / "data")) / "videos"


def expected(times: list[Fraction], step: Fraction, end: Fraction) -> list[int]:
    """Return the last frame at or before each target, without repetitions: the definition of sampling."""
    shown = [
        max(i for i, time in enumerate(times) if time <= target * step + Fraction(1, 2000))
        for target in range(math.ceil(end / step))
    ]
    return sorted(set(shown))


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
def video_file(request, film_in, tmp_path_factory) -> Path:
    """A video of 67 frames at 10 fps, in many containers and codecs."""
    codec, options = {
        "a.mp4": ("libx264", {}),
        "open.mp4": ("libx264", {"x264-params": "open-gop=1:keyint=12:min-keyint=4:bframes=3:b-pyramid=normal"}),
        "rolling.mp4": ("libx264", {"x264-params": "intra-refresh=1:keyint=10:bframes=0:scenecut=0"}),
        "a.mkv": ("libx264", {"g": "7", "bf": "3"}),
        "a.ts": ("libx264", {"g": "7"}),
        "a.avi": ("mpeg4", {"g": "8"}),
        "b.avi": ("mpeg4", {"g": "8", "bf": "2"}),
        "reordered.avi": ("libx264", {"g": "8", "bf": "3"}),  # AVI stores no display times of B-frames
        "raw.h264": ("libx264", {"g": "8", "bf": "3"}),  # a raw stream stores no times
        "a.webm": ("libvpx-vp9", {"g": "9", "deadline": "realtime", "cpu-used": "8"}),
    }[request.param]
    return film_in(tmp_path_factory.mktemp("films") / request.param, 67, codec=codec, options=options)


@pytest.mark.parametrize(
    ("fps", "max_frames"),
    [(1.0, 7200), (3, 7200), (0.1, None), (2.5, 7), (25, None), (None, None), (None, 1), (None, 9)],
)
def test_samples_the_frame_on_screen_at_each_target(video_file: Path, numbers, fps, max_frames) -> None:
    times, end = [Fraction(i, 10) for i in range(67)], Fraction(67, 10)
    step = Fraction(1, 10) if fps is None else 1 / Fraction(fps).limit_denominator(100)
    if max_frames and min(67, math.ceil(end / step)) > max_frames:
        step = end / max_frames
    opened = video.read(video_file, fps=fps, max_frames=max_frames, batch=5)
    batches = list(opened)
    want = expected(times, step, end)
    assert numbers(batches) == want
    assert list_times(batches) == pytest.approx([float(times[i]) for i in want], abs=0.0006)
    assert opened.warnings == []
    assert len(want) == opened.planned == opened.describe()["frames"]
    assert opened.duration_s == pytest.approx(6.7, abs=0.001)
    assert opened.native_fps == 10


@pytest.mark.parametrize("fps", [1.0, 3, 25])
@pytest.mark.parametrize("cuts", [(2,), (1, 2, 3), (4, 5)])
def test_adjacent_parts_return_each_frame_once(video_file: Path, numbers, fps, cuts) -> None:
    whole = video.read(video_file, fps=fps, max_frames=None, batch=5)
    parts = [whole.part(*span) for span in pairwise([0, *cuts, None])]
    assert [number for part in parts for number in numbers(part)] == numbers(whole)
    assert sum(part.planned for part in parts) >= whole.planned
    assert [part.warnings for part in parts] == [[]] * len(parts)


@pytest.mark.parametrize("name", ["vfr.mp4", "vfr.mkv"])
def test_parts_of_a_video_with_long_pauses(film, numbers, name) -> None:
    """A frame on screen at a cut belongs to the part in which it appeared."""
    gaps = np.random.default_rng(5).choice([1, 4, 40, 310], 50, p=[0.4, 0.4, 0.15, 0.05])
    stamps = [0, *accumulate(int(gap) for gap in gaps)]
    whole = video.read(film(name, 51, rate=100, stamps=stamps), fps=7, max_frames=None)
    ends = [*range(0, math.ceil(whole.duration_s * 7), 50), None]
    assert [number for part in pairwise(ends) for number in numbers(whole.part(*part))] == numbers(whole)


@pytest.mark.parametrize(
    "span", [(2, 1), (1, 1), (-1, 1), (7, 9), (float("nan"), 1), (0, float("nan")), (0, []), ("0", 1), (0.5, 1)]
)
def test_rejects_invalid_parts(film, span) -> None:
    with pytest.raises(ValueError, match=r"are not the numbers of samples of this video; .* below 6"):
        video.read(film("a.mp4")).part(*span)
    with pytest.raises(ValueError, match="call read with a number for fps"):
        video.read(film("a.mp4"), fps=None).part(0, 1)


@pytest.mark.parametrize("indices", [[0], [66], [*range(67)], [0, 0, 3, 3, 3, 9, 65, 66], [5, 40], [1, 2, 3, 30]])
def test_reads_chosen_frames(video_file: Path, numbers, indices) -> None:
    found = []

    def choose(facts: video.VideoFacts) -> video.FrameChoice:
        found.append(facts)
        return video.FrameChoice(np.array(indices), facts.width, facts.height)

    opened = video.read(video_file, choose=choose, batch=5)
    batches = list(opened)
    assert (found[0].frames, found[0].fps) == (67, 10)
    assert numbers(batches) == indices
    assert list_times(batches) == pytest.approx([index / 10 for index in indices], abs=0.0006)
    assert opened.planned == opened.frames == len(indices)
    assert [*numbers(opened.part(0, 1)), *(numbers(opened.part(1)) if len(indices) > 1 else [])] == indices
    assert opened.warnings == []


@pytest.mark.parametrize("name", ["vfr.mp4", "vfr.mkv"])
def test_numbers_frames_of_a_variable_rate_in_display_order(film, numbers, name) -> None:
    gaps = np.random.default_rng(5).choice([1, 4, 40, 310], 50, p=[0.4, 0.4, 0.15, 0.05])
    path = film(name, 51, rate=100, stamps=[0, *accumulate(int(gap) for gap in gaps)])
    indices = np.array([0, 1, 7, 8, 33, 50])
    assert (
        numbers(video.read(path, choose=lambda facts: video.FrameChoice(indices, facts.width, facts.height)))
        == indices.tolist()
    )


def test_resizes_chosen_frames(film) -> None:
    def choose(facts: video.VideoFacts) -> video.FrameChoice:
        return video.FrameChoice(np.arange(3), 10, 6, lambda image: np.full((6, 10, 3), image.mean(), np.uint8))

    (batch,) = video.read(film("a.mp4"), choose=choose)
    assert batch.pixels.shape == (3, 6, 10, 3)


@pytest.mark.parametrize("indices", [[], [-1], [60], [3, 2]])
def test_rejects_chosen_frames_that_do_not_exist(film, indices) -> None:
    with pytest.raises(ValueError, match="must be ascending numbers below 60"):
        video.read(film("a.mp4"), choose=lambda facts: video.FrameChoice(np.array(indices, int), 8, 8))


@pytest.mark.parametrize("name", ["vfr.mp4", "vfr.mkv"])
@pytest.mark.parametrize(("fps", "max_frames"), [(1, 7200), (7, 7200), (7, 11), (None, None), (None, 11)])
def test_variable_frame_rate(film, numbers, name, fps, max_frames) -> None:
    """Bursts and pauses, in hundredths of a second. A frame with a long display time is returned once."""
    gaps = np.random.default_rng(5).choice([1, 4, 40, 310], 50, p=[0.4, 0.4, 0.15, 0.05])
    stamps = [0, *accumulate(int(gap) for gap in gaps)]
    opened = video.read(film(name, 51, rate=100, stamps=stamps), fps=fps, max_frames=max_frames)
    times, end = [Fraction(stamp, 100) for stamp in stamps], Fraction(opened.duration_s).limit_denominator(1000)
    step = Fraction(1, 100) if fps is None else Fraction(1, fps)
    if max_frames and min(51, math.ceil(end / step)) > max_frames:
        step = end / max_frames
    want = expected(times, step, end)
    assert numbers(opened) == want
    assert list_times(opened) == pytest.approx([float(times[i]) for i in want])
    assert len(want) <= opened.planned


def test_times_start_at_the_first_frame(film, numbers) -> None:
    opened = video.read(film("late.mkv", 30, stamps=range(500, 530)), fps=5)
    assert numbers(opened) == list(range(0, 30, 2))
    assert list_times(opened) == pytest.approx(np.arange(15) / 5)


def test_millisecond_timestamps_do_not_lose_a_frame(film, numbers) -> None:
    """Matroska stores 0.667 s for a frame due at 2/3 s."""
    assert numbers(video.read(film("thirds.mkv", 31, rate=30), fps=3)) == [0, 10, 20, 30]


@pytest.mark.parametrize("batch", [1, 3, 7, 12, 13, 100])
def test_batch_sizes(film, batch: int) -> None:
    opened = video.read(film("a.mp4", 60), fps=2, batch=batch)
    sizes = [(len(frames.pixels), len(frames.times_s)) for frames in opened]
    assert sizes == [(batch, batch)] * (12 // batch) + [(12 % batch, 12 % batch)] * (12 % batch > 0)


def test_batches_do_not_share_memory(film, numbers) -> None:
    batches = list(video.read(film("a.mp4", 60), fps=2, batch=4))
    assert numbers(batches) == list(range(0, 60, 5))
    assert all(frames.pixels.dtype == np.uint8 for frames in batches)


def test_two_iterations_return_the_same_frames(film) -> None:
    opened = video.read(film("a.mkv", 60), fps=3)
    first, second = ([frames.pixels for frames in opened] for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_video_of_one_frame(film, numbers) -> None:
    for name in ("one.mp4", "one.mkv", "one.h264"):
        opened = video.read(film(name, 1, first=9))
        assert (numbers(opened), list_times(opened), opened.planned) == ([9], [0.0], 1)


def test_describe_is_json_serialisable(film) -> None:
    opened = video.read(film("a.mp4", 25, size=(96, 64)), fps=2, size=lambda width, height: (width // 2, height // 2))
    assert json.loads(json.dumps(opened.describe())) == {
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


def test_file_is_closed_after_early_stop(film) -> None:
    path = film("a.mp4", 60)

    def is_open() -> bool:
        return str(path) in {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}

    opened = video.read(path, batch=1)
    assert not is_open()
    batches = iter(opened)
    next(batches)
    assert is_open()
    batches.close()
    assert not is_open()

    def fail_at_second_frame() -> None:
        for frames in opened:
            if frames.times_s[0] > 0:
                raise RuntimeError("the consumer failed")

    with pytest.raises(RuntimeError, match="consumer failed"):
        fail_at_second_frame()
    assert not is_open()
    assert len(list(opened)) == 6
    assert not is_open()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(fps=0), "fps must be a number above 0"),
        (dict(fps=-1), "got -1"),
        (dict(fps=math.nan), "got nan"),
        (dict(fps=math.inf), "got inf"),
        (dict(fps=True), "got True"),
        (dict(fps="1"), "got '1'"),
        (dict(fps=1e-310), "from 1e-12 to 1e6, .*got 1e-310"),
        (dict(fps=1e300), "got 1e[+]300"),
        (dict(fps=10**5000), "got a number of thousands of digits"),
        (dict(fps=Fraction(1, 10**40)), "fps must be a number"),
        (dict(max_frames=-(10**5000)), "got a number of thousands of digits"),
        (dict(max_frames="7"), "got '7'"),
        (dict(max_frames=math.inf), "got inf"),
        (dict(batch=-1), "got -1"),
        (dict(max_frames=0), "max_frames must be a whole number, at least 1"),
        (dict(max_frames=2.5), "got 2.5"),
        (dict(batch=0), "batch must be a whole number of frames, at least 1; got 0"),
        (dict(size=lambda width, height: (width, 0)), r"a width and a height of at least 1, got \(64, 0\)"),
        (dict(size=lambda width, height: (width / 2, height)), r"got \(32.0, 48\)"),
        (dict(size=lambda width, height: [3, 11, 14]), "width and a height of at least 1, got a list of 3 values"),
        (dict(size=lambda width, height: 64), "got 64"),
        (dict(size=64), "size= must be a function"),
        (dict(size=lambda width, height: (10**9, 10**9)), "frames of 1000000000 x 1000000000 pixels are too large"),
    ],
)
def test_rejects_invalid_arguments(film, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        video.read(film("a.mp4", 3), **options)


@pytest.mark.parametrize(
    "options",
    [dict(fps=1e6), dict(fps=np.float32(10)), dict(fps=np.int64(10)), dict(fps=Fraction(10)), dict(max_frames=10**400)],
)
def test_large_and_unusual_numbers_are_accepted(film, numbers, options: dict) -> None:
    opened = video.read(film("a.mp4", 3), **{"fps": None, "batch": 10**12, **options})
    assert numbers(opened) == [0, 1, 2]
    assert opened.planned == 3


def test_batches_are_limited_by_memory(film, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules[video.Video.__module__], "BATCH_BYTES", 5 * 64 * 48 * 3)
    assert [len(frames.times_s) for frames in video.read(film("a.mp4", 12), fps=None)] == [5, 5, 2]


@pytest.mark.filterwarnings("ignore")  # between the opening of a file and its `with`, an interrupt leaves it to Python
@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_interrupts_reach_the_caller_and_close_the_file(film, name: str) -> None:
    """Interrupt at random moments: while opening, decoding and converting."""
    path = film(name, 200, size=(320, 240), options={"preset": "ultrafast"})

    def count_resources() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def read_until_interrupted() -> None:
        while True:
            list(video.read(path, fps=None))

    list(video.read(path, fps=None))
    before = count_resources()
    for delay_s in np.random.default_rng(0).uniform(0.001, 0.05, 12):
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        with pytest.raises(KeyboardInterrupt):
            read_until_interrupted()
    assert count_resources() == before


@pytest.fixture(autouse=True)
def interrupting_timer() -> Iterator[None]:
    """Make SIGALRM an interrupt, as Ctrl-C is."""
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


def test_tiny_fps_returns_the_first_frame(film, numbers) -> None:
    assert numbers(video.read(film("a.mp4", 3), fps=1e-12)) == [0]


def test_memory_does_not_grow_with_length(film, tmp_path: Path) -> None:
    """Compare peak memory after a short video and after the same frames repeated thirty times."""
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
        count = sum(len(frames.times_s) for frames in video.read(path, **options))
        print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    command = [sys.executable, "-c", script, *map(str, paths.values())]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert output[::2] == ["100", "2", "3000", "2"]
    short_mb, long_mb = int(output[3]), int(output[7])
    assert long_mb - short_mb < 20  # all frames of the long video would take 691 MB


@pytest.mark.skipif(not FOOTAGE.is_dir(), reason=f"no real footage in {FOOTAGE}; set FLOC_DATA")
@pytest.mark.parametrize(
    ("name", "size", "seconds", "frames", "max_frames"),
    [
        ("vtest.avi", (768, 576), 79.5, 795, 7200),
        ("intel_person.mp4", (768, 432), 139.4, 1394, 40),
        ("bbb480.mp4", (854, 480), 30.0, 720, 5),
        ("bikes.mp4", (640, 272), 10.0, 250, 7200),
    ],
)
def test_real_footage_equals_full_decoding(
    name: str, size: tuple[int, int], seconds: float, frames: int, max_frames: int
) -> None:
    """Decode all frames and select by time: the result is the same, bit for bit."""
    opened = video.read(FOOTAGE / name, max_frames=max_frames, batch=7)
    assert (opened.width, opened.height, opened.duration_s) == (*size, pytest.approx(seconds))
    samples = ((time, image) for batch in opened for time, image in zip(batch.times_s, batch.pixels, strict=True))
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
                time, pixels = next(samples)
                assert time == pytest.approx(float(frame.pts * tick))
                np.testing.assert_array_equal(pixels, frame.to_ndarray(format="rgb24"))
    assert next(samples, None) is None
    assert opened.warnings == []
