"""The table "spread": representativeness and diversity of what each method keeps, as in the paper's scatter plot.

Representativeness is the mean cosine of all tokens with all that are kept, diversity the mean of 1 - cosine over all
pairs kept (`floc.analysis`). Like in the paper both are z-scored video by video over six methods: FLoC, DivPrune,
TS-LLaVA, k-means, k-medoids and spectral clustering. All other methods are placed on the scale that these six give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import floc
from benchmarks.needle import widened
from benchmarks.sources import Library, library, origin
from benchmarks.tables import Echo, Table, where
from floc import analysis, methods
from floc._format import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RATIOS = ("1/8", "1/32")
FRAMES = 100  # of a video
STEPS = {"intel_person.mp4": 2, "vtest.avi": 2}  # frames of a source that one of a video takes; of others each
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
# what the paper says of FLoC against each of the others: is it more representative, is it more diverse?
SAID = {
    "kmedoids": (False, True),
    "divprune": (True, False),
    "ts_llava": (True, True),
    "kmeans": (True, True),
    "spectral": (True, True),
}


@dataclass(frozen=True)
class Video:
    """Tokens with a name."""

    source: str
    tokens: np.ndarray  # [T, H, W, D]


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure every method on every video, and place them on the six methods' scale."""
    shelf = library(small, echo)
    cut = videos(shelf, FRAMES // 2 if small else FRAMES)
    records = []
    for number, video in enumerate(cut):
        for ratio in RATIOS:
            measured = _measured(video, ratio)
            case = {"video": number, "source": video.source, "keep": ratio}
            records += [{**case, **each} for each in placed(measured)]
        echo(f"video {number + 1} of {len(cut)}, {video.source}: {len(measured)} methods")
    return {**shelf.about(), "frames": len(cut[0].tokens), "spread": records}


def videos(shelf: Library, frames: int) -> list[Video]:
    """Stretches of all films, one after another, each of so many frames."""
    found = []
    for source in shelf.sources:
        tokens = source.tokens[:: STEPS.get(source.name, 1)]
        starts = range(0, len(tokens) - frames + 1, frames)
        found += [Video(source.name, tokens[start : start + frames]) for start in starts]
    return found


def _measured(video: Video, ratio: str) -> list[dict[str, Any]]:
    """Both measures of each method that can be run."""
    found = []
    for method in methods.names():
        kept = _kept(video, ratio, method)
        if kept is not None:
            found.append({"method": method, **{name: of(video.tokens, kept) for name, of in MEASURES.items()}})
    return found


def _kept(video: Video, ratio: str, method: str) -> floc.Kept | None:
    try:
        return floc.compress(video.tokens, ratio=ratio, method=method, **widened(method))
    except ValueError:  # below its floor; what is not installed is an error, or the scale would be another
        return None


def placed(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same records of one video, with both measures also as z-scores on the scale of the six methods."""
    found = [dict(each) for each in measured]
    for name in MEASURES:
        scores = scaled([each[name] for each in measured], [each["method"] in SIX for each in measured])
        for each, score in zip(found, scores, strict=True):
            each[f"{name}_z"] = float(score)
    return found


def scaled(values: Sequence[float], is_scale: Sequence[bool]) -> np.ndarray:
    """Values at mean 0 and standard deviation 1 over some of them; all 0 where those are all the same.

    >>> scaled([1.0, 3.0, 5.0], [True, True, False]).tolist()
    [-1.0, 1.0, 3.0]
    """
    every, some = np.asarray(values, np.float64), np.asarray(values, np.float64)[np.asarray(is_scale)]
    spread = some.std() if len(some) else 0.0
    return (every - some.mean()) / spread if spread > 1e-12 else np.zeros_like(every)


def _spread_view(document: dict[str, Any]) -> str:
    """Where methods lie on average."""
    rows = []
    for method in _methods(document):
        row = [method]
        for ratio in RATIOS:
            mine = _of(document, method, ratio)
            first = np.mean([all(each[f"{name}_z"] > 0 for name in MEASURES) for each in mine]) if mine else 0
            row += [_mean(mine, "representativeness_z"), _mean(mine, "diversity_z"), f"{first:.0%}" if mine else "-"]
        rows.append(row)
    columns = ("representativeness", "diversity", "first quadrant")
    head = ["z-scored, mean (standard deviation)", *(f"{name}, {ratio}" for ratio in RATIOS for name in columns)]
    note = (
        "Z-scored in each video over the first six rows, the paper's; the others are on the same scale. First "
        "quadrant: videos in which a method is above the mean of the six in both, where the paper says that FLoC "
        "mostly is. Of a method that merges, what it made counts as kept. A dash: it cannot keep so few. "
    )
    return f"{markdown_table(head, rows)}\n\n{note}{_where(document)}"


def _claims_view(document: dict[str, Any]) -> str:
    """The paper's words, and in how many videos they hold."""
    rows = []
    for other, said in SAID.items():
        row = [other]
        for name, more in zip(MEASURES, said, strict=True):
            row.append("higher" if more else "lower")
            row += [_share(_higher(document, other, ratio, name)) for ratio in RATIOS]
        rows.append(row)
    head = ["FLoC against"]
    for name in MEASURES:
        head += [f"{name} in the paper", *(f"higher here, {ratio}" for ratio in RATIOS)]
    note = (
        "FLoC is floc-paper, the paper's own method. Higher here: in how many of the videos. The paper has a scatter "
        "plot of 50 videos of Video-MME with tokens of Qwen2-VL 7B, and words, but no numbers. "
    )
    return f"{markdown_table(head, rows)}\n\n{note}{_where(document)}"


def _higher(document: dict[str, Any], other: str, ratio: str, measure: str) -> list[bool]:
    """Video by video, whether the paper's FLoC is above another method."""
    theirs = {each["video"]: each[measure] for each in _of(document, other, ratio)}
    return [
        each[measure] > theirs[each["video"]] for each in _of(document, PAPER_FLOC, ratio) if each["video"] in theirs
    ]


def _share(held: Sequence[bool]) -> str:
    return f"{sum(held)} of {len(held)}"


def _methods(document: dict[str, Any]) -> list[str]:
    """The six, then ours, then all others."""
    there = dict.fromkeys(each["method"] for each in document["spread"])
    return [*(name for name in (*SIX, *OURS) if name in there), *(name for name in there if name not in SIX | OURS)]


def _of(document: dict[str, Any], method: str, ratio: str) -> list[dict[str, Any]]:
    return [each for each in document["spread"] if (each["method"], each["keep"]) == (method, ratio)]


def _mean(records: Iterable[Mapping[str, Any]], name: str) -> str:
    values = np.array([each[name] for each in records])
    return f"{values.mean():+.2f} ({values.std():.2f})" if len(values) else "-"


def _where(document: dict[str, Any]) -> str:
    counts: dict[str, set[int]] = {}
    for each in document["spread"]:
        counts.setdefault(each["source"], set()).add(each["video"])
    cut = ", ".join(f"{len(mine)} of {source}" for source, mine in counts.items())
    return (
        f"{sum(map(len, counts.values()))} videos of {document['frames']} frames: {cut}. {origin(document)} "
        f"{where(document, 'numpy', 'torch', 'numba', 'scikit-learn', 'kmedoids', 'av')}"
    )


def _figure(document: dict[str, Any]) -> Figure:
    """The scatter plot: a dot for each video, and each method's mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.6))
    figure.set_layout_engine("constrained")
    axes = figure.subplots(1, len(RATIOS))
    for axis, ratio in zip(axes, RATIOS, strict=True):
        _draw(axis, document, ratio)
        axis.set_title(f"kept {ratio}")
        axis.set_xlabel("averaged sum coverage, z-scored (representativeness)")
    axes[0].set_ylabel("averaged distance, z-scored (diversity)")
    axes[-1].legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def _draw(axis: Axes, document: dict[str, Any], ratio: str) -> None:
    axis.axhline(0, color="#c3c8d0", linewidth=0.8)
    axis.axvline(0, color="#c3c8d0", linewidth=0.8)
    for method, colour in (SIX | OURS).items():
        records = _of(document, method, ratio)
        if not records:
            continue
        x, y = (np.array([each[f"{name}_z"] for each in records]) for name in MEASURES)
        axis.scatter(x, y, s=14, color=colour, alpha=0.45, linewidths=0)
        axis.scatter(x.mean(), y.mean(), s=90, color=colour, edgecolors="white", label=method, zorder=3)


TABLE = Table("spread", run, views={"spread": _spread_view, "spread-claims": _claims_view}, plots={"spread": _figure})
