"""A film of our own with a known answer: keys that lie on a table for a second, in minutes of a home and its street.

Every scene is painted once, on a stage larger than the picture. A shot moves a window slowly over that stage; what
moves by itself (a cat, cars, curtains, clocks, leaves, a television) and the keys are drawn onto a copy of the stage
before the window is taken, so all that is seen goes through the same camera, flicker and sensor noise. The stage has
about twice the picture's resolution, which makes edges smooth. Nothing is read from a file: the seed decides it all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..store import write_whole

try:
    import av
    from PIL import Image, ImageChops, ImageDraw, ImageFilter
except ImportError as error:
    raise ImportError("the demo's film needs Pillow and PyAV: pip install 'floc[video]'") from error

STAGE_WIDTH, STAGE_HEIGHT = 1600, 900  # the units in which scenes are drawn
SHOT_S = 7.5  # mean length of a shot
SHOWN_S = 1.0  # how long the keys lie there
PAN = 22.0  # how far a window's edges may wander, in units a second
NOISE = 2.6  # standard deviation of the sensor noise, in grey levels of 255

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom
Colour = str | tuple[int, ...]


@dataclass(frozen=True)
class Sighting:
    """Where the keys are in one frame."""

    time_s: float
    box: Box  # as shares of the picture's width and height


@dataclass(frozen=True)
class Film:
    """A film on disk, and where it shows the keys."""

    path: Path
    sightings: list[Sighting]  # one for every frame that shows them
    duration_s: float


def render(
    path: Path,
    *,
    seconds: float = 120,
    fps: float = 8,
    width: int = 512,
    height: int = 288,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Film:
    """Draw the film and write it to an .mp4 file, whole or not at all.

    Args:
        path: the file to write.
        seconds: how long the film is, at least 3.
        fps: frames a second, 2 to 60.
        width, height: of the picture, even, between 4:3 and 2:1.
        seed: decides the order of scenes, the camera's moves, and when and where the keys lie.
        progress: a function that is called with the share of the work done.
    """
    if path.suffix.lower() != ".mp4":
        raise ValueError(f"the film is an mp4 file: name it {path.with_suffix('.mp4').name}, got {path.name}")
    plan = _plan(seconds, fps, width, height, seed)

    write_whole(path, lambda temporary: _encode(temporary, plan, progress))
    return Film(path, _sightings(plan), float(plan.frames / plan.rate))


# ---- what is shown when: shots, camera moves, and the keys' place


class _Shot(NamedTuple):
    scene: str
    first: int  # frame
    end: int  # the frame after its last
    opens: Box  # the window over the stage in its first frame, in units
    closes: Box  # and in its last


class _Plan(NamedTuple):
    seed: int
    frames: int  # in all
    rate: Fraction  # frames a second
    width: int
    height: int
    shots: list[_Shot]
    keys_from: int  # the first frame that shows the keys
    keys_until: int  # the frame after the last that does
    keys_at: Point  # on the stage
    keys_turn: float  # which way they point, in radians

    @property
    def scale(self) -> float:
        """Pixels of the stage to a unit: about two to a pixel of the picture, and a whole number along each side."""
        fit = min(STAGE_WIDTH, STAGE_HEIGHT * self.width / self.height)
        return math.ceil(100 * 2 * self.width / (0.85 * fit)) / 100

    def shows_keys(self, frame: int) -> bool:
        return self.keys_from <= frame < self.keys_until

    def window(self, shot: _Shot, frame: int) -> Box:
        """What the camera sees of the stage in a frame of a shot, in units."""
        along = (frame - shot.first) / max(1, shot.end - shot.first - 1)
        left, top, right, bottom = (a + (b - a) * along for a, b in zip(shot.opens, shot.closes, strict=True))
        return left, top, right, bottom


def _plan(seconds: float, fps: float, width: int, height: int, seed: int) -> _Plan:
    _require_number("seconds", seconds, 3, 24 * 3600)
    _require_number("fps", fps, 2, 60)
    for name, given in (("width", width), ("height", height)):
        if isinstance(given, bool) or not isinstance(given, Integral) or given % 2 or not 48 <= given <= 4096:
            raise ValueError(f"{name} must be an even number of pixels in 48..4096, as the codec wants; got {given!r}")
    if not 4 / 3 - 0.05 <= width / height <= 2.05:
        raise ValueError(f"the picture must be between 4:3 and 2:1 to show the table; got {width} x {height}")
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise ValueError(f"seed must be a whole number, at least 0; got {seed!r}")
    rng = np.random.default_rng([seed, 1])
    rate = Fraction(fps).limit_denominator(1000)
    count = round(seconds * rate)
    scenes, with_keys = _order(rng, max(1, round(seconds / SHOT_S)))
    cuts = _cuts(rng, count, len(scenes))
    shown = round(SHOWN_S * rate)
    # the table is seen without the keys for a moment before and after, in the same shot
    spare = cuts[with_keys + 1] - cuts[with_keys] - shown
    before = spare // 4 + int(rng.integers(spare // 2 + 1))
    spot = SPOTS[rng.integers(len(SPOTS))]
    keys_at = (spot[0] + rng.uniform(-15, 15), spot[1] + rng.uniform(-8, 8))
    x, y = keys_at
    around = (x - 200, y - 110, x + 200, min(STAGE_HEIGHT, y + 110))
    shots = []
    for place, scene in enumerate(scenes):
        first, end = cuts[place], cuts[place + 1]
        focus = around if place == with_keys else SCENES[scene].focus
        shots.append(_Shot(scene, first, end, *_camera(rng, width / height, focus, float((end - first) / rate))))
    keys_from = cuts[with_keys] + before
    turn = rng.uniform(-0.6, 0.6) + math.pi * rng.integers(2)
    return _Plan(seed, count, rate, width, height, shots, keys_from, keys_from + shown, keys_at, float(turn))


def _require_number(name: str, given: float, low: float, high: float) -> None:
    if isinstance(given, bool) or not isinstance(given, Real) or not low <= given <= high:
        raise ValueError(f"{name} must be a number in {low}..{high}, got {given!r}")


def _order(rng: np.random.Generator, shots: int) -> tuple[list[str], int]:
    """Which scene each shot shows, and which shot has the keys: the study is seen without them before and after."""
    others = [name for name in SCENES if name != STUDY]
    with_keys = int(rng.integers(shots // 3, max(shots // 3, 2 * shots // 3) + 1)) if shots > 1 else 0
    without = {place for place in (with_keys // 2, (with_keys + shots) // 2) if abs(place - with_keys) > 1}
    order: list[str] = []
    waiting: list[str] = []
    for place in range(shots):
        if place == with_keys or place in without:
            order.append(STUDY)
            continue
        if not waiting:
            waiting = [others[i] for i in rng.permutation(len(others))]
        if order and waiting[0] == order[-1]:
            waiting.append(waiting.pop(0))
        order.append(waiting.pop(0))
    return order, with_keys


def _cuts(rng: np.random.Generator, count: int, shots: int) -> list[int]:
    """Where shots begin, and the end: of about equal length, but not quite."""
    even = np.arange(shots + 1) / shots
    even[1:-1] += rng.uniform(-0.2, 0.2, shots - 1) / shots
    return [round(float(each)) for each in even * count]


def _camera(rng: np.random.Generator, aspect: float, focus: Box, seconds: float) -> tuple[Box, Box]:
    """Two windows over the stage that both hold `focus`: a slow pan and zoom from one to the other."""
    fit = min(STAGE_WIDTH, STAGE_HEIGHT * aspect)
    width = fit * rng.uniform(0.8, 0.94)
    left = rng.uniform(0, STAGE_WIDTH - width)
    top = rng.uniform(0, STAGE_HEIGHT - width / aspect)
    drift = min(PAN * seconds, 260)
    wider = float(np.clip(width + rng.uniform(-drift, drift), 0.76 * fit, 0.98 * fit))
    further = (left + rng.uniform(-drift, drift), top + rng.uniform(-drift, drift) / 2)
    return _hold(left, top, width, aspect, focus), _hold(*further, wider, aspect, focus)


def _hold(left: float, top: float, width: float, aspect: float, focus: Box) -> Box:
    """The window nearest to the one given that lies on the stage and holds `focus`."""
    height = width / aspect
    left = float(np.clip(left, max(0, focus[2] - width), min(STAGE_WIDTH - width, focus[0])))
    top = float(np.clip(top, max(0, focus[3] - height), min(STAGE_HEIGHT - height, focus[1])))
    return left, top, left + width, top + height


def _sightings(plan: _Plan) -> list[Sighting]:
    left, top, right, bottom = _keys_box(plan)
    found = []
    for shot in plan.shots:
        for frame in range(max(shot.first, plan.keys_from), min(shot.end, plan.keys_until)):
            window = plan.window(shot, frame)
            across, down = window[2] - window[0], window[3] - window[1]
            # a pixel of the picture gathers light from its neighbours' places too, hence one more on each side
            box = (
                math.floor((left - window[0]) / across * plan.width - 1) / plan.width,
                math.floor((top - window[1]) / down * plan.height - 1) / plan.height,
                math.ceil((right - window[0]) / across * plan.width + 1) / plan.width,
                math.ceil((bottom - window[1]) / down * plan.height + 1) / plan.height,
            )
            found.append(Sighting(float(frame / plan.rate), box))
    return found


# ---- from plan to pixels to file


def _frames(plan: _Plan, keys: bool = True) -> Iterator[np.ndarray]:
    """Every frame, [height, width, 3] uint8; without the keys to see what difference they make."""
    stages: dict[str, Image.Image] = {}
    sensor = np.random.default_rng([plan.seed, 2])
    # drawing noise for each frame would take longer than all else: cut every frame's from one larger sheet
    margin = 61
    sheet = NOISE * sensor.standard_normal((plan.height + margin, plan.width + margin, 3), np.float32)
    vignette = _vignette(plan.width, plan.height)
    for shot in plan.shots:
        scene = SCENES[shot.scene]
        if shot.scene not in stages:
            stages[shot.scene] = _paint(scene, plan.scale, plan.seed)
        for frame in range(shot.first, shot.end):
            canvas = _Canvas(stages[shot.scene].copy(), plan.scale)
            scene.move(canvas, float(frame / plan.rate) + 50)  # as if it had been going on for a while
            if keys and plan.shows_keys(frame):
                _put_keys(canvas, plan)
            left, top, right, bottom = (each * plan.scale for each in plan.window(shot, frame))
            # rounding may carry an edge past the stage's by a hair, which Pillow refuses
            box = (left, top, min(right, canvas.image.width), min(bottom, canvas.image.height))
            seen = canvas.image.resize((plan.width, plan.height), Image.Resampling.BILINEAR, box=box)
            x, y = sensor.integers(margin, size=2)
            exposure = 1 + 0.012 * math.sin(frame * 0.9) + sensor.normal(0, 0.006)
            light = np.asarray(seen, np.float32) * (vignette * np.float32(exposure))
            light += sheet[y : y + plan.height, x : x + plan.width]
            yield light.clip(0, 255, out=light).astype(np.uint8)


def _vignette(width: int, height: int) -> np.ndarray:
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    return (1.03 - 0.12 * (x**2 + y**2))[..., None].astype(np.float32)  # [height, width, 1]


def _paint(scene: _Scene, scale: float, seed: int) -> Image.Image:
    """What stands still in a scene, at twice the stage's resolution and then reduced, for smooth edges."""
    size = (2 * round(STAGE_WIDTH * scale), 2 * round(STAGE_HEIGHT * scale))
    canvas = _Canvas(Image.new("RGB", size), 2 * scale)
    scene.paint(canvas, np.random.default_rng([seed, 3]))
    return canvas.image.reduce(2)


