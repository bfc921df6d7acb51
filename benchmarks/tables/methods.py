"""Table "methods": accuracy, coverage, needles, time and memory of every method, side by side.

Accuracy is read from the results of table "accuracy". Inserts and coverage are measured on real footage, as in table
"needle" but at one ratio and on fewer videos. Time and memory are those of one call; all methods take turns on the same
tokens, on the CPU and on the GPU if there is one.
"""

from __future__ import annotations

import functools
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import floc
from benchmarks import harness, run
from benchmarks.harness import Contender
from benchmarks.inserts import KINDS, SYNTHETIC_COUNTS, make_videos
from benchmarks.markdown import RATIO_NOTE, show_environment, show_number, show_ratio, show_rows
from benchmarks.memory import measure_growth
from benchmarks.registry import BenchTable, Echo, Unavailable
from benchmarks.scoring import compute_interval, get_widen_options, score_inserts, show_cosine, show_percent
from benchmarks.sources import describe_source, load_library
from benchmarks.synthetic import Shape
from benchmarks.tables.accuracy import show_cell
from floc import methods
from floc.evaluation import paper

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATIO = "1/16"
BASELINE = "floc"
COUNTS = {"intel_person.mp4": 8, "vtest.avi": 8}  # videos; 3 clips and 3 objects in each
GPU, CPU, SMALL = Shape(256, 9, 15, 3584), Shape(64, 5, 8, 512), Shape(32, 3, 4, 64)
ROUNDS, ALLOWANCE_S, PATIENCE_S = 5, 5.0, 5.0
PAPER_MODEL = "qwen2.5-vl-7b"


def run_table(small: bool, echo: Echo, device: str | None = None) -> dict[str, Any]:
    """Read the accuracy, and measure the rest; with a device, add its times to earlier results."""
    if device is not None:
        return measure_device(device, small, echo)
    path = run.RESULTS / "accuracy.json"
    if not path.exists():
        raise Unavailable(f"{path} does not exist: run `python -m benchmarks accuracy` first")
    accuracy = json.loads(path.read_text())
    options = {name: {"method": name, **get_widen_options(name)} for name in methods.list_methods()}
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    document: dict[str, Any] = {
        "keep": RATIO,
        "gpu_name": harness.get_gpu_name(),
        "accuracy": {key: accuracy[key] for key in ("films", "questions", "accuracy", "notes", "commit", "date")},
        "cost": {device: measure_cost(device, options, small, echo) for device in devices},
    }
    return {**document, **measure_footage(options, small, echo)}


def measure_device(device: str, small: bool, echo: Echo) -> dict[str, Any]:
    """Measure time and memory on one device; all else is that of earlier results."""
    path = run.RESULTS / "methods.json"
    if device == "cuda" and not torch.cuda.is_available():
        raise Unavailable("python -m benchmarks methods --device cuda needs a CUDA device")
    if not path.exists():
        raise Unavailable(f"{path} does not exist: run `python -m benchmarks methods` first")
    earlier = json.loads(path.read_text())
    options = {name: {"method": name, **get_widen_options(name)} for name in methods.list_methods()}
    cost = {**measure_cost(device, options, small, echo), "environment": harness.describe_environment()}
    name = harness.get_gpu_name() or earlier["gpu_name"]
    return {**earlier, "gpu_name": name, "cost": {**earlier["cost"], device: cost}}


def measure_cost(device: str, options: dict[str, dict[str, Any]], small: bool, echo: Echo) -> dict[str, Any]:
    """Time every method on one device in turn, and measure its peak memory."""
    shape = SMALL if small else GPU if device == "cuda" else CPU
    tokens = torch.from_numpy(shape.make_tokens()).to(device)
    calls = {name: functools.partial(_compress, tokens, given) for name, given in options.items()}
    missing = {name: reason for name, call in calls.items() if (reason := _find_missing(call))}
    contenders = [Contender(name, call) for name, call in calls.items() if name not in missing]
    rounds = 2 if small else ROUNDS
    timings = harness.compare(contenders, BASELINE, rounds=rounds, allowance_s=ALLOWANCE_S, patience_s=PATIENCE_S)
    records = {}
    for timing in timings:
        grown = measure_growth(calls[timing.contender], tokens.device)
        records[timing.contender] = {**asdict(timing), "peak_bytes": grown}
        echo(f"{device}, {timing.contender}: {timing.ms:.1f} ms, {show_number(grown, 2**20)} MiB")
    shown = [shape.frames, shape.height * shape.width, shape.dim]
    return {"shape": shown, "bytes": tokens.nbytes, "missing": missing, "methods": records}


