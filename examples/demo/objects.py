"""Objects of the film that do not move, drawn in the units of the stage.

An object stands on `base`, or lies or hangs around (x, y).
"""

from __future__ import annotations

import math

import numpy as np

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


def _books(c: Canvas, rng: np.random.Generator, left: float, base: float, width: float, height: float) -> None:
    """Draw a row of books on a shelf."""
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
    """Draw a full bookcase of `rows` shelves; its box is left, top, width, height."""
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
    """Draw a pile of books."""
    y = base
    for _ in range(count):
        thick, inset = rng.uniform(15, 25), rng.uniform(0, width * 0.16)
        colour = pick(rng, SPINES)
        y -= thick
        c.box(left + inset, y, width - inset * 1.4, thick - 1, tone(colour, 0.95), 3)
        c.box(left + inset + 8, y + 3, 10, thick - 7, tone(colour, 1.5))
        c.box(left + inset + width * 0.42, y + thick * 0.38, width * 0.28, 4, tone(colour, 1.45))


def vase(c: Canvas, x: float, base: float, tall: float, colour: str) -> None:
    """Draw a vase."""
    c.oval(x, base - tall * 0.4, tall * 0.32, tall * 0.4, tone(colour, 0.9))
    c.box(x - tall * 0.12, base - tall, tall * 0.24, tall * 0.35, tone(colour, 0.9))
    c.oval(x - tall * 0.1, base - tall * 0.5, tall * 0.06, tall * 0.2, tone(colour, 1.35))


def leaf(c: Canvas, x: float, y: float, length: float, turn: float, colour: Colour) -> None:
    """Draw one leaf that points away from (x, y)."""
    cos, sin = math.cos(turn), math.sin(turn)
    outline = [(0, 0), (0.3, 0.13), (0.6, 0.13), (1, 0), (0.6, -0.13), (0.3, -0.13)]
    c.polygon([(x + length * (a * cos - b * sin), y + length * (a * sin + b * cos)) for a, b in outline], colour)


def plant(c: Canvas, rng: np.random.Generator, x: float, base: float, size: float, pot: str = TERRACOTTA) -> None:
    """Draw a plant in a pot."""
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
    """Draw a cup on a table, seen from above."""
    c.soft(x + size * 0.25, base - size * 0.08, size * 0.9, size * 0.4, "#000000", 0.5)
    c.ring(x + size * 0.5, base - size * 0.5, size * 0.24, size * 0.26, tone(colour, 0.8), size * 0.1)
    c.oval(x, base - size * 0.12, size * 0.36, size * 0.14, tone(colour, 0.78))
    side = [(-0.45, -0.85), (0.45, -0.85), (0.36, -0.12), (-0.36, -0.12)]
    c.figure(x, base, size, side, tone(colour, 0.9))
    c.figure(x, base, size, [(0.1, -0.85), side[1], side[2], (0.08, 0)], tone(colour, 0.76))
    c.oval(x, base - size * 0.85, size * 0.45, size * 0.17, tone(colour, 1.12))
    c.oval(x, base - size * 0.83, size * 0.38, size * 0.13, drink)


def sheet(c: Canvas, rng: np.random.Generator, x: float, y: float, size: float, colour: str = PAPER) -> None:
    """Draw a written page on the table."""
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
    """Draw an open notebook with a pen."""
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
    """Draw an open laptop."""
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
    """Draw a lit brass lamp."""
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
    """Draw a taped box, seen from a corner."""
    c.soft(x + size * 0.2, base, size * 0.95, size * 0.26, "#000000", 0.5)
    front = [(-0.5, -0.55), (0.3, -0.5), (0.3, 0.05), (-0.5, 0)]
    side = [(0.3, -0.5), (0.6, -0.62), (0.6, -0.1), (0.3, 0.05)]
    lid = [(-0.5, -0.55), (-0.16, -0.68), (0.6, -0.62), (0.3, -0.5)]
    for corners, light in ((front, 1.0), (side, 0.72), (lid, 1.18)):
        c.figure(x, base, size, corners, tone(colour, light))
    tape = [(-0.15, -0.53), (-0.03, -0.525), (-0.03, 0.03), (-0.15, 0.02)]
    c.figure(x, base, size, tape, tone(colour, 1.25))


def plate(c: Canvas, x: float, y: float, size: float) -> None:
    """Draw a plate with an apple and a biscuit."""
    c.soft(x + 6, y + 8, size * 0.75, size * 0.42, "#000000", 0.5)
    c.oval(x, y, size * 0.5, size * 0.26, "#dfe3e6")
    c.oval(x, y + 1, size * 0.36, size * 0.18, "#c9d0d6")
    c.oval(x - size * 0.1, y - size * 0.1, size * 0.15, size * 0.14, "#a8322b")
    c.oval(x - size * 0.14, y - size * 0.15, size * 0.045, size * 0.04, "#e08a72")
    c.line([(x - size * 0.1, y - size * 0.22), (x - size * 0.07, y - size * 0.3)], "#4a3320", size * 0.025)
    c.oval(x + size * 0.16, y + size * 0.02, size * 0.12, size * 0.06, "#c48d4a")


