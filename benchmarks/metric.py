"""The table "metric": cosine against the Gaussian of the Euclidean distance, as in the paper's ablation.

The paper compares them by an LLM's answers. What can be measured without one: how well all tokens are covered, by
either similarity, and what is kept of inserts in real footage (see `needle`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

import floc
from benchmarks.inserts import KINDS, Film, Score, interval, score
from benchmarks.needle import MADE_UP_FILMS, RATIOS, cosine, films, mark, measured, percent
from benchmarks.sources import library, origin
from benchmarks.tables import Echo, Table, where
from floc._arrays import to_tensor
from floc._format import markdown_table
from floc.evaluation import paper
from floc.representatives import find_nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER_FLOC = "floc-paper"
METHODS = (PAPER_FLOC, "floc")
METRICS = COSINE, GAUSSIAN = ("cosine", "gaussian")
FILMS = {"intel_person.mp4": 17, "vtest.avi": 17}  # a clip and an object of each of three others: 102 of each kind
SAMPLE = 2000  # tokens of a film that coverage is measured on, evenly spaced
COLOURS = {"floc-paper": "#0f766e", "floc": "#16a34a"}
LINES = {COSINE: "-", GAUSSIAN: "--"}
PAPER_TASKS = ("VideoMME", "MLVU", "LVB", "EgoSchema", "average")


def _published() -> dict[tuple[str, str], list[float]]:
    """Accuracy in the paper's ablation, by ratio and metric: its tasks, and their average."""
    metrics = {PAPER_FLOC: COSINE, f"{PAPER_FLOC}:metric={GAUSSIAN}": GAUSSIAN}
    return {
        (row["ratio"], metrics[row["method"]]): [*row["scores"].values(), row["average"]]
        for row in paper.table("table8").rows
    }


class Case(NamedTuple):
    """What is compressed how."""

    keep: str
    method: str
    metric: str


CASES = [Case(*each) for each in itertools.product(RATIOS, METHODS, METRICS)]


