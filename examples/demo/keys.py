"""The keys that lie on the table for a second."""

from __future__ import annotations

import math

from PIL import Image, ImageChops, ImageFilter

from examples.demo.canvas import BRASS, STEEL, Box, Canvas, Point, tone


def draw_keys(c: Canvas, at: Point, turn: float) -> None:
    """Draw the keys on the stage, around `at` and pointing along `turn`, in radians."""
    sprite, left, top = _make_sprite(at, turn, c.scale)
    c.image.paste(sprite, (left, top), sprite)


def get_keys_box(at: Point, turn: float, scale: float) -> Box:
    """Return the box of the keys and their shadow on the stage, in units."""
    sprite, left, top = _make_sprite(at, turn, scale)
    box = sprite.getchannel("A").getbbox()
    assert box is not None, "the sprite is not empty"
    x, y, right, bottom = ((edge + corner) / scale for edge, corner in zip(box, 2 * (left, top), strict=True))
    return x, y, right, bottom


def _make_sprite(at: Point, turn: float, scale: float) -> tuple[Image.Image, int, int]:
    """Return an image of keys on a ring with their shadow, and its left and top in pixels of the stage."""
    fine = 4  # drawn larger by this factor, for smooth edges
    side = round(230 * scale)
    flat = Image.new("RGBA", (side * fine, side * fine))
    c = Canvas(flat, scale * fine)
    # the ring is off the centre, so that ring and keys together are centred
    ring = (115 - 48 * math.cos(turn), 115 - 48 * math.sin(turn))
    for spread, length, metal in ((-0.42, 78, STEEL), (0.36, 86, BRASS), (-0.03, 92, BRASS)):
        _draw_key(c, ring, turn + spread, length, metal)
    c.ring(*ring, 25, 25, tone(STEEL, 0.55), 7)
    c.ring(*ring, 24, 24, tone(STEEL, 1.1), 4)
    # the table is seen from the side, so the keys are foreshortened
    size = (side, round(side * 0.66))
    lying = flat.resize(size, Image.Resampling.BOX)
    shadow = Image.new("RGBA", size, "#20150c")
    cast = ImageChops.offset(lying.getchannel("A"), round(4 * scale), round(6 * scale))
    # the far tail of a blur is invisible but would widen the shadow's box
    soft = cast.filter(ImageFilter.GaussianBlur(4 * scale)).point(lambda alpha: 0 if alpha < 12 else alpha * 0.65)
    shadow.putalpha(soft)
    shadow.alpha_composite(lying)
    x, y = at
    return shadow, round(x * scale - size[0] / 2), round(y * scale - size[1] / 2)


def _draw_key(c: Canvas, ring: Point, turn: float, length: float, metal: str) -> None:
    """Draw one key that points away from its ring."""
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
