"""Table "metric": cosine against the Gaussian of the Euclidean distance, as in the paper's ablation.

The paper compares the metrics by an LLM's answers. Measured here without one: how well all tokens are covered, by
either similarity, and how much is kept of inserts in real footage (see the table "needle").
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

import floc
from benchmarks.inserts import KINDS, SYNTHETIC_COUNTS, PlantedVideo, make_videos
from benchmarks.markdown import show_environment, show_rows
from benchmarks.registry import BenchTable, Echo
from benchmarks.scoring import (
    Score,
    compute_interval,
    score_inserts,
    show_arrow,
    show_cosine,
    show_percent,
    summarize,
)
from benchmarks.sources import describe_source, load_library
from floc._arrays import to_tensor
from floc.evaluation import paper
from floc.representatives import find_nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RATIOS = ("1/8", "1/16", "1/32", "1/64")
PAPER_FLOC = "floc-paper"
METHODS = (PAPER_FLOC, "floc")
METRICS = COSINE, GAUSSIAN = ("cosine", "gaussian")
COUNTS = {"intel_person.mp4": 17, "vtest.avi": 17}  # videos; 3 clips and 3 objects in each make 102 of each kind
SAMPLE = 2000  # evenly spaced tokens of a video on which coverage is measured
COLOURS = {"floc-paper": "#0f766e", "floc": "#16a34a"}
LINES = {COSINE: "-", GAUSSIAN: "--"}
PAPER_TASKS = ("VideoMME", "MLVU", "LVB", "EgoSchema", "average")


class MetricCase(NamedTuple):
    """A ratio, method and metric."""

    keep: str
    method: str
    metric: str


CASES = [MetricCase(*case) for case in itertools.product(RATIOS, METHODS, METRICS)]


@dataclass
class CaseScores:
    """The measurements of a case."""

    coverage: list[dict[str, float]] = field(default_factory=list)  # of each video, by either metric
    scores: list[Score] = field(default_factory=list)  # of each insert


def _read_published() -> dict[tuple[str, str], list[float]]:
    """Return the accuracies of the paper's ablation by ratio and metric: its tasks, and their average."""
    metrics = {PAPER_FLOC: COSINE, f"{PAPER_FLOC}:metric={GAUSSIAN}": GAUSSIAN}
    return {
        (row["ratio"], metrics[row["method"]]): [*row["scores"].values(), row["average"]]
        for row in paper.get_table("table8").rows
    }


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure both metrics at every ratio on every video."""
    library = load_library(small, echo)
    results = {case: CaseScores() for case in CASES}
    kinds: list[str] = []
    count = 0
    for video in make_videos(library, COUNTS if library.is_real else SYNTHETIC_COUNTS):
        _measure_video(video, results)
        kinds += [insert.kind for insert in video.inserts]
        count += 1
        echo(f"video {count}, {video.name}: {len(video.inserts)} inserts, {len(video.tokens)} frames")
    inserts = {kind: kinds.count(kind) for kind in KINDS}
    records = [{**case._asdict(), **_make_record(case, results, kinds)} for case in CASES]
    return {**library.describe(), "films": count, "inserts": inserts, "metric": records}


def _measure_video(video: PlantedVideo, results: Mapping[MetricCase, CaseScores]) -> None:
    sample = draw_sample(video.tokens)
    sigma = compute_median_distance(sample)
    for case, result in results.items():
        kept = floc.compress(video.tokens, ratio=case.keep, method=case.method, metric=case.metric)
        result.coverage.append(measure_coverage(sample, to_tensor(kept.features), sigma))
        result.scores += score_inserts(video, kept)


def draw_sample(tokens: np.ndarray) -> torch.Tensor:
    """Return at most SAMPLE evenly spaced tokens of [T, H, W, D] as [m, D] float32."""
    flat = tokens.reshape(-1, tokens.shape[-1])
    places = np.linspace(0, len(flat) - 1, min(SAMPLE, len(flat))).round().astype(int)
    return to_tensor(flat[places]).float()


def compute_median_distance(tokens: torch.Tensor) -> float:
    """Return the median Euclidean distance over all pairs of [n, D].

    >>> compute_median_distance(torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]]))
    4.0
    """
    return float(torch.pdist(tokens).median())


def measure_coverage(tokens: torch.Tensor, kept: torch.Tensor, sigma: float) -> dict[str, float]:
    """Return the mean highest similarity of [n, D] tokens with [K, D] kept ones, by either metric."""
    distance = torch.cdist(tokens, kept.float()).min(1).values.double()
    gaussian = torch.exp(-(distance**2) / (2 * sigma**2))
    return {COSINE: float(find_nearest(tokens, kept)[0].double().mean()), GAUSSIAN: float(gaussian.mean())}


def _make_record(case: MetricCase, results: Mapping[MetricCase, CaseScores], kinds: Sequence[str]) -> dict[str, Any]:
    """Return all means of a case, and their differences to the cosine's."""
    both = results[case], results[case._replace(metric=COSINE)]
    record: dict[str, Any] = {}
    for name in METRICS:
        ours, cosine = (np.array([coverage[name] for coverage in result.coverage]) for result in both)
        record[f"{name}_coverage"] = compute_interval(ours)
        record[f"{name}_coverage_above_{COSINE}"] = compute_interval(ours - cosine)
    for kind in KINDS:
        scores, reference = (
            [score for score, insert_kind in zip(result.scores, kinds, strict=True) if insert_kind == kind]
            for result in both
        )
        record[kind] = summarize(scores, reference, COSINE)
    return record


