"""What is seen in the film: things that stand still, things that move, and the keys.

All are drawn in the stage's units. A thing stands with its foot at `base`, or lies or hangs around (x, y).
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageChops, ImageFilter

from examples.demo.canvas import (
    BRASS,
    FOLIAGE,
    PAPER,
    PINE,
    SPINES,
    STAGE_HEIGHT,
    STAGE_WIDTH,
    STEEL,
    TERRACOTTA,
    Box,
    Canvas,
    Colour,
    Point,
    pick,
    rectangle,
    tone,
)

# ---- things that stand still


def _books(c: Canvas, rng: np.random.Generator, left: float, base: float, width: float, height: float) -> None:
    """A row of books that stand on a shelf."""
    x = left
    while x < left + width - 12:
        thick = min(rng.uniform(13, 30), left + width - x)
        tall = height * rng.uniform(0.68, 0.97)
        colour = pick(rng, SPINES)
        c.box(x, base - tall, thick - 1.5, tall, tone(colour, rng.uniform(0.8, 1.1)), 2)
        c.box(x + 3, base - tall * 0.85, thick - 7, 5, tone(colour, 1.5))
        c.box(x + 3, base - tall * 0.2, thick - 7, 3, tone(colour, 1.5))
        x += thick


def shelves(c: Canvas, rng: np.random.Generator, box: Box, rows: int, wood: str) -> None:
    """A full bookcase of `rows` shelves; its box is left, top, width, height."""
    left, top, width, height = box
    c.soft(left + width / 2 + 14, top + height / 2 + 14, width * 0.75, height * 0.7, "#000000", 0.35)
    c.box(left, top, width, height, tone(wood, 0.75))
    c.grain(rectangle(left, top, width, height), rng, (6, 60), 0.06)
    tall = (height - 10) / rows
    for row in range(rows):
        base = top + (row + 1) * tall
        c.fade(left + 10, base - tall + 10, width - 20, tall - 10, tone(wood, 0.32), tone(wood, 0.5))
        split = left + width * rng.uniform(0.45, 0.85)
        _books(c, rng, left + 14, base, split - left - 14, tall - 14)
        rest = left + width - split
        if rest > 150:
            vase(c, split + rest / 2, base, tall * 0.55, pick(rng, SPINES))
        elif rest > 60:
            flat_books(c, rng, split + 6, base, rest - 24, 3)
        c.box(left, base, width, 10, tone(wood, 1.05))


def flat_books(c: Canvas, rng: np.random.Generator, left: float, base: float, width: float, count: int) -> None:
    """A pile of books."""
    y = base
    for _ in range(count):
        thick, inset = rng.uniform(15, 25), rng.uniform(0, width * 0.16)
        colour = pick(rng, SPINES)
        y -= thick
        c.box(left + inset, y, width - inset * 1.4, thick - 1, tone(colour, 0.95), 3)
        c.box(left + inset + 8, y + 3, 10, thick - 7, tone(colour, 1.5))
        c.box(left + inset + width * 0.42, y + thick * 0.38, width * 0.28, 4, tone(colour, 1.45))


def vase(c: Canvas, x: float, base: float, tall: float, colour: str) -> None:
    """A vase with a gleam on its side."""
    c.oval(x, base - tall * 0.4, tall * 0.32, tall * 0.4, tone(colour, 0.9))
    c.box(x - tall * 0.12, base - tall, tall * 0.24, tall * 0.35, tone(colour, 0.9))
    c.oval(x - tall * 0.1, base - tall * 0.5, tall * 0.06, tall * 0.2, tone(colour, 1.35))


def leaf(c: Canvas, x: float, y: float, length: float, turn: float, colour: Colour) -> None:
    """One leaf that points away from its stem at (x, y)."""
    cos, sin = math.cos(turn), math.sin(turn)
    outline = [(0, 0), (0.3, 0.13), (0.6, 0.13), (1, 0), (0.6, -0.13), (0.3, -0.13)]
    c.polygon([(x + length * (a * cos - b * sin), y + length * (a * sin + b * cos)) for a, b in outline], colour)


def plant(c: Canvas, rng: np.random.Generator, x: float, base: float, size: float, pot: str = TERRACOTTA) -> None:
    """A leafy plant in a pot."""
    c.soft(x + size * 0.15, base, size * 0.5, size * 0.14, "#000000", 0.5)
    wide = size * 0.26
    for _ in range(26):
        turn = rng.uniform(-math.pi * 0.97, -math.pi * 0.03)
        start = (x + rng.uniform(-0.5, 0.5) * wide, base - size * rng.uniform(0.4, 0.62))
        leaf(c, *start, size * rng.uniform(0.35, 0.62), turn, tone(pick(rng, FOLIAGE), rng.uniform(0.75, 1.25)))
    y = base - size * 0.42
    c.polygon([(x - wide, y), (x + wide, y), (x + wide * 0.75, base), (x - wide * 0.75, base)], tone(pot, 0.92))
    c.polygon([(x + wide * 0.3, y), (x + wide, y), (x + wide * 0.75, base), (x + wide * 0.2, base)], tone(pot, 0.72))
    c.box(x - wide * 1.1, y - size * 0.04, wide * 2.2, size * 0.09, tone(pot, 1.08), 4)


def cup(c: Canvas, x: float, base: float, size: float, colour: str, drink: str = "#4a2c17") -> None:
    """A cup on a table, seen from above its rim."""
    c.soft(x + size * 0.25, base - size * 0.08, size * 0.9, size * 0.4, "#000000", 0.5)
    c.ring(x + size * 0.5, base - size * 0.5, size * 0.24, size * 0.26, tone(colour, 0.8), size * 0.1)
    c.oval(x, base - size * 0.12, size * 0.36, size * 0.14, tone(colour, 0.78))
    side = [(-0.45, -0.85), (0.45, -0.85), (0.36, -0.12), (-0.36, -0.12)]
    c.figure(x, base, size, side, tone(colour, 0.9))
    c.figure(x, base, size, [(0.1, -0.85), side[1], side[2], (0.08, 0)], tone(colour, 0.76))
    c.oval(x, base - size * 0.85, size * 0.45, size * 0.17, tone(colour, 1.12))
    c.oval(x, base - size * 0.83, size * 0.38, size * 0.13, drink)


def sheet(c: Canvas, rng: np.random.Generator, x: float, y: float, size: float, colour: str = PAPER) -> None:
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


def notebook(c: Canvas, x: float, y: float, size: float, colour: str) -> None:
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


def laptop(c: Canvas, x: float, base: float, size: float) -> None:
    """An open laptop with a page on its screen."""
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


def desk_lamp(c: Canvas, x: float, base: float, size: float) -> None:
    """A brass lamp, lit."""
    c.soft(x + size * 0.1, base, size * 0.4, size * 0.12, "#000000", 0.5)
    c.oval(x, base - size * 0.03, size * 0.2, size * 0.07, tone(BRASS, 0.6))
    c.oval(x, base - size * 0.05, size * 0.18, size * 0.055, tone(BRASS, 0.9))
    c.line([(x, base - size * 0.06), (x - size * 0.1, base - size * 0.7)], tone(BRASS, 0.9), size * 0.035)
    c.soft(x + size * 0.02, base - size * 0.6, size * 1.1, size * 0.9, "#ffe2a0", 0.45)
    shade = [(-0.26, -1.1), (0.06, -1.1), (0.22, -0.68), (-0.42, -0.68)]
    c.figure(x, base, size, shade, "#e8c98a")
    c.figure(x, base, size, [(-0.26, -1.1), (-0.12, -1.1), (-0.2, -0.68), shade[3]], "#f6e2b4")
    c.oval(x - size * 0.1, base - size * 0.68, size * 0.32, size * 0.035, "#fff3cf")


def carton(c: Canvas, x: float, base: float, size: float, colour: str = PINE) -> None:
    """A taped box, seen from a corner."""
    c.soft(x + size * 0.2, base, size * 0.95, size * 0.26, "#000000", 0.5)
    front = [(-0.5, -0.55), (0.3, -0.5), (0.3, 0.05), (-0.5, 0)]
    side = [(0.3, -0.5), (0.6, -0.62), (0.6, -0.1), (0.3, 0.05)]
    lid = [(-0.5, -0.55), (-0.16, -0.68), (0.6, -0.62), (0.3, -0.5)]
    for corners, light in ((front, 1.0), (side, 0.72), (lid, 1.18)):
        c.figure(x, base, size, corners, tone(colour, light))
    tape = [(-0.15, -0.53), (-0.03, -0.525), (-0.03, 0.03), (-0.15, 0.02)]
    c.figure(x, base, size, tape, tone(colour, 1.25))


def plate(c: Canvas, x: float, y: float, size: float) -> None:
    """A plate with an apple and a biscuit."""
    c.soft(x + 6, y + 8, size * 0.75, size * 0.42, "#000000", 0.5)
    c.oval(x, y, size * 0.5, size * 0.26, "#dfe3e6")
    c.oval(x, y + 1, size * 0.36, size * 0.18, "#c9d0d6")
    c.oval(x - size * 0.1, y - size * 0.1, size * 0.15, size * 0.14, "#a8322b")
    c.oval(x - size * 0.14, y - size * 0.15, size * 0.045, size * 0.04, "#e08a72")
    c.line([(x - size * 0.1, y - size * 0.22), (x - size * 0.07, y - size * 0.3)], "#4a3320", size * 0.025)
    c.oval(x + size * 0.16, y + size * 0.02, size * 0.12, size * 0.06, "#c48d4a")


def glasses(c: Canvas, x: float, y: float, size: float) -> None:
    """Spectacles, left open."""
    for side in (-1, 1):
        c.oval(x + side * size * 0.3, y, size * 0.22, size * 0.13, (220, 235, 245, 70))
        c.ring(x + side * size * 0.3, y, size * 0.22, size * 0.13, "#26221f", size * 0.05)
        c.line([(x + side * size * 0.5, y - 3), (x + side * size * 0.42, y - size * 0.36)], "#26221f", size * 0.045)
    c.line([(x - size * 0.09, y - 2), (x + size * 0.09, y - 2)], "#26221f", size * 0.045)


def pencils(c: Canvas, rng: np.random.Generator, x: float, base: float, size: float) -> None:
    """A tin of pencils."""
    c.soft(x + size * 0.3, base, size * 0.8, size * 0.3, "#000000", 0.5)
    for _ in range(8):
        tip = (x + rng.uniform(-0.5, 0.5) * size, base - size * rng.uniform(1.3, 1.8))
        foot = (x + rng.uniform(-0.2, 0.2) * size, base - size * 0.6)
        c.line([foot, tip], tone(pick(rng, SPINES), 1.15), size * 0.09)
    c.box(x - size * 0.34, base - size * 0.95, size * 0.68, size * 0.95, tone(STEEL, 0.75), 5)
    c.box(x - size * 0.22, base - size * 0.95, size * 0.12, size * 0.95, tone(STEEL, 1.1), 3)
    c.oval(x, base - size * 0.93, size * 0.34, size * 0.09, tone(STEEL, 0.45))


def bowl(c: Canvas, x: float, y: float, size: float) -> None:
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


def headphones(c: Canvas, x: float, y: float, size: float) -> None:
    """Headphones that lie flat."""
    c.soft(x + 6, y + 8, size * 0.75, size * 0.45, "#000000", 0.45)
    c.ring(x, y, size * 0.48, size * 0.28, "#2b2d31", size * 0.08)
    for side in (-1, 1):
        c.oval(x + side * size * 0.4, y + size * 0.16, size * 0.16, size * 0.13, "#1d1f24")
        c.oval(x + side * size * 0.4, y + size * 0.15, size * 0.1, size * 0.075, "#54575e")


def scissors(c: Canvas, x: float, y: float, size: float) -> None:
    """Scissors, a little open."""
    for side in (-1, 1):
        c.line([(x, y), (x + size * 0.62, y - side * size * 0.09)], tone(STEEL, 0.9 + 0.15 * side), size * 0.07)
        c.ring(x - size * 0.22, y + side * size * 0.12, size * 0.2, size * 0.1, "#a8463c", size * 0.07)
    c.oval(x + size * 0.04, y, size * 0.03, size * 0.025, tone(STEEL, 0.6))


def crumpled(c: Canvas, rng: np.random.Generator, x: float, y: float, size: float) -> None:
    """A ball of paper."""
    c.soft(x + 4, y + size * 0.5, size * 1.5, size * 0.7, "#000000", 0.5)
    rim = [(x + size * math.cos(i * 0.7) * rng.uniform(0.8, 1.1), y + size * 0.8 * math.sin(i * 0.7)) for i in range(9)]
    c.polygon(rim, tone(PAPER, 0.9))
    for i in range(9):
        c.polygon([rim[i], rim[(i + 1) % 9], (x - 3, y - 4)], tone(PAPER, rng.uniform(0.72, 1.05)))


def telephone(c: Canvas, x: float, y: float, size: float) -> None:
    """A mobile phone, its screen dark."""
    outline = [(-0.5, -0.12), (0.38, -0.26), (0.5, 0.1), (-0.4, 0.26)]
    c.figure(x + 4, y + 6, size, outline, (20, 12, 8, 120))
    c.figure(x, y, size, outline, "#1d1f24")
    c.figure(x, y, size * 0.86, outline, "#3c4a5c")


def picture(c: Canvas, rng: np.random.Generator, box: Box, frame: str = BRASS) -> None:
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


def wall(c: Canvas, rng: np.random.Generator, above: str, below: str, pattern: str = "") -> None:
    """A wall that fills the stage, plain or with a pattern: stripes, flowers."""
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
                    leaf(c, *at, 17, turn * 1.257, (255, 240, 225, 62))
                c.oval(*at, 4, 4, (90, 50, 30, 60))
    c.grain(rectangle(0, 0, STAGE_WIDTH, STAGE_HEIGHT), rng, (160, 90), 0.012)
    c.grain(rectangle(0, 0, STAGE_WIDTH, STAGE_HEIGHT), rng, (7, 5), 0.03)


def planks(c: Canvas, rng: np.random.Generator, top: float, colour: str) -> None:
    """A wooden floor from `top` down, its boards running towards the viewer."""
    c.box(0, top, STAGE_WIDTH, STAGE_HEIGHT - top, colour)
    middle = STAGE_WIDTH / 2
    for board in range(-16, 16):
        near, far = 170.0, 95.0
        corners = [(middle + board * far, top), (middle + (board + 1) * far, top)]
        corners += [(middle + (board + 1) * near, STAGE_HEIGHT), (middle + board * near, STAGE_HEIGHT)]
        c.polygon(corners, tone(colour, rng.uniform(0.86, 1.08)))
        c.line([corners[0], corners[3]], tone(colour, 0.6), 3)
    c.grain(rectangle(0, top, STAGE_WIDTH, STAGE_HEIGHT - top), rng, (300, 12), 0.05)


def rug(c: Canvas, rng: np.random.Generator, x: float, y: float, rx: float, ry: float, colour: str) -> None:
    """An oval rug in rings of one colour."""
    for step, light in enumerate((0.7, 1.0, 1.35, 0.85, 1.1, 0.6)):
        share = 1 - step * 0.14
        c.oval(x, y, rx * share, ry * share, tone(colour, light))
    for turn in range(28):
        at = turn * math.tau / 28
        c.oval(x + rx * 0.8 * math.cos(at), y + ry * 0.8 * math.sin(at), 12, 6, tone(colour, 1.6))
    c.grain(rectangle(x - rx, y - ry, 2 * rx, 2 * ry), rng, (150, 70), 0.05)


def tree(c: Canvas, rng: np.random.Generator, x: float, base: float, size: float) -> None:
    """A tree in leaf."""
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
        c.oval(*at, radius, radius * 0.85, tone(pick(rng, FOLIAGE), light))


def house(c: Canvas, rng: np.random.Generator, box: Box, wall: str, roof: str) -> None:
    """A brick house with a roof, windows and a door."""
    left, top, width, height = box
    c.box(left, top, width, height, wall)
    for row in range(int(height // 14)):
        y = top + row * 14
        c.line([(left, y), (left + width, y)], tone(wall, 0.86), 2)
        for x in np.arange(left + row % 2 * 18, left + width, 36):
            c.line([(x, y), (x, y + 14)], tone(wall, 0.88), 2)
    c.grain(rectangle(left, top, width, height), rng, (24, 30), 0.05)
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


def sky(c: Canvas, rng: np.random.Generator, below: float, above: str, horizon: str, clouds: int) -> None:
    """The sky from the top of the stage down to `below`."""
    c.fade(0, 0, STAGE_WIDTH, below, above, horizon)
    for _ in range(clouds):
        x, y = rng.uniform(0, STAGE_WIDTH), rng.uniform(20, below * 0.45)
        for _ in range(7):
            at = (x + rng.uniform(-110, 110), y + rng.uniform(-16, 16))
            c.soft(*at, rng.uniform(60, 130), rng.uniform(22, 46), "#ffffff", 0.55)


# ---- things that move, as they are `t` seconds after the start


def clock(c: Canvas, x: float, y: float, radius: float, t: float) -> None:
    """A wall clock whose hands tell the time."""
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


def cat(c: Canvas, x: float, base: float, size: float, colour: str, t: float, heading: int) -> None:
    """A striped cat, walking; heading -1 is to the left."""

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


def car(c: Canvas, x: float, base: float, size: float, colour: str, heading: int) -> None:
    """A car seen from the side; heading -1 is to the left."""

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


def curtain(c: Canvas, left: float, top: float, width: float, height: float, colour: str, t: float) -> None:
    """A curtain that stirs in a draught."""
    folds = 9
    foot = [left + i * width / folds + 11 * math.sin(1.1 * t + 0.6 * i) for i in range(folds + 1)]
    for i in range(folds):
        x = left + i * width / folds
        corners = [(x, top), (x + width / folds, top), (foot[i + 1], top + height), (foot[i], top + height)]
        c.polygon(corners, tone(colour, 0.8 + 0.24 * (i % 2) + 0.05 * math.sin(0.9 * t + i)))
    c.box(left - 14, top - 10, width + 28, 12, tone(BRASS, 0.8), 6)


def falling_leaves(c: Canvas, count: int, t: float, floor: float) -> None:
    """Autumn leaves on their way down to `floor`."""
    for i in range(count):
        fall = (t * (34 + 9 * (i % 4)) + i * 173) % (floor + 60) - 30
        x = (i * 241 + 46 * math.sin(0.9 * t + i) + 14 * t) % STAGE_WIDTH
        leaf(c, x, fall, 30, 1.9 * math.sin(1.3 * t + i), ("#c46a2b", "#d9a441", "#8f3f24")[i % 3])


def outside(c: Canvas, box: Box, t: float) -> None:
    """What passes outside a window: a car now and then, in front of a hedge."""
    left, top, width, height = box
    with c.pane(*box) as view:
        round_trips, along = divmod(t * 170, 2400)
        car(view, left + along - 500, top + height * 0.93, 300, SPINES[int(round_trips) % len(SPINES)], 1)
        for branch in range(5):
            at = (left + width * (0.1 + 0.2 * branch), top - 10)
            leaf(view, *at, 74, 1.5 + 0.12 * math.sin(1.7 * t + branch), tone(FOLIAGE[branch], 0.9))
    for share in (1 / 3, 2 / 3):
        c.box(left + width * share - 5, top, 10, height, "#e6dfd0")
    c.box(left, top + height * 0.48, width, 10, "#e6dfd0")


# ---- the keys, which lie around a point `at` and point along `turn`, in radians


def put_keys(c: Canvas, at: Point, turn: float) -> None:
    """Lay the keys on the stage."""
    sprite, left, top = _keys(at, turn, c.scale)
    c.image.paste(sprite, (left, top), sprite)


def keys_box(at: Point, turn: float, scale: float) -> Box:
    """Where the keys and their shadow are on the stage, in units."""
    sprite, left, top = _keys(at, turn, scale)
    box = sprite.getchannel("A").getbbox()
    assert box is not None, "keys have pixels"
    x, y, right, bottom = ((each + corner) / scale for each, corner in zip(box, 2 * (left, top), strict=True))
    return x, y, right, bottom


def _keys(at: Point, turn: float, scale: float) -> tuple[Image.Image, int, int]:
    """Keys on a ring with their shadow, and where on the stage their picture begins, in its pixels."""
    fine = 4  # drawn so much larger, for smooth edges
    side = round(230 * scale)
    flat = Image.new("RGBA", (side * fine, side * fine))
    c = Canvas(flat, scale * fine)
    # the ring is off the middle, so that ring and keys together are on it
    ring = (115 - 48 * math.cos(turn), 115 - 48 * math.sin(turn))
    for spread, length, metal in ((-0.42, 78, STEEL), (0.36, 86, BRASS), (-0.03, 92, BRASS)):
        _key(c, ring, turn + spread, length, metal)
    c.ring(*ring, 25, 25, tone(STEEL, 0.55), 7)
    c.ring(*ring, 24, 24, tone(STEEL, 1.1), 4)
    # the table is seen from the side, so what lies on it is foreshortened
    size = (side, round(side * 0.66))
    lying = flat.resize(size, Image.Resampling.BOX)
    shadow = Image.new("RGBA", size, "#20150c")
    cast = ImageChops.offset(lying.getchannel("A"), round(4 * scale), round(6 * scale))
    # a blur's far tail is invisible but would widen the shadow's box
    soft = cast.filter(ImageFilter.GaussianBlur(4 * scale)).point(lambda alpha: 0 if alpha < 12 else alpha * 0.65)
    shadow.putalpha(soft)
    shadow.alpha_composite(lying)
    x, y = at
    return shadow, round(x * scale - size[0] / 2), round(y * scale - size[1] / 2)


def _key(c: Canvas, ring: Point, turn: float, length: float, metal: str) -> None:
    """One key that hangs on a ring and points away from it."""
    cos, sin = math.cos(turn), math.sin(turn)

    def place(along: float, beside: float) -> Point:
        return ring[0] + along * cos - beside * sin, ring[1] + along * sin + beside * cos

    for lift, colour in ((2.0, tone(metal, 0.5)), (0.0, tone(metal, 1.0))):
        blade = [(50, -6), (length + 24, -6), (length + 30, 0), (length + 24, 5)]
        teeth = [(length + 17, 14), (length + 11, 6), (length + 4, 12), (length - 3, 6), (length - 10, 14)]
        outline = [*blade, *teeth, (length - 17, 6), (50, 6)]
        c.polygon([place(along, beside + lift) for along, beside in outline], colour)
        x, y = place(40, lift)
        # a ring, not a disc: the table shows through the hole
        c.ring(x, y, 23, 23, colour, 13)
    c.line([place(56, -2), place(length + 20, -2)], tone(metal, 1.3), 2)