def _encode(path: Path, plan: _Plan, progress: Callable[[float], None] | None) -> None:
    with av.open(str(path), "w", format="mp4") as container:
        if "libx264" in av.codecs_available:
            stream = container.add_stream("libx264", plan.rate, options={"crf": "19", "preset": "veryfast"})
        else:
            stream = container.add_stream("mpeg4", plan.rate, options={"qmin": "2", "qmax": "4"})
            stream.bit_rate = round(0.5 * plan.width * plan.height * plan.rate)
        stream.width, stream.height, stream.pix_fmt = plan.width, plan.height, "yuv420p"
        for index, pixels in enumerate(_frames(plan)):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = index, 1 / plan.rate
            container.mux(stream.encode(frame))
            if progress is not None:
                progress((index + 1) / plan.frames)
        container.mux(stream.encode())


# ---- the keys


def _put_keys(canvas: _Canvas, plan: _Plan) -> None:
    sprite, left, top = _keys(plan)
    canvas.image.paste(sprite, (left, top), sprite)


def _keys_box(plan: _Plan) -> Box:
    """Where the keys and their shadow are on the stage, in units."""
    sprite, left, top = _keys(plan)
    box = sprite.getchannel("A").getbbox()
    assert box is not None, "keys have pixels"
    x, y, right, bottom = ((each + corner) / plan.scale for each, corner in zip(box, 2 * (left, top), strict=True))
    return x, y, right, bottom


def _keys(plan: _Plan) -> tuple[Image.Image, int, int]:
    """Keys on a ring with their shadow, and where on the stage their picture begins, in its pixels."""
    scale, fine = plan.scale, 4  # drawn so much larger, for smooth edges
    side = round(230 * scale)
    flat = Image.new("RGBA", (side * fine, side * fine))
    canvas = _Canvas(flat, scale * fine)
    # the ring is off the middle, so that ring and keys together are on it
    ring = (115 - 48 * math.cos(plan.keys_turn), 115 - 48 * math.sin(plan.keys_turn))
    for turn, length, metal in ((-0.42, 78, STEEL), (0.36, 86, BRASS), (-0.03, 92, BRASS)):
        _key(canvas, ring, plan.keys_turn + turn, length, metal)
    canvas.ring(*ring, 25, 25, tone(STEEL, 0.55), 7)
    canvas.ring(*ring, 24, 24, tone(STEEL, 1.1), 4)
    # the table is seen from the side, so what lies on it is foreshortened
    size = (side, round(side * 0.66))
    lying = flat.resize(size, Image.Resampling.BOX)
    shadow = Image.new("RGBA", size, "#20150c")
    cast = ImageChops.offset(lying.getchannel("A"), round(4 * scale), round(6 * scale))
    # a blur's far tail is invisible but would widen the shadow's box
    soft = cast.filter(ImageFilter.GaussianBlur(4 * scale)).point(lambda alpha: 0 if alpha < 12 else alpha * 0.65)
    shadow.putalpha(soft)
    shadow.alpha_composite(lying)
    x, y = plan.keys_at
    return shadow, round(x * scale - size[0] / 2), round(y * scale - size[1] / 2)


def _key(canvas: _Canvas, ring: Point, turn: float, length: float, metal: str) -> None:
    """One key that hangs on a ring and points away from it."""
    cos, sin = math.cos(turn), math.sin(turn)

    def place(along: float, beside: float) -> Point:
        return ring[0] + along * cos - beside * sin, ring[1] + along * sin + beside * cos

    for lift, colour in ((2.0, tone(metal, 0.5)), (0.0, tone(metal, 1.0))):
        blade = [(50, -6), (length + 24, -6), (length + 30, 0), (length + 24, 5)]
        teeth = [(length + 17, 14), (length + 11, 6), (length + 4, 12), (length - 3, 6), (length - 10, 14)]
        outline = [*blade, *teeth, (length - 17, 6), (50, 6)]
        canvas.polygon([place(along, beside + lift) for along, beside in outline], colour)
        x, y = place(40, lift)
        # a ring, not a disc: the table shows through the hole
        canvas.ring(x, y, 23, 23, colour, 13)
    canvas.line([place(56, -2), place(length + 20, -2)], tone(metal, 1.3), 2)


# ---- drawing


def tone(colour: str, light: float) -> tuple[int, ...]:
    """A colour made lighter or darker.

    >>> tone("#804020", 0.5)
    (64, 32, 16)
    """
    return tuple(min(255, round(int(colour[i : i + 2], 16) * light)) for i in (1, 3, 5))


class _Canvas:
    """Pillow's drawing in the stage's units, on an image of any resolution."""

    def __init__(self, image: Image.Image, scale: float, left: float = 0, top: float = 0):
        self.image = image
        self.scale = scale
        self._left, self._top = left, top
        # drawing in RGBA on an RGB image blends, so that a colour may let through what is behind it
        self._draw = ImageDraw.Draw(image, "RGBA")

    def _pixel(self, x: float, y: float) -> Point:
        return (x - self._left) * self.scale, (y - self._top) * self.scale

    def box(self, left: float, top: float, width: float, height: float, fill: Colour, radius: float = 0) -> None:
        corners = (*self._pixel(left, top), *self._pixel(left + width, top + height))
        self._draw.rounded_rectangle(corners, radius * self.scale, fill)

    def oval(self, x: float, y: float, rx: float, ry: float, fill: Colour) -> None:
        self._draw.ellipse((*self._pixel(x - rx, y - ry), *self._pixel(x + rx, y + ry)), fill)

    def ring(self, x: float, y: float, rx: float, ry: float, colour: Colour, width: float) -> None:
        corners = (*self._pixel(x - rx, y - ry), *self._pixel(x + rx, y + ry))
        self._draw.ellipse(corners, None, colour, max(1, round(width * self.scale)))

    def polygon(self, points: Sequence[Point], fill: Colour) -> None:
        self._draw.polygon([self._pixel(*point) for point in points], fill)

    def figure(self, x: float, y: float, size: float, points: Sequence[Point], fill: Colour, heading: int = 1) -> None:
        """A polygon whose corners are given around (x, y) in parts of its size; heading -1 mirrors it."""
        self.polygon([(x + heading * a * size, y + b * size) for a, b in points], fill)

    def line(self, points: Sequence[Point], fill: Colour, width: float) -> None:
        self._draw.line([self._pixel(*point) for point in points], fill, max(1, round(width * self.scale)), "curve")

    def _region(self, left: float, top: float, width: float, height: float) -> tuple[tuple[int, int], tuple[int, int]]:
        """Upper left corner and size in pixels."""
        x, y = self._pixel(left, top)
        return (round(x), round(y)), (max(1, round(width * self.scale)), max(1, round(height * self.scale)))

    def fade(self, left: float, top: float, width: float, height: float, above: Colour, below: Colour) -> None:
        """A box whose colour changes from top to bottom."""
        corner, size = self._region(left, top, width, height)
        filled = Image.new("RGB", size, above)
        filled.paste(Image.new("RGB", size, below), mask=Image.linear_gradient("L").resize(size))
        self.image.paste(filled, corner)

    def soft(self, x: float, y: float, rx: float, ry: float, colour: Colour, strength: float) -> None:
        """Light or shadow: a spot of colour that fades out towards its edge."""
        corner, size = self._region(x - rx, y - ry, 2 * rx, 2 * ry)
        edge = 181  # what Pillow's gradient has at the middle of its sides; it reaches 255 in the corners
        faded = Image.radial_gradient("L").point(lambda far: max(0, 1 - far / edge) ** 1.5 * 255 * strength)
        mask = faded.resize(size)
        self.image.paste(Image.new("RGB", size, colour), corner, mask)

    def grain(self, points: Sequence[Point], rng: np.random.Generator, cells: tuple[int, int], strength: float) -> None:
        """Uneven light on a surface with these corners: wood, cloth, plaster, grass, by the shape of its cells."""
        left, top = min(x for x, _ in points), min(y for _, y in points)
        corner, size = self._region(left, top, max(x for x, _ in points) - left, max(y for _, y in points) - top)
        noise = rng.standard_normal((cells[1], cells[0])).astype(np.float32)
        texture = 1 + strength * np.asarray(Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC))
        within = (*corner, corner[0] + size[0], corner[1] + size[1])
        lit = np.asarray(self.image.crop(within), np.float32) * texture[..., None]
        mask = Image.new("L", size)
        shifted = [tuple(a - b for a, b in zip(self._pixel(*point), corner, strict=True)) for point in points]
        ImageDraw.Draw(mask).polygon([(x, y) for x, y in shifted], 255)
        self.image.paste(Image.fromarray(lit.clip(0, 255).astype(np.uint8)), corner, mask)

    @contextmanager
    def pane(self, left: float, top: float, width: float, height: float) -> Iterator[_Canvas]:
        """A part of the picture to draw on, in the same units; what leaves it is cut off."""
        corner, size = self._region(left, top, width, height)
        part = self.image.crop((*corner, corner[0] + size[0], corner[1] + size[1]))
        yield _Canvas(part, self.scale, self._left + corner[0] / self.scale, self._top + corner[1] / self.scale)
        self.image.paste(part, corner)


