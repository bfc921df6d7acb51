"""Footage that several tables share: the films in `$FLOC_DATA`, all in one size, as pictures and as tokens.

Tokens of real films stay in `benchmarks/cache`, under a name that the pictures decide: what shows the same is not
encoded again. Where there are no films, and for small runs, they are made up: a place seen by a fixed camera, and
something that crosses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import Echo
from benchmarks.video import films_folder, real_films
from floc import encoders
from floc._arrays import to_numpy
from floc.files import write_atomic

NAMES = ("intel_person.mp4", "vtest.avi", "bbb480.mp4", "bikes.mp4")
ENCODER, MADE_UP_ENCODER = "mobilenet", "pixels"
FPS = 10  # all frames of the two long films, and enough of the others
SIZE = (288, 160)  # pixels: 45 tokens a frame, 16:9 like most of the films
CACHE = Path("benchmarks/cache")

Encode = Callable[[np.ndarray], np.ndarray]  # [B, height, width, 3] uint8 -> [B, H, W, D], each frame by itself


@dataclass(frozen=True)
class Source:
    """A film, FPS frames a second."""

    name: str
    pixels: np.ndarray  # [T, height, width, 3] uint8
    tokens: np.ndarray  # [T, H, W, D]


@dataclass(frozen=True)
class Library:
    """Films of one size, and what makes tokens of their pictures."""

    sources: list[Source]
    encode: Encode
    encoder: str
    is_real: bool

    def about(self) -> dict[str, object]:
        """What the tokens are of, as JSON takes it."""
        return {"encoder": self.encoder, "is_real": self.is_real, "frame": list(self.sources[0].tokens.shape[1:])}


def library(small: bool, echo: Echo) -> Library:
    """The films there are, or made-up ones, which is told where real ones were asked for."""
    paths = {path.name: path for path in real_films()}
    missing = [name for name in NAMES if name not in paths]
    if missing and not small:
        are = "is" if len(missing) == 1 else "are"
        echo(f"made-up films: {', '.join(missing)} {are} not in {films_folder()}; set FLOC_DATA")
    if small or missing:
        encode = _encoder(MADE_UP_ENCODER)
        films = [made_up(seed, frames=300 if small else 1000) for seed in range(3)]
        sources = [Source(f"made up {number}", film, encode(film)) for number, film in enumerate(films)]
        return Library(sources, encode, MADE_UP_ENCODER, is_real=False)
    encode = _encoder(ENCODER)
    return Library([_real(paths[name], encode) for name in NAMES], encode, ENCODER, is_real=True)


def origin(document: Mapping[str, Any]) -> str:
    """For people: what the tokens of a table are of."""
    rows, columns, dim = document["frame"]
    kind = "" if document["is_real"] else ", made-up films"
    return f"Tokens by {document['encoder']}, {rows} x {columns} a frame, {dim} features{kind}."


def _encoder(name: str) -> Encode:
    network = encoders.get(name)
    return lambda pixels: to_numpy(network(pixels))


def _real(path: Path, encode: Encode) -> Source:
    from floc.video import read

    pixels = np.concatenate([batch.pixels for batch in read(path, fps=FPS, size=lambda width, height: SIZE)])
    return Source(path.name, pixels, remembered(pixels, encode, CACHE))


def remembered(pixels: np.ndarray, encode: Encode, folder: Path) -> np.ndarray:
    """The tokens of pictures, from a file in `folder` where these were encoded before."""
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


def made_up(seed: int, frames: int, width: int = 96, height: int = 64) -> np.ndarray:
    """[frames, height, width, 3] uint8 pictures of patches of colour, one thing that crosses them, and noise."""
    rng = np.random.default_rng(seed)
    place = np.kron(rng.integers(40, 200, (height // 16, width // 16, 3)), np.ones((16, 16, 1)))  # [height, width, 3]
    pixels = place + rng.normal(0, 4, (frames, height, width, 3))
    colour = rng.integers(0, 256, 3)
    for t, frame in enumerate(pixels):
        left = 2 * t % (width - 20)
        frame[height // 3 : height // 3 + 24, left : left + 20] = colour
    return pixels.clip(0, 255).astype(np.uint8)
