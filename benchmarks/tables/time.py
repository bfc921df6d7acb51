"""Table "time": the paper's computation times, by method, block length and ratio.

The paper's times are of Qwen2-VL-7B on Video-MME. On a GPU the same 256 frames of 135 tokens with 3584 features are
used, on a CPU fewer and smaller ones. All methods take turns on the same tokens; compare their ratios to FLoC, ours and
the paper's. A method that was slow with short blocks is not run with longer ones: its time grows at least
quadratically.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

import floc
from benchmarks import harness
from benchmarks.harness import Contender, compare
from benchmarks.markdown import RATIO_NOTE, show_environment, show_number, show_ratio, show_rows
from benchmarks.quality import count_tokens
from benchmarks.registry import BenchTable, Echo
from benchmarks.synthetic import Shape
from floc.evaluation import paper

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "table3"
BASELINE = "floc-paper"
METHODS = (BASELINE, "floc", "kmeans", "kmedoids", "spectral")
RATIOS = ("1/32", "1/16", "1/8")
LENGTHS = (2, 8, 32)
GPU, CPU, SMALL = Shape(256, 9, 15, 3584), Shape(64, 5, 8, 512), Shape(32, 3, 4, 64)
ROUNDS, ALLOWANCE_S = 5, 5.0
PATIENCE_S = 5.0  # a slower call is neither repeated nor tried with longer blocks


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Time all methods at all block lengths and ratios."""
    device = harness.get_device()
    shape = SMALL if small else GPU if device.type == "cuda" else CPU
    tokens = torch.from_numpy(shape.make_tokens()).to(device)
    missing = {method: reason for method in METHODS if (reason := _find_missing(method, tokens))}
    for method, reason in missing.items():
        echo(f"{method}: {reason}")
    return {
        "ran_on": harness.get_gpu_name() or "CPU",
        "shape": [shape.frames, shape.height * shape.width, shape.dim],
        "missing": missing,
        "times": [record for ratio in RATIOS for record in _measure_ratio(ratio, tokens, missing, small, echo)],
    }


def _find_missing(method: str, tokens: torch.Tensor) -> str | None:
    """Return the error if a method's package is missing, or None."""
    try:
        _compress(method, tokens[:2], RATIOS[-1], LENGTHS[0])
    except ImportError as error:
        return str(error)
    return None


def _measure_ratio(
    ratio: str, tokens: torch.Tensor, missing: dict[str, str], small: bool, echo: Echo
) -> Iterator[dict[str, Any]]:
    """Yield records of one ratio, from short blocks to long ones."""
    methods = [method for method in METHODS if method not in missing]
    rounds = 2 if small else ROUNDS
    for length in LENGTHS:
        contenders = [
            Contender(method, functools.partial(_compress, method, tokens, ratio, length)) for method in methods
        ]
        timings = compare(contenders, BASELINE, rounds=rounds, allowance_s=ALLOWANCE_S, patience_s=PATIENCE_S)
        yield from ({"keep": ratio, "block": length, **asdict(timing)} for timing in timings)
        shown = ", ".join(f"{timing.contender} {timing.ms:.1f} ms" for timing in timings)
        echo(f"{ratio}, T = {length}: {shown}")
        methods = [BASELINE] + [timing.contender for timing in timings[1:] if timing.ms < 1e3 * PATIENCE_S]


def _compress(method: str, tokens: torch.Tensor, ratio: str, length: int) -> floc.Kept:
    kept = floc.compress(tokens, ratio=ratio, method=method, block=length)
    if len(kept) != count_tokens(ratio, kept.n):
        raise AssertionError(f"{method} kept {len(kept)} of {kept.n} tokens for {ratio}, blocks of {length}")
    harness.synchronize(tokens.device)
    return kept


def _show(document: dict[str, Any]) -> str:
    by_case = {(record["keep"], record["contender"], record["block"]): record for record in document["times"]}
    rows = [
        [ratio, method, *(cell for length in LENGTHS for cell in _make_cells(by_case, method, ratio, length))]
        for ratio in RATIOS
        for method in METHODS
        if any((ratio, method, length) in by_case for length in LENGTHS)
    ]
    head = ["kept", "method"]
    for length in LENGTHS:
        head += [f"T = {length}, s", "paper, s", f"ratio to {BASELINE}", "paper's ratio"]
    return show_rows(head, rows, *_list_notes(document))


def _make_cells(by_case: dict[Any, dict[str, Any]], method: str, ratio: str, length: int) -> list[str]:
    """Return our seconds, the paper's, our ratio to FLoC, and the paper's."""
    record = by_case.get((ratio, method, length))
    ours = ("", "") if record is None else (show_number(record["ms"], 1e3), show_ratio(record))
    theirs, baseline = _get_published(method, ratio, length), _get_published(BASELINE, ratio, length)
    if theirs is None or baseline is None:
        return [ours[0], "", ours[1], ""]
    return [ours[0], show_number(theirs), ours[1], f"{show_number(theirs / baseline)}x"]


def _get_published(method: str, ratio: str, length: int) -> float | None:
    return paper.get_row(PAPER, method).get("seconds", {}).get(ratio, {}).get(str(length))


def _list_notes(document: dict[str, Any]) -> list[str]:
    frames, cells, dim = document["shape"]
    missing = "; ".join(f"{method}: {reason}" for method, reason in document["missing"].items())
    return [
        f"One call of `floc.compress` on {frames} frames of {cells} tokens, {dim} features, float16, in blocks of T "
        f"frames, on {document['ran_on']}. The paper's times are of Qwen2-VL-7B on Video-MME videos that it does not "
        "name, on a machine with H100 GPUs; compare ratios rather than seconds.",
        f"Ratios: {RATIO_NOTE}. `floc` with its defaults is not in the paper.",
        f"Empty: not in the paper, or skipped after a call with shorter blocks took {PATIENCE_S:g} s.",
        f"Not run: {missing}." if missing else "",
        *paper.get_table(PAPER).notes,
        show_environment(document, "python", "torch", "triton", "numba", "scikit-learn", "kmedoids"),
    ]


def _plot(document: dict[str, Any]) -> Figure:
    """Plot seconds against block length, one panel per ratio: ours, and the paper's dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(1, len(RATIOS), sharey=True)
    for axes, ratio in zip(panels, RATIOS, strict=True):
        for color, method in enumerate(METHODS):
            ours = [row for row in document["times"] if (row["keep"], row["contender"]) == (ratio, method)]
            lengths, seconds = [row["block"] for row in ours], [row["ms"] / 1e3 for row in ours]
            axes.plot(lengths, seconds, f"C{color}o-", label=method)
            published = {length: _get_published(method, ratio, length) for length in LENGTHS}
            if all(published.values()):
                axes.plot(list(published), list(published.values()), f"C{color}x--", label=f"{method}, paper")
        axes.set(xscale="log", yscale="log", xlabel="frames in a block", title=f"kept {ratio}")
        axes.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("seconds")
    panels[-1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


TABLE = BenchTable("time", run, {"time": _show}, {"time": _plot})
