"""Videos with short inserts at known places.

There are two kinds of inserts. A clip is spliced in: whole frames of another video. An object is pasted over: a small
square of another video covers a part of the picture while the video goes on around it. Both last 0.5 to 3 seconds.

The encoder takes each frame by itself, so the tokens of a clip are spliced instead of its pixels. Frames under an
object are encoded again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.sources import FPS, Encode, Library, Source

CLIP, OBJECT = KINDS = ("clip", "object")
STEP = 5  # every fifth frame of a source is used: two frames a second
FRAMES = 160  # of a video at most: 80 seconds
LONGEST = 6  # frames: three seconds; the shortest insert has one
SIDES = (48, 72)  # pixels of an object's side; the smallest covers half of a cell at any position
COVERED = 0.5  # share of a cell that an object must cover for the token to count as the object's
CROPS = 16  # candidate squares for an object; the one with the highest contrast is used
SYNTHETIC_COUNTS = {"synthetic 0": 2}  # videos to make of each source in a small run


@dataclass(frozen=True)
class Insert:
    """An insert, and a part of the background to compare it with."""

    kind: str
    source: str
    seconds: float
    tokens: np.ndarray  # [m] flat indices in the video
    background: np.ndarray  # [m] the same cells in as many frames without inserts


@dataclass(frozen=True)
class PlantedVideo:
    """A video with inserts."""

    name: str
    tokens: np.ndarray  # [T, H, W, D]
    inserts: list[Insert]


@dataclass(frozen=True)
class _Clip:
    """Frames of another video."""

    source: Source
    frames: np.ndarray  # [length] frame numbers in the source


@dataclass(frozen=True)
class _Stretch:
    """A part of a video with one insert."""

    tokens: np.ndarray  # [t, H, W, D]
    inserted: np.ndarray  # [t, H, W] bool
    clip: _Clip
    kind: str


def make_videos(library: Library, counts: Mapping[str, int]) -> Iterator[PlantedVideo]:
    """Yield videos with inserts, `counts[name]` of each source; always the same ones."""
    sources = {source.name: source for source in library.sources}
    seeds = itertools.count()
    for name, count in counts.items():
        others = [source for source in library.sources if source.name != name]
        for _ in range(count):
            yield plant(sources[name], others, library.encode, seed=next(seeds))


def plant(base: Source, others: Sequence[Source], encode: Encode, *, seed: int) -> PlantedVideo:
    """Insert a clip and an object of every other source into a part of a video, far from each other.

    Args:
        base: The video to insert into, two frames a second of it.
        others: Sources of the inserts; one clip and one object of each, so that no two of a kind look alike.
        encode: The encoder that made the sources' tokens.
        seed: Selects the part and the inserts.
    """
    rng = np.random.default_rng(seed)
    count = min(FRAMES, len(base.tokens) // STEP)
    inserts = 2 * len(others)
    if count < inserts * (LONGEST + 2):
        raise ValueError(
            f"{base.name}: {count} frames are too few for {inserts} inserts of up to {LONGEST} frames; "
            f"use a video of {math.ceil(inserts * (LONGEST + 2) * STEP / FPS)} s or more"
        )
    frames = _draw_frames(len(base.tokens), count, rng)
    kinds = [(add, source) for add in (_splice_clip, _paste_object) for source in others]
    stretches = []
    for stretch, kind in zip(np.array_split(frames, inserts), rng.permutation(inserts), strict=True):
        add, source = kinds[kind]
        clip = _Clip(source, _draw_frames(len(source.tokens), int(rng.integers(1, LONGEST + 1)), rng))
        at = int(rng.integers(1, len(stretch) - len(clip.frames)))  # some of the video is before and after it
        stretches.append(add(base, stretch, at, clip, encode, rng))
    tokens = np.concatenate([stretch.tokens for stretch in stretches])
    return PlantedVideo(base.name, tokens, _locate_inserts(stretches, rng))


def _draw_frames(length: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return [count] frame numbers, STEP apart, from a random start."""
    return int(rng.integers(length - STEP * (count - 1))) + STEP * np.arange(count)


def _splice_clip(
    base: Source, stretch: np.ndarray, at: int, clip: _Clip, encode: Encode, rng: np.random.Generator
) -> _Stretch:
    """Insert whole frames of a clip between two frames of the video."""
    parts = base.tokens[stretch[:at]], clip.source.tokens[clip.frames], base.tokens[stretch[at:]]
    tokens = np.concatenate(parts)
    inserted = np.zeros(tokens.shape[:3], bool)
    inserted[at : at + len(clip.frames)] = True
    return _Stretch(tokens, inserted, clip, CLIP)


def _paste_object(
    base: Source, stretch: np.ndarray, at: int, clip: _Clip, encode: Encode, rng: np.random.Generator
) -> _Stretch:
    """Paste a square of a clip over some frames of the video."""
    under = slice(at, at + len(clip.frames))
    pixels = base.pixels[stretch[under]]
    _, height, width, _ = pixels.shape
    side = int(rng.integers(SIDES[0], min(SIDES[1], height) + 1))
    top, left = (int(rng.integers(length - side + 1)) for length in (height, width))
    pixels[:, top : top + side, left : left + side] = _crop_object(clip, side, rng)
    tokens = base.tokens[stretch]
    tokens[under] = encode(pixels)
    inserted = np.zeros(tokens.shape[:3], bool)
    rows, columns = tokens.shape[1:3]
    share = np.outer(compute_overlap(top, side, height, rows), compute_overlap(left, side, width, columns))
    inserted[under] = share >= COVERED
    return _Stretch(tokens, inserted, clip, OBJECT)


def _crop_object(clip: _Clip, side: int, rng: np.random.Generator) -> np.ndarray:
    """Return [length, side, side, 3]: of some random squares of a clip, the one with most contrast in its first "
    "frame."""
    pixels = clip.source.pixels[clip.frames]
    _, height, width, _ = pixels.shape
    tops, lefts = (rng.integers(length - side + 1, size=CROPS) for length in (height, width))
    squares = [pixels[:, top : top + side, left : left + side] for top, left in zip(tops, lefts, strict=True)]
    return max(squares, key=lambda square: float(square[0].mean(-1).std()))


def compute_overlap(start: int, side: int, length: int, cells: int) -> np.ndarray:
    """Return [cells]: the share of each cell of a line that lies within `side` pixels from `start`.

    >>> compute_overlap(8, 48, 96, 3).tolist()
    [0.75, 0.75, 0.0]
    """
    edges = np.arange(cells + 1) * length / cells
    covered = np.minimum(edges[1:], start + side) - np.maximum(edges[:-1], start)
    return covered.clip(0) * cells / length


def _locate_inserts(stretches: Sequence[_Stretch], rng: np.random.Generator) -> list[Insert]:
    """Return the inserts with their indices in the whole video, each with a part of the background."""
    inserted = [stretch.inserted for stretch in stretches]
    has_insert = np.concatenate(inserted).any((1, 2))  # [T]
    cells = inserted[0][0].size
    inserts = []
    start = 0  # of the stretch, in frames
    for stretch in stretches:
        tokens = start * cells + np.flatnonzero(stretch.inserted)
        length = len(stretch.clip.frames)
        free = np.flatnonzero(np.convolve(has_insert, np.ones(length), "valid") == 0)
        shift = int(rng.choice(free)) - tokens[0] // cells
        seconds = length * STEP / FPS
        inserts.append(Insert(stretch.kind, stretch.clip.source.name, seconds, tokens, tokens + shift * cells))
        start += len(stretch.inserted)
    return inserts
