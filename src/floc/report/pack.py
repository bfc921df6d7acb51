"""What the report shows, packed into one HTML page.

The page carries its frames as they come (WebP or JPEG) and its arrays deflated, both in base64. The bulk is who stands
in for whom: every token of the film, at every stop of the ratio slider, for every method. For nested orders it shrinks
to one or two bits a token and stop, because a guess is nearly always right:

* At the next smaller stop a token's representative is that of its representative. Where the representative is still
  kept it stands in for itself, so this says "unchanged"; where it was dropped, those it stood for mostly move together.
* At the first stop it is that of the same cell in the frame before.

So a stop is one bit a token, whether the guess is wrong, and for the wrong ones the place among the kept tokens, split
into byte planes. `page.js` undoes it, a method at a time, when the method is first looked at.
"""

from __future__ import annotations

import base64
import html
import json
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

_FRAME = '<script type="text/plain" id="frame-{}">{}</script>'


class Stop(NamedTuple):
    """One position of the ratio slider."""

    label: str  # "1/8"
    ratio: float  # kept / total
    budget: int  # tokens


class Row(TypedDict):
    """One line of the table; None where a method has no such number."""

    stop: int  # place in `ReportData.stops`
    tokens: int  # that were reached
    coverage: float | None
    worst: float | None
    bound: float | None
    averaged_sum_coverage: float | None
    averaged_distance: float | None
    redundancy: float | None
    seconds: float | None


@dataclass(frozen=True)
class MethodData:
    """What one method kept, n = T*H*W tokens in all."""

    name: str
    description: str
    stops_run: Sequence[int]  # places in `ReportData.stops` that it has an answer for, ascending
    kept: Sequence[np.ndarray]  # for each of them [K] int64, ascending flat token index t*H*W + y*W + x
    represents: Sequence[np.ndarray]  # for each of them [n] int64 flat index of the kept token that stands in
    rows: Sequence[Row] = ()
    scatter: Mapping[int, tuple[float, float]] = field(default_factory=dict)  # stop: (sum coverage, distance), z-scored


@dataclass(frozen=True)
class Tsne:
    """A sample of tokens, laid out in the plane."""

    indices: np.ndarray  # [M] int64 flat token index
    xy: np.ndarray  # [M, 2] float32
    caption: str  # how the sample was drawn


@dataclass(frozen=True)
class ReportData:
    """All that the page shows."""

    title: str
    facts: Sequence[tuple[str, str]]  # label and value: length, frames, tokens, encoder, date
    command: str  # what to type to make this report again
    notes: Sequence[str]
    grid: tuple[int, int, int]  # T, H, W
    times_s: np.ndarray  # [T] float64
    frames: Sequence[bytes] | Callable[[int], Sequence[bytes]]  # T images, or what gives them in at most so many bytes
    image_mime: str  # "image/webp" or "image/jpeg"
    image_width: int
    image_height: int
    stops: Sequence[Stop | tuple[str, float, int]]  # from most tokens to fewest
    methods: Sequence[MethodData]
    tsne: Tsne | None = None
    opens_at: tuple[int, int] | None = None  # the frame and the stop to show first


