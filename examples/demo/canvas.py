"""The stage on which the film is drawn, in units that do not depend on the resolution, and its colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from PIL import Image, ImageDraw

STAGE_WIDTH, STAGE_HEIGHT = 1600, 900  # the units in which scenes are drawn

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom
Colour = str | tuple[int, ...]

BRASS, STEEL = "#c8a24a", "#aab0b6"
WOOD, PINE, PAPER, GREEN, TERRACOTTA = "#7a4f2c", "#b98a55", "#ece6d6", "#4c7a3d", "#b5643c"
SPINES = ("#8c2f2b", "#26507a", "#2f6b4f", "#c29a3e", "#54406e", "#d8cdb4", "#3b3b40", "#b5643c", "#6f8fa8")
FOLIAGE = ("#4c7a3d", "#5f8f45", "#3b6634", "#789c4e", "#2f5a36")


def tone(colour: str, light: float) -> tuple[int, ...]:
    """Return a colour made lighter or darker.

    >>> tone("#804020", 0.5)
    (64, 32, 16)
    """
    return tuple(min(255, round(int(colour[i : i + 2], 16) * light)) for i in (1, 3, 5))


class Canvas:
    """Draw with Pillow in the units of the stage, on an image of any resolution."""

    def __init__(self, image: Image.Image, scale: float, left: float = 0, top: float = 0):
        self.image = image
        self.scale = scale
        self._left, self._top = left, top
        # drawing RGBA on an RGB image blends colours that are not opaque
        self._draw = ImageDraw.Draw(image, "RGBA")

    def _pixel(self, x: float, y: float) -> Point:
        return (x - self._left) * self.scale, (y - self._top) * self.scale

    def box(self, left: float, top: float, width: float, height: float, fill: Colour, radius: float = 0) -> None:
        """Draw a rectangle, with round corners if `radius` is positive."""
        corners = (*self._pixel(left, top), *self._pixel(left + width, top + height))
        self._draw.rounded_rectangle(corners, radius * self.scale, fill)

    def oval(self, x: float, y: float, rx: float, ry: float, fill: Colour) -> None:
        """Draw a filled ellipse around (x, y)."""
        self._draw.ellipse((*self._pixel(x - rx, y - ry), *self._pixel(x + rx, y + ry)), fill)

    def ring(self, x: float, y: float, rx: float, ry: float, colour: Colour, width: float) -> None:
        """Draw the outline of an ellipse."""
        corners = (*self._pixel(x - rx, y - ry), *self._pixel(x + rx, y + ry))
        self._draw.ellipse(corners, None, colour, max(1, round(width * self.scale)))

    def polygon(self, points: Sequence[Point], fill: Colour) -> None:
        """Draw a filled polygon."""
        self._draw.polygon([self._pixel(*point) for point in points], fill)

    def figure(self, x: float, y: float, size: float, points: Sequence[Point], fill: Colour, heading: int = 1) -> None:
        """Draw a polygon around (x, y) with corners in multiples of `size`; heading -1 mirrors it."""
        self.polygon([(x + heading * a * size, y + b * size) for a, b in points], fill)

    def line(self, points: Sequence[Point], fill: Colour, width: float) -> None:
        """Draw a line through these points."""
        self._draw.line([self._pixel(*point) for point in points], fill, max(1, round(width * self.scale)), "curve")

    def _region(self, left: float, top: float, width: float, height: float) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the upper left corner and the size in pixels."""
        x, y = self._pixel(left, top)
        return (round(x), round(y)), (max(1, round(width * self.scale)), max(1, round(height * self.scale)))

    def fade(self, left: float, top: float, width: float, height: float, above: Colour, below: Colour) -> None:
        """Fill a box with a vertical gradient."""
        corner, size = self._region(left, top, width, height)
        filled = Image.new("RGB", size, above)
        filled.paste(Image.new("RGB", size, below), mask=Image.linear_gradient("L").resize(size))
        self.image.paste(filled, corner)

    def soft(self, x: float, y: float, rx: float, ry: float, colour: Colour, strength: float) -> None:
        """Draw light or shadow: a spot of colour that fades towards its edge."""
        corner, size = self._region(x - rx, y - ry, 2 * rx, 2 * ry)
        edge = 181  # Pillow's gradient at the middle of a side; it reaches 255 in the corners
        faded = Image.radial_gradient("L").point(lambda far: max(0, 1 - far / edge) ** 1.5 * 255 * strength)
        mask = faded.resize(size)
        self.image.paste(Image.new("RGB", size, colour), corner, mask)

    def grain(self, points: Sequence[Point], rng: np.random.Generator, cells: tuple[int, int], strength: float) -> None:
        """Texture a polygon by smooth noise with `cells` (columns, rows): wood, cloth, plaster or grass."""
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
    def pane(self, left: float, top: float, width: float, height: float) -> Iterator[Canvas]:
        """Yield a part of the picture to draw on, in the same units, clipped to it."""
        corner, size = self._region(left, top, width, height)
        part = self.image.crop((*corner, corner[0] + size[0], corner[1] + size[1]))
        yield Canvas(part, self.scale, self._left + corner[0] / self.scale, self._top + corner[1] / self.scale)
        self.image.paste(part, corner)


def rectangle(left: float, top: float, width: float, height: float) -> list[Point]:
    """Return the corners of a rectangle for `polygon` and `grain`."""
    return [(left, top), (left + width, top), (left + width, top + height), (left, top + height)]


def pick(rng: np.random.Generator, colours: Sequence[str]) -> str:
    """Return one of the colours at random."""
    return colours[int(rng.integers(len(colours)))]