@dataclass
class Found:
    """What a case gave."""

    covered: list[dict[str, float]] = field(default_factory=list)  # of each film, by either metric
    scores: list[Score] = field(default_factory=list)  # of each insert


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure both metrics at every ratio on every film."""
    shelf = library(small, echo)
    found = {case: Found() for case in CASES}
    kinds: list[str] = []
    count = 0
    for film in films(shelf, FILMS if shelf.is_real else MADE_UP_FILMS):
        _add(film, found)
        kinds += [insert.kind for insert in film.inserts]
        count += 1
        echo(f"film {count}, {film.name}: {len(film.inserts)} inserts, {len(film.tokens)} frames")
    inserts = {kind: kinds.count(kind) for kind in KINDS}
    records = [{**case._asdict(), **_record(case, found, kinds)} for case in CASES]
    return {**shelf.about(), "films": count, "inserts": inserts, "metric": records}


def _add(film: Film, found: Mapping[Case, Found]) -> None:
    sample = sampled(film.tokens)
    sigma = median_distance(sample)
    for case, its in found.items():
        kept = floc.compress(film.tokens, ratio=case.keep, method=case.method, metric=case.metric)
        its.covered.append(coverages(sample, to_tensor(kept.features), sigma))
        its.scores += score(film, kept)


def sampled(tokens: np.ndarray) -> torch.Tensor:
    """[at most SAMPLE, D] float32, some of the tokens [T, H, W, D], evenly spaced."""
    flat = tokens.reshape(-1, tokens.shape[-1])
    places = np.linspace(0, len(flat) - 1, min(SAMPLE, len(flat))).round().astype(int)
    return to_tensor(flat[places]).float()


def median_distance(tokens: torch.Tensor) -> float:
    """The median Euclidean distance over all pairs of [n, D].

    >>> median_distance(torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]]))
    4.0
    """
    return float(torch.pdist(tokens).median())


def coverages(tokens: torch.Tensor, kept: torch.Tensor, sigma: float) -> dict[str, float]:
    """How well [n, D] tokens are covered by [K, D]: the mean of the highest similarity, by either metric."""
    distance = torch.cdist(tokens, kept.float()).min(1).values.double()
    by_gaussian = torch.exp(-(distance**2) / (2 * sigma**2))
    return {COSINE: float(find_nearest(tokens, kept)[0].double().mean()), GAUSSIAN: float(by_gaussian.mean())}


def _record(case: Case, found: Mapping[Case, Found], kinds: Sequence[str]) -> dict[str, Any]:
    """All means of a case, and how far they are above those of the cosine."""
    both = found[case], found[case._replace(metric=COSINE)]
    record: dict[str, Any] = {}
    for name in METRICS:
        mine, others = (np.array([each[name] for each in its.covered]) for its in both)
        record[f"{name}_coverage"] = interval(mine)
        record[f"{name}_coverage_above_{COSINE}"] = interval(mine - others)
    for kind in KINDS:
        scores, reference = ([each for each, its in zip(of.scores, kinds, strict=True) if its == kind] for of in both)
        record[kind] = measured(scores, reference, than=COSINE)
    return record


def _view(document: dict[str, Any]) -> str:
    rows = [_row(each) for each in document["metric"]]
    head = ["method, metric", "kept", "coverage, cosine", "coverage, Gaussian"]
    head += [f"{kind}s {what}" for kind in KINDS for what in ("kept", "similarity")]
    head += [f"paper, {task}" for task in PAPER_TASKS]
    counts = " and ".join(f"{count} {kind}s" for kind, count in document["inserts"].items())
    note = (
        f"Means over {document['films']} films with {counts}; of inserts with 95% intervals. Coverage: of up to "
        f"{SAMPLE:,} tokens of each film the highest similarity with a kept one, by the cosine, and by the Gaussian "
        "with the median distance of these tokens as its width. Inserts as in the table needle. ↑ ↓: Gaussian above "
        "or below cosine, film by film or insert by insert, with all of the difference's 95% interval. Paper: accuracy "
        "in percent, InternVL3-8B. "
        f"{origin(document)} "
    )
    return f"{markdown_table(head, rows)}\n\n{note}{where(document, 'numpy', 'torch', 'numba', 'av')}"


def _row(record: Mapping[str, Any]) -> list[str]:
    row = [f"{record['method']}, {record['metric']}", record["keep"]]
    row += [
        f"{record[f'{name}_coverage']['mean']:.4f}{mark(record[f'{name}_coverage_above_{COSINE}'])}" for name in METRICS
    ]
    for kind, (measure, show) in itertools.product(KINDS, (("kept", percent), ("similarity", cosine))):
        row.append(show(record[kind][measure]) + mark(record[kind][f"{measure}_above_{COSINE}"]))
    accuracy = _published().get((record["keep"], record["metric"])) if record["method"] == PAPER_FLOC else None
    return row + ([""] * len(PAPER_TASKS) if accuracy is None else [f"{value:.2f}" for value in accuracy])


def _figure(document: dict[str, Any]) -> Figure:
    """Coverage by both metrics, objects kept, and the paper's accuracy, against the ratio."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.6))
    figure.set_layout_engine("constrained")
    axes = figure.subplots(1, 4)
    _draw(axes[0], document, "coverage, by the cosine", lambda each: each["cosine_coverage"]["mean"])
    _draw(axes[1], document, "coverage, by the Gaussian", lambda each: each["gaussian_coverage"]["mean"])
    _draw(axes[2], document, "objects of which a token is kept", lambda each: each["object"]["kept"]["mean"])
    for metric, line in LINES.items():
        accuracy = [of[-1] for (_, its), of in _published().items() if its == metric]
        axes[3].plot(accuracy, line, color=COLOURS[PAPER_FLOC], marker="o", markersize=3)
    axes[3].set_title("the paper's average accuracy, %", fontsize=10)
    for axis in axes:
        axis.set_xticks(range(len(RATIOS)), RATIOS)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def _draw(axis: Axes, document: dict[str, Any], title: str, value: Callable[[dict[str, Any]], float]) -> None:
    for method, metric in itertools.product(METHODS, METRICS):
        mine = [each for each in document["metric"] if (each["method"], each["metric"]) == (method, metric)]
        label, line = f"{method}, {metric}", LINES[metric]
        axis.plot([value(each) for each in mine], line, color=COLOURS[method], label=label, marker="o", markersize=3)
    axis.set_title(title, fontsize=10)


TABLE = Table("metric", run, views={"metric": _view}, plots={"metric": _figure})