def glasses(c: Canvas, x: float, y: float, size: float) -> None:
    """Draw open spectacles."""
    for side in (-1, 1):
        c.oval(x + side * size * 0.3, y, size * 0.22, size * 0.13, (220, 235, 245, 70))
        c.ring(x + side * size * 0.3, y, size * 0.22, size * 0.13, "#26221f", size * 0.05)
        c.line([(x + side * size * 0.5, y - 3), (x + side * size * 0.42, y - size * 0.36)], "#26221f", size * 0.045)
    c.line([(x - size * 0.09, y - 2), (x + size * 0.09, y - 2)], "#26221f", size * 0.045)


def pencils(c: Canvas, rng: np.random.Generator, x: float, base: float, size: float) -> None:
    """Draw a tin of pencils."""
    c.soft(x + size * 0.3, base, size * 0.8, size * 0.3, "#000000", 0.5)
    for _ in range(8):
        tip = (x + rng.uniform(-0.5, 0.5) * size, base - size * rng.uniform(1.3, 1.8))
        foot = (x + rng.uniform(-0.2, 0.2) * size, base - size * 0.6)
        c.line([foot, tip], tone(pick(rng, SPINES), 1.15), size * 0.09)
    c.box(x - size * 0.34, base - size * 0.95, size * 0.68, size * 0.95, tone(STEEL, 0.75), 5)
    c.box(x - size * 0.22, base - size * 0.95, size * 0.12, size * 0.95, tone(STEEL, 1.1), 3)
    c.oval(x, base - size * 0.93, size * 0.34, size * 0.09, tone(STEEL, 0.45))


def picture(c: Canvas, rng: np.random.Generator, box: Box, frame: str = BRASS) -> None:
    """Draw a framed landscape on a wall."""
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
    """Draw a wall that fills the stage, plain or with a pattern: stripes, flowers."""
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
    """Draw a wooden floor from `top` down."""
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
    """Draw an oval rug in rings of one colour."""
    for step, light in enumerate((0.7, 1.0, 1.35, 0.85, 1.1, 0.6)):
        share = 1 - step * 0.14
        c.oval(x, y, rx * share, ry * share, tone(colour, light))
    for turn in range(28):
        at = turn * math.tau / 28
        c.oval(x + rx * 0.8 * math.cos(at), y + ry * 0.8 * math.sin(at), 12, 6, tone(colour, 1.6))
    c.grain(rectangle(x - rx, y - ry, 2 * rx, 2 * ry), rng, (150, 70), 0.05)


def tree(c: Canvas, rng: np.random.Generator, x: float, base: float, size: float) -> None:
    """Draw a tree in leaf."""
    c.soft(x, base, size * 0.5, size * 0.08, "#000000", 0.5)
    trunk = [(-0.05, -0.6), (0.05, -0.6), (0.08, 0), (-0.09, 0)]
    c.figure(x, base, size, trunk, "#5b4330")
    c.line([(x, base - size * 0.5), (x - size * 0.17, base - size * 0.72)], "#5b4330", size * 0.035)
    c.line([(x, base - size * 0.5), (x + size * 0.18, base - size * 0.75)], "#5b4330", size * 0.035)
    for ball in range(90):
        turn, far = rng.uniform(0, math.tau), math.sqrt(rng.uniform()) * 0.36 * size
        at = (x + far * math.cos(turn), base - size * 0.8 + far * 0.8 * math.sin(turn))
        # those drawn last are the brightest
        radius, light = size * rng.uniform(0.04, 0.085), 0.65 + 0.6 * ball / 90
        c.oval(*at, radius, radius * 0.85, tone(pick(rng, FOLIAGE), light))


def house(c: Canvas, rng: np.random.Generator, box: Box, wall: str, roof: str) -> None:
    """Draw a brick house with a roof, windows and a door."""
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
    """Draw the sky from the top of the stage down to `below`."""
    c.fade(0, 0, STAGE_WIDTH, below, above, horizon)
    for _ in range(clouds):
        x, y = rng.uniform(0, STAGE_WIDTH), rng.uniform(20, below * 0.45)
        for _ in range(7):
            at = (x + rng.uniform(-110, 110), y + rng.uniform(-16, 16))
            c.soft(*at, rng.uniform(60, 130), rng.uniform(22, 46), "#ffffff", 0.55)