def _corners(left: float, top: float, width: float, height: float) -> list[Point]:
    return [(left, top), (left + width, top), (left + width, top + height), (left, top + height)]


def _pick(rng: np.random.Generator, colours: Sequence[str]) -> str:
    return colours[int(rng.integers(len(colours)))]


BRASS, STEEL = "#c8a24a", "#aab0b6"
WOOD, PINE, PAPER, GREEN, TERRACOTTA = "#7a4f2c", "#b98a55", "#ece6d6", "#4c7a3d", "#b5643c"
SPINES = ("#8c2f2b", "#26507a", "#2f6b4f", "#c29a3e", "#54406e", "#d8cdb4", "#3b3b40", "#b5643c", "#6f8fa8")
FOLIAGE = ("#4c7a3d", "#5f8f45", "#3b6634", "#789c4e", "#2f5a36")


# ---- things that stand still


def _books(c: _Canvas, rng: np.random.Generator, left: float, base: float, width: float, height: float) -> None:
    """A row of books that stand on a shelf."""
    x = left
    while x < left + width - 12:
        thick = min(rng.uniform(13, 30), left + width - x)
        tall = height * rng.uniform(0.68, 0.97)
        colour = _pick(rng, SPINES)
        c.box(x, base - tall, thick - 1.5, tall, tone(colour, rng.uniform(0.8, 1.1)), 2)
        c.box(x + 3, base - tall * 0.85, thick - 7, 5, tone(colour, 1.5))
        c.box(x + 3, base - tall * 0.2, thick - 7, 3, tone(colour, 1.5))
        x += thick


def _shelves(c: _Canvas, rng: np.random.Generator, box: Box, rows: int, wood: str) -> None:
    left, top, width, height = box
    c.soft(left + width / 2 + 14, top + height / 2 + 14, width * 0.75, height * 0.7, "#000000", 0.35)
    c.box(left, top, width, height, tone(wood, 0.75))
    c.grain(_corners(left, top, width, height), rng, (6, 60), 0.06)
    tall = (height - 10) / rows
    for row in range(rows):
        base = top + (row + 1) * tall
        c.fade(left + 10, base - tall + 10, width - 20, tall - 10, tone(wood, 0.32), tone(wood, 0.5))
        split = left + width * rng.uniform(0.45, 0.85)
        _books(c, rng, left + 14, base, split - left - 14, tall - 14)
        rest = left + width - split
        if rest > 150:
            _vase(c, split + rest / 2, base, tall * 0.55, _pick(rng, SPINES))
        elif rest > 60:
            _flat_books(c, rng, split + 6, base, rest - 24, 3)
        c.box(left, base, width, 10, tone(wood, 1.05))


def _flat_books(c: _Canvas, rng: np.random.Generator, left: float, base: float, width: float, count: int) -> None:
    """A pile of books."""
    y = base
    for _ in range(count):
        thick, inset = rng.uniform(15, 25), rng.uniform(0, width * 0.16)
        colour = _pick(rng, SPINES)
        y -= thick
        c.box(left + inset, y, width - inset * 1.4, thick - 1, tone(colour, 0.95), 3)
        c.box(left + inset + 8, y + 3, 10, thick - 7, tone(colour, 1.5))
        c.box(left + inset + width * 0.42, y + thick * 0.38, width * 0.28, 4, tone(colour, 1.45))


def _vase(c: _Canvas, x: float, base: float, tall: float, colour: str) -> None:
    c.oval(x, base - tall * 0.4, tall * 0.32, tall * 0.4, tone(colour, 0.9))
    c.box(x - tall * 0.12, base - tall, tall * 0.24, tall * 0.35, tone(colour, 0.9))
    c.oval(x - tall * 0.1, base - tall * 0.5, tall * 0.06, tall * 0.2, tone(colour, 1.35))


def _leaf(c: _Canvas, x: float, y: float, length: float, turn: float, colour: Colour) -> None:
    cos, sin = math.cos(turn), math.sin(turn)
    outline = [(0, 0), (0.3, 0.13), (0.6, 0.13), (1, 0), (0.6, -0.13), (0.3, -0.13)]
    c.polygon([(x + length * (a * cos - b * sin), y + length * (a * sin + b * cos)) for a, b in outline], colour)


def _plant(c: _Canvas, rng: np.random.Generator, x: float, base: float, size: float, pot: str = TERRACOTTA) -> None:
    c.soft(x + size * 0.15, base, size * 0.5, size * 0.14, "#000000", 0.5)
    wide = size * 0.26
    for _ in range(26):
        turn = rng.uniform(-math.pi * 0.97, -math.pi * 0.03)
        start = (x + rng.uniform(-0.5, 0.5) * wide, base - size * rng.uniform(0.4, 0.62))
        _leaf(c, *start, size * rng.uniform(0.35, 0.62), turn, tone(_pick(rng, FOLIAGE), rng.uniform(0.75, 1.25)))
    y = base - size * 0.42
    c.polygon([(x - wide, y), (x + wide, y), (x + wide * 0.75, base), (x - wide * 0.75, base)], tone(pot, 0.92))
    c.polygon([(x + wide * 0.3, y), (x + wide, y), (x + wide * 0.75, base), (x + wide * 0.2, base)], tone(pot, 0.72))
    c.box(x - wide * 1.1, y - size * 0.04, wide * 2.2, size * 0.09, tone(pot, 1.08), 4)


def _cup(c: _Canvas, x: float, base: float, size: float, colour: str, drink: str = "#4a2c17") -> None:
    """A cup on a table, seen from above its rim."""
    c.soft(x + size * 0.25, base - size * 0.08, size * 0.9, size * 0.4, "#000000", 0.5)
    c.ring(x + size * 0.5, base - size * 0.5, size * 0.24, size * 0.26, tone(colour, 0.8), size * 0.1)
    c.oval(x, base - size * 0.12, size * 0.36, size * 0.14, tone(colour, 0.78))
    side = [(-0.45, -0.85), (0.45, -0.85), (0.36, -0.12), (-0.36, -0.12)]
    c.figure(x, base, size, side, tone(colour, 0.9))
    c.figure(x, base, size, [(0.1, -0.85), side[1], side[2], (0.08, 0)], tone(colour, 0.76))
    c.oval(x, base - size * 0.85, size * 0.45, size * 0.17, tone(colour, 1.12))
    c.oval(x, base - size * 0.83, size * 0.38, size * 0.13, drink)


def _sheet(c: _Canvas, rng: np.random.Generator, x: float, y: float, size: float, colour: str = PAPER) -> None:
    """A written page that lies on the table."""
    turn = rng.uniform(-0.5, 0.5)
    cos, sin = math.cos(turn), math.sin(turn)

    def place(a: float, b: float) -> Point:
        return x + size * (a * cos - b * sin), y + size * 0.62 * (a * sin + b * cos)

    c.soft(x + 5, y + 6, size * 0.85, size * 0.55, "#000000", 0.4)
    c.polygon([place(-0.5, -0.4), place(0.5, -0.4), place(0.5, 0.4), place(-0.5, 0.4)], tone(colour, 0.97))
    for row in range(8):
        b = -0.3 + row * 0.085
        c.line([place(-0.4, b), place(rng.uniform(0.05, 0.42), b)], "#6b6f7c", size * 0.012)


def _notebook(c: _Canvas, x: float, y: float, size: float, colour: str) -> None:
    """An open notebook with a pen across it."""
    c.soft(x + 5, y + 8, size * 0.95, size * 0.45, "#000000", 0.45)
    for side in (-1, 1):
        edges = [(0, -0.23), (0.55, -0.25), (0.62, 0.25), (0, 0.28)]
        c.figure(x, y, size * 1.04, edges, tone(colour, 0.8), side)
        c.figure(x, y, size, edges, tone(PAPER, 1.0 if side < 0 else 0.93), side)
        for row in range(6):
            b = (-0.16 + row * 0.065) * size
            c.line([(x + side * 0.07 * size, y + b), (x + side * 0.48 * size, y + b)], "#8d97ad", size * 0.008)
    c.line([(x, y - 0.24 * size), (x, y + 0.28 * size)], "#9a917c", size * 0.014)
    c.line([(x - 0.12 * size, y + 0.2 * size), (x + 0.36 * size, y - 0.1 * size)], "#26507a", size * 0.03)


