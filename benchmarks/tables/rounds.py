"""Table "rounds": how many survivors a second pass needs, and what repeated selection from them loses.

One video, in blocks of two lengths: plain blocks; the second pass of `floc.compress`, which selects once from the
survivors of all blocks; and a stream, which selects again whenever it holds too many. The less room a stream has, the
more rounds the same survivors go through, up to one for every block. The whole video as one set is the upper limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import floc
from benchmarks.markdown import show_coverage, show_environment, show_records
from benchmarks.quality import COVERAGE_NOTE, NamedTokens, compare_quality, count_tokens, show_redundancy
from benchmarks.registry import BenchTable, Echo
from benchmarks.synthetic import FIXED_CAMERA, QUICK_CUTS, Shape
from benchmarks.videos import describe_tokens, load_footage
from floc.streaming.bounded import Bounded

VIDEO = {"intel_person.mp4": 3.0}  # frames per second: 419 of a fixed camera, few enough to be one set
RATIO = "1/32"
BLOCKS = (32, 8)
SURVIVORS = (1, 1.25, 1.5, 2, 4)
ROOMS = (4, 2, 1)  # survivors held for each token kept: 2 is the default of a stream, 1 is a round for every block


@dataclass(frozen=True)
class Way:
    """One way to select from a video."""

    label: str
    block: int | None = None  # frames
    survivors: float | None = None  # for each token kept
    room: float | None = None  # of a stream

    def select(self, video: NamedTokens, budget: int) -> tuple[floc.Kept, int]:
        """Return the kept tokens, and how often the survivors were selected from."""
        if self.room is None:
            dedupe = 1 if self.survivors is None else self.survivors
            kept = floc.compress(video.tokens, budget=budget, block=self.block, dedupe=dedupe, detail=1)
            return kept, int(dedupe > 1)
        assert self.block is not None, "a stream has blocks"
        stream = floc.Stream(budget=budget, block=self.block, dedupe=self.survivors, detail=1)
        assert isinstance(stream._past, Bounded), "a stream with a budget is bounded"
        stream._past.most = math.ceil(self.room * budget)
        stream.push(video.tokens)
        return stream.close(), 1 + stream._past.reductions


def list_ways() -> list[Way]:
    """Return all ways; the first is the baseline of the times."""
    ways = []
    for block in BLOCKS:
        ways.append(Way("plain blocks", block))
        for survivors in SURVIVORS:
            ways += [Way("second pass, once", block, survivors)] * (survivors > 1)
            ways += [Way(f"stream, room for {room:g}", block, survivors, room) for room in ROOMS]
    return [*ways, Way("whole video as one set")]


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure all ways on one video."""
    if small:
        video, encoder = NamedTokens("synthetic", QUICK_CUTS.make_tokens(Shape(80, 2, 5, 32))), None
    else:
        (video,), encoder = load_footage(VIDEO, [FIXED_CAMERA], frames=420)
    return {"encoder": encoder, "rounds": _measure(video, echo)}


def _measure(video: NamedTokens, echo: Echo) -> list[dict[str, Any]]:
    budget = count_tokens(RATIO, video.tokens[..., 0].size)
    ways = {f"{way.label}, {way.block}, {way.survivors}": way for way in list_ways()}
    counts: dict[str, int] = {}

    def select(name: str) -> floc.Kept:
        kept, counts[name] = ways[name].select(video, budget)
        return kept

    calls: dict[str, Callable[[], floc.Kept]] = {name: partial(select, name) for name in ways}
    records = []
    for measured in compare_quality(video, RATIO, calls, next(iter(calls)), time.process_time):
        name = measured["contender"]
        way = ways[name]
        case = {"way": way.label, "block": way.block, "survivors": way.survivors, "room": way.room}
        records.append({**measured, **case, "keep": RATIO, "choices": counts[name]})
        echo(f"{video.name}, {name}: {measured['true']:.4f}, {counts[name]} selections, {measured['ms']:.0f} ms")
    return records


def _show(document: dict[str, Any]) -> str:
    first = document["rounds"][0]
    columns = {
        f"{first['film']}: {first['frames']} frames, {first['n']:,} tokens, {first['keep']}": lambda each: each["way"],
        "frames in a block": lambda each: "-" if each["block"] is None else str(each["block"]),
        "c": lambda each: "-" if each["survivors"] is None else f"{each['survivors']:g}",
        "selections from survivors": lambda each: str(each["choices"]),
        "coverage": show_coverage,
        "redundancy": lambda each: show_redundancy(each["redundancy"]),
        "CPU seconds": lambda each: f"{each['ms'] / 1e3:.3g}",
        "ratio to plain blocks": lambda each: f"{each['ratio']:.2f}x",
    }
    note = (
        "c: survivors for each token kept (`dedupe`). Room: survivors a stream holds for each token kept before it "
        "selects again; the default is 2, and with 1 it selects after every block. Selections from survivors: how "
        f"often all current survivors were selected from. {COVERAGE_NOTE} Redundancy: as in the table of block "
        f"lengths. Ratio: to plain blocks of {first['block']} in the same process; one run of each after a warm-up. "
        "detail=1."
    )
    environment = show_environment(document, "numpy", "torch", "numba", "av")
    return show_records(document["rounds"], columns, note, describe_tokens(document["encoder"]), environment)


TABLE = BenchTable("rounds", run, {"rounds": _show})
