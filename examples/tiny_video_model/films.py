"""Films with known content: places, cuts, camera moves, and things that are shown for one to three seconds.

A film has two frames a second. A vision encoder joins two frames to one slice, so that a slice is a second.
The picture has six zones, two rows of three. Each thing of a film has a zone of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.demo.scenes import SCENES
from examples.tiny_video_model.things import THINGS
from floc._atomic import write_atomic

PLACES = tuple(SCENES)
ROWS, COLUMNS = ("top", "bottom"), ("left", "middle", "right")
ZONES = tuple(f"{row} {column}" for row in ROWS for column in COLUMNS)
FPS = 2
SLICE_FRAMES = 2  # the frames that a vision encoder joins
GAP = 2  # at least so many seconds between two appearances of a thing
MOST_THINGS = 4  # in a film
PAINTINGS = 3  # pictures of each place, with other details
# one pair in eight is never shown together in films for training
UNSEEN_PAIRS = frozenset(
    (thing, place) for t, thing in enumerate(THINGS) for p, place in enumerate(PLACES) if (3 * t + 5 * p) % 8 == 0
)


@dataclass(frozen=True)
class Shot:
    """A part of a film in one place, seen by a camera that moves evenly."""

    place: str
    start: int  # slice
    end: int  # the slice after the last
    painting: int  # which picture of the place
    opens: tuple[float, float]  # camera position in the first frame, x and y in [0, 1]
    closes: tuple[float, float]  # the same in the last frame


@dataclass(frozen=True)
class Appearance:
    """A thing in its zone, for a few slices."""

    thing: str
    zone: int
    start: int  # slice
    end: int
    at: tuple[float, float]  # position in the zone, x and y in [0, 1]


@dataclass(frozen=True)
class Film:
    """What is to be seen in a film."""

    seed: int
    slices: int
    shots: tuple[Shot, ...]
    appearances: tuple[Appearance, ...]  # by start
    light: float

    @property
    def things(self) -> tuple[str, ...]:
        """The things that are shown, in the order of their first appearance."""
        return tuple(dict.fromkeys(appearance.thing for appearance in self.appearances))

    def get_appearances(self, thing: str) -> list[Appearance]:
        """Return the appearances of a thing, by start."""
        return [appearance for appearance in self.appearances if appearance.thing == thing]

    def get_place(self, slice_: int) -> str:
        """Return the place of a slice."""
        return next(shot.place for shot in self.shots if shot.start <= slice_ < shot.end)


def make_film(seed: int, slices: int = 32, *, training: bool = False) -> Film:
    """Plan a film. The seed and the length determine it.

    Args:
        seed: Films for training and for tests use seeds of different ranges.
        slices: Length in seconds, 4 to 256.
        training: Never show a pair of UNSEEN_PAIRS.
    """
    if not 4 <= slices <= 256:
        raise ValueError(f"a film has 4 to 256 slices, got {slices}")
    rng = np.random.default_rng([seed, slices, training])
    shots = _make_shots(rng, slices)
    # four things in a film of 16 slices and more; about one for every four slices in shorter ones
    count = min(MOST_THINGS, max(1, slices // 4))
    things = [THINGS[at] for at in rng.permutation(len(THINGS))[:count]]
    zones = rng.permutation(len(ZONES))
    appearances: list[Appearance] = []
    for thing, zone in zip(things, zones, strict=False):
        appearances += _place_thing(rng, thing, int(zone), shots, slices, training)
    appearances.sort(key=lambda appearance: (appearance.start, appearance.zone))
    return Film(seed, slices, shots, tuple(appearances), float(rng.uniform(0.8, 1.15)))


def _make_shots(rng: np.random.Generator, slices: int) -> tuple[Shot, ...]:
    """Return shots of at least two slices; one place fills more of the film than all others."""
    count = int(rng.integers(2, max(3, min(6, slices // 5 + 1)) + 1)) if slices >= 8 else 2
    while True:
        lengths = 2 + rng.multinomial(slices - 2 * count, rng.dirichlet([1.0] * count)) if slices >= 8 else None
        if lengths is None:
            lengths = np.array([slices - 1, 1])
        places = [int(rng.integers(len(PLACES)))]
        while len(places) < count:
            place = int(rng.integers(len(PLACES)))
            if place != places[-1]:
                places.append(place)
        totals = np.bincount(places, lengths, len(PLACES))
        first, second = np.sort(totals)[::-1][:2]
        if first - second >= max(2, 0.15 * slices):
            break
    if slices < 8 and rng.random() < 0.5:
        lengths, places = lengths[::-1], places[::-1]
    shots, start = [], 0
    for place, length in zip(places, lengths, strict=True):
        end = start + int(length)
        opens = rng.uniform(0, 1, 2)
        closes = np.clip(opens + rng.normal(0, 0.02 * length, 2), 0, 1)
        ends = (float(opens[0]), float(opens[1])), (float(closes[0]), float(closes[1]))
        shots.append(Shot(PLACES[place], start, end, int(rng.integers(PAINTINGS)), *ends))
        start = end
    return tuple(shots)


def _place_thing(
    rng: np.random.Generator, thing: str, zone: int, shots: tuple[Shot, ...], slices: int, training: bool
) -> list[Appearance]:
    """Show a thing one to four times, in a third of the film or in all of it."""
    most = 4 if slices >= 24 else 3 if slices >= 12 else 2 if slices >= 8 else 1
    forbidden = {shot.place for shot in shots if (thing, shot.place) in UNSEEN_PAIRS} if training else set()
    at = rng.uniform(0, 1, 2)
    for _ in range(200):
        count = int(rng.integers(1, most + 1))
        third = int(rng.integers(3)) if count <= 2 and slices >= 12 and rng.random() < 0.5 else None
        first, end = (0, slices) if third is None else (third * slices // 3, (third + 1) * slices // 3)
        spans: list[tuple[int, int]] = []
        for _ in range(30):
            length = int(rng.integers(1, 4 if slices >= 8 else 3))
            if end - first <= length:
                continue
            start = int(rng.integers(first, end - length + 1))
            if all(start >= other_end + GAP or start + length + GAP <= other for other, other_end in spans):
                spans.append((start, start + length))
            if len(spans) == count:
                break
        places = {shot.place for a, b in spans for shot in shots if shot.start < b and a < shot.end}
        if len(spans) == count and not places & forbidden:
            shifts = np.clip(at + rng.uniform(-0.3, 0.3, (count, 2)), 0, 1)
            return [
                Appearance(thing, zone, a, b, (float(x), float(y)))
                for (a, b), (x, y) in zip(spans, shifts, strict=True)
            ]
    return []


def locate_thing(appearance: Appearance, height: int, width: int) -> tuple[int, int, int]:
    """Return left, top and side in pixels of a thing in the picture.

    A zone has four spots. A thing covers one of them, and a little around it.
    """
    row, column = divmod(appearance.zone, len(COLUMNS))
    spot_height, spot_width = _measure_spot(height, width)
    side = measure_thing(height, width)

    def place(zone: int, at: float, spot: int, most: int) -> int:
        number, rest = divmod(2 * min(at, 0.999), 1)
        shift = 0.5 + 0.6 * (rest - 0.5)  # the thing covers its spot wherever it is moved
        return int(np.clip(round((2 * zone + number) * spot - shift * (side - spot)), 0, most - side))

    return (
        place(column, appearance.at[0], spot_width, width),
        place(row, appearance.at[1], spot_height, height),
        side,
    )


def measure_thing(height: int, width: int) -> int:
    """Return the side of a thing in pixels."""
    return round(1.25 * min(_measure_spot(height, width)))


def _measure_spot(height: int, width: int) -> tuple[int, int]:
    return height // len(ROWS) // 2, width // len(COLUMNS) // 2


def label_tokens(film: Film, height: int, width: int, cell: int) -> np.ndarray:
    """Return what each visual token shows most, [slices, height / cell, width / cell] int64.

    Places come first, then things: PLACES + THINGS. A token shows a thing if the thing fills a third of its cell.
    """
    rows, columns = height // cell, width // cell
    labels = np.empty((film.slices, rows, columns), np.int64)
    for shot in film.shots:
        labels[shot.start : shot.end] = PLACES.index(shot.place)
    edges_y, edges_x = np.arange(rows) * cell, np.arange(columns) * cell
    for appearance in film.appearances:
        left, top, side = locate_thing(appearance, height, width)
        down = np.clip(np.minimum(top + side, edges_y + cell) - np.maximum(top, edges_y), 0, None)
        across = np.clip(np.minimum(left + side, edges_x + cell) - np.maximum(left, edges_x), 0, None)
        shown = down[:, None] * across > cell**2 / 3
        labels[appearance.start : appearance.end, shown] = len(PLACES) + THINGS.index(appearance.thing)
    return labels


def write_film(path: Path, frames: np.ndarray) -> None:
    """Write frames [F, height, width, 3] uint8 to an mp4 file of two frames a second, atomically."""
    import av

    def encode(temporary: Path) -> None:
        with av.open(str(temporary), "w", format="mp4") as container:
            stream = container.add_stream("libx264", FPS, options={"crf": "12", "preset": "veryfast"})
            stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
            for frame in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(stream.encode())

    write_atomic(path, encode)
