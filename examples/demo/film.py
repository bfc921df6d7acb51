"""A film of our own with a known answer: keys that lie on a table for a second, in minutes of a home and its street.

Every scene is painted once, on a stage larger than the picture. A shot moves a window slowly over that stage; what
moves by itself (a cat, cars, curtains, clocks, leaves, a television) and the keys are drawn onto a copy of the stage
before the window is taken, so all that is seen goes through the same camera, flicker and sensor noise. The stage has
about twice the picture's resolution, which makes edges smooth. Nothing is read from a file: the seed decides it all.
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

from floc.files import write_atomic

try:
    import av
    from PIL import Image
except ImportError as error:
    raise ImportError("the demo's film needs Pillow and PyAV: pip install 'floc-video[video]'") from error

# these draw with Pillow, so they come after the look for it
from examples.demo.canvas import STAGE_HEIGHT, STAGE_WIDTH, Box, Canvas, Point
from examples.demo.scenes import SCENES, SPOTS, STUDY, Scene
from examples.demo.things import keys_box, put_keys

SHOT_S = 7.5  # mean length of a shot
SHOWN_S = 1.0  # how long the keys lie there
PAN = 22.0  # how far a window's edges may wander, in units a second
NOISE = 2.6  # standard deviation of the sensor noise, in grey levels of 255


@dataclass(frozen=True)
class Sighting:
    """Where the keys are in one frame."""

    time_s: float
    box: Box  # as shares of the picture's width and height


@dataclass(frozen=True)
class Film:
    """A film on disk, where it shows the keys, and when it cuts."""

    path: Path
    sightings: list[Sighting]  # one for every frame that shows them
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

    write_atomic(path, lambda temporary: _encode(temporary, plan, progress))
    cuts_s = [float(shot.first / plan.rate) for shot in plan.shots[1:]]
    return Film(path, _sightings(plan), float(plan.frames / plan.rate), cuts_s)


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
    left, top, right, bottom = keys_box(plan.keys_at, plan.keys_turn, plan.scale)
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
            canvas = Canvas(stages[shot.scene].copy(), plan.scale)
            scene.move(canvas, float(frame / plan.rate) + 50)  # as if it had been going on for a while
            if keys and plan.shows_keys(frame):
                put_keys(canvas, plan.keys_at, plan.keys_turn)
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


def _paint(scene: Scene, scale: float, seed: int) -> Image.Image:
    """What stands still in a scene, at twice the stage's resolution and then reduced, for smooth edges."""
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
        for index, pixels in enumerate(_frames(plan)):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = index, 1 / plan.rate
            container.mux(stream.encode(frame))
            if progress is not None:
                progress((index + 1) / plan.frames)
        container.mux(stream.encode())