def _laptop(c: _Canvas, x: float, base: float, size: float) -> None:
    c.soft(x, base + size * 0.1, size * 0.85, size * 0.32, "#000000", 0.5)
    c.box(x - size * 0.5, base - size * 0.62, size, size * 0.62, "#2b2d31", 8)
    c.fade(x - size * 0.465, base - size * 0.585, size * 0.93, size * 0.53, "#31506e", "#7fa3b8")
    c.box(x - size * 0.42, base - size * 0.53, size * 0.42, size * 0.38, "#e9edf0", 3)
    for row in range(7):
        c.box(x - size * 0.39, base - size * (0.48 - row * 0.046), size * (0.33 - 0.04 * (row * 5 % 4)), 4, "#7d8894")
    c.box(x + size * 0.05, base - size * 0.48, size * 0.34, size * 0.2, "#d9b45c", 3)
    c.box(x + size * 0.05, base - size * 0.24, size * 0.34, size * 0.12, "#5a7f66", 3)
    deck = [(-0.5, 0), (0.5, 0), (0.58, 0.24), (-0.58, 0.24)]
    c.figure(x, base, size, deck, STEEL)
    for row in range(4):
        y, half = base + size * (0.03 + row * 0.033), size * (0.46 + row * 0.012)
        for key in range(12):
            c.box(x - half + key * half / 6, y, half / 6 - 3, size * 0.024, "#3a3d42", 1)
    pad = [(-0.13, 0.175), (0.13, 0.175), (0.14, 0.225), (-0.14, 0.225)]
    c.figure(x, base, size, pad, tone(STEEL, 0.88))


def _desk_lamp(c: _Canvas, x: float, base: float, size: float) -> None:
    c.soft(x + size * 0.1, base, size * 0.4, size * 0.12, "#000000", 0.5)
    c.oval(x, base - size * 0.03, size * 0.2, size * 0.07, tone(BRASS, 0.6))
    c.oval(x, base - size * 0.05, size * 0.18, size * 0.055, tone(BRASS, 0.9))
    c.line([(x, base - size * 0.06), (x - size * 0.1, base - size * 0.7)], tone(BRASS, 0.9), size * 0.035)
    c.soft(x + size * 0.02, base - size * 0.6, size * 1.1, size * 0.9, "#ffe2a0", 0.45)
    shade = [(-0.26, -1.1), (0.06, -1.1), (0.22, -0.68), (-0.42, -0.68)]
    c.figure(x, base, size, shade, "#e8c98a")
    c.figure(x, base, size, [(-0.26, -1.1), (-0.12, -1.1), (-0.2, -0.68), shade[3]], "#f6e2b4")
    c.oval(x - size * 0.1, base - size * 0.68, size * 0.32, size * 0.035, "#fff3cf")


def _carton(c: _Canvas, x: float, base: float, size: float, colour: str = PINE) -> None:
    c.soft(x + size * 0.2, base, size * 0.95, size * 0.26, "#000000", 0.5)
    front = [(-0.5, -0.55), (0.3, -0.5), (0.3, 0.05), (-0.5, 0)]
    side = [(0.3, -0.5), (0.6, -0.62), (0.6, -0.1), (0.3, 0.05)]
    lid = [(-0.5, -0.55), (-0.16, -0.68), (0.6, -0.62), (0.3, -0.5)]
    for corners, light in ((front, 1.0), (side, 0.72), (lid, 1.18)):
        c.figure(x, base, size, corners, tone(colour, light))
    tape = [(-0.15, -0.53), (-0.03, -0.525), (-0.03, 0.03), (-0.15, 0.02)]
    c.figure(x, base, size, tape, tone(colour, 1.25))


def _plate(c: _Canvas, x: float, y: float, size: float) -> None:
    """A plate with an apple and a biscuit."""
    c.soft(x + 6, y + 8, size * 0.75, size * 0.42, "#000000", 0.5)
    c.oval(x, y, size * 0.5, size * 0.26, "#dfe3e6")
    c.oval(x, y + 1, size * 0.36, size * 0.18, "#c9d0d6")
    c.oval(x - size * 0.1, y - size * 0.1, size * 0.15, size * 0.14, "#a8322b")
    c.oval(x - size * 0.14, y - size * 0.15, size * 0.045, size * 0.04, "#e08a72")
    c.line([(x - size * 0.1, y - size * 0.22), (x - size * 0.07, y - size * 0.3)], "#4a3320", size * 0.025)
    c.oval(x + size * 0.16, y + size * 0.02, size * 0.12, size * 0.06, "#c48d4a")


def _glasses(c: _Canvas, x: float, y: float, size: float) -> None:
    for side in (-1, 1):
        c.oval(x + side * size * 0.3, y, size * 0.22, size * 0.13, (220, 235, 245, 70))
        c.ring(x + side * size * 0.3, y, size * 0.22, size * 0.13, "#26221f", size * 0.05)
        c.line([(x + side * size * 0.5, y - 3), (x + side * size * 0.42, y - size * 0.36)], "#26221f", size * 0.045)
    c.line([(x - size * 0.09, y - 2), (x + size * 0.09, y - 2)], "#26221f", size * 0.045)


def _pencils(c: _Canvas, rng: np.random.Generator, x: float, base: float, size: float) -> None:
    c.soft(x + size * 0.3, base, size * 0.8, size * 0.3, "#000000", 0.5)
    for _ in range(8):
        tip = (x + rng.uniform(-0.5, 0.5) * size, base - size * rng.uniform(1.3, 1.8))
        foot = (x + rng.uniform(-0.2, 0.2) * size, base - size * 0.6)
        c.line([foot, tip], tone(_pick(rng, SPINES), 1.15), size * 0.09)
    c.box(x - size * 0.34, base - size * 0.95, size * 0.68, size * 0.95, tone(STEEL, 0.75), 5)
    c.box(x - size * 0.22, base - size * 0.95, size * 0.12, size * 0.95, tone(STEEL, 1.1), 3)
    c.oval(x, base - size * 0.93, size * 0.34, size * 0.09, tone(STEEL, 0.45))


def _bowl(c: _Canvas, x: float, y: float, size: float) -> None:
    """A bowl of nuts."""
    c.soft(x + 8, y + size * 0.2, size * 0.75, size * 0.3, "#000000", 0.5)
    c.figure(x, y, size, ((-0.5, 0), (0.5, 0), (0.24, 0.3), (-0.24, 0.3)), "#4f7186")
    c.oval(x, y, size * 0.5, size * 0.17, "#86a8ba")
    c.oval(x, y + 2, size * 0.43, size * 0.13, "#3a2c20")
    for nut in range(14):
        turn = nut * 2.4
        far = 0.36 * math.sqrt(nut / 14)
        at = (x + size * far * math.cos(turn), y + size * 0.28 * far * math.sin(turn))
        c.oval(*at, size * 0.075, size * 0.055, tone(PINE, 0.7 + 0.05 * (nut % 7)))


def _headphones(c: _Canvas, x: float, y: float, size: float) -> None:
    c.soft(x + 6, y + 8, size * 0.75, size * 0.45, "#000000", 0.45)
    c.ring(x, y, size * 0.48, size * 0.28, "#2b2d31", size * 0.08)
    for side in (-1, 1):
        c.oval(x + side * size * 0.4, y + size * 0.16, size * 0.16, size * 0.13, "#1d1f24")
        c.oval(x + side * size * 0.4, y + size * 0.15, size * 0.1, size * 0.075, "#54575e")


def _scissors(c: _Canvas, x: float, y: float, size: float) -> None:
    for side in (-1, 1):
        c.line([(x, y), (x + size * 0.62, y - side * size * 0.09)], tone(STEEL, 0.9 + 0.15 * side), size * 0.07)
        c.ring(x - size * 0.22, y + side * size * 0.12, size * 0.2, size * 0.1, "#a8463c", size * 0.07)
    c.oval(x + size * 0.04, y, size * 0.03, size * 0.025, tone(STEEL, 0.6))


def _crumpled(c: _Canvas, rng: np.random.Generator, x: float, y: float, size: float) -> None:
    """A ball of paper."""
    c.soft(x + 4, y + size * 0.5, size * 1.5, size * 0.7, "#000000", 0.5)
    rim = [(x + size * math.cos(i * 0.7) * rng.uniform(0.8, 1.1), y + size * 0.8 * math.sin(i * 0.7)) for i in range(9)]
    c.polygon(rim, tone(PAPER, 0.9))
    for i in range(9):
        c.polygon([rim[i], rim[(i + 1) % 9], (x - 3, y - 4)], tone(PAPER, rng.uniform(0.72, 1.05)))


def _telephone(c: _Canvas, x: float, y: float, size: float) -> None:
    outline = [(-0.5, -0.12), (0.38, -0.26), (0.5, 0.1), (-0.4, 0.26)]
    c.figure(x + 4, y + 6, size, outline, (20, 12, 8, 120))
    c.figure(x, y, size, outline, "#1d1f24")
    c.figure(x, y, size * 0.86, outline, "#3c4a5c")


def _picture(c: _Canvas, rng: np.random.Generator, box: Box, frame: str = BRASS) -> None:
    """A framed landscape on a wall."""
    left, top, width, height = box
    c.soft(left + width / 2 + 8, top + height / 2 + 10, width * 0.75, height * 0.75, "#000000", 0.4)
    c.box(left, top, width, height, tone(frame, 0.75))
    c.box(left + 4, top + 4, width - 8, height - 8, tone(frame, 1.05))
    c.box(left + 11, top + 11, width - 22, height - 22, PAPER)
    with c.pane(left + 22, top + 22, width - 44, height - 44) as view:
        view.fade(left, top, width, height, tone("#9cc0d8", rng.uniform(0.8, 1.1)), "#f1dcb0")
        view.oval(left + width * rng.uniform(0.3, 0.7), top + height * 0.4, 18, 18, "#f6efcf")
        for row, hill in enumerate(("#6f8fa8", "#5a7f66", "#3b6634")):
            y = top + height * (0.5 + row * 0.14)
            ridge = [(left + width * i / 8, y + rng.uniform(-0.1, 0.1) * height) for i in range(9)]
            view.polygon([*ridge, (left + width, top + height), (left, top + height)], hill)


