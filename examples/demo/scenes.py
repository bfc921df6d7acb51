"""The scenes of the film: rooms of a home, its street and its garden."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from examples.demo import moving, objects
from examples.demo.canvas import (
    BRASS,
    FOLIAGE,
    PAPER,
    PINE,
    SPINES,
    STAGE_WIDTH,
    STEEL,
    WOOD,
    Box,
    Canvas,
    Point,
    pick,
    rectangle,
    tone,
)


def _window_view(c: Canvas, rng: np.random.Generator, box: Box) -> None:
    """Draw a window in a wall, with a house and a tree outside."""
    left, top, width, height = box
    c.box(left - 18, top - 18, width + 36, height + 36, "#f2ecdf", 4)
    c.fade(left, top, width, height, "#9fc3dc", "#e8eef0")
    with c.pane(*box) as view:
        objects.house(view, rng, (left + width * 0.08, top + height * 0.38, width * 0.42, height), "#c9a48a", "#7d4a3c")
        objects.tree(view, rng, left + width * 0.78, top + height, height * 0.95)
        view.box(left, top + height * 0.84, width, height, "#77797c")
    c.box(left - 30, top + height + 16, width + 60, 20, "#ddd5c4", 4)


STUDY = "study"
STUDY_WINDOW: Box = (1010, 60, 390, 300)
# nearly empty places on the table
SPOTS: tuple[Point, ...] = ((455, 648), (915, 660), (1030, 790), (540, 815), (290, 720), (1325, 640))


def _paint_study(c: Canvas, rng: np.random.Generator) -> None:
    objects.wall(c, rng, "#cdb896", "#a88f6c", "stripes")
    objects.shelves(c, rng, (40, 20, 420, 400), 3, WOOD)
    objects.picture(c, rng, (520, 210, 150, 120))
    objects.picture(c, rng, (700, 40, 240, 170), "#6b4a2e")
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
    objects.flat_books(c, rng, 470, 530, 170, 5)
    objects.carton(c, 1105, 545, 190)
    objects.plant(c, rng, 1320, 560, 240)
    objects.desk_lamp(c, 300, 560, 240)
    objects.laptop(c, 800, 545, 290)
    objects.pencils(c, rng, 1010, 590, 62)
    objects.sheet(c, rng, 650, 700, 210)
    objects.sheet(c, rng, 700, 735, 200)
    objects.notebook(c, 770, 835, 270, "#8c2f2b")
    objects.cup(c, 565, 660, 74, "#3f6f8f")
    objects.cup(c, 1130, 690, 84, "#d9d2c3", "#7a4a22")
    objects.cup(c, 150, 840, 90, "#b5643c")
    objects.plate(c, 1190, 810, 190)
    objects.glasses(c, 880, 730, 90)
    objects.flat_books(c, rng, 1340, 820, 200, 4)
    objects.sheet(c, rng, 310, 850, 170, "#e8d9a0")
    for note, colour in enumerate(("#e6cf5c", "#d98f9c", "#8fb8d0")):
        c.figure(1185 + note * 34, 600 + note * 12, 50, [(0, 0), (0.96, -0.08), (1.08, 0.52), (0.08, 0.6)], colour)
    for pen in range(3):
        start = (660 + pen * 40, 610 + pen * 6)
        c.line([start, (start[0] + 74, start[1] + 16 - 14 * pen)], tone(SPINES[pen], 1.1), 8)


def _move_study(c: Canvas, t: float) -> None:
    moving.outside(c, STUDY_WINDOW, t)
    moving.curtain(c, 960, 42, 84, 350, "#8a3f3a", t)
    moving.curtain(c, 1372, 42, 84, 350, "#8a3f3a", t + 2)
    moving.clock(c, 595, 105, 58, t)


def _paint_street(c: Canvas, rng: np.random.Generator) -> None:
    objects.sky(c, rng, 600, "#6fa6d6", "#dfe9ea", 7)
    walls, roofs = ("#c08a72", "#d9c9a3", "#9fae9a", "#b9a3a0"), ("#6b3b34", "#4d545c", "#7d4a3c", "#54463c")
    for place in range(4):
        objects.house(c, rng, (20 + place * 400, 210 + 24 * (place % 2), 360, 370), walls[place], roofs[place])
    c.box(0, 575, STAGE_WIDTH, 70, "#a9a59b")
    for x in range(0, STAGE_WIDTH, 64):
        c.line([(x, 575), (x - 22, 645)], "#8b877e", 3)
    c.fade(0, 645, STAGE_WIDTH, 255, "#5a5c60", "#6d6f73")
    c.grain(rectangle(0, 575, STAGE_WIDTH, 325), rng, (400, 90), 0.06)
    c.box(0, 640, STAGE_WIDTH, 10, "#c9c5ba")
    for x in range(0, STAGE_WIDTH, 190):
        c.polygon([(x, 762), (x + 100, 762), (x + 94, 772), (x - 6, 772)], "#dcd9cd")
    objects.tree(c, rng, 395, 625, 470)
    objects.tree(c, rng, 1205, 630, 520)
    for x in (110, 860, 1480):
        c.box(x - 5, 330, 10, 300, "#2e3236")
        c.box(x - 24, 300, 48, 36, "#3a3f44", 6)
        c.box(x - 16, 306, 32, 24, "#f1e3b4", 4)


def _move_street(c: Canvas, t: float) -> None:
    oncoming = (t * 185 + 900) % 2600 - 500
    moving.car(c, STAGE_WIDTH - oncoming, 728, 330, "#e4e1d8", -1)
    for car, colour in enumerate(("#8c2f2b", "#26507a")):
        moving.car(c, (t * 150 + car * 1100) % 2600 - 500, 850, 390, colour, 1)
    moving.falling_leaves(c, 14, t, 640)


def _paint_kitchen(c: Canvas, rng: np.random.Generator) -> None:
    objects.wall(c, rng, "#dfe6e2", "#c3d0ca")
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
    c.grain(rectangle(1240, 90, 330, 810), rng, (60, 4), 0.03)
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
    objects.plant(c, rng, 1010, 556, 170, "#d9d2c3")
    c.oval(170, 545, 120, 26, "#b98a55")
    for fruit, colour in enumerate(("#d9a441", "#a8322b", "#c46a2b", "#789c4e", "#d9a441")):
        c.oval(95 + fruit * 38, 512 - 16 * (fruit % 2), 31, 30, colour)
        c.oval(87 + fruit * 38, 502 - 16 * (fruit % 2), 8, 7, tone(colour, 1.4))
    c.polygon([(40, 525), (300, 525), (260, 558), (80, 558)], "#8a5f3a")
    for spoon in range(6):
        c.line([(650 + 36 * spoon, 262), (650 + 36 * spoon, 340)], STEEL, 5)
        c.oval(650 + 36 * spoon, 350, 11, 16, STEEL)
    c.box(630, 256, 220, 9, tone(STEEL, 0.7))


def _move_kitchen(c: Canvas, t: float) -> None:
    for puff in range(9):
        age = (t * 0.35 + puff / 9) % 1
        at = (467 + 34 * math.sin(2.4 * age * math.pi + puff) * age, 396 - 200 * age)
        c.oval(*at, 14 + 34 * age, 12 + 26 * age, (255, 255, 255, round(70 * (1 - age))))
    moving.clock(c, 1175, 130, 52, t)


def _paint_lounge(c: Canvas, rng: np.random.Generator) -> None:
    objects.wall(c, rng, "#4f6b66", "#3d5450", "flowers")
    objects.planks(c, rng, 620, "#8a5a38")
    c.box(0, 596, STAGE_WIDTH, 26, "#d8d0bd")
    objects.rug(c, rng, 700, 780, 560, 105, "#8c3b34")
    objects.picture(c, rng, (210, 90, 270, 190))
    objects.picture(c, rng, (530, 130, 140, 170), "#3b3b40")
    c.soft(440, 700, 520, 70, "#000000", 0.6)
    sofa = "#c08d4a"
    c.box(90, 370, 700, 250, tone(sofa, 0.8), 40)
    for cushion in range(3):
        c.box(130 + cushion * 208, 400, 204, 170, tone(sofa, 0.95), 26)
        c.box(126 + cushion * 208, 545, 210, 90, tone(sofa, 1.1), 20)
    for arm in (60, 740):
        c.box(arm, 450, 84, 220, tone(sofa, 0.9), 34)
    c.grain(rectangle(60, 370, 764, 300), rng, (240, 90), 0.05)
    c.polygon([(190, 545), (300, 500), (340, 600), (225, 625)], "#26507a")
    c.polygon([(590, 500), (690, 540), (650, 625), (550, 590)], "#d8cdb4")
    c.box(1000, 560, 520, 130, WOOD, 6)
    c.grain(rectangle(1000, 560, 520, 130), rng, (8, 60), 0.08)
    for door in range(3):
        c.box(1014 + door * 168, 575, 158, 100, tone(WOOD, 0.75), 4)
        c.oval(1160 + door * 168 - 20, 625, 6, 6, BRASS)
    c.box(1050, 262, 420, 280, "#17181b", 10)
    c.box(1230, 540, 60, 24, "#17181b")
    c.soft(900, 330, 300, 330, "#ffd890", 0.5)
    c.box(896, 330, 9, 310, tone(BRASS, 0.8))
    c.polygon([(840, 330), (962, 330), (930, 215), (872, 215)], "#f0d9a4")
    c.oval(900, 645, 50, 12, tone(BRASS, 0.6))
    objects.plant(c, rng, 1545, 690, 300, "#d8cdb4")


def _move_lounge(c: Canvas, t: float) -> None:
    rng = np.random.default_rng(int(t * 1.5))  # the television cuts to another picture now and then
    sky, ground, figure = (pick(rng, SPINES) for _ in range(3))
    flicker = 1.15 + 0.1 * math.sin(17 * t)
    c.box(1064, 276, 392, 252, tone(sky, flicker))
    c.box(1064, 420, 392, 108, tone(ground, flicker))
    x = 1150 + rng.uniform(0, 220) + 30 * math.sin(t)
    c.oval(x, 380, 34, 40, tone(figure, flicker * 1.1))
    c.box(x - 46, 418, 92, 110, tone(figure, flicker * 0.8), 14)
    along = (t * 95) % 3100 - 400
    heading = 1 if int(t * 95 // 3100) % 2 else -1
    moving.cat(c, along if heading > 0 else STAGE_WIDTH - along, 800, 190, "#c98a4b", t, heading)


def _paint_garden(c: Canvas, rng: np.random.Generator) -> None:
    objects.sky(c, rng, 580, "#8fc0e6", "#f1ead0", 5)
    for left in range(0, STAGE_WIDTH, 46):
        light, right = rng.uniform(0.88, 1.1), left + 42
        c.polygon([(left, 330), (left + 21, 300), (right, 330), (right, 560), (left, 560)], tone("#c9b08a", light))
        c.line([(left + 14, 340), (left + 14, 556)], tone("#c9b08a", light * 0.85), 2)
    c.box(0, 370, STAGE_WIDTH, 16, "#a88f68")
    c.box(0, 500, STAGE_WIDTH, 16, "#a88f68")
    c.grain(rectangle(0, 300, STAGE_WIDTH, 260), rng, (400, 16), 0.06)
    c.fade(0, 550, STAGE_WIDTH, 350, "#6f9448", "#4f7a38")
    c.grain(rectangle(0, 550, STAGE_WIDTH, 350), rng, (420, 70), 0.12)
    for _ in range(700):
        x, y = rng.uniform(0, STAGE_WIDTH), 560 + 340 * rng.uniform()
        tall = 8 + (y - 550) * 0.07
        c.line([(x, y), (x + rng.uniform(-6, 6), y - tall)], tone(pick(rng, FOLIAGE), rng.uniform(0.9, 1.3)), 2)
    for _ in range(120):
        x, y = rng.uniform(0, STAGE_WIDTH), rng.uniform(545, 640)
        objects.leaf(c, x, y, 26, rng.uniform(-2.4, -0.7), pick(rng, FOLIAGE))
        c.oval(x, y - 14, 9, 9, pick(rng, ("#d9647a", "#e6cf5c", "#e9e4f2", "#9a6fc0")))
        c.oval(x, y - 14, 3, 3, "#c29a3e")
    objects.tree(c, rng, 1270, 690, 640)
    objects.tree(c, rng, 150, 600, 400)
    c.polygon([(640, 900), (1000, 900), (760, 560), (700, 560)], "#b9a98c")
    c.grain([(640, 900), (1000, 900), (760, 560), (700, 560)], rng, (50, 60), 0.1)
    c.box(310, 690, 300, 18, "#8a5f3a", 4)
    c.box(310, 610, 300, 50, "#8a5f3a", 4)
    for leg in (330, 572):
        c.box(leg, 610, 16, 170, "#6b4526")
    c.polygon([(1010, 720), (1130, 720), (1110, 830), (1030, 830)], "#5f7f92")
    c.ring(1070, 700, 44, 34, "#5f7f92", 10)
    c.line([(1120, 790), (1190, 730)], "#5f7f92", 16)


def _move_garden(c: Canvas, t: float) -> None:
    c.line([(250, 300), (560, 322), (880, 300)], "#5a5148", 3)
    for shirt, colour in enumerate(("#d8cdb4", "#a8463c", "#6f8fa8", "#e9e4da")):
        place, sway = (310 + shirt * 135, 308 + 8 * (shirt in (1, 2))), 0.1 * math.sin(1.6 * t + shirt)
        c.figure(*place, 120, [(0, 0), (0.7, 0), (0.65 + sway, 1), (0.05 + sway, 1)], colour)
        c.figure(*place, 120, [(0.42, 0), (0.7, 0), (0.65 + sway, 1), (0.47 + sway, 1)], tone(colour, 0.85))
    moving.falling_leaves(c, 10, t, 840)
    x, y = (t * 120) % 2600 - 300, 150 + 40 * math.sin(t)
    beat = 20 * math.sin(11 * t)
    c.line([(x - 40, y - beat), (x, y), (x + 40, y - beat)], "#33383f", 8)


class Scene(NamedTuple):
    """A place in two layers, and the part of it that the camera shows."""

    paint: Callable[[Canvas, np.random.Generator], None]  # draws what does not move
    move: Callable[[Canvas, float], None]  # draws what moves, at a time in seconds
    focus: Box  # always in view


SCENES: dict[str, Scene] = {
    STUDY: Scene(_paint_study, _move_study, (500, 420, 1100, 860)),
    "street": Scene(_paint_street, _move_street, (500, 350, 1100, 800)),
    "kitchen": Scene(_paint_kitchen, _move_kitchen, (400, 200, 1000, 650)),
    "lounge": Scene(_paint_lounge, _move_lounge, (600, 300, 1200, 800)),
    "garden": Scene(_paint_garden, _move_garden, (500, 280, 1100, 750)),
}