def _compress(tokens: torch.Tensor, options: dict[str, Any]) -> floc.Kept:
    kept = floc.compress(tokens, ratio=RATIO, **options)
    harness.synchronize(tokens.device)
    return kept


def _find_missing(call: functools.partial[floc.Kept]) -> str | None:
    """Return why a method cannot run: its package is missing, or it cannot keep so few tokens."""
    try:
        call()
    except (ImportError, ValueError) as error:
        return str(error)
    return None


def measure_footage(options: dict[str, dict[str, Any]], small: bool, echo: Echo) -> dict[str, Any]:
    """Measure coverage and the share of inserts with a kept token, on videos with inserts."""
    library = load_library(small, echo)
    found: dict[str, dict[str, list[float]]] = {name: {key: [] for key in ("coverage", *KINDS)} for name in options}
    videos = 0
    for video in make_videos(library, COUNTS if library.is_real else SYNTHETIC_COUNTS):
        for name, given in options.items():
            try:
                kept = floc.compress(video.tokens, ratio=RATIO, **given)
            except (ImportError, ValueError):
                continue
            found[name]["coverage"].append(float(kept.coverage))
            for insert, score in zip(video.inserts, score_inserts(video, kept), strict=True):
                found[name][insert.kind].append(float(score.kept))
        videos += 1
        echo(f"video {videos}, {video.name}: {len(video.inserts)} inserts, {len(video.tokens)} frames")
    footage = {
        name: {key: {**compute_interval(np.array(values)), "count": len(values)} for key, values in measures.items()}
        for name, measures in found.items()
        if measures["coverage"]
    }
    return {**library.describe(), "videos": videos, "footage": footage}


def _index_accuracy(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(record["method"], record["keep"]): record for record in document["accuracy"]["accuracy"]}


def _list_ratios(document: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(record["keep"] for record in document["accuracy"]["accuracy"] if record["keep"] != "1"))


def _list_names(document: dict[str, Any]) -> list[str]:
    """List the methods, the most accurate at RATIO first."""
    accuracy = _index_accuracy(document)
    names = document["cost"]["cpu"]["methods"] | document["footage"]
    return sorted(names, key=lambda name: -accuracy.get((name, RATIO), {"mean": 0.0})["mean"])


def _show(document: dict[str, Any]) -> str:
    accuracy, ratios = _index_accuracy(document), _list_ratios(document)
    published = {
        row["method"]: f"{row['average']:.1f}"
        for row in paper.get_table("table1").rows
        if (row["model"], row["ratio"]) == (PAPER_MODEL, RATIO)
    }
    cpu, gpu = (document["cost"].get(device, {}).get("methods", {}) for device in ("cpu", "cuda"))
    rows = []
    for name in _list_names(document):
        cells = [_show_accuracy(accuracy.get((name, ratio)), ratio == RATIO) for ratio in ratios]
        footage = document["footage"].get(name, {})
        cells += [show_cosine(footage["coverage"]) if footage else "-"]
        cells += [show_percent(footage[kind]) if footage else "-" for kind in KINDS]
        for cost in (cpu, gpu):
            record = cost.get(name)
            cells += [show_number(record["ms"], 1e3), show_ratio(record)] if record else ["", ""]
            cells += [show_number(record["peak_bytes"], 2**20) if record else ""]
        mark = " *" if name in document["accuracy"]["notes"] else ""
        rows.append([f"{name}{mark}", *cells, published.get(name, "")])
    costs = [f"{head}, {device}" for device in ("CPU", "GPU") for head in ("s", "ratio to floc", "peak MiB")]
    found = [f"{kind}s found" for kind in KINDS]
    head = ["method", *ratios, "coverage", *found, *costs, "FLoC paper"]
    return show_rows(head, rows, *_make_notes(document))


def _show_accuracy(record: dict[str, Any] | None, with_interval: bool) -> str:
    """Format accuracy as table "accuracy" does, with its interval if wanted."""
    mean, *arrow = show_cell(record).split()
    if record is None or not with_interval:
        return " ".join([mean, *arrow])
    low, high = (f"{100 * end:.1f}" for end in record["interval"])
    return " ".join([mean, f"({low}-{high})", *arrow])


