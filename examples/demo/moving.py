"""Objects of the film that move, drawn at a time `t` in seconds."""

from __future__ import annotations

import math

from examples.demo.canvas import BRASS, FOLIAGE, SPINES, STAGE_WIDTH, STEEL, Box, Canvas, Point, tone
from examples.demo.objects import leaf


def clock(c: Canvas, x: float, y: float, radius: float, t: float) -> None:
    """Draw a wall clock."""
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
    """Draw a walking cat; heading -1 is to the left."""

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
    """Draw a car seen from the side; heading -1 is to the left."""

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
    """Draw a curtain that moves."""
    folds = 9
    foot = [left + i * width / folds + 11 * math.sin(1.1 * t + 0.6 * i) for i in range(folds + 1)]
    for i in range(folds):
        x = left + i * width / folds
        corners = [(x, top), (x + width / folds, top), (foot[i + 1], top + height), (foot[i], top + height)]
        c.polygon(corners, tone(colour, 0.8 + 0.24 * (i % 2) + 0.05 * math.sin(0.9 * t + i)))
    c.box(left - 14, top - 10, width + 28, 12, tone(BRASS, 0.8), 6)


def falling_leaves(c: Canvas, count: int, t: float, floor: float) -> None:
    """Draw leaves that fall to `floor`."""
    for i in range(count):
        fall = (t * (34 + 9 * (i % 4)) + i * 173) % (floor + 60) - 30
        x = (i * 241 + 46 * math.sin(0.9 * t + i) + 14 * t) % STAGE_WIDTH
        leaf(c, x, fall, 30, 1.9 * math.sin(1.3 * t + i), ("#c46a2b", "#d9a441", "#8f3f24")[i % 3])


def outside(c: Canvas, box: Box, t: float) -> None:
    """Draw the view from a window: a car now and then, and leaves."""
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
