"""Mutated video files in eight containers, and files that refer to other videos."""

from __future__ import annotations

import math
import shutil
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz import containers, oracles
from tests.fuzz.outcomes import VALID, Outcome, judge_error, require

NAME = "clips"
BATCH = 25
CASES = 2_000
SIZE = (64, 48)
DEEP: dict[str, Any] = {"codec": "libx264", "pixels": "yuv444p10le", "is_blank": True}  # 160 MB for each frame
DEEP_SIZE = (5120, 5120)
DECOY_SIZE = (112, 80)  # no sample has it: a result of this size was read from a file that the user did not name
SAMPLES: dict[str, dict[str, Any]] = {
    "a.mp4": {"codec": "libx264"},
    "fragments.mp4": {"codec": "libx264", "movflags": "frag_keyframe+empty_moov"},
    "a.mkv": {"codec": "libx264"},
    "b.mkv": {"codec": "mpeg4"},
    "a.webm": {"codec": "libvpx"},
    "a.avi": {"codec": "mpeg4"},
    "a.ts": {"codec": "libx264"},
    "b.ts": {"codec": "mpeg2video"},
    "a.mov": {"codec": "libx264", "rotation": 90, "aspect": Fraction(4, 3)},
    "a.gif": {"codec": "gif", "pixels": "rgb8"},
    "a.mjpeg": {"codec": "mjpeg", "pixels": "yuvj420p"},
}
FORMATS = [*sorted({Path(name).suffix[1:] for name in SAMPLES}), "reference"]


def prepare(folder: Path) -> None:
    """Encode the valid clips."""
    for name, options in SAMPLES.items():
        _encode(folder / name, SIZE, **options)
    _encode(folder / "deep.mkv", DEEP_SIZE, **DEEP)
    (folder / "decoy").mkdir()
    _encode(folder / "decoy" / "decoy.mp4", DECOY_SIZE, codec="libx264")
    _encode(folder / "decoy" / "decoy.ts", DECOY_SIZE, codec="mpeg2video")


def _encode(
    path: Path,
    size: tuple[int, int],
    codec: str,
    pixels: str = "yuv420p",
    movflags: str | None = None,
    rotation: int = 0,
    aspect: Fraction | None = None,
    is_blank: bool = False,
) -> None:
    import av

    rng = np.random.default_rng(0)
    base = rng.integers(0, 1 if is_blank else 256, (size[1], size[0], 3), np.uint8)
    options = {"g": "50", "preset": "ultrafast", "refs": "16", "bf": "8"} if is_blank else {"g": "6"}
    with av.open(path, "w", container_options={"movflags": movflags} if movflags else {}) as output:
        stream: Any = output.add_stream(codec, rate=10, options=options)
        stream.width, stream.height, stream.pix_fmt = *size, pixels
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        if rotation:
            stream.set_display_rotation(rotation)
        for number in range(10 if is_blank else 24):
            frame = av.VideoFrame.from_ndarray(np.roll(base, 3 * number, 1), "rgb24")
            frame.pts = number
            output.mux(stream.encode(frame))
        output.mux(stream.encode())


def warm_up(folder: Path) -> None:
    """Read the valid clips."""
    import gc

    for name in SAMPLES:
        _use(folder / name, Random(name), is_reference=False)
    gc.collect()  # ends the threads of decoders


def choose_format(case: int) -> str:
    """Return the container of a case."""
    return FORMATS[case % len(FORMATS)]


def run(folder: Path, seed: int, case: int) -> Outcome:
    """Run one case."""
    rng = Random(f"clips {seed} {case}")
    form = choose_format(case)
    work = folder / f"case-{case}"
    work.mkdir()
    if form == "reference":
        decoy = rng.choice(sorted((folder / "decoy").iterdir()))
        shutil.copy(decoy, work)
        target = rng.choice((str(decoy), f"../decoy/{decoy.name}", decoy.name))
        data, what = containers.write_reference(target, rng)
        path = work / f"clip{Path(what).suffix}"
    else:
        sample = folder / rng.choice([name for name in SAMPLES if name.endswith(f".{form}")])
        if form == "mkv" and rng.random() < 0.03:
            sample = folder / "deep.mkv"
            data, what = sample.read_bytes(), "not changed"
        else:
            data, what = containers.mutate_container(sample.read_bytes(), sample.suffix, rng)
        what = f"{sample.name}: {what}"
        path = work / f"clip{sample.suffix}"
    path.write_bytes(data)
    try:
        what = f"{what}; {_use(path, rng, is_reference=form == 'reference')}"
        outcome = Outcome(VALID)
    except BaseException as error:
        outcome = judge_error(error, mentions=path.name)
    shutil.rmtree(work, ignore_errors=True)
    return Outcome(outcome.verdict, outcome.reason, outcome.place, what[:200])


def _use(path: Path, rng: Random, *, is_reference: bool) -> str:
    """Read a clip as users do, and check the frames; return the arguments."""
    from floc import video
    from floc.video import live

    fps = rng.choice((1.0, 1.0, None, 4, 0.01, 1000.0))
    if rng.random() < 0.15:
        _use_live(path, fps, is_reference)
        return f"live, fps={fps}"
    max_frames = rng.choice((7200, 7200, None, 5, 1))
    clip = video.read(path, fps=fps, max_frames=max_frames, batch=rng.choice((16, 1)))
    require(not is_reference, "it read a file that the user did not name")
    for name in ("width", "height", "source_width", "source_height", "planned"):
        require(type(getattr(clip, name)) is int and getattr(clip, name) >= 0, f"{name} = {getattr(clip, name)!r}")
    for name in ("duration_s", "native_fps", "sampled_fps"):
        require(math.isfinite(getattr(clip, name)) and getattr(clip, name) >= 0, f"{name} = {getattr(clip, name)!r}")
    oracles.check_frames(clip, clip.width, clip.height, max_frames)
    require(all(isinstance(text, str) for text in clip.warnings), "a warning is not text")
    require(clip.frames or clip.warnings or not clip.planned, "no frame and no warning")
    turned = clip.rotation % 180 == 90
    require(clip._orientation.swap_size(1, 2) == ((2, 1) if turned else (1, 2)), f"rotation {clip.rotation}")
    clip.describe()
    if fps is not None and clip.duration_s > 0 and rng.random() < 0.3:
        part = clip.part(0, max(1, clip.planned // 2))
        oracles.check_frames(part, clip.width, clip.height, None)
    return f"fps={fps}, max_frames={max_frames}, {live.classify_source(str(path))}"


def _use_live(path: Path, fps: float | None, is_reference: bool) -> None:
    """Follow a clip as a file that grows."""
    from floc.video import live

    last, sizes = -math.inf, set()
    for pixels, time_s in live.read_frames(
        str(path), fps=fps, size=lambda width, height: (width, height), follow=True, patience_s=0.05
    ):
        require(not is_reference, "it read a file that the user did not name")
        require(math.isfinite(time_s) and time_s > last, f"time {time_s} after {last}")
        last = time_s
        sizes.add(pixels.shape)
    require(len(sizes) <= 1, f"frames of several sizes: {sizes}")
