"""Table "spread": representativeness and diversity of what each method keeps, as in the paper's scatter plot.

Representativeness is the mean cosine of all tokens with all kept ones, diversity the mean of 1 - cosine over all pairs
of kept tokens (`floc.analysis`). As in the paper, both are z-scored video by video over six methods: FLoC, DivPrune,
TS-LLaVA, k-means, k-medoids and spectral clustering. The other methods are placed on the same scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import floc
from benchmarks.markdown import show_environment, show_rows
from benchmarks.quality import NamedTokens
from benchmarks.registry import BenchTable, Echo
from benchmarks.scoring import get_widen_options
from benchmarks.sources import Library, describe_source, load_library
from floc import analysis, methods

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RATIOS = ("1/8", "1/32")
FRAMES = 100  # of a video
STEPS = {"intel_person.mp4": 2, "vtest.avi": 2}  # every second frame of these sources, every frame of the others
MEASURES: dict[str, Callable[[np.ndarray, floc.Kept], float]] = {
    "representativeness": analysis.averaged_sum_coverage,
    "diversity": analysis.averaged_distance,
}
PAPER_FLOC = "floc-paper"
SIX = {
    PAPER_FLOC: "#0f766e",
    "divprune": "#2563eb",
    "ts_llava": "#ca8a04",
    "kmeans": "#ea580c",
    "kmedoids": "#dc2626",
    "spectral": "#9333ea",
}
OURS = {"floc": "#16a34a"}
# the paper's claims on FLoC against each other method: is it more representative, is it more diverse?
CLAIMS = {
    "kmedoids": (False, True),
    "divprune": (True, False),
    "ts_llava": (True, True),
    "kmeans": (True, True),
    "spectral": (True, True),
}


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure every method on every video, and z-score the measures."""
    library = load_library(small, echo)
    videos = cut_videos(library, FRAMES // 2 if small else FRAMES)
    records = []
    for number, video in enumerate(videos):
        for ratio in RATIOS:
            measured = _measure_methods(video, ratio)
            case = {"video": number, "source": video.name, "keep": ratio}
            records += [{**case, **record} for record in add_scores(measured)]
        echo(f"video {number + 1} of {len(videos)}, {video.name}: {len(measured)} methods")
    return {**library.describe(), "frames": len(videos[0].tokens), "spread": records}


def cut_videos(library: Library, frames: int) -> list[NamedTokens]:
    """Cut all sources into consecutive videos of `frames` frames."""
    videos = []
    for source in library.sources:
        tokens = source.tokens[:: STEPS.get(source.name, 1)]
        starts = range(0, len(tokens) - frames + 1, frames)
        videos += [NamedTokens(source.name, tokens[start : start + frames]) for start in starts]
    return videos


def _measure_methods(video: NamedTokens, ratio: str) -> list[dict[str, Any]]:
    """Return both measures of each method that reaches the ratio. A missing package is an error: it changes the "
    "scale."""
    records = []
    for method in methods.list_methods():
        try:
            kept = floc.compress(video.tokens, ratio=ratio, method=method, **get_widen_options(method))
        except ValueError:  # the ratio is below its minimum
            continue
        records.append({"method": method, **{name: of(video.tokens, kept) for name, of in MEASURES.items()}})
    return records


def add_scores(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of one video with z-scores of both measures, on the scale of the six methods."""
    records = [dict(record) for record in measured]
    for name in MEASURES:
        scores = compute_scores([row[name] for row in measured], [row["method"] in SIX for row in measured])
        for record, score in zip(records, scores, strict=True):
            record[f"{name}_z"] = float(score)
    return records


def compute_scores(values: Sequence[float], is_scale: Sequence[bool]) -> np.ndarray:
    """Shift and scale values to mean 0 and standard deviation 1 over those that `is_scale` marks; 0 if they are equal.

    >>> compute_scores([1.0, 3.0, 5.0], [True, True, False]).tolist()
    [-1.0, 1.0, 3.0]
    """
    array = np.asarray(values, np.float64)
    scale = array[np.asarray(is_scale)]
    deviation = scale.std() if len(scale) else 0.0
    return (array - scale.mean()) / deviation if deviation > 1e-12 else np.zeros_like(array)


def _show_spread(document: dict[str, Any]) -> str:
    rows = []
    for method in _order_methods(document):
        row = [method]
        for ratio in RATIOS:
            records = _filter_records(document, method, ratio)
            first = [all(record[f"{name}_z"] > 0 for name in MEASURES) for record in records]
            row += [_show_mean(records, f"{name}_z") for name in MEASURES]
            row.append(f"{np.mean(first):.0%}" if records else "-")
        rows.append(row)
    columns = (*MEASURES, "first quadrant")
    head = ["z-score, mean (standard deviation)", *(f"{name}, {ratio}" for ratio in RATIOS for name in columns)]
    note = (
        "Z-scored in each video over the first six rows, the paper's methods; the others are on the same scale. First "
        "quadrant: share of videos in which a method is above the mean of the six in both measures; the paper places "
        "most of FLoC's videos there. If a method merges tokens, its merged tokens count as kept. A dash: the method "
        "cannot keep so few tokens."
    )
    return show_rows(head, rows, note, *_list_notes(document))


def _show_claims(document: dict[str, Any]) -> str:
    rows = []
    for other, claim in CLAIMS.items():
        row = [other]
        for name, is_higher in zip(MEASURES, claim, strict=True):
            row.append("higher" if is_higher else "lower")
            for ratio in RATIOS:
                higher = compare_videos(document, other, ratio, name)
                row.append(f"{sum(higher)} of {len(higher)}")
        rows.append(row)
    head = [f"{PAPER_FLOC} against"]
    for name in MEASURES:
        head += [f"{name} in the paper", *(f"higher here, {ratio}" for ratio in RATIOS)]
    note = (
        "Higher here: number of videos. The paper shows a scatter plot for 50 videos of Video-MME with tokens of "
        "Qwen2-VL 7B. It describes the plot in words, without numbers."
    )
    return show_rows(head, rows, note, *_list_notes(document))


def compare_videos(document: dict[str, Any], other: str, ratio: str, measure: str) -> list[bool]:
    """Return, video by video, whether the paper's FLoC is above another method."""
    theirs = {record["video"]: record[measure] for record in _filter_records(document, other, ratio)}
    ours = _filter_records(document, PAPER_FLOC, ratio)
    return [record[measure] > theirs[record["video"]] for record in ours if record["video"] in theirs]


def _order_methods(document: dict[str, Any]) -> list[str]:
    """Return the six methods, then ours, then all others."""
    names = dict.fromkeys(record["method"] for record in document["spread"])
    return [*(name for name in (*SIX, *OURS) if name in names), *(name for name in names if name not in SIX | OURS)]


def _filter_records(document: dict[str, Any], method: str, ratio: str) -> list[dict[str, Any]]:
    return [record for record in document["spread"] if (record["method"], record["keep"]) == (method, ratio)]


def _show_mean(records: Sequence[Mapping[str, Any]], name: str) -> str:
    values = np.array([record[name] for record in records])
    return f"{values.mean():+.2f} ({values.std():.2f})" if len(values) else "-"


def _list_notes(document: dict[str, Any]) -> list[str]:
    videos: dict[str, set[int]] = {}
    for record in document["spread"]:
        videos.setdefault(record["source"], set()).add(record["video"])
    counts = ", ".join(f"{len(numbers)} of {source}" for source, numbers in videos.items())
    return [
        f"{sum(map(len, videos.values()))} videos of {document['frames']} frames: {counts}.",
        describe_source(document),
        show_environment(document, "numpy", "torch", "numba", "scikit-learn", "kmedoids", "av"),
    ]


def _plot(document: dict[str, Any]) -> Figure:
    """Plot a dot for each video, and each method's mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.6), layout="constrained")
    panels = figure.subplots(1, len(RATIOS))
    for axes, ratio in zip(panels, RATIOS, strict=True):
        _draw(axes, document, ratio)
        axes.set_title(f"kept {ratio}")
        axes.set_xlabel("averaged sum coverage, z-scored (representativeness)")
    panels[0].set_ylabel("averaged distance, z-scored (diversity)")
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def _draw(axes: Axes, document: dict[str, Any], ratio: str) -> None:
    axes.axhline(0, color="#c3c8d0", linewidth=0.8)
    axes.axvline(0, color="#c3c8d0", linewidth=0.8)
    for method, colour in (SIX | OURS).items():
        records = _filter_records(document, method, ratio)
        if not records:
            continue
        x, y = (np.array([record[f"{name}_z"] for record in records]) for name in MEASURES)
        axes.scatter(x, y, s=14, color=colour, alpha=0.45, linewidths=0)
        axes.scatter(x.mean(), y.mean(), s=90, color=colour, edgecolors="white", label=method, zorder=3)


TABLE = BenchTable("spread", run, {"spread": _show_spread, "spread-claims": _show_claims}, {"spread": _plot})
