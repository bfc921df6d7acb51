"""Draw the frames of films, many at a time, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from PIL import Image

from examples.demo.canvas import STAGE_HEIGHT, STAGE_WIDTH, Canvas
from examples.demo.scenes import SCENES
from examples.tiny_video_model.films import (
    MOST_THINGS,
    PAINTINGS,
    PLACES,
    SLICE_FRAMES,
    Film,
    locate_thing,
    measure_thing,
)
from examples.tiny_video_model.things import THINGS, draw_thing

NOISE = 2.0  # standard deviation of the sensor noise, in grey levels of 255
STAGE_SCALE = 1.6  # the stage is larger than the picture by this factor
TOGETHER = 1024  # frames drawn at a time


@dataclass(frozen=True)
class DrawingList:
    """What to draw in F frames, with N things in all."""

    stages: torch.Tensor  # [F], which picture of a place
    corners: torch.Tensor  # [F, 2], top and left of the frame in that picture
    lights: torch.Tensor  # [F] float32
    grains: torch.Tensor  # [F, 2], top and left of the frame in the table of noise
    thing_frames: torch.Tensor  # [N], the frame that shows the thing
    thing_corners: torch.Tensor  # [N, 2], its top and left there
    things: torch.Tensor  # [N]
    thing_layers: torch.Tensor  # [N], later layers hide earlier ones

    def to(self, device: torch.device, non_blocking: bool = False) -> DrawingList:
        """Return the list on another device."""
        tensors = (getattr(self, name) for name in self.__dataclass_fields__)
        return DrawingList(*(tensor.to(device, non_blocking=non_blocking) for tensor in tensors))

    def pin_memory(self) -> DrawingList:
        """Return the list in memory from which a GPU copies while it computes."""
        return DrawingList(*(getattr(self, name).pin_memory() for name in self.__dataclass_fields__))


def list_drawings(films: Sequence[Film], height: int, width: int) -> DrawingList:
    """List what to draw in all frames of films, one film after another."""
    parts: list[list[np.ndarray]] = [[] for _ in range(8)]
    stage_size = _measure_stage(height, width)
    first = 0
    for film in films:
        rng = np.random.default_rng([film.seed, 1])
        for shot in film.shots:
            count = SLICE_FRAMES * (shot.end - shot.start)
            path = np.linspace(shot.opens, shot.closes, count)[:, ::-1] * (np.array(stage_size) - (height, width))
            parts[0].append(np.full(count, PLACES.index(shot.place) * PAINTINGS + shot.painting))
            parts[1].append(path.round().astype(np.int64))
        frames = SLICE_FRAMES * film.slices
        parts[2].append(np.full(frames, film.light, np.float32))
        parts[3].append(rng.integers(0, (height, width), (frames, 2)))
        for appearance in film.appearances:
            shown = np.arange(SLICE_FRAMES * appearance.start, SLICE_FRAMES * appearance.end)
            left, top, _ = locate_thing(appearance, height, width)
            parts[4].append(first + shown)
            parts[5].append(np.tile([top, left], (len(shown), 1)))
            parts[6].append(np.full(len(shown), THINGS.index(appearance.thing)))
            parts[7].append(np.full(len(shown), film.things.index(appearance.thing)))
        first += frames
    empty = [np.zeros((0, 2) if number == 5 else 0, np.int64) for number in range(8)]
    return DrawingList(*(torch.from_numpy(np.concatenate(part or [empty[at]])) for at, part in enumerate(parts)))


class Renderer:
    """Draw frames of one size.

    Args:
        height, width: Size of a frame in pixels.
        device: Where to draw.
    """

    def __init__(self, height: int, width: int, device: torch.device | str = "cpu"):
        self._size = height, width
        stages = [_paint_place(place, painting, height, width) for place in PLACES for painting in range(PAINTINGS)]
        side = measure_thing(height, width)
        self._stages = torch.from_numpy(np.stack(stages)).to(device)
        self._things = torch.from_numpy(np.stack([draw_thing(thing, side) for thing in THINGS])).to(device)
        noise = np.random.default_rng(0).normal(0, NOISE, (2 * height, 2 * width, 3))
        self._noise = torch.from_numpy(noise.astype(np.float32)).to(device)

    def draw(self, drawings: DrawingList) -> torch.Tensor:
        """Return frames [F, height, width, 3] uint8."""
        drawings = drawings.to(self._stages.device)
        frames = self._crop(self._stages, drawings.stages, drawings.corners)
        self._draw_things(frames, drawings)
        for start in range(0, len(frames), TOGETHER):
            part = slice(start, start + TOGETHER)
            corners = drawings.grains[part]
            lit = frames[part] * drawings.lights[part, None, None, None]
            lit += self._crop(self._noise[None], torch.zeros_like(corners[:, 0]), corners)
            frames[part] = lit.clamp_(0, 255).to(torch.uint8)
        return frames

    def _crop(self, pictures: torch.Tensor, numbers: torch.Tensor, corners: torch.Tensor) -> torch.Tensor:
        """Cut frames out of pictures [P, Y, X, 3], at corners [F, 2] of the pictures `numbers` [F]."""
        height, width = self._size
        windows = pictures.unfold(1, height, 1).unfold(2, width, 1).movedim(3, -1)  # a view of all possible frames
        return windows[numbers, corners[:, 0], corners[:, 1]]

    def _draw_things(self, frames: torch.Tensor, drawings: DrawingList) -> None:
        for layer in range(MOST_THINGS):  # things may touch
            self._draw_layer(frames, drawings, drawings.thing_layers == layer)

    def _draw_layer(self, frames: torch.Tensor, drawings: DrawingList, chosen: torch.Tensor) -> None:
        """Draw the chosen things [N] bool, of which a frame has at most one."""
        offsets = torch.arange(self._things.shape[1], device=frames.device)
        number = drawings.thing_frames[chosen, None, None]
        corners = drawings.thing_corners[chosen, :, None, None]
        rows, columns = corners[:, 0] + offsets[:, None], corners[:, 1] + offsets
        pictures = self._things[drawings.things[chosen]].int()
        opacity = pictures[..., 3:]
        behind = frames[number, rows, columns].int()
        frames[number, rows, columns] = ((behind * (255 - opacity) + pictures[..., :3] * opacity) // 255).to(
            torch.uint8
        )


def render_film(film: Film, height: int = 112, width: int = 168) -> np.ndarray:
    """Draw all frames of a film, [2 * slices, height, width, 3] uint8."""
    return _make_renderer(height, width).draw(list_drawings([film], height, width)).numpy()


@cache
def _make_renderer(height: int, width: int) -> Renderer:
    return Renderer(height, width)


def _measure_stage(height: int, width: int) -> tuple[int, int]:
    return round(height * STAGE_SCALE), round(width * STAGE_SCALE)


@cache
def _paint_place(place: str, painting: int, height: int, width: int) -> np.ndarray:
    """Return a picture of a place, larger than a frame of the film, [Y, X, 3] uint8."""
    scale = 2 * max(width / STAGE_WIDTH, height / STAGE_HEIGHT)
    image = Image.new("RGB", (round(STAGE_WIDTH * scale), round(STAGE_HEIGHT * scale)))
    SCENES[place].paint(Canvas(image, scale), np.random.default_rng([17, painting]))
    SCENES[place].move(Canvas(image, scale), 11.0 * painting)
    tall, wide = _measure_stage(height, width)
    return np.asarray(image.resize((wide, tall), Image.Resampling.BOX))
