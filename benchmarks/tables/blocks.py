"""Table "blocks": how long blocks should be, and what selecting across blocks gains, on real footage.

The paper's figure of block lengths, together with all that looks beyond one block: the second pass, blocks along
scenes, and the whole video as one set.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import floc
from benchmarks.markdown import show_coverage, show_environment, show_rows
from benchmarks.quality import COVERAGE_NOTE, FLOORS, SPAN, NamedTokens, compare_quality
from benchmarks.registry import BenchTable, Echo
from benchmarks.synthetic import FIXED_CAMERA, QUICK_CUTS, Shape
from benchmarks.videos import describe_tokens, load_footage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BASELINE = "32"
WAYS: dict[str, dict[str, Any]] = {
    **{str(length): {"block": length} for length in LENGTHS},
    "32, dedupe=2": {"block": 32, "dedupe": 2},
    "32, dedupe=4": {"block": 32, "dedupe": 4},
    "scene": {"block": "scene"},
    "whole video": {"horizon": None},
}
PLOTTED_ACROSS = {"whole video": "--", "32, dedupe=2": ":"}  # horizontal lines of the plot
RATIOS = ("1/8", "1/16", "1/32")
VIDEOS = {"intel_person.mp4": 2.0, "bbb480.mp4": 9.0}  # frames per second: 279 of a fixed camera, 270 with cuts


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure all block lengths on each video."""
    if small:
        videos, encoder = [NamedTokens("synthetic", QUICK_CUTS.make_tokens(Shape(80, 2, 5, 32)))], None
    else:
        videos, encoder = load_footage(VIDEOS, (FIXED_CAMERA, QUICK_CUTS), frames=280)
    return {"encoder": encoder, "figure": [record for video in videos for record in _measure_video(video, echo)]}


def _measure_video(video: NamedTokens, echo: Echo) -> list[dict[str, Any]]:
    records = []
    for ratio in RATIOS:
        compress = partial(floc.compress, video.tokens, ratio=ratio)
        floors = {name: partial(compress, method=method) for name, method in FLOORS.items()}
        calls = {name: partial(compress, **{"detail": 1, **options}) for name, options in WAYS.items()}
        measured = compare_quality(video, ratio, floors | calls, BASELINE)
        records += [{**record, "keep": ratio} for record in measured]
        echo(f"{video.name}, {ratio}: " + ", ".join(f"{row['contender']} {row['true']:.4f}" for row in measured))
    return records


def _show(document: dict[str, Any]) -> str:
    parts = []
    for video in dict.fromkeys(record["film"] for record in document["figure"]):
        records = [record for record in document["figure"] if record["film"] == video]
        by_case = {(record["contender"], record["keep"]): record for record in records}
        rows = []
        for way in (*FLOORS, *WAYS):
            kept = [by_case[way, ratio] for ratio in RATIOS]
            redundancy = ["-" if row["redundancy"] is None else f"{row['redundancy']:.3f}" for row in kept]
            rows.append([way, *map(show_coverage, kept), *redundancy, *(f"{row['ms'] / 1e3:.3g}" for row in kept)])
        head = [f"{video}: {records[0]['frames']} frames, {records[0]['n']:,} tokens"]
        head += [f"{measure}, {ratio}" for measure in ("coverage", "redundancy", "seconds") for ratio in RATIOS]
        parts.append(show_rows(head, rows))
    note = (
        "Rows: frames in a block; detail=1, and no second pass unless stated otherwise, so row 32 is `floc-paper`. "
        f"{COVERAGE_NOTE} Redundancy: mean, over kept tokens, of the highest cosine with a kept token of other {SPAN} "
        f"frames (frames 0 to {SPAN - 1}, {SPAN} to {2 * SPAN - 1} and so on, whatever the blocks are). Seconds: one "
        "call after a warm-up. Uniform in time keeps as many whole frames as fit the budget."
    )
    environment = show_environment(document, "numpy", "torch", "numba", "av")
    return "\n\n".join([*parts, f"{note} {describe_tokens(document['encoder'])} {environment}"])


def _plot(document: dict[str, Any]) -> Figure:
    """Plot coverage against the length of blocks, one panel per video, with lines for what looks beyond a block."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(record["film"] for record in document["figure"]))
    figure = Figure(figsize=(5 * len(names) + 2, 4), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        records = [record for record in document["figure"] if record["film"] == name]
        coverage = {(record["contender"], record["keep"]): record["true"] for record in records}
        for color, ratio in enumerate(RATIOS):
            axes.plot(LENGTHS, [coverage[str(length), ratio] for length in LENGTHS], f"C{color}o-", label=ratio)
            for way, line in PLOTTED_ACROSS.items():
                label = way if color == 0 else None
                axes.axhline(coverage[way, ratio], color=f"C{color}", linestyle=line, linewidth=1, label=label)
        axes.set(xscale="log", xlabel="frames in a block", title=name)
        axes.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("coverage: mean highest cosine")
    panels[-1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


TABLE = BenchTable("blocks", run, {"blocks": _show}, {"blocks": _plot})
