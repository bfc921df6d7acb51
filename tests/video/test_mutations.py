"""Mutated clips are refused with a clear error, or read as frames that satisfy the promises of `floc.video.read`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from floc import video  # noqa: E402
from floc.video import live  # noqa: E402

CLIPS = {
    "a.mp4": "libx264",
    "a.mkv": "libx264",
    "a.webm": "libvpx",
    "a.avi": "mpeg4",
    "a.ts": "mpeg2video",
    "a.mov": "mjpeg",
}
CASES = 40  # of each clip


def mutate(data: bytes, random: np.random.Generator) -> bytes:
    """Change a few bytes, cut off the end, or repeat, delete or overwrite a part."""
    mutated, kind = bytearray(data), random.integers(6)
    start, length = int(random.integers(len(data))), int(random.integers(1, 64))
    if kind == 0:
        return bytes(mutated[: start + 1])
    if kind == 1:
        return bytes(mutated[:start] + mutated[start + length :])
    if kind == 2:
        return bytes(mutated[: start + length] + mutated[start:])
    if kind == 3:
        mutated[start : start + length] = random.choice([b"\x00", b"\xff", b"\x7f"]) * length
        return bytes(mutated[: len(data)])
    # numbers that matter are near the start and the end
    places = random.integers(min(len(data), 1500), size=8) * random.choice([1, -1])
    for place in places[: random.integers(1, 9)]:
        mutated[place] = random.choice([0, 1, 127, 128, 255, random.integers(256)])
    return bytes(mutated)


@pytest.mark.parametrize("name", CLIPS)
def test_mutated_clips(film, tmp_path: Path, name: str) -> None:
    pixels = "yuvj420p" if CLIPS[name] == "mjpeg" else "yuv420p"
    data = film(name, 20, rate=25, codec=CLIPS[name], pixels=pixels, options={"g": "7"}).read_bytes()
    random = np.random.default_rng(len(data))
    path = tmp_path / f"mutated{Path(name).suffix}"
    for case in range(CASES):
        path.write_bytes(mutate(data, random))
        options = {"fps": [None, 1.0, 30.0][case % 3], "max_frames": [None, 4, 7200][case // 3 % 3]}
        try:
            opened = video.read(path, batch=3, size=lambda width, height: (width // 2 + 1, height), **options)
            batches = list(opened)
        except (ValueError, OSError) as error:
            assert str(error).startswith(f"{path}: "), repr(error)  # noqa: PT017
            continue
        assert 0 < opened.duration_s < 2e7
        assert 0 < opened.native_fps <= 1e6
        times = np.concatenate([np.zeros(0), *(batch.times_s for batch in batches)])
        assert np.isfinite(times).all()
        assert (np.diff(times) > 0).all()
        assert len(times) == opened.frames <= (options["max_frames"] or len(data))
        for batch in batches:
            assert batch.pixels.shape == (len(batch.times_s), opened.height, opened.width, 3)
            assert batch.pixels.dtype == np.uint8
        try:
            frames = live.read_frames(str(path), fps=None, size=lambda *_: (8, 8), follow=True, patience_s=0)
            assert all(shown.shape == (8, 8, 3) for shown, _ in frames)
        except (ValueError, OSError) as error:
            assert str(error).startswith(f"{path}: "), repr(error)  # noqa: PT017
