"""Footage shared by several tables: the videos in `$FLOC_DATA` at one size, as pixels and as tokens.

Tokens of real videos are cached in `benchmarks/cache` under a hash of the pixels. Synthetic videos replace them in
small runs and if a video is missing: a fixed camera, and an object that crosses its picture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.registry import Echo
from benchmarks.videos import find_videos, get_video_folder
from floc import encoders
from floc._arrays import to_numpy
from floc._atomic import write_atomic

NAMES = ("intel_person.mp4", "vtest.avi", "bbb480.mp4", "bikes.mp4")
ENCODER, SYNTHETIC_ENCODER = "mobilenet", "pixels"
FPS = 10  # all frames of the two long videos, and enough of the others
SIZE = (288, 160)  # pixels: 45 tokens a frame, 16:9 like most of the videos
CACHE = Path("benchmarks/cache")

Encode = Callable[[np.ndarray], np.ndarray]  # [B, height, width, 3] uint8 -> [B, H, W, D], frame by frame


@dataclass(frozen=True)
class Source:
    """A video, FPS frames a second."""

    name: str
    pixels: np.ndarray  # [T, height, width, 3] uint8
    tokens: np.ndarray  # [T, H, W, D]


@dataclass(frozen=True)
class Library:
    """Videos of one size, and the encoder of their pixels."""

    sources: list[Source]
    encode: Encode
    encoder: str
    is_real: bool

    def describe(self) -> dict[str, object]:
        """Return what the tokens were made from, JSON-serialisable."""
        return {"encoder": self.encoder, "is_real": self.is_real, "frame": list(self.sources[0].tokens.shape[1:])}


def load_library(small: bool, echo: Echo) -> Library:
    """Load the real videos, or synthetic ones if `small` or if a video is missing."""
    paths = {path.name: path for path in find_videos()}
    missing = [name for name in NAMES if name not in paths]
    if missing and not small:
        echo(f"using synthetic videos: {', '.join(missing)} not found in {get_video_folder()}; set FLOC_DATA")
    if small or missing:
        encode = _load_encoder(SYNTHETIC_ENCODER)
        videos = [make_pixels(seed, frames=300 if small else 1000) for seed in range(3)]
        sources = [Source(f"synthetic {number}", video, encode(video)) for number, video in enumerate(videos)]
        return Library(sources, encode, SYNTHETIC_ENCODER, is_real=False)
    encode = _load_encoder(ENCODER)
    return Library([_load_source(paths[name], encode) for name in NAMES], encode, ENCODER, is_real=True)


def describe_source(document: Mapping[str, Any]) -> str:
    """Return a sentence that says what the tokens of a table were made from."""
    rows, columns, dim = document["frame"]
    kind = "" if document["is_real"] else ", synthetic videos"
    return f"Tokens by {document['encoder']}, {rows} x {columns} a frame, {dim} features{kind}."


def _load_encoder(name: str) -> Encode:
    network = encoders.get(name)
    return lambda pixels: to_numpy(network(pixels))


def _load_source(path: Path, encode: Encode) -> Source:
    from floc.video import read

    pixels = np.concatenate([batch.pixels for batch in read(path, fps=FPS, size=lambda width, height: SIZE)])
    return Source(path.name, pixels, encode_cached(pixels, encode, CACHE))


def encode_cached(pixels: np.ndarray, encode: Encode, folder: Path) -> np.ndarray:
    """Return the tokens of pixels, from a file in `folder` if the same pixels were encoded before."""
    digest = hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=8).hexdigest()
    path = folder / f"{ENCODER}-{digest}.npy"
    if path.exists():
        return np.load(path)
    tokens = encode(pixels)
    folder.mkdir(parents=True, exist_ok=True)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # np.save would add .npy to the name of a path
            np.save(file, tokens)

    write_atomic(path, write)
    return tokens


def make_pixels(seed: int, frames: int, width: int = 96, height: int = 64) -> np.ndarray:
    """Return [frames, height, width, 3] uint8: coloured squares, one object that crosses them, and noise."""
    rng = np.random.default_rng(seed)
    squares = np.kron(rng.integers(40, 200, (height // 16, width // 16, 3)), np.ones((16, 16, 1)))  # [height, width, 3]
    pixels = squares + rng.normal(0, 4, (frames, height, width, 3))
    colour = rng.integers(0, 256, 3)
    for t, frame in enumerate(pixels):
        left = 2 * t % (width - 20)
        frame[height // 3 : height // 3 + 24, left : left + 20] = colour
    return pixels.clip(0, 255).astype(np.uint8)
