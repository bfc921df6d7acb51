"""Films with known content: places, cuts, camera moves, and things that are shown for one to three seconds.

A film has two frames a second. A vision encoder joins two frames to one slice, so that a slice is a second.
The picture has six zones, two rows of three. Each thing of a film has a zone of its own.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from examples.demo.canvas import STAGE_HEIGHT, STAGE_WIDTH, Canvas
from examples.demo.scenes import SCENES
from examples.tiny_video_model.things import THINGS, draw_thing
from floc._atomic import write_atomic

PLACES = tuple(SCENES)
ROWS, COLUMNS = ("top", "bottom"), ("left", "middle", "right")
ZONES = tuple(f"{row} {column}" for row in ROWS for column in COLUMNS)
FPS = 2
SLICE_FRAMES = 2  # the frames that a vision encoder joins
GAP = 2  # at least so many seconds between two appearances of a thing
_PAINTED = 3  # pictures of each place, with other details
_STAGE_SCALE = 1.6  # the stage is larger than the picture by this factor
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
    count = min(4, max(1, slices // 4))
    things = [THINGS[at] for at in rng.permutation(len(THINGS))[:count]]
    zones = rng.permutation(len(ZONES))
    appearances: list[Appearance] = []
    for thing, zone in zip(things, zones, strict=False):
        appearances += _place_thing(rng, thing, int(zone), shots, slices, training)
    appearances.sort(key=lambda appearance: (appearance.start, appearance.zone))
    return Film(seed, slices, shots, tuple(appearances), float(rng.uniform(0.8, 1.15)))


def rearrange_film(film: Film, order: np.ndarray, seed: int) -> Film | None:
    """Return the film that shows given slices of another one, in a given order, or None if it would break the rules.

    The seed determines what its questions name beside what it shows.

    The new film has other questions and answers; its pictures are those of the slices, and it cannot be rendered.
    """
    numbers = np.arange(len(order))
    places = np.array([PLACES.index(film.get_place(int(slice_))) for slice_ in order])
    shots = []
    for run in np.split(numbers, np.flatnonzero(np.diff(places)) + 1):
        old = next(shot for shot in film.shots if shot.start <= order[run[0]] < shot.end)
        shots.append(replace(old, start=int(run[0]), end=int(run[-1]) + 1))
    totals = np.sort(np.bincount(places, minlength=len(PLACES)))
    if totals[-1] - totals[-2] < max(2, 0.15 * len(order)):
        return None
    appearances = []
    for thing in film.things:
        old_ones = film.get_appearances(thing)
        shown = numbers[np.isin(order, [at for old in old_ones for at in range(old.start, old.end)])]
        runs = [run for run in np.split(shown, np.flatnonzero(np.diff(shown) > 1) + 1) if len(run)]
        gaps = [later[0] - earlier[-1] - 1 for earlier, later in itertools.pairwise(runs)]
        if len(runs) > 4 or any(gap < GAP for gap in gaps):
            return None
        appearances += [replace(old_ones[0], start=int(run[0]), end=int(run[-1]) + 1) for run in runs]
    appearances.sort(key=lambda appearance: (appearance.start, appearance.zone))
    return Film(seed, len(order), tuple(shots), tuple(appearances), film.light) if appearances else None


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
        shots.append(Shot(PLACES[place], start, end, int(rng.integers(_PAINTED)), *ends))
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
            shifts = np.clip(at + rng.uniform(-0.2, 0.2, (count, 2)), 0, 1)
            return [
                Appearance(thing, zone, a, b, (float(x), float(y)))
                for (a, b), (x, y) in zip(spans, shifts, strict=True)
            ]
    return []


# ---- pictures


@cache
def _paint_place(place: str, painting: int, height: int, width: int) -> np.ndarray:
    """Return a picture of a place, larger than a frame of the film, [Y, X, 3] uint8."""
    scale = 2 * max(width / STAGE_WIDTH, height / STAGE_HEIGHT)
    image = Image.new("RGB", (round(STAGE_WIDTH * scale), round(STAGE_HEIGHT * scale)))
    SCENES[place].paint(Canvas(image, scale), np.random.default_rng([17, painting]))
    SCENES[place].move(Canvas(image, scale), 11.0 * painting)
    size = round(width * _STAGE_SCALE), round(height * _STAGE_SCALE)
    return np.asarray(image.resize(size, Image.Resampling.BOX))


def render_film(film: Film, height: int = 112, width: int = 168, noise: float = 2.0) -> np.ndarray:
    """Draw all frames of a film.

    Args:
        film: The film.
        height, width: Size of a frame in pixels.
        noise: Standard deviation of the sensor noise, in grey levels of 255.

    Returns:
        [2 * slices, height, width, 3] uint8.
    """
    rng = np.random.default_rng([film.seed, 1])
    frames = np.empty((SLICE_FRAMES * film.slices, height, width, 3), np.uint8)
    for shot in film.shots:
        stage = _paint_place(shot.place, shot.painting, height, width)
        spare = np.array([stage.shape[1] - width, stage.shape[0] - height])
        count = SLICE_FRAMES * (shot.end - shot.start)
        path = np.linspace(shot.opens, shot.closes, count) * spare
        for number, (x, y) in enumerate(path.round().astype(int)):
            frames[SLICE_FRAMES * shot.start + number] = stage[y : y + height, x : x + width]
    for appearance in film.appearances:
        left, top, side = locate_thing(appearance, height, width)
        picture = draw_thing(appearance.thing, side)
        opacity = picture[..., 3:].astype(np.uint16)
        span = slice(SLICE_FRAMES * appearance.start, SLICE_FRAMES * appearance.end)
        window = frames[span, top : top + side, left : left + side]
        window[:] = (window * (255 - opacity) + picture[..., :3] * opacity) // 255
    # one table of noise, rolled over the frames: fresh noise would cost more than all the rest
    grain = rng.normal(0, noise, (height, width, 3)).astype(np.float32)
    light = np.float32(film.light)
    for frame in frames:
        shift = int(rng.integers(height)), int(rng.integers(width))
        frame[:] = np.clip(frame * light + np.roll(grain, shift, (0, 1)), 0, 255)
    return frames


def locate_thing(appearance: Appearance, height: int, width: int) -> tuple[int, int, int]:
    """Return left, top and side in pixels of a thing in the picture; it never leaves its zone."""
    zone_height, zone_width = height // len(ROWS), width // len(COLUMNS)
    side = round(0.64 * min(zone_height, zone_width))
    row, column = divmod(appearance.zone, len(COLUMNS))
    left = column * zone_width + round(appearance.at[0] * (zone_width - side))
    top = row * zone_height + round(appearance.at[1] * (zone_height - side))
    return left, top, side


def label_tokens(film: Film, height: int, width: int, cell: int) -> np.ndarray:
    """Return what each visual token shows most, [slices, height / cell, width / cell] int64.

    Places come first, then things: PLACES + THINGS. A token shows a thing if the thing fills a fifth of its cell.
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
        shown = down[:, None] * across > 0.2 * cell**2
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