def _make_notes(document: dict[str, Any]) -> list[str]:
    accuracy = document["accuracy"]
    notes = [
        "1/4 to 1/64: right answers of the trained tiny model in percent, by the share of tokens kept, with the 95% "
        f"interval at {RATIO}; {accuracy['films']} drawn films, {accuracy['questions']:,} questions, measured "
        f"{accuracy['date'][:10]} at commit {(accuracy['commit'] or 'unknown')[:10]}. ↑ ↓: above or below floc, where "
        "the 95% interval of the difference, film by film, excludes 0. A dash: the method cannot keep so few tokens. "
        "An asterisk: the method ran without the attention, the question or other features that it can use.",
        f"Coverage, clips and objects: mean cosine to the representatives, and inserts with a kept token, at {RATIO}, "
        f"with 95% intervals, over {document['videos']} videos with inserts. {describe_source(document)}",
    ]
    for device, cost in document["cost"].items():
        frames, cells, dim = cost["shape"]
        where = document["gpu_name"] if device == "cuda" else "the CPU"
        size = f"{frames} frames of {cells} tokens, {dim} features, float16 ({cost['bytes'] / 2**20:.0f} MiB)"
        made = cost.get("environment")
        versions = f" ({show_environment(made, 'torch', 'triton').removesuffix('.')})" if made else ""
        notes.append(f"Time and peak memory above the tokens: one call at {RATIO} on {size} on {where}{versions}.")
        notes += [f"Not run: {name}: {reason}." for name, reason in cost["missing"].items()]
    notes.append(
        f"Ratios: {RATIO_NOTE}. FLoC paper: the paper's mean accuracy over four benchmarks with Qwen2.5-VL-7B at "
        f"{RATIO}, in percent, if it states one for the method. This is another scale."
    )
    packages = ("numpy", "torch", "numba", "scikit-learn", "kmedoids")
    return [*notes, show_environment(document, *packages)]


def _show_best(document: dict[str, Any]) -> str:
    """Say which methods are best at each ratio, and which are above or equal to BASELINE."""
    accuracy, lines = _index_accuracy(document), []
    names = _list_names(document)
    for ratio in _list_ratios(document):
        scores = {name: accuracy[name, ratio] for name in names if (name, ratio) in accuracy}
        best = max(scores, key=lambda name: scores[name]["mean"])
        others = {name: record["difference_interval"] for name, record in scores.items() if name != BASELINE}
        above = [name for name, (low, _) in others.items() if low > 0]
        equal = [name for name, (low, high) in others.items() if low <= 0 <= high]
        own = f"{BASELINE} {100 * scores[BASELINE]['mean']:.1f}"
        lead = f"{best} is best with {100 * scores[best]['mean']:.1f} ({own})" if best != BASELINE else f"{own} is best"
        lines.append(
            f"- {ratio}: {lead}; above it beyond the error: {', '.join(above) or 'none'}; equal within the error: "
            f"{', '.join(equal) or 'none'}."
        )
    return "\n".join(lines)


def _plot(document: dict[str, Any]) -> Figure:
    """Plot accuracy against time."""
    from matplotlib.figure import Figure

    accuracy, cost = _index_accuracy(document), document["cost"]["cpu"]["methods"]
    names = [name for name in _list_names(document) if (name, RATIO) in accuracy and name in cost]
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    axes = figure.subplots()
    for name in names:
        record, ms = accuracy[name, RATIO], cost[name]["ms"]
        low, high = record["interval"]
        colour = "#16a34a" if name in (BASELINE, "floc-paper") else "#2563eb"
        mean = 100 * record["mean"]
        spread = [[mean - 100 * low], [100 * high - mean]]
        axes.errorbar([ms / 1e3], [mean], yerr=spread, fmt="o", color=colour, markersize=4, linewidth=1)
        axes.annotate(name, (ms / 1e3, mean), xytext=(4, 3), textcoords="offset points", fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel(f"seconds on a CPU, tokens kept {RATIO}")
    axes.set_ylabel("right answers, percent")
    axes.grid(alpha=0.25)
    return figure


TABLE = BenchTable("methods", run_table, {"methods": _show, "methods-best": _show_best}, {"methods": _plot})
