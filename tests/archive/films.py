"""Short, small video files for ingests, each with its own content."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import av
import numpy as np

from floc.archive import Store

FILMS = 200
OPTIONS = {"encoder": "pixels", "ratio": "1/16"}


def make_film(path: Path, seconds: int, seed: int, *, rate: int = 2, size: tuple[int, int] = (64, 48)) -> Path:
    """Write a video of coloured squares that change every second; the same seed gives the same video."""
    rng = np.random.default_rng(seed)
    with av.open(path, "w") as output:
        stream = output.add_stream("mpeg4", rate=rate, options={"g": "8"})
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for _ in range(seconds):
            squares = rng.integers(0, 255, (3, 4, 3), np.uint8)
            picture = squares.repeat(size[1] // 3, 0).repeat(size[0] // 4, 1)
            for _ in range(rate):
                output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        output.mux(stream.encode())
    return path


def make_films(folder: Path, count: int, seconds: int = 3) -> list[Path]:
    """Write videos of different lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [make_film(folder / f"film{i:03}.mkv", seconds + i % 4, seed=i) for i in range(count)]


def assert_ingested_once(path: Path) -> None:
    """Assert that every video of the `archive` fixture is in the store once, and the broken ones have reasons."""
    store = Store(path)
    assert store.check() == []
    videos = store.videos()
    assert Counter(video.status for video in videos) == {"done": FILMS, "failed": 2}
    reasons = {Path(video.uri).name: video.error for video in videos if video.status == "failed"}
    assert sorted(reasons) == ["broken.mkv", "empty.mp4"]
    assert all(reasons.values())
    done = [video for video in videos if video.status == "done"]
    assert len({video.content for video in done}) == FILMS
    for video in random.Random(0).sample(done, 5):
        opened = store.open(video.id)
        assert opened.shape[0] == video.frames == round(video.duration_s)
