"""Everyday things, drawn on small transparent pictures.

Each function draws on a canvas of 100 x 100 units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from PIL import Image

from examples.demo.canvas import Canvas, tone


def _draw_keys(c: Canvas) -> None:
    c.ring(30, 32, 20, 20, "#c8a24a", 11)
    c.line([(44, 46), (86, 88)], "#c8a24a", 12)
    c.line([(66, 68), (80, 54)], "#c8a24a", 10)
    c.line([(80, 82), (92, 70)], "#c8a24a", 10)


def _draw_cup(c: Canvas) -> None:
    c.ring(72, 52, 20, 20, "#2a5fa8", 10)
    c.polygon([(14, 22), (72, 22), (64, 90), (22, 90)], "#2f6fc4")
    c.oval(43, 23, 30, 10, "#eef3fa")


def _draw_cat(c: Canvas) -> None:
    c.polygon([(14, 8), (38, 30), (12, 48)], "#3a3a3e")
    c.polygon([(86, 8), (62, 30), (88, 48)], "#3a3a3e")
    c.oval(50, 56, 40, 36, "#47474d")
    for x in (34, 66):
        c.oval(x, 50, 8, 10, "#d8e05a")
        c.oval(x, 50, 3, 9, "#101010")
    c.oval(50, 68, 6, 4, "#e59aa0")


def _draw_car(c: Canvas) -> None:
    c.polygon([(22, 52), (34, 26), (66, 26), (80, 52)], "#a51d1d")
    c.box(4, 48, 92, 28, "#d42a2a", 10)
    c.polygon([(36, 48), (42, 32), (62, 32), (70, 48)], "#cfe3ee")
    for x in (26, 74):
        c.oval(x, 76, 15, 15, "#1b1b1e")
        c.oval(x, 76, 6, 6, "#c9c9cc")


def _draw_clock(c: Canvas) -> None:
    c.oval(50, 50, 46, 46, "#222428")
    c.oval(50, 50, 38, 38, "#fbfaf4")
    c.line([(50, 50), (50, 20)], "#222428", 7)
    c.line([(50, 50), (72, 60)], "#222428", 7)


def _draw_lamp(c: Canvas) -> None:
    c.polygon([(32, 8), (68, 8), (92, 54), (8, 54)], "#f7d64a")
    c.box(45, 54, 10, 32, "#6b4a2e")
    c.box(26, 84, 48, 12, "#6b4a2e", 5)


def _draw_ball(c: Canvas) -> None:
    c.oval(50, 50, 44, 44, "#f28a1c")
    c.line([(8, 50), (92, 50)], "#40230a", 6)
    c.line([(50, 8), (50, 92)], "#40230a", 6)
    c.ring(4, 50, 34, 40, "#40230a", 6)
    c.ring(96, 50, 34, 40, "#40230a", 6)


def _draw_apple(c: Canvas) -> None:
    c.oval(36, 58, 30, 34, "#39a136")
    c.oval(64, 58, 30, 34, "#39a136")
    c.line([(50, 30), (56, 8)], "#5a3418", 7)
    c.oval(70, 16, 16, 8, "#1f6b22")


def _draw_umbrella(c: Canvas) -> None:
    c.polygon([(4, 54), (18, 24), (50, 8), (82, 24), (96, 54)], "#8b2fb5")
    c.polygon([(34, 54), (50, 10), (66, 54)], "#c07ae0")
    c.line([(50, 54), (50, 86), (40, 94), (30, 86)], "#2a2a2e", 7)


def _draw_fish(c: Canvas) -> None:
    c.polygon([(66, 50), (98, 20), (98, 80)], "#0f9a94")
    c.oval(42, 50, 38, 26, "#17bdb5")
    c.oval(24, 44, 7, 7, "#ffffff")
    c.oval(23, 44, 3, 3, "#101010")


def _draw_phone(c: Canvas) -> None:
    c.box(24, 4, 52, 92, "#101216", 10)
    c.box(30, 14, 40, 66, "#4fc3f7")
    c.oval(50, 88, 5, 5, "#d5d8dc")


def _draw_hat(c: Canvas) -> None:
    c.oval(50, 78, 46, 14, "#191919")
    c.box(24, 18, 52, 60, "#232323", 4)
    c.box(24, 58, 52, 12, "#e23b3b")


def _draw_star(c: Canvas) -> None:
    points = []
    for corner in range(10):
        far, turn = (46 if corner % 2 == 0 else 19), -math.pi / 2 + corner * math.pi / 5
        points.append((50 + far * math.cos(turn), 52 + far * math.sin(turn)))
    c.polygon(points, "#ffe11a")
    c.oval(50, 52, 10, 10, "#ff9d00")


def _draw_heart(c: Canvas) -> None:
    c.oval(30, 34, 24, 24, "#ff4f9a")
    c.oval(70, 34, 24, 24, "#ff4f9a")
    c.polygon([(8, 44), (92, 44), (50, 94)], "#ff4f9a")


def _draw_book(c: Canvas) -> None:
    c.polygon([(4, 24), (50, 34), (50, 90), (4, 80)], "#f4f1e6")
    c.polygon([(96, 24), (50, 34), (50, 90), (96, 80)], "#dcd7c6")
    for y in (42, 54, 66):
        c.line([(12, y - 4), (42, y + 3)], "#2b4f9a", 4)
        c.line([(88, y - 4), (58, y + 3)], "#2b4f9a", 4)


def _draw_flower(c: Canvas) -> None:
    c.line([(50, 50), (50, 96)], "#2f7d32", 8)
    for petal in range(6):
        turn = petal * math.tau / 6
        c.oval(50 + 24 * math.cos(turn), 36 + 24 * math.sin(turn), 15, 15, "#fafafa")
    c.oval(50, 36, 14, 14, "#f2b01e")


_DRAWN: dict[str, Callable[[Canvas], None]] = {
    "keys": _draw_keys,
    "cup": _draw_cup,
    "cat": _draw_cat,
    "car": _draw_car,
    "clock": _draw_clock,
    "lamp": _draw_lamp,
    "ball": _draw_ball,
    "apple": _draw_apple,
    "umbrella": _draw_umbrella,
    "fish": _draw_fish,
    "phone": _draw_phone,
    "hat": _draw_hat,
    "star": _draw_star,
    "heart": _draw_heart,
    "book": _draw_book,
    "flower": _draw_flower,
}
THINGS = tuple(_DRAWN)


@cache
def draw_thing(name: str, side: int) -> np.ndarray:
    """Return a picture of a thing, [side, side, 4] uint8, RGB and opacity."""
    fine = 4  # drawn larger by this factor, for smooth edges
    image = Image.new("RGBA", (side * fine, side * fine), (*tone("#606060", 1), 0))
    _DRAWN[name](Canvas(image, side * fine / 100))
    picture = np.asarray(image.resize((side, side), Image.Resampling.BOX))
    picture.setflags(write=False)
    return picture
