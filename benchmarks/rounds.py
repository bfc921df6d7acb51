"""The table "rounds": how many survivors a second pass needs, and what choosing from them again and again loses.

One film, in blocks of two lengths. Plain blocks; the second pass of `floc.compress`, which chooses from the survivors
of all blocks once; and a stream, which chooses again whenever it holds too many. The less room it has, the more rounds
the same survivors go through, up to one for every block. The whole film as one set is where all would like to get.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import floc
from benchmarks.blocklength import Film, cosine, footage, made_by, measured
from benchmarks.blocks import Shape
from benchmarks.second_pass import KINDS, count_of
from benchmarks.tables import Echo, Table
from floc._format import markdown_table
from floc.streaming.bounded import BoundedPast

FILM = {"intel_person.mp4": 3.0}  # frames a second: 419 of a fixed camera, whose whole can still be one set
RATIO = "1/32"
BLOCKS = (32, 8)
SURVIVORS = (1, 1.25, 1.5, 2, 4)
ROOMS = (4, 2, 1)  # survivors held for each that stays: 2 is what a stream does, 1 is a round for every block


@dataclass(frozen=True)
class Way:
    """How a film is chosen from."""

    words: str
    block: int | None = None  # frames
    survivors: float | None = None  # for each token kept
    room: float | None = None  # of a stream

    def __call__(self, film: Film, budget: int) -> tuple[floc.Kept, int]:
        """What is kept, and how often all survivors there were at the time were chosen from."""
        if self.room is None:
            dedupe = 1 if self.survivors is None else self.survivors
            kept = floc.compress(film.tokens, budget=budget, block=self.block, dedupe=dedupe, detail=1)
            return kept, int(dedupe > 1)
        assert self.block is not None, "a stream has blocks"
        stream = floc.Stream(budget=budget, block=self.block, dedupe=self.survivors, detail=1)
        assert isinstance(stream._past, BoundedPast), "it has a budget"
        stream._past.most = math.ceil(self.room * budget)
        stream.push(film.tokens)
        return stream.close(), 1 + stream._past.reductions


def ways() -> list[Way]:
    """All that are compared; the first is what times are held against."""
    found = []
    for block in BLOCKS:
        found.append(Way("plain blocks", block))
        for survivors in SURVIVORS:
            found += [Way("second pass, once", block, survivors)] * (survivors > 1)
            found += [Way(f"stream, room for {room:g}", block, survivors, room) for room in ROOMS]
    return [*found, Way("whole video as one set")]


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Records of all ways."""
    if small:
        film, encoder = Film("made up", KINDS[2].tokens(Shape(80, 2, 5, 32))), ""
    else:
        (film,), encoder = footage(FILM, KINDS[4:], frames=420)
    return {"encoder": encoder, "rounds": _rounds(film, echo)}


def _rounds(film: Film, echo: Echo) -> list[dict[str, Any]]:
    budget = count_of(RATIO, film.tokens[..., 0].size)
    named = {f"{each.words}, {each.block}, {each.survivors}": each for each in ways()}
    choices: dict[str, int] = {}

    def answer(name: str) -> floc.Kept:
        kept, choices[name] = named[name](film, budget)
        return kept

    calls: dict[str, Callable[[], floc.Kept]] = {name: partial(answer, name) for name in named}
    records = []
    for each in measured(film, RATIO, calls, 1, next(iter(calls)), time.process_time):
        way = named[each["contender"]]
        case = {"way": way.words, "block": way.block, "survivors": way.survivors, "room": way.room}
        records.append({**each, **case, "keep": RATIO, "choices": choices[each["contender"]]})
        shown = f"{each['true']:.4f}, {records[-1]['choices']} choices, {each['ms']:.0f} ms"
        echo(f"{film.name}, {each['contender']}: {shown}")
    return records


def _view(document: dict[str, Any]) -> str:
    records = document["rounds"]
    first = records[0]
    rows = [
        [
            each["way"],
            "-" if each["block"] is None else str(each["block"]),
            "-" if each["survivors"] is None else f"{each['survivors']:g}",
            str(each["choices"]),
            f"{each['true']:.4f} / {each['worst']:.3f}",
            cosine(each["redundancy"]),
            f"{each['ms'] / 1e3:.3g}",
            f"{each['ratio']:.2f}x",
        ]
        for each in records
    ]
    head = [f"{first['film']}: {first['frames']} frames, {first['n']:,} tokens, {first['keep']}"]
    head += [
        "frames in a block",
        "c",
        "choices from survivors",
        "coverage",
        "redundancy",
        "processor seconds",
        "against blocks",
    ]
    note = (
        "c: survivors for each token kept (`dedupe`). Room: how many a stream holds for each token kept before it "
        "chooses from them again; 2 is what it does by itself, with 1 it chooses after every block. Choices from "
        "survivors: how often all survivors there were at the time were chosen from. Coverage and redundancy as for "
        f"the length of blocks. Against blocks: how many times as long as plain blocks of {first['block']} in the same "
        "process; one run of each, after another to warm up. detail=1. "
    )
    return f"{markdown_table(head, rows)}\n\n{note}{made_by(document)}"


TABLE = Table("rounds", run, views={"rounds": _view})