def _show(document: dict[str, Any]) -> str:
    published = _read_published()
    rows = [_make_row(record, published) for record in document["metric"]]
    head = ["method, metric", "kept", "coverage, cosine", "coverage, Gaussian"]
    head += [f"{kind}s {measure}" for kind in KINDS for measure in ("kept", "similarity")]
    head += [f"paper, {task}" for task in PAPER_TASKS]
    counts = " and ".join(f"{count} {kind}s" for kind, count in document["inserts"].items())
    note = (
        f"Means over {document['films']} videos with {counts}; for inserts with 95% intervals. Coverage: highest "
        f"similarity with a kept token, of up to {SAMPLE:,} tokens of each video, by the cosine, and by the Gaussian "
        "whose width is the median distance of these tokens. Inserts as in the table needle. ↑ ↓: Gaussian above or "
        "below cosine; the 95% interval of the difference excludes 0. Paper: accuracy in percent, InternVL3-8B."
    )
    environment = show_environment(document, "numpy", "torch", "numba", "av")
    return show_rows(head, rows, note, describe_source(document), environment)


def _make_row(record: Mapping[str, Any], published: Mapping[tuple[str, str], list[float]]) -> list[str]:
    row = [f"{record['method']}, {record['metric']}", record["keep"]]
    coverages = [f"{name}_coverage" for name in METRICS]
    row += [f"{record[name]['mean']:.4f}{_show_mark(record, name)}" for name in coverages]
    for kind, (measure, show) in itertools.product(KINDS, (("kept", show_percent), ("similarity", show_cosine))):
        row.append(show(record[kind][measure]) + _show_mark(record[kind], measure))
    accuracy = published.get((record["keep"], record["metric"])) if record["method"] == PAPER_FLOC else None
    return row + ([""] * len(PAPER_TASKS) if accuracy is None else [f"{value:.2f}" for value in accuracy])


def _show_mark(record: Mapping[str, Any], measure: str) -> str:
    difference = record[f"{measure}_above_{COSINE}"]
    return show_arrow(difference["low"], difference["high"])


def _plot(document: dict[str, Any]) -> Figure:
    """Plot coverage by both metrics, objects kept, and the paper's accuracy, against the ratio."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.6), layout="constrained")
    panels = figure.subplots(1, 4)
    _draw(panels[0], document, "coverage, cosine", lambda record: record["cosine_coverage"]["mean"])
    _draw(panels[1], document, "coverage, Gaussian", lambda record: record["gaussian_coverage"]["mean"])
    _draw(panels[2], document, "objects with a kept token", lambda record: record["object"]["kept"]["mean"])
    for metric, line in LINES.items():
        accuracy = [values[-1] for (_, name), values in _read_published().items() if name == metric]
        panels[3].plot(accuracy, line, color=COLOURS[PAPER_FLOC], marker="o", markersize=3)
    panels[3].set_title("the paper's average accuracy, %", fontsize=10)
    for axes in panels:
        axes.set_xticks(range(len(RATIOS)), RATIOS)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def _draw(axes: Axes, document: dict[str, Any], title: str, value: Callable[[dict[str, Any]], float]) -> None:
    for method, metric in itertools.product(METHODS, METRICS):
        values = [value(row) for row in document["metric"] if (row["method"], row["metric"]) == (method, metric)]
        label, line = f"{method}, {metric}", LINES[metric]
        axes.plot(values, line, color=COLOURS[method], label=label, marker="o", markersize=3)
    axes.set_title(title, fontsize=10)


TABLE = BenchTable("metric", run, {"metric": _show}, {"metric": _plot})
