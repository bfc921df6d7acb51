"""Render a film with a known answer: keys that lie on a table for a second, in minutes of a home and its street.

Every scene is painted once, on a stage larger than the picture. A shot moves a window slowly over the stage. Moving
objects (a cat, cars, curtains, clocks, leaves, a television) and the keys are drawn onto a copy of the stage before the
window is cropped, so that everything passes the same camera, flicker and sensor noise. The stage has about twice the
resolution of the picture, for smooth edges. Nothing is read from a file: the film depends on the seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from typing import NamedTuple

import numpy as np

from floc._atomic import write_atomic

try:
    import av
    from PIL import Image
except ImportError as error:
    raise ImportError("the demo's film needs Pillow and PyAV: pip install 'floc-video[video]'") from error

# these import Pillow, so they come after the check above
from examples.demo.canvas import STAGE_HEIGHT, STAGE_WIDTH, Box, Canvas, Point
from examples.demo.keys import draw_keys, get_keys_box
from examples.demo.scenes import SCENES, SPOTS, STUDY, Scene

SHOT_S = 7.5  # mean length of a shot
SHOWN_S = 1.0  # how long the keys are visible
PAN = 22.0  # maximum movement of the window's edges, in units a second
NOISE = 2.6  # standard deviation of the sensor noise, in grey levels of 255


@dataclass(frozen=True)
class Sighting:
    """The place of the keys in one frame."""

    time_s: float
    box: Box  # as shares of the picture's width and height


@dataclass(frozen=True)
class Film:
    """A film on disk, the places of its keys, and its cuts."""

    path: Path
    sightings: list[Sighting]  # one for every frame that shows the keys
    duration_s: float
    cuts_s: list[float]  # when another scene begins


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
    """Render the film to an .mp4 file. The file is complete or does not exist.

    Args:
        path: The file to write.
        seconds: Length of the film, at least 3.
        fps: Frames a second, 2 to 60.
        width, height: Size of the picture in pixels: even, between 4:3 and 2:1.
        seed: Determines the order of scenes, the camera's movement, and the time and place of the keys.
        progress: Called with the share of the work done.
    """
    if path.suffix.lower() != ".mp4":
        raise ValueError(f"the film is an mp4 file: name it {path.with_suffix('.mp4').name}, got {path.name}")
    plan = _make_plan(seconds, fps, width, height, seed)

    write_atomic(path, lambda temporary: _encode(temporary, plan, progress))
    cuts_s = [float(shot.first / plan.rate) for shot in plan.shots[1:]]
    return Film(path, _locate_keys(plan), float(plan.frames / plan.rate), cuts_s)


# ---- the plan: shots, camera movement, and the place of the keys


class _Shot(NamedTuple):
    scene: str
    first: int  # frame
    end: int  # the frame after the last
    opens: Box  # the window over the stage in its first frame, in units
    closes: Box  # the same in its last frame


class _Plan(NamedTuple):
    seed: int
    frames: int  # in total
    rate: Fraction  # frames a second
    width: int
    height: int
    shots: list[_Shot]
    keys_from: int  # the first frame that shows the keys
    keys_until: int  # the frame after the last that shows them
    keys_at: Point  # on the stage
    keys_turn: float  # direction of the keys, in radians

    @property
    def scale(self) -> float:
        """Pixels of the stage in a unit: about two for each pixel of the picture."""
        fit = min(STAGE_WIDTH, STAGE_HEIGHT * self.width / self.height)
        return math.ceil(100 * 2 * self.width / (0.85 * fit)) / 100

    def shows_keys(self, frame: int) -> bool:
        return self.keys_from <= frame < self.keys_until

    def window(self, shot: _Shot, frame: int) -> Box:
        """Return the part of the stage visible in a frame of a shot, in units."""
        along = (frame - shot.first) / max(1, shot.end - shot.first - 1)
        left, top, right, bottom = (a + (b - a) * along for a, b in zip(shot.opens, shot.closes, strict=True))
        return left, top, right, bottom


def _make_plan(seconds: float, fps: float, width: int, height: int, seed: int) -> _Plan:
    _check_number("seconds", seconds, 3, 24 * 3600)
    _check_number("fps", fps, 2, 60)
    for name, pixels in (("width", width), ("height", height)):
        if isinstance(pixels, bool) or not isinstance(pixels, Integral) or pixels % 2 or not 48 <= pixels <= 4096:
            raise ValueError(
                f"{name} must be an even number of pixels in 48..4096, as the codec requires; got {pixels!r}"
            )
    if not 4 / 3 - 0.05 <= width / height <= 2.05:
        raise ValueError(f"the picture must be between 4:3 and 2:1 to show the table; got {width} x {height}")
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise ValueError(f"seed must be a whole number, at least 0; got {seed!r}")
    rng = np.random.default_rng([seed, 1])
    rate = Fraction(fps).limit_denominator(1000)
    count = round(seconds * rate)
    scenes, with_keys = _order_scenes(rng, max(1, round(seconds / SHOT_S)))
    cuts = _draw_cuts(rng, count, len(scenes))
    shown = round(SHOWN_S * rate)
    # in the same shot, the table is visible without the keys before and after
    spare = cuts[with_keys + 1] - cuts[with_keys] - shown
    before = spare // 4 + int(rng.integers(spare // 2 + 1))
    spot = SPOTS[rng.integers(len(SPOTS))]
    keys_at = (spot[0] + rng.uniform(-15, 15), spot[1] + rng.uniform(-8, 8))
    x, y = keys_at
    focus_keys = (x - 200, y - 110, x + 200, min(STAGE_HEIGHT, y + 110))
    shots = []
    for place, scene in enumerate(scenes):
        first, end = cuts[place], cuts[place + 1]
        focus = focus_keys if place == with_keys else SCENES[scene].focus
        shots.append(_Shot(scene, first, end, *_draw_windows(rng, width / height, focus, float((end - first) / rate))))
    keys_from = cuts[with_keys] + before
    turn = rng.uniform(-0.6, 0.6) + math.pi * rng.integers(2)
    return _Plan(seed, count, rate, width, height, shots, keys_from, keys_from + shown, keys_at, float(turn))


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= value <= high:
        raise ValueError(f"{name} must be a number in {low}..{high}, got {value!r}")


def _order_scenes(rng: np.random.Generator, shots: int) -> tuple[list[str], int]:
    """Return the scene of each shot, and the shot with the keys. The study also appears without them."""
    others = [name for name in SCENES if name != STUDY]
    with_keys = int(rng.integers(shots // 3, max(shots // 3, 2 * shots // 3) + 1)) if shots > 1 else 0
    without = {place for place in (with_keys // 2, (with_keys + shots) // 2) if abs(place - with_keys) > 1}
    order: list[str] = []
    queue: list[str] = []
    for place in range(shots):
        if place == with_keys or place in without:
            order.append(STUDY)
            continue
        if not queue:
            queue = [others[i] for i in rng.permutation(len(others))]
        if order and queue[0] == order[-1]:
            queue.append(queue.pop(0))
        order.append(queue.pop(0))
    return order, with_keys


def _draw_cuts(rng: np.random.Generator, count: int, shots: int) -> list[int]:
    """Return the first frame of each shot, of roughly equal lengths, and the end."""
    even = np.arange(shots + 1) / shots
    even[1:-1] += rng.uniform(-0.2, 0.2, shots - 1) / shots
    return [round(float(cut)) for cut in even * count]


def _draw_windows(rng: np.random.Generator, aspect: float, focus: Box, seconds: float) -> tuple[Box, Box]:
    """Return two windows over the stage that contain `focus`; the camera pans and zooms from one to the other."""
    fit = min(STAGE_WIDTH, STAGE_HEIGHT * aspect)
    width = fit * rng.uniform(0.8, 0.94)
    left = rng.uniform(0, STAGE_WIDTH - width)
    top = rng.uniform(0, STAGE_HEIGHT - width / aspect)
    drift = min(PAN * seconds, 260)
    wider = float(np.clip(width + rng.uniform(-drift, drift), 0.76 * fit, 0.98 * fit))
    further = (left + rng.uniform(-drift, drift), top + rng.uniform(-drift, drift) / 2)
    return _fit_window(left, top, width, aspect, focus), _fit_window(*further, wider, aspect, focus)


def _fit_window(left: float, top: float, width: float, aspect: float, focus: Box) -> Box:
    """Return the window nearest to the given one that lies on the stage and contains `focus`."""
    height = width / aspect
    left = float(np.clip(left, max(0, focus[2] - width), min(STAGE_WIDTH - width, focus[0])))
    top = float(np.clip(top, max(0, focus[3] - height), min(STAGE_HEIGHT - height, focus[1])))
    return left, top, left + width, top + height


def _locate_keys(plan: _Plan) -> list[Sighting]:
    left, top, right, bottom = get_keys_box(plan.keys_at, plan.keys_turn, plan.scale)
    sightings = []
    for shot in plan.shots:
        for frame in range(max(shot.first, plan.keys_from), min(shot.end, plan.keys_until)):
            window = plan.window(shot, frame)
            across, down = window[2] - window[0], window[3] - window[1]
            # resampling spreads a pixel to its neighbours, hence one more on each side
            box = (
                math.floor((left - window[0]) / across * plan.width - 1) / plan.width,
                math.floor((top - window[1]) / down * plan.height - 1) / plan.height,
                math.ceil((right - window[0]) / across * plan.width + 1) / plan.width,
                math.ceil((bottom - window[1]) / down * plan.height + 1) / plan.height,
            )
            sightings.append(Sighting(float(frame / plan.rate), box))
    return sightings


# ---- rendering and encoding


def _render_frames(plan: _Plan, keys: bool = True) -> Iterator[np.ndarray]:
    """Yield all frames, [height, width, 3] uint8, with or without the keys."""
    stages: dict[str, Image.Image] = {}
    sensor = np.random.default_rng([plan.seed, 2])
    # fresh noise for each frame would take longer than all the rest, so it is cropped from one larger sheet
    margin = 61
    sheet = NOISE * sensor.standard_normal((plan.height + margin, plan.width + margin, 3), np.float32)
    vignette = _make_vignette(plan.width, plan.height)
    for shot in plan.shots:
        scene = SCENES[shot.scene]
        if shot.scene not in stages:
            stages[shot.scene] = _paint(scene, plan.scale, plan.seed)
        for frame in range(shot.first, shot.end):
            canvas = Canvas(stages[shot.scene].copy(), plan.scale)
            scene.move(canvas, float(frame / plan.rate) + 50)  # start in the middle of all movements
            if keys and plan.shows_keys(frame):
                draw_keys(canvas, plan.keys_at, plan.keys_turn)
            left, top, right, bottom = (edge * plan.scale for edge in plan.window(shot, frame))
            # rounding may move an edge slightly past the stage's, which Pillow rejects
            box = (left, top, min(right, canvas.image.width), min(bottom, canvas.image.height))
            picture = canvas.image.resize((plan.width, plan.height), Image.Resampling.BILINEAR, box=box)
            x, y = sensor.integers(margin, size=2)
            exposure = 1 + 0.012 * math.sin(frame * 0.9) + sensor.normal(0, 0.006)
            light = np.asarray(picture, np.float32) * (vignette * np.float32(exposure))
            light += sheet[y : y + plan.height, x : x + plan.width]
            yield light.clip(0, 255, out=light).astype(np.uint8)


def _make_vignette(width: int, height: int) -> np.ndarray:
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    return (1.03 - 0.12 * (x**2 + y**2))[..., None].astype(np.float32)  # [height, width, 1]


def _paint(scene: Scene, scale: float, seed: int) -> Image.Image:
    """Paint what does not move in a scene, at twice the stage's resolution and then reduced, for smooth edges."""
    size = (2 * round(STAGE_WIDTH * scale), 2 * round(STAGE_HEIGHT * scale))
    canvas = Canvas(Image.new("RGB", size), 2 * scale)
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
        for index, pixels in enumerate(_render_frames(plan)):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = index, 1 / plan.rate
            container.mux(stream.encode(frame))
            if progress is not None:
                progress((index + 1) / plan.frames)
        container.mux(stream.encode())
