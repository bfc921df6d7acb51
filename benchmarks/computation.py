"""The table "time": the paper's computation times, by method, length of blocks and ratio.

The paper's are of Qwen2-VL-7B on Video-MME. On a GPU the same 256 frames of 135 tokens with 3584 features are taken, on
a CPU fewer and smaller ones, which the table says. All methods take turns on the same tokens, and what counts is how
many times as long as FLoC each takes, here and in the paper. A method that was slow with shorter blocks is left out
with longer ones: its time grows with the square of the length, or faster.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

import floc
from benchmarks import harness
from benchmarks.blocks import Shape
from benchmarks.harness import Contender, compare
from benchmarks.tables import Echo, Table, number, times, where
from floc._format import markdown_table
from floc.budget import Budget
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
PATIENCE_S = 5.0  # of one call: a slower one is not repeated, nor tried with longer blocks


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Time all methods with blocks of all lengths, at all ratios."""
    device = harness.device()
    shape = SMALL if small else GPU if device.type == "cuda" else CPU
    tokens = torch.from_numpy(shape.tokens()).to(device)
    missing = {method: why for method in METHODS if (why := _why_not(method, tokens))}
    for method, why in missing.items():
        echo(f"{method}: {why}")
    records = [record for ratio in RATIOS for record in _at(ratio, tokens, missing, small, echo)]
    return {
        "ran_on": harness.gpu_name() or "CPU",
        "shape": [shape.frames, shape.height * shape.width, shape.dim],
        "missing": missing,
        "times": records,
    }


def _why_not(method: str, tokens: torch.Tensor) -> str | None:
    """What keeps a method from running here."""
    try:
        _kept(method, tokens[:2], RATIOS[-1], LENGTHS[0])
    except ImportError as error:
        return str(error)
    return None


def _at(ratio: str, tokens: torch.Tensor, missing: dict[str, str], small: bool, echo: Echo) -> Iterator[dict[str, Any]]:
    """Records of one ratio, from short blocks to long ones."""
    methods = [method for method in METHODS if method not in missing]
    for length in LENGTHS:
        calls = {method: functools.partial(_kept, method, tokens, ratio, length) for method in methods}
        contenders = [Contender(method, call) for method, call in calls.items()]
        timings = compare(
            contenders, BASELINE, rounds=2 if small else ROUNDS, allowance_s=ALLOWANCE_S, patience_s=PATIENCE_S
        )
        yield from ({"keep": ratio, "block": length, **asdict(timing)} for timing in timings)
        echo(f"{ratio}, T = {length}: " + ", ".join(f"{each.contender} {each.ms:.1f} ms" for each in timings))
        methods = [BASELINE] + [each.contender for each in timings[1:] if each.ms < 1e3 * PATIENCE_S]


def _kept(method: str, tokens: torch.Tensor, ratio: str, length: int) -> floc.Kept:
    kept = floc.compress(tokens, ratio=ratio, method=method, block=length)
    if len(kept) != Budget.parse(ratio, None, None).count(kept.n):
        raise AssertionError(f"{method} kept {len(kept)} of {kept.n} tokens for {ratio}, blocks of {length}")
    harness.wait(tokens.device)
    return kept


def _view(document: dict[str, Any]) -> str:
    by = {(each["keep"], each["contender"], each["block"]): each for each in document["times"]}
    rows = [
        [ratio, method, *(cell for length in LENGTHS for cell in _cells(by, method, ratio, length))]
        for ratio in RATIOS
        for method in METHODS
    ]
    head = ["kept", "method"]
    for length in LENGTHS:
        head += [f"T = {length}, s", "paper, s", f"against {BASELINE}", "in the paper"]
    return f"{markdown_table(head, rows)}\n\n{_note(document)}"


def _cells(by: dict[Any, dict[str, Any]], method: str, ratio: str, length: int) -> list[str]:
    """Seconds, the paper's, and how many times as long as FLoC, here and there."""
    record = by.get((ratio, method, length))
    ours = ("", "") if record is None else (number(record["ms"], 1e3), times(record))
    published, floc_s = _published(method, ratio, length), _published(BASELINE, ratio, length)
    told = ("", "") if published is None or floc_s is None else (number(published), f"{number(published / floc_s)}x")
    return [ours[0], told[0], ours[1], told[1]]


def _published(method: str, ratio: str, length: int) -> float | None:
    return paper.row(PAPER, method).get("seconds", {}).get(ratio, {}).get(str(length))


def _note(document: dict[str, Any]) -> str:
    frames, cells, dim = document["shape"]
    missing = "; ".join(f"{method}: {why}" for method, why in document["missing"].items())
    parts = [
        f"One call of `floc.compress` on {frames} frames of {cells} tokens, {dim} features, float16, in blocks of T "
        f"frames, on {document['ran_on']}. The paper's seconds are of Qwen2-VL-7B on Video-MME, of films that it "
        "does not name, on a machine with H100 GPUs, so ratios say more than seconds.",
        f"Against {BASELINE}: how many times as long, median and 20th to 80th percentile over rounds in one process. "
        "`floc`, with its second pass over all blocks, is not in the paper.",
        f"Empty: not in the paper, not run, or left out after a call took {PATIENCE_S:g} s with shorter blocks.",
        *([f"Not run: {missing}."] if missing else []),
        *paper.table(PAPER).notes,
        where(document, "python", "torch", "triton", "numba", "scikit-learn", "kmedoids"),
    ]
    return " ".join(parts)


def _plot(document: dict[str, Any]) -> Figure:
    """Seconds against the length of blocks, a panel for a ratio: ours, and the paper's in dashes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(1, len(RATIOS), sharey=True)
    for axes, ratio in zip(panels, RATIOS, strict=True):
        for color, method in enumerate(METHODS):
            mine = [each for each in document["times"] if (each["keep"], each["contender"]) == (ratio, method)]
            axes.plot(
                [each["block"] for each in mine], [each["ms"] / 1e3 for each in mine], f"C{color}o-", label=method
            )
            told = {length: _published(method, ratio, length) for length in LENGTHS}
            if all(told.values()):
                axes.plot(list(told), list(told.values()), f"C{color}x--", label=f"{method}, paper")
        axes.set(xscale="log", yscale="log", xlabel="frames in a block", title=f"kept {ratio}")
        axes.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("seconds")
    panels[-1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


TABLE = Table("time", run, {"time": _view}, {"time": _plot})
