"""Films with inserts whose place is known, and how much of each a method keeps.

Inserts are of two kinds. A clip is spliced in: whole frames of another film. An object is pasted over: a small square
of another film covers a part of the picture, while the film goes on around it. Both last 0.5 to 3 seconds.

An encoder that takes each frame by itself gives a clip the tokens it has in its own film, so these are spliced, not
the pictures; frames under an object are encoded again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import floc
from benchmarks.sources import FPS, Encode, Source
from floc._arrays import to_numpy, to_tensor
from floc.representatives import find_nearest

CLIP, OBJECT = KINDS = ("clip", "object")
STEP = 5  # frames of a source that one of a film takes: two frames a second
FRAMES = 160  # of a film at most: 80 seconds
LONGEST = 6  # frames: three seconds; the shortest insert has one
SIDES = (48, 72)  # pixels that an object has to a side; the least covers half of a cell wherever it lies
COVERED = 0.5  # share of a cell that an object covers where its token counts as the object's
CROPS = 16  # squares of the other film to choose an object from: the one with most contrast
RESAMPLES = 2000


@dataclass(frozen=True)
class Insert:
    """What was put in, and a place of the background to compare it with."""

    kind: str
    source: str
    seconds: float
    tokens: np.ndarray  # [m] flat indices in the film
    background: np.ndarray  # [m] the same cells in as many frames that no insert touches


@dataclass(frozen=True)
class Film:
    """Tokens with inserts."""

    name: str
    tokens: np.ndarray  # [T, H, W, D]
    inserts: list[Insert]


@dataclass(frozen=True)
class Score:
    """How much of an insert, and of its place of the background, was kept."""

    kept: bool  # at least one token
    share: float  # tokens kept over all its tokens
    similarity: float  # mean, over tokens, of the highest cosine with anything kept
    background_kept: bool
    background_share: float
    background_similarity: float


@dataclass(frozen=True)
class _Clip:
    """Some frames of another film."""

    source: Source
    frames: np.ndarray  # [length] places in the source


@dataclass(frozen=True)
class _Stretch:
    """A part of a film with an insert in it."""

    tokens: np.ndarray  # [t, H, W, D]
    inserted: np.ndarray  # [t, H, W] bool
    clip: _Clip
    kind: str


def plant(base: Source, others: Sequence[Source], encode: Encode, *, seed: int) -> Film:
    """A part of a film, two frames a second, with a clip and an object of every other film in it, far from each other.

    Args:
        base: what plays on.
        others: what inserts are taken from; one clip and one object of each, so that no two of a kind look alike.
        encode: what made the sources' tokens.
        seed: which part and which inserts; the same gives the same.
    """
    rng = np.random.default_rng(seed)
    count = min(FRAMES, len(base.tokens) // STEP)
    inserts = 2 * len(others)
    if count < inserts * (LONGEST + 2):
        raise ValueError(
            f"{base.name}: {count} frames are too few for {inserts} inserts of up to {LONGEST} frames; "
            f"take a film of {math.ceil(inserts * (LONGEST + 2) * STEP / FPS)} s or more"
        )
    frames = _some(len(base.tokens), count, rng)
    put_in = [(put, source) for put in (_spliced, _pasted) for source in others]
    stretches = []
    for stretch, which in zip(np.array_split(frames, inserts), rng.permutation(inserts), strict=True):
        put, source = put_in[which]
        clip = _Clip(source, _some(len(source.tokens), int(rng.integers(1, LONGEST + 1)), rng))
        at = int(rng.integers(1, len(stretch) - len(clip.frames)))  # some of the film is before and after it
        stretches.append(put(base, stretch, at, clip, encode, rng))
    return Film(base.name, np.concatenate([each.tokens for each in stretches]), _inserts(stretches, rng))


def _some(length: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """[count] places in a source, STEP apart, from a random one on."""
    return int(rng.integers(length - STEP * (count - 1))) + STEP * np.arange(count)


def _spliced(
    base: Source, stretch: np.ndarray, at: int, clip: _Clip, encode: Encode, rng: np.random.Generator
) -> _Stretch:
    """Whole frames of a clip between two frames of the film."""
    parts = base.tokens[stretch[:at]], clip.source.tokens[clip.frames], base.tokens[stretch[at:]]
    tokens = np.concatenate(parts)
    inserted = np.zeros(tokens.shape[:3], bool)
    inserted[at : at + len(clip.frames)] = True
    return _Stretch(tokens, inserted, clip, CLIP)


def _pasted(
    base: Source, stretch: np.ndarray, at: int, clip: _Clip, encode: Encode, rng: np.random.Generator
) -> _Stretch:
    """A square of a clip over some frames of the film."""
    under = slice(at, at + len(clip.frames))
    pixels = base.pixels[stretch[under]]
    _, height, width, _ = pixels.shape
    side = int(rng.integers(SIDES[0], min(SIDES[1], height) + 1))
    top, left = (int(rng.integers(length - side + 1)) for length in (height, width))
    pixels[:, top : top + side, left : left + side] = _object(clip, side, rng)
    tokens = base.tokens[stretch]
    tokens[under] = encode(pixels)
    inserted = np.zeros(tokens.shape[:3], bool)
    rows, columns = tokens.shape[1:3]
    share = np.outer(overlap(top, side, height, rows), overlap(left, side, width, columns))
    inserted[under] = share >= COVERED
    return _Stretch(tokens, inserted, clip, OBJECT)


def _object(clip: _Clip, side: int, rng: np.random.Generator) -> np.ndarray:
    """[length, side, side, 3] the square of a clip that has most contrast in its first frame, of some at random."""
    pixels = clip.source.pixels[clip.frames]
    _, height, width, _ = pixels.shape
    tops, lefts = (rng.integers(length - side + 1, size=CROPS) for length in (height, width))
    squares = [pixels[:, top : top + side, left : left + side] for top, left in zip(tops, lefts, strict=True)]
    return max(squares, key=lambda square: float(square[0].mean(-1).std()))


def overlap(start: int, side: int, length: int, cells: int) -> np.ndarray:
    """[cells] the share of each cell of a line that lies within `side` pixels from `start`.

    >>> overlap(8, 48, 96, 3).tolist()
    [0.75, 0.75, 0.0]
    """
    edges = np.arange(cells + 1) * length / cells
    covered = np.minimum(edges[1:], start + side) - np.maximum(edges[:-1], start)
    return covered.clip(0) * cells / length


def _inserts(stretches: Sequence[_Stretch], rng: np.random.Generator) -> list[Insert]:
    """Where in the whole film the inserts are, each with a place of the background."""
    inserted = [each.inserted for each in stretches]
    is_touched = np.concatenate(inserted).any((1, 2))  # [T]
    cells = inserted[0][0].size
    found = []
    start = 0  # of the stretch, in frames
    for stretch in stretches:
        tokens = start * cells + np.flatnonzero(stretch.inserted)
        length = len(stretch.clip.frames)
        free = np.flatnonzero(np.convolve(is_touched, np.ones(length), "valid") == 0)
        moved = int(rng.choice(free)) - tokens[0] // cells
        seconds = length * STEP / FPS
        found.append(Insert(stretch.kind, stretch.clip.source.name, seconds, tokens, tokens + moved * cells))
        start += len(stretch.inserted)
    return found


def score(film: Film, kept: floc.Kept) -> list[Score]:
    """What was kept of each insert."""
    sets = [tokens for insert in film.inserts for tokens in (insert.tokens, insert.background)]
    flat = film.tokens.reshape(-1, film.tokens.shape[-1])
    cosine, _ = find_nearest(to_tensor(flat[np.concatenate(sets)]), to_tensor(kept.features))
    ends = np.cumsum([len(tokens) for tokens in sets])[:-1]
    similarities = [float(part.mean(dtype=np.float64)) for part in np.split(to_numpy(cosine), ends)]
    counts = [kept_of(kept, tokens) for tokens in sets]
    each = [(n > 0, n / len(of), like) for n, of, like in zip(counts, sets, similarities, strict=True)]
    return [Score(*insert, *background) for insert, background in zip(each[::2], each[1::2], strict=True)]


def kept_of(kept: floc.Kept, tokens: np.ndarray) -> int:
    """How many of some tokens were kept.

    Of a method that merges: how many of its tokens are made of these by more than half.
    """
    if not kept.merged:
        return int(np.isin(tokens, to_numpy(kept.indices)).sum())
    represents = to_numpy(kept.represents)
    members = np.bincount(represents, minlength=len(kept))
    mine = np.bincount(represents[tokens], minlength=len(kept))
    return int((2 * mine > members).sum())


def interval(values: np.ndarray, seed: int = 0) -> dict[str, float]:
    """The mean of some values, and where 95% of the means of as many drawn from them at random lie.

    >>> interval(np.ones(5))
    {'mean': 1.0, 'low': 1.0, 'high': 1.0}
    """
    values = np.asarray(values, np.float64)
    draws = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(values[draws].mean(1), (2.5, 97.5))
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}