def page(data: ReportData, limit_bytes: int = 1 << 30) -> str:
    """The whole report as one HTML text that needs nothing beside it; images get what room the limit leaves them."""
    _check(data)
    t, h, w = data.grid
    main = {
        "title": data.title,
        "facts": [list(fact) for fact in data.facts],
        "command": data.command,
        "notes": list(data.notes),
        "grid": [t, h, w],
        "times_s": np.round(np.asarray(data.times_s, np.float64), 3).tolist(),
        "image": {"mime": data.image_mime, "width": data.image_width, "height": data.image_height},
        "opens_at": list(data.opens_at or (0, (len(data.stops) - 1) // 2)),
        "stops": [dict(zip(Stop._fields, stop, strict=True)) for stop in data.stops],
        "methods": [
            {
                "name": method.name,
                "description": method.description,
                "stops_run": [int(stop) for stop in method.stops_run],
                "rows": [dict(row) for row in method.rows],
                "scatter": {str(stop): list(point) for stop, point in method.scatter.items()},
            }
            for method in data.methods
        ],
        "tsne": None
        if data.tsne is None
        else {
            "indices": deflated(np.asarray(data.tsne.indices, "<u4")),
            "xy": deflated(np.asarray(data.tsne.xy, "<f4")),
            "caption": data.tsne.caption,
        },
    }
    packed = [pack_answers(method.kept, method.represents, t * h * w, h * w) for method in data.methods]
    parts = {
        "title": html.escape(data.title.encode("utf-8", "replace").decode()),  # a file's name may be no text
        "style": _read("page.css"),
        "script": _read("page.js"),
        "data": _json(main),
        "methods": "\n".join(
            f'<script type="application/json" id="method-{i}">{_json(each)}</script>' for i, each in enumerate(packed)
        ),
    }

    def fill(template: str) -> str:
        # one pass, so that nothing a user wrote is taken for a place to fill
        return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)

    head, tail = map(fill, _read("page.html").split("{{frames}}"))
    room = limit_bytes - len(head.encode()) - len(tail.encode())
    return head + _embedded(data.frames, t, room) + tail


def _embedded(frames: Sequence[bytes] | Callable[[int], Sequence[bytes]], count: int, room: int) -> str:
    """The images as script elements, which a browser does not decode before they are asked for."""
    wrapping = count * len(_FRAME.format(count, ""))
    images = frames((room - wrapping) * 3 // 4 - 3 * count) if callable(frames) else frames
    if len(images) != count:
        raise ValueError(f"a grid of {count} frames needs as many images; got {len(images)}")
    return "\n".join(_FRAME.format(i, base64.b64encode(image).decode()) for i, image in enumerate(images))


def pack_answers(
    kept: Sequence[np.ndarray], represents: Sequence[np.ndarray], n: int, cells: int
) -> dict[str, str | list[str]]:
    """One method's answers, from most tokens to fewest, as `page.js` reads them.

    Args:
        kept: for each stop [K] flat indices, ascending.
        represents: for each stop [n] flat index of a kept token.
        n: tokens in all.
        cells: tokens in a frame.

    Returns:
        `depth`, at how many stops each token is kept, where each answer holds the next; else `bits`, [stops, n],
        whether it is kept. `wrong`: [stops, n] bits, where the guess is wrong. `places`: four byte planes of what is
        right, as places in `kept`; in a stop, tokens kept at the stop before come first, as other guesses need them.
    """
    member = np.zeros((len(kept), n), bool)
    for row, indices in zip(member, kept, strict=True):
        row[indices] = True
    wrong = np.zeros((len(kept), n), bool)
    places = []
    for s, (indices, standing) in enumerate(zip(kept, represents, strict=True)):
        everyone = np.arange(n)
        if s == 0:
            guess = np.concatenate([everyone[:cells], standing[:-cells]])
            order = everyone
        else:
            guess = np.where(member[s - 1], everyone, standing[represents[s - 1]])
            order = np.argsort(~member[s - 1], kind="stable")
        wrong[s] = guess != standing
        places.append(np.searchsorted(indices, standing[order][wrong[s][order]]))
    planes = np.concatenate(places).astype("<u4").view(np.uint8).reshape(-1, 4).T  # [4, all that were wrong]
    nested = len(kept) < 256 and bool((member[1:] <= member[:-1]).all())
    return {
        **({"depth": deflated(member.sum(0).astype(np.uint8))} if nested else {"bits": deflated(_bits(member))}),
        "wrong": deflated(_bits(wrong)),
        "places": [deflated(plane) for plane in planes],
    }


def deflated(array: np.ndarray) -> str:
    """An array's bytes, deflated, in base64.

    >>> len(deflated(np.zeros(100_000, np.uint8)))
    160
    """
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()


def _bits(flags: np.ndarray) -> np.ndarray:
    """[stops, n] bool -> [stops, ceil(n / 8)] uint8, lowest bit first."""
    return np.packbits(flags, axis=1, bitorder="little")


def _json(value: object) -> str:
    """JSON that cannot end the script element it stands in: < occurs only in strings, where it may be escaped."""
    return json.dumps(_plain(value), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    """Numpy's numbers as Python's, and null for those that JSON does not have."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _check(data: ReportData) -> None:
    t, h, w = data.grid
    n = t * h * w
    if min(data.grid) < 1:
        raise ValueError(f"the grid must have at least one frame, row and column; got {data.grid}")
    if len(data.times_s) != t:
        raise ValueError(f"a grid of {t} frames needs as many times; got {len(data.times_s)}")
    if not data.methods or not data.stops:
        raise ValueError(f"a report needs a method and a stop; got {len(data.methods)} and {len(data.stops)}")
    budgets = [stop[2] for stop in data.stops]
    if budgets != sorted(budgets, reverse=True):
        raise ValueError(f"stops go from most tokens to fewest; got budgets {budgets}")
    for method in data.methods:
        runs = list(method.stops_run)
        if not runs or runs != sorted(set(runs)) or not 0 <= runs[0] <= runs[-1] < len(data.stops):
            raise ValueError(f"{method.name}: stops_run must ascend within 0..{len(data.stops) - 1}; got {runs}")
        if not len(method.kept) == len(method.represents) == len(runs):
            raise ValueError(
                f"{method.name}: {len(runs)} stops need as many answers; got {len(method.kept)} arrays of kept tokens "
                f"and {len(method.represents)} of representatives"
            )
        for stop, kept, represents in zip(runs, method.kept, method.represents, strict=True):
            label = f"{method.name} at {data.stops[stop][0]}"
            if not len(kept) or kept[0] < 0 or kept[-1] >= n or (np.diff(kept) <= 0).any():
                raise ValueError(f"{label}: kept must be ascending flat indices below {n}, at least one")
            if np.shape(represents) != (n,):
                raise ValueError(
                    f"{label}: represents must have shape ({n},), a kept token for each; got {np.shape(represents)}"
                )
            strangers = ~np.isin(represents, kept)
            if strangers.any():
                token = int(strangers.argmax())
                raise ValueError(
                    f"{label}: token {token} is represented by {represents[token]}, which is not kept; "
                    "give flat indices, kept.indices[kept.represents]"
                )
    if data.tsne is not None:
        indices, xy = np.asarray(data.tsne.indices), np.asarray(data.tsne.xy)
        if xy.shape != (len(indices), 2) or not ((indices >= 0) & (indices < n)).all():
            raise ValueError(
                f"t-SNE needs indices below {n} and as many places [M, 2]; got {indices.shape} and {xy.shape}"
            )