def _wall(c: _Canvas, rng: np.random.Generator, above: str, below: str, pattern: str = "") -> None:
    c.fade(0, 0, STAGE_WIDTH, STAGE_HEIGHT, above, below)
    if pattern == "stripes":
        for x in range(0, STAGE_WIDTH, 50):
            c.box(x, 0, 22, STAGE_HEIGHT, (255, 255, 255, 16))
            c.box(x + 33, 0, 4, STAGE_HEIGHT, (60, 30, 10, 26))
    elif pattern == "flowers":
        for x in range(0, STAGE_WIDTH + 90, 90):
            for y in range(0, STAGE_HEIGHT, 84):
                at = (x + (y // 84 % 2) * 45, y + 40)
                for turn in range(5):
                    _leaf(c, *at, 17, turn * 1.257, (255, 240, 225, 62))
                c.oval(*at, 4, 4, (90, 50, 30, 60))
    c.grain(_corners(0, 0, STAGE_WIDTH, STAGE_HEIGHT), rng, (160, 90), 0.012)
    c.grain(_corners(0, 0, STAGE_WIDTH, STAGE_HEIGHT), rng, (7, 5), 0.03)


def _planks(c: _Canvas, rng: np.random.Generator, top: float, colour: str) -> None:
    """A wooden floor from `top` down, its boards running towards the viewer."""
    c.box(0, top, STAGE_WIDTH, STAGE_HEIGHT - top, colour)
    middle = STAGE_WIDTH / 2
    for board in range(-16, 16):
        near, far = 170.0, 95.0
        corners = [(middle + board * far, top), (middle + (board + 1) * far, top)]
        corners += [(middle + (board + 1) * near, STAGE_HEIGHT), (middle + board * near, STAGE_HEIGHT)]
        c.polygon(corners, tone(colour, rng.uniform(0.86, 1.08)))
        c.line([corners[0], corners[3]], tone(colour, 0.6), 3)
    c.grain(_corners(0, top, STAGE_WIDTH, STAGE_HEIGHT - top), rng, (300, 12), 0.05)


def _rug(c: _Canvas, rng: np.random.Generator, x: float, y: float, rx: float, ry: float, colour: str) -> None:
    for step, light in enumerate((0.7, 1.0, 1.35, 0.85, 1.1, 0.6)):
        share = 1 - step * 0.14
        c.oval(x, y, rx * share, ry * share, tone(colour, light))
    for turn in range(28):
        at = turn * math.tau / 28
        c.oval(x + rx * 0.8 * math.cos(at), y + ry * 0.8 * math.sin(at), 12, 6, tone(colour, 1.6))
    c.grain(_corners(x - rx, y - ry, 2 * rx, 2 * ry), rng, (150, 70), 0.05)


def _tree(c: _Canvas, rng: np.random.Generator, x: float, base: float, size: float) -> None:
    c.soft(x, base, size * 0.5, size * 0.08, "#000000", 0.5)
    trunk = [(-0.05, -0.6), (0.05, -0.6), (0.08, 0), (-0.09, 0)]
    c.figure(x, base, size, trunk, "#5b4330")
    c.line([(x, base - size * 0.5), (x - size * 0.17, base - size * 0.72)], "#5b4330", size * 0.035)
    c.line([(x, base - size * 0.5), (x + size * 0.18, base - size * 0.75)], "#5b4330", size * 0.035)
    for ball in range(90):
        turn, far = rng.uniform(0, math.tau), math.sqrt(rng.uniform()) * 0.36 * size
        at = (x + far * math.cos(turn), base - size * 0.8 + far * 0.8 * math.sin(turn))
        # those drawn last lie in the sun
        radius, light = size * rng.uniform(0.04, 0.085), 0.65 + 0.6 * ball / 90
        c.oval(*at, radius, radius * 0.85, tone(_pick(rng, FOLIAGE), light))


def _house(c: _Canvas, rng: np.random.Generator, box: Box, wall: str, roof: str) -> None:
    left, top, width, height = box
    c.box(left, top, width, height, wall)
    for row in range(int(height // 14)):
        y = top + row * 14
        c.line([(left, y), (left + width, y)], tone(wall, 0.86), 2)
        for x in np.arange(left + row % 2 * 18, left + width, 36):
            c.line([(x, y), (x, y + 14)], tone(wall, 0.88), 2)
    c.grain(_corners(left, top, width, height), rng, (24, 30), 0.05)
    ridge = [(left + width * 0.8, top - 120), (left + width * 0.2, top - 120)]
    c.polygon([(left - 24, top), (left + width + 24, top), *ridge], roof)
    c.grain([(left - 24, top), (left + width + 24, top), *ridge], rng, (40, 14), 0.08)
    c.box(left + width * 0.68, top - 165, 36, 80, tone(wall, 0.7))
    columns = max(2, int(width // 130))
    for row in range(2):
        for column in range(columns):
            x, y = left + width * (column + 0.5) / columns - 36, top + 32 + row * 165
            if row == 1 and column == columns // 2:
                c.box(x - 2, y - 8, 80, 190, tone(roof, 0.7), 4)
                c.box(x + 4, y, 68, 182, tone(roof, 1.15), 4)
                c.oval(x + 62, y + 96, 5, 5, BRASS)
                continue
            c.box(x - 6, y - 6, 84, 112, "#efe9dc", 3)
            c.fade(x, y, 72, 100, "#5c7a90", tone("#a9c2cf", rng.uniform(0.6, 1.05)))
            c.box(x + 33, y, 6, 100, "#efe9dc")
            c.box(x, y + 46, 72, 6, "#efe9dc")
            c.box(x - 10, y + 106, 92, 9, tone(wall, 0.65))


def _sky(c: _Canvas, rng: np.random.Generator, below: float, above: str, horizon: str, clouds: int) -> None:
    c.fade(0, 0, STAGE_WIDTH, below, above, horizon)
    for _ in range(clouds):
        x, y = rng.uniform(0, STAGE_WIDTH), rng.uniform(20, below * 0.45)
        for _ in range(7):
            at = (x + rng.uniform(-110, 110), y + rng.uniform(-16, 16))
            c.soft(*at, rng.uniform(60, 130), rng.uniform(22, 46), "#ffffff", 0.55)


# ---- things that move, as they are `t` seconds after the start


def _clock(c: _Canvas, x: float, y: float, radius: float, t: float) -> None:
    c.oval(x, y, radius * 1.12, radius * 1.12, tone(BRASS, 0.8))
    c.oval(x, y, radius, radius, "#f4efe2")
    for hour in range(12):
        cos, sin = math.cos(hour * math.tau / 12), math.sin(hour * math.tau / 12)
        c.line([(x + far * radius * cos, y + far * radius * sin) for far in (0.8, 0.92)], "#333333", 4)
    hands = (
        (t / 43200 + 0.14, 0.5, 6, "#26221f"),
        (t / 3600 + 0.61, 0.75, 4, "#26221f"),
        (t // 1 / 60, 0.82, 2.5, "#a8322b"),
    )
    for turns, length, width, colour in hands:
        turn = turns * math.tau - math.pi / 2
        c.line([(x, y), (x + length * radius * math.cos(turn), y + length * radius * math.sin(turn))], colour, width)


def _cat(c: _Canvas, x: float, base: float, size: float, colour: str, t: float, heading: int) -> None:
    def place(a: float, b: float) -> Point:
        return x + heading * a * size, base + b * size

    c.oval(*place(0, 0), size * 0.6, size * 0.06, (0, 0, 0, 70))
    for leg, (at, behind) in enumerate(((-0.36, True), (0.3, True), (-0.28, False), (0.38, False))):
        step = 0.13 * math.sin(6 * t + leg * math.pi * 0.75)
        c.line([place(at, -0.4), place(at + step, 0)], tone(colour, 0.7 if behind else 0.95), size * 0.1)
    sway = 0.08 * math.sin(2.2 * t)
    tail = [place(-0.45, -0.5), place(-0.66, -0.62), place(-0.74 + sway, -0.86), place(-0.68 + sway * 2, -1.02)]
    c.line(tail, colour, size * 0.08)
    c.oval(*place(0, -0.47), size * 0.52, size * 0.2, colour)
    for stripe in range(4):
        at = -0.3 + stripe * 0.17
        c.line([place(at, -0.66), place(at - 0.03, -0.46)], tone(colour, 0.62), size * 0.05)
    for ear in (0.46, 0.66):
        c.polygon([place(ear - 0.09, -0.74), place(ear, -0.99), place(ear + 0.09, -0.74)], tone(colour, 0.85))
    c.oval(*place(0.56, -0.68), size * 0.2, size * 0.17, tone(colour, 1.08))
    c.oval(*place(0.64, -0.71), size * 0.028, size * 0.035, "#d8e08a")
    c.oval(*place(0.75, -0.65), size * 0.03, size * 0.022, "#5a2f2a")


def _car(c: _Canvas, x: float, base: float, size: float, colour: str, heading: int) -> None:
    def place(a: float, b: float) -> Point:
        return x + heading * a * size, base + b * size

    c.oval(*place(0, 0), size * 0.56, size * 0.04, (0, 0, 0, 110))
    cabin = [(-0.36, -0.2), (-0.27, -0.37), (0.1, -0.37), (0.25, -0.2)]
    body = [(-0.5, -0.07), (-0.5, -0.2), (-0.4, -0.225), (0.25, -0.225), (0.46, -0.17), (0.5, -0.07)]
    c.figure(x, base, size, cabin, tone(colour, 0.85), heading)
    c.figure(x, base, size, [(-0.31, -0.22), (-0.25, -0.34), (-0.09, -0.34), (-0.09, -0.22)], "#b9cdd6", heading)
    c.figure(x, base, size, [(-0.06, -0.22), (-0.06, -0.34), (0.08, -0.34), (0.19, -0.22)], "#b9cdd6", heading)
    c.figure(x, base, size, body, colour, heading)
    c.line([place(-0.48, -0.13), place(0.48, -0.13)], tone(colour, 0.7), size * 0.012)
    c.oval(*place(0.465, -0.145), size * 0.025, size * 0.02, "#fff3cf")
    c.oval(*place(-0.485, -0.16), size * 0.018, size * 0.02, "#a8322b")
    for wheel in (-0.3, 0.3):
        c.oval(*place(wheel, -0.07), size * 0.085, size * 0.085, "#1d1d20")
        c.oval(*place(wheel, -0.07), size * 0.045, size * 0.045, STEEL)


def _curtain(c: _Canvas, left: float, top: float, width: float, height: float, colour: str, t: float) -> None:
    folds = 9
    foot = [left + i * width / folds + 11 * math.sin(1.1 * t + 0.6 * i) for i in range(folds + 1)]
    for i in range(folds):
        x = left + i * width / folds
        corners = [(x, top), (x + width / folds, top), (foot[i + 1], top + height), (foot[i], top + height)]
        c.polygon(corners, tone(colour, 0.8 + 0.24 * (i % 2) + 0.05 * math.sin(0.9 * t + i)))
    c.box(left - 14, top - 10, width + 28, 12, tone(BRASS, 0.8), 6)


def _falling_leaves(c: _Canvas, count: int, t: float, floor: float) -> None:
    for leaf in range(count):
        fall = (t * (34 + 9 * (leaf % 4)) + leaf * 173) % (floor + 60) - 30
        x = (leaf * 241 + 46 * math.sin(0.9 * t + leaf) + 14 * t) % STAGE_WIDTH
        _leaf(c, x, fall, 30, 1.9 * math.sin(1.3 * t + leaf), ("#c46a2b", "#d9a441", "#8f3f24")[leaf % 3])


def _outside(c: _Canvas, box: Box, t: float) -> None:
    """What passes outside a window: a car now and then, in front of a hedge."""
    left, top, width, height = box
    with c.pane(*box) as view:
        round_trips, along = divmod(t * 170, 2400)
        _car(view, left + along - 500, top + height * 0.93, 300, SPINES[int(round_trips) % len(SPINES)], 1)
        for branch in range(5):
            at = (left + width * (0.1 + 0.2 * branch), top - 10)
            _leaf(view, *at, 74, 1.5 + 0.12 * math.sin(1.7 * t + branch), tone(FOLIAGE[branch], 0.9))
    for share in (1 / 3, 2 / 3):
        c.box(left + width * share - 5, top, 10, height, "#e6dfd0")
    c.box(left, top + height * 0.48, width, 10, "#e6dfd0")


# ---- the scenes


def _window_view(c: _Canvas, rng: np.random.Generator, box: Box) -> None:
    """A window in a wall, with what stands still outside."""
    left, top, width, height = box
    c.box(left - 18, top - 18, width + 36, height + 36, "#f2ecdf", 4)
    c.fade(left, top, width, height, "#9fc3dc", "#e8eef0")
    with c.pane(*box) as view:
        _house(view, rng, (left + width * 0.08, top + height * 0.38, width * 0.42, height), "#c9a48a", "#7d4a3c")
        _tree(view, rng, left + width * 0.78, top + height, height * 0.95)
        view.box(left, top + height * 0.84, width, height, "#77797c")
    c.box(left - 30, top + height + 16, width + 60, 20, "#ddd5c4", 4)


STUDY = "study"
STUDY_WINDOW: Box = (1010, 60, 390, 300)
# places on the table where hardly anything else lies
SPOTS: tuple[Point, ...] = ((455, 648), (915, 660), (1030, 790), (540, 815), (290, 720), (1325, 640))


def _paint_study(c: _Canvas, rng: np.random.Generator) -> None:
    _wall(c, rng, "#cdb896", "#a88f6c", "stripes")
    _shelves(c, rng, (40, 20, 420, 400), 3, WOOD)
    _picture(c, rng, (520, 210, 150, 120))
    _picture(c, rng, (700, 40, 240, 170), "#6b4a2e")
    _window_view(c, rng, STUDY_WINDOW)
    top = [(170.0, 470.0), (1430.0, 470.0), (1640.0, 900.0), (-40.0, 900.0)]
    c.soft(800, 470, 900, 70, "#000000", 0.55)
    c.polygon(top, tone(PINE, 0.86))
    for board in range(1, 6):
        far, near = 170 + board * 210, -40 + board * 280
        c.line([(far, 470), (near, 900)], tone(PINE, 0.62), 3)
    c.grain(top, rng, (26, 240), 0.07)
    c.grain(top, rng, (9, 6), 0.05)
    c.line([top[0], top[1]], tone(PINE, 1.2), 4)
    c.soft(330, 640, 420, 170, "#ffe2a0", 0.3)
    _flat_books(c, rng, 470, 530, 170, 5)
    _carton(c, 1105, 545, 190)
    _plant(c, rng, 1320, 560, 240)
    _desk_lamp(c, 300, 560, 240)
    _laptop(c, 800, 545, 290)
    _pencils(c, rng, 1010, 590, 62)
    _sheet(c, rng, 650, 700, 210)
    _sheet(c, rng, 700, 735, 200)
    _notebook(c, 770, 835, 270, "#8c2f2b")
    _cup(c, 565, 660, 74, "#3f6f8f")
    _cup(c, 1130, 690, 84, "#d9d2c3", "#7a4a22")
    _cup(c, 150, 840, 90, "#b5643c")
    _plate(c, 1190, 810, 190)
    _telephone(c, 405, 770, 120)
    _glasses(c, 880, 730, 90)
    _flat_books(c, rng, 1340, 820, 200, 4)
    _sheet(c, rng, 310, 850, 170, "#e8d9a0")
    for note, colour in enumerate(("#e6cf5c", "#d98f9c", "#8fb8d0")):
        c.figure(1185 + note * 34, 600 + note * 12, 50, [(0, 0), (0.96, -0.08), (1.08, 0.52), (0.08, 0.6)], colour)
    _bowl(c, 205, 650, 150)
    _headphones(c, 1430, 690, 130)
    _scissors(c, 1390, 865, 120)
    for ball in ((1010, 700), (300, 640), (1240, 725)):
        _crumpled(c, rng, *ball, 26)
    for pen in range(3):
        start = (660 + pen * 40, 610 + pen * 6)
        c.line([start, (start[0] + 74, start[1] + 16 - 14 * pen)], tone(SPINES[pen], 1.1), 8)


def _move_study(c: _Canvas, t: float) -> None:
    _outside(c, STUDY_WINDOW, t)
    _curtain(c, 960, 42, 84, 350, "#8a3f3a", t)
    _curtain(c, 1372, 42, 84, 350, "#8a3f3a", t + 2)
    _clock(c, 595, 105, 58, t)


def _paint_street(c: _Canvas, rng: np.random.Generator) -> None:
    _sky(c, rng, 600, "#6fa6d6", "#dfe9ea", 7)
    walls, roofs = ("#c08a72", "#d9c9a3", "#9fae9a", "#b9a3a0"), ("#6b3b34", "#4d545c", "#7d4a3c", "#54463c")
    for place in range(4):
        _house(c, rng, (20 + place * 400, 210 + 24 * (place % 2), 360, 370), walls[place], roofs[place])
    c.box(0, 575, STAGE_WIDTH, 70, "#a9a59b")
    for x in range(0, STAGE_WIDTH, 64):
        c.line([(x, 575), (x - 22, 645)], "#8b877e", 3)
    c.fade(0, 645, STAGE_WIDTH, 255, "#5a5c60", "#6d6f73")
    c.grain(_corners(0, 575, STAGE_WIDTH, 325), rng, (400, 90), 0.06)
    c.box(0, 640, STAGE_WIDTH, 10, "#c9c5ba")
    for x in range(0, STAGE_WIDTH, 190):
        c.polygon([(x, 762), (x + 100, 762), (x + 94, 772), (x - 6, 772)], "#dcd9cd")
    _tree(c, rng, 395, 625, 470)
    _tree(c, rng, 1205, 630, 520)
    for x in (110, 860, 1480):
        c.box(x - 5, 330, 10, 300, "#2e3236")
        c.box(x - 24, 300, 48, 36, "#3a3f44", 6)
        c.box(x - 16, 306, 32, 24, "#f1e3b4", 4)


def _move_street(c: _Canvas, t: float) -> None:
    oncoming = (t * 185 + 900) % 2600 - 500
    _car(c, STAGE_WIDTH - oncoming, 728, 330, "#e4e1d8", -1)
    for car, colour in enumerate(("#8c2f2b", "#26507a")):
        _car(c, (t * 150 + car * 1100) % 2600 - 500, 850, 390, colour, 1)
    _falling_leaves(c, 14, t, 640)


def _paint_kitchen(c: _Canvas, rng: np.random.Generator) -> None:
    _wall(c, rng, "#dfe6e2", "#c3d0ca")
    for x in range(0, STAGE_WIDTH, 60):
        for y in range(260, 560, 60):
            c.box(x + 2, y + 2, 56, 56, tone("#8fb3ad", rng.uniform(0.9, 1.12)), 4)
            c.box(x + 6, y + 6, 30, 4, (255, 255, 255, 60))
    for x in range(40, 1100, 265):
        c.box(x, 0, 255, 235, "#e9dfc9", 4)
        c.box(x + 18, 14, 219, 200, "#dccfb2", 4)
        c.box(x + 228, 110, 10, 54, STEEL, 4)
    c.soft(570, 250, 700, 40, "#000000", 0.4)
    c.fade(0, 555, STAGE_WIDTH, 46, "#5b5148", "#3f3730")
    for x in range(0, 1240, 310):
        c.box(x, 600, 305, 300, "#e9dfc9", 4)
        c.box(x + 20, 622, 265, 250, "#dccfb2", 4)
        c.box(x + 120, 640, 66, 10, STEEL, 4)
    c.box(1240, 90, 330, 810, "#c9ced1", 14)
    c.grain(_corners(1240, 90, 330, 810), rng, (60, 4), 0.03)
    c.box(1240, 380, 330, 7, "#8d9498")
    c.box(1268, 180, 14, 150, tone(STEEL, 0.7), 6)
    c.box(1268, 430, 14, 260, tone(STEEL, 0.7), 6)
    for magnet, colour in enumerate(("#a8322b", "#c29a3e", "#26507a", "#2f6b4f")):
        c.box(1340 + magnet % 2 * 90, 160 + magnet // 2 * 90, 62, 70, tone(PAPER, 0.95))
        c.oval(1371 + magnet % 2 * 90, 166 + magnet // 2 * 90, 9, 9, colour)
    c.box(320, 515, 290, 42, "#2b2d31", 6)
    c.box(316, 606, 298, 294, tone(STEEL, 0.95), 6)
    for knob in range(5):
        c.oval(353 + knob * 56, 640, 13, 13, "#2b2d31")
    c.box(340, 690, 250, 170, "#2b2d31", 8)
    c.fade(356, 706, 218, 138, "#3d2a1c", "#8a5526")
    c.box(336, 668, 258, 12, tone(STEEL, 0.65), 6)
    c.box(400, 672, 90, 150, "#d8cdb4", 3)
    for stripe in range(4):
        c.box(400, 700 + stripe * 30, 90, 9, "#a8463c")
    c.box(392, 415, 150, 102, tone(STEEL, 0.8), 10)
    c.box(410, 420, 22, 92, tone(STEEL, 1.2), 8)
    c.box(380, 406, 174, 14, tone(STEEL, 0.6), 6)
    c.oval(467, 402, 15, 8, "#2b2d31")
    for bottle, colour in enumerate(("#2f5a36", "#7a4a22", "#b9a24a", "#26507a")):
        x = 690 + bottle * 56
        c.box(x, 450, 38, 106, colour, 8)
        c.box(x + 12, 405, 14, 56, tone(colour, 1.1), 4)
        c.box(x + 2, 480, 34, 40, PAPER)
    _plant(c, rng, 1010, 556, 170, "#d9d2c3")
    c.oval(170, 545, 120, 26, "#b98a55")
    for fruit, colour in enumerate(("#d9a441", "#a8322b", "#c46a2b", "#789c4e", "#d9a441")):
        c.oval(95 + fruit * 38, 512 - 16 * (fruit % 2), 31, 30, colour)
        c.oval(87 + fruit * 38, 502 - 16 * (fruit % 2), 8, 7, tone(colour, 1.4))
    c.polygon([(40, 525), (300, 525), (260, 558), (80, 558)], "#8a5f3a")
    for spoon in range(6):
        c.line([(650 + 36 * spoon, 262), (650 + 36 * spoon, 340)], STEEL, 5)
        c.oval(650 + 36 * spoon, 350, 11, 16, STEEL)
    c.box(630, 256, 220, 9, tone(STEEL, 0.7))


def _move_kitchen(c: _Canvas, t: float) -> None:
    for puff in range(9):
        age = (t * 0.35 + puff / 9) % 1
        at = (467 + 34 * math.sin(2.4 * age * math.pi + puff) * age, 396 - 200 * age)
        c.oval(*at, 14 + 34 * age, 12 + 26 * age, (255, 255, 255, round(70 * (1 - age))))
    _clock(c, 1175, 130, 52, t)


def _paint_lounge(c: _Canvas, rng: np.random.Generator) -> None:
    _wall(c, rng, "#4f6b66", "#3d5450", "flowers")
    _planks(c, rng, 620, "#8a5a38")
    c.box(0, 596, STAGE_WIDTH, 26, "#d8d0bd")
    _rug(c, rng, 700, 780, 560, 105, "#8c3b34")
    _picture(c, rng, (210, 90, 270, 190))
    _picture(c, rng, (530, 130, 140, 170), "#3b3b40")
    c.soft(440, 700, 520, 70, "#000000", 0.6)
    sofa = "#c08d4a"
    c.box(90, 370, 700, 250, tone(sofa, 0.8), 40)
    for cushion in range(3):
        c.box(130 + cushion * 208, 400, 204, 170, tone(sofa, 0.95), 26)
        c.box(126 + cushion * 208, 545, 210, 90, tone(sofa, 1.1), 20)
    for arm in (60, 740):
        c.box(arm, 450, 84, 220, tone(sofa, 0.9), 34)
    c.grain(_corners(60, 370, 764, 300), rng, (240, 90), 0.05)
    c.polygon([(190, 545), (300, 500), (340, 600), (225, 625)], "#26507a")
    c.polygon([(590, 500), (690, 540), (650, 625), (550, 590)], "#d8cdb4")
    c.box(1000, 560, 520, 130, WOOD, 6)
    c.grain(_corners(1000, 560, 520, 130), rng, (8, 60), 0.08)
    for door in range(3):
        c.box(1014 + door * 168, 575, 158, 100, tone(WOOD, 0.75), 4)
        c.oval(1160 + door * 168 - 20, 625, 6, 6, BRASS)
    c.box(1050, 262, 420, 280, "#17181b", 10)
    c.box(1230, 540, 60, 24, "#17181b")
    c.soft(900, 330, 300, 330, "#ffd890", 0.5)
    c.box(896, 330, 9, 310, tone(BRASS, 0.8))
    c.polygon([(840, 330), (962, 330), (930, 215), (872, 215)], "#f0d9a4")
    c.oval(900, 645, 50, 12, tone(BRASS, 0.6))
    _plant(c, rng, 1545, 690, 300, "#d8cdb4")


def _move_lounge(c: _Canvas, t: float) -> None:
    rng = np.random.default_rng(int(t * 1.5))  # the television cuts to another picture now and then
    sky, ground, figure = (_pick(rng, SPINES) for _ in range(3))
    flicker = 1.15 + 0.1 * math.sin(17 * t)
    c.box(1064, 276, 392, 252, tone(sky, flicker))
    c.box(1064, 420, 392, 108, tone(ground, flicker))
    x = 1150 + rng.uniform(0, 220) + 30 * math.sin(t)
    c.oval(x, 380, 34, 40, tone(figure, flicker * 1.1))
    c.box(x - 46, 418, 92, 110, tone(figure, flicker * 0.8), 14)
    along = (t * 95) % 3100 - 400
    heading = 1 if int(t * 95 // 3100) % 2 else -1
    _cat(c, along if heading > 0 else STAGE_WIDTH - along, 800, 190, "#c98a4b", t, heading)


def _paint_bedroom(c: _Canvas, rng: np.random.Generator) -> None:
    _wall(c, rng, "#2d3a5c", "#3c4668", "flowers")
    _planks(c, rng, 690, "#4a3f4a")
    c.box(560, 60, 440, 360, "#aab0c6", 4)
    c.fade(580, 80, 400, 320, "#0e1838", "#3b4f86")
    for _ in range(60):
        c.oval(580 + rng.uniform(0, 400), 80 + rng.uniform(0, 260), 1.8, 1.8, "#dfe6ff")
    c.soft(870, 160, 90, 90, "#dfe6ff", 0.6)
    c.oval(870, 160, 36, 36, "#f2f0e0")
    c.oval(885, 152, 30, 32, "#1a2650")
    c.box(775, 80, 10, 320, "#aab0c6")
    c.box(580, 235, 400, 10, "#aab0c6")
    bed = "#7a86b8"
    c.soft(460, 850, 700, 90, "#000000", 0.6)
    c.box(60, 400, 70, 470, "#2a2230", 12)
    c.box(90, 640, 980, 210, tone(bed, 0.62), 26)
    c.polygon([(120, 590), (1040, 570), (1090, 700), (90, 710)], bed)
    for x in range(150, 1040, 110):
        c.line([(x, 585), (x - 22, 845)], tone(bed, 0.8), 5)
    for y in range(620, 850, 55):
        c.line([(100, y), (1080, y - 6)], tone(bed, 0.85), 5)
    c.grain(_corners(90, 570, 1000, 280), rng, (200, 60), 0.05)
    c.box(120, 500, 190, 110, "#d5d8e6", 40)
    c.box(150, 545, 190, 100, "#bcc2da", 40)
    c.box(1190, 640, 230, 220, "#4b3a34", 6)
    for drawer in range(2):
        c.box(1204, 655 + drawer * 100, 202, 88, "#5d4a42", 4)
        c.oval(1305, 700 + drawer * 100, 8, 8, BRASS)
    _desk_lamp(c, 1290, 645, 190)
    _flat_books(c, rng, 1330, 640, 90, 3)
    _picture(c, rng, (1180, 150, 210, 160), "#6b4a2e")
    _shelves(c, rng, (1440, 120, 150, 420), 3, "#4b3a34")


def _move_bedroom(c: _Canvas, t: float) -> None:
    _curtain(c, 470, 42, 150, 560, "#5b4a78", t)
    _curtain(c, 945, 42, 150, 560, "#5b4a78", t + 1)
    breath = 6 * math.sin(1.4 * t)
    cat = "#3b3b44"
    c.oval(700, 600 - breath / 2, 105, 46 + breath / 2, tone(cat, 1.3))
    c.oval(620, 606, 40, 34, tone(cat, 1.5))
    for ear in (598, 632):
        c.polygon([(ear - 12, 588), (ear, 556), (ear + 14, 584)], tone(cat, 1.4))
    c.line([(800, 610), (770, 636), (690, 642)], tone(cat, 1.1), 17)


def _paint_garden(c: _Canvas, rng: np.random.Generator) -> None:
    _sky(c, rng, 580, "#8fc0e6", "#f1ead0", 5)
    for left in range(0, STAGE_WIDTH, 46):
        light, right = rng.uniform(0.88, 1.1), left + 42
        c.polygon([(left, 330), (left + 21, 300), (right, 330), (right, 560), (left, 560)], tone("#c9b08a", light))
        c.line([(left + 14, 340), (left + 14, 556)], tone("#c9b08a", light * 0.85), 2)
    c.box(0, 370, STAGE_WIDTH, 16, "#a88f68")
    c.box(0, 500, STAGE_WIDTH, 16, "#a88f68")
    c.grain(_corners(0, 300, STAGE_WIDTH, 260), rng, (400, 16), 0.06)
    c.fade(0, 550, STAGE_WIDTH, 350, "#6f9448", "#4f7a38")
    c.grain(_corners(0, 550, STAGE_WIDTH, 350), rng, (420, 70), 0.12)
    for _ in range(700):
        x, y = rng.uniform(0, STAGE_WIDTH), 560 + 340 * rng.uniform()
        tall = 8 + (y - 550) * 0.07
        c.line([(x, y), (x + rng.uniform(-6, 6), y - tall)], tone(_pick(rng, FOLIAGE), rng.uniform(0.9, 1.3)), 2)
    for _ in range(120):
        x, y = rng.uniform(0, STAGE_WIDTH), rng.uniform(545, 640)
        _leaf(c, x, y, 26, rng.uniform(-2.4, -0.7), _pick(rng, FOLIAGE))
        c.oval(x, y - 14, 9, 9, _pick(rng, ("#d9647a", "#e6cf5c", "#e9e4f2", "#9a6fc0")))
        c.oval(x, y - 14, 3, 3, "#c29a3e")
    _tree(c, rng, 1270, 690, 640)
    _tree(c, rng, 150, 600, 400)
    c.polygon([(640, 900), (1000, 900), (760, 560), (700, 560)], "#b9a98c")
    c.grain([(640, 900), (1000, 900), (760, 560), (700, 560)], rng, (50, 60), 0.1)
    c.box(310, 690, 300, 18, "#8a5f3a", 4)
    c.box(310, 610, 300, 50, "#8a5f3a", 4)
    for leg in (330, 572):
        c.box(leg, 610, 16, 170, "#6b4526")
    c.polygon([(1010, 720), (1130, 720), (1110, 830), (1030, 830)], "#5f7f92")
    c.ring(1070, 700, 44, 34, "#5f7f92", 10)
    c.line([(1120, 790), (1190, 730)], "#5f7f92", 16)


def _move_garden(c: _Canvas, t: float) -> None:
    c.line([(250, 300), (560, 322), (880, 300)], "#5a5148", 3)
    for shirt, colour in enumerate(("#d8cdb4", "#a8463c", "#6f8fa8", "#e9e4da")):
        place, sway = (310 + shirt * 135, 308 + 8 * (shirt in (1, 2))), 0.1 * math.sin(1.6 * t + shirt)
        c.figure(*place, 120, [(0, 0), (0.7, 0), (0.65 + sway, 1), (0.05 + sway, 1)], colour)
        c.figure(*place, 120, [(0.42, 0), (0.7, 0), (0.65 + sway, 1), (0.47 + sway, 1)], tone(colour, 0.85))
    _falling_leaves(c, 10, t, 840)
    x, y = (t * 120) % 2600 - 300, 150 + 40 * math.sin(t)
    beat = 20 * math.sin(11 * t)
    c.line([(x - 40, y - beat), (x, y), (x + 40, y - beat)], "#33383f", 8)


def _paint_hall(c: _Canvas, rng: np.random.Generator) -> None:
    _wall(c, rng, "#c99a86", "#b07c68", "stripes")
    _planks(c, rng, 680, "#6b4630")
    c.box(0, 655, STAGE_WIDTH, 28, "#efe6d8")
    c.box(600, 120, 300, 560, "#f0e8da", 4)
    c.box(625, 145, 250, 535, "#3f5f57", 4)
    for row in range(2):
        for column in range(2):
            c.box(650 + column * 105, 175 + row * 250, 95, 215, "#34504a", 4)
    c.oval(848, 430, 13, 13, BRASS)
    c.fade(690, 190, 120, 130, "#a9c2cf", "#dfe6e2")
    c.soft(750, 700, 260, 40, "#000000", 0.5)
    _rug(c, rng, 750, 800, 420, 70, "#3f5f8a")
    c.box(1040, 470, 330, 26, WOOD, 4)
    for leg in (1060, 1330):
        c.box(leg, 496, 18, 250, tone(WOOD, 0.8))
    c.oval(1205, 270, 118, 150, tone(BRASS, 0.9))
    c.oval(1205, 270, 104, 136, "#c3d0d6")
    c.polygon([(1150, 330), (1250, 170), (1280, 200), (1180, 370)], "#dfe9ee")
    _vase(c, 1110, 470, 120, "#26507a")
    for stem in range(5):
        c.line([(1110, 360), (1070 + stem * 20, 270)], GREEN, 4)
        c.oval(1070 + stem * 20, 264, 17, 17, ("#d9647a", "#e9e4f2", "#e6cf5c")[stem % 3])
    for hook, colour in enumerate(("#26507a", "#8c2f2b", "#54463c", "#c29a3e")):
        x = 110 + hook * 110
        c.oval(x + 30, 236, 9, 9, BRASS)
        c.polygon([(x + 8, 250), (x + 52, 250), (x + 82, 560), (x - 22, 560)], colour)
        c.polygon([(x + 30, 250), (x + 52, 250), (x + 82, 560), (x + 34, 560)], tone(colour, 0.78))
        c.line([(x + 30, 262), (x + 31, 555)], tone(colour, 0.6), 3)
    c.box(80, 228, 450, 14, tone(WOOD, 0.9))
    for shoe in range(5):
        x, colour = 110 + shoe * 84, SPINES[(shoe * 2 + 6) % 9]
        c.oval(x + 34, 716, 38, 15, tone(colour, 0.8))
        c.oval(x + 14, 704, 19, 17, colour)
    c.polygon([(560, 700), (600, 700), (596, 590), (564, 590)], "#54463c")
    c.line([(575, 600), (560, 520)], "#8c2f2b", 10)
    c.line([(588, 600), (600, 510)], "#26507a", 10)
    c.box(1430, 110, 130, 590, tone(WOOD, 0.9), 8)
    c.box(1446, 300, 98, 360, tone(WOOD, 0.45), 4)
    c.grain(_corners(1430, 110, 130, 590), rng, (40, 6), 0.07)


def _move_hall(c: _Canvas, t: float) -> None:
    _clock(c, 1495, 200, 50, t)
    swing = 0.22 * math.sin(math.pi * t)
    x, y = 1495 + 250 * math.sin(swing), 310 + 250 * math.cos(swing)
    with c.pane(1446, 300, 98, 360) as case:
        case.line([(1495, 300), (x, y)], BRASS, 6)
        case.oval(x, y, 27, 27, tone(BRASS, 0.8))
        case.oval(x - 5, y - 5, 16, 16, tone(BRASS, 1.2))
    along = (t * 80) % 3600 - 500
    _cat(c, along, 790, 170, "#55504e", t, 1)


def _paint_dusk(c: _Canvas, rng: np.random.Generator) -> None:
    _sky(c, rng, 620, "#3a2f5e", "#f0955a", 0)
    c.soft(1080, 440, 460, 330, "#ffd27a", 0.7)
    c.oval(1080, 400, 58, 58, "#ffe9b0")
    for layer, colour in enumerate(("#7a4a6a", "#4f3558", "#2e2440")):
        x = -20.0
        while x < STAGE_WIDTH:
            width, tall = rng.uniform(70, 160), rng.uniform(120, 380) * (1 - 0.18 * layer)
            base = 700 + layer * 40
            c.box(x, base - tall, width, tall + 100, tone(colour, rng.uniform(0.9, 1.1)))
            if rng.uniform() < 0.3:
                c.line([(x + width / 2, base - tall), (x + width / 2, base - tall - 50)], colour, 4)
            lit = np.argwhere(rng.uniform(size=(int(tall // 34), int(width // 26))) < 0.42)
            for row, column in lit.tolist():
                at = (x + 8 + column * 26, base - tall + 12 + row * 34)
                c.box(*at, 12, 17, tone("#f0c060", rng.uniform(0.6, 1.1)))
            x += width + rng.uniform(-6, 14)
    c.box(0, 780, STAGE_WIDTH, 120, "#2a2038")
    c.box(0, 770, STAGE_WIDTH, 18, "#17131f")
    for bar in range(0, STAGE_WIDTH, 48):
        c.box(bar, 770, 9, 130, "#17131f")
    c.box(0, 880, STAGE_WIDTH, 20, "#17131f")
    for pot in (180, 420, 1400):
        _plant(c, rng, pot, 780, 190, "#5a3a34")


def _move_dusk(c: _Canvas, t: float) -> None:
    x = (t * 34) % 2200 - 300
    c.line([(x, 150), (x + 46, 146)], "#e9dfe6", 6)
    c.oval(x + 46, 146, 4, 4, "#ff6a5a" if int(2 * t) % 2 else "#e9dfe6")
    for lamp in range(12):
        glow = 0.75 + 0.25 * math.sin(2.3 * t + 1.7 * lamp)
        at = (70 + lamp * 134, 640 + 26 * math.sin(lamp * math.pi / 2) + 4 * math.sin(t + lamp))
        c.line([(at[0] - 134, at[1] - 30), (at[0], at[1] - 14), (at[0] + 134, at[1] - 30)], "#17131f", 3)
        c.oval(*at, 24, 27, (255, 190, 90, round(70 * glow)))
        c.oval(*at, 14, 17, tone("#f6c46a", glow))


class _Scene(NamedTuple):
    paint: Callable[[_Canvas, np.random.Generator], None]  # what stands still
    move: Callable[[_Canvas, float], None]  # what moves, at a time in seconds
    focus: Box  # what the camera always has in view


SCENES: dict[str, _Scene] = {
    STUDY: _Scene(_paint_study, _move_study, (500, 420, 1100, 860)),
    "street": _Scene(_paint_street, _move_street, (500, 350, 1100, 800)),
    "kitchen": _Scene(_paint_kitchen, _move_kitchen, (400, 200, 1000, 650)),
    "lounge": _Scene(_paint_lounge, _move_lounge, (600, 300, 1200, 800)),
    "bedroom": _Scene(_paint_bedroom, _move_bedroom, (450, 250, 1050, 750)),
    "garden": _Scene(_paint_garden, _move_garden, (500, 280, 1100, 750)),
    "hall": _Scene(_paint_hall, _move_hall, (600, 200, 1200, 750)),
    "dusk": _Scene(_paint_dusk, _move_dusk, (500, 350, 1100, 800)),
}
