"""Table "needle": whether short inserts in long footage survive compression.

The paper's needle and ego tasks, measured on tokens alone: clips spliced into a video, and small objects pasted over it
for a moment (see `benchmarks.inserts`). For every method and ratio: the share of inserts with at least one kept token,
and how close an insert's tokens are to the kept ones; and the same for a part of the background of the same shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import floc
from benchmarks.inserts import CLIP, KINDS, OBJECT, SYNTHETIC_COUNTS, PlantedVideo, make_videos
from benchmarks.markdown import show_environment, show_rows
from benchmarks.registry import BenchTable, Echo
from benchmarks.scoring import (
    Score,
    get_widen_options,
    score_inserts,
    show_arrow,
    show_cosine,
    show_percent,
    summarize,
)
from benchmarks.sources import describe_source, load_library
from floc import methods
from floc.evaluation import paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RATIOS = ("1/8", "1/16", "1/32", "1/64")
ORDERED_BY = "1/32"  # the ratio that orders the rows
COUNTS = {"intel_person.mp4": 34, "vtest.avi": 34}  # videos; 3 clips and 3 objects in each make 204 of each kind
REFERENCE = "floc"  # other methods are compared with it insert by insert
DRAWN = {
    "floc": "#16a34a",
    "floc-paper": "#0f766e",
    "divprune": "#2563eb",
    "sttm": "#9333ea",
    "scissor": "#db2777",
    "kmeans": "#ea580c",
    "random": "#111827",
}
GREY = "#c3c8d0"

# the paper's task closest to each kind of insert: its name, and its part of MLVU
PAPER_TASKS = {CLIP: ("NQA", "mlvu_dev/needle"), OBJECT: ("ER", "mlvu_dev/ego")}
PAPER_RATIOS = ("1/8", "1/16", "1/32")

Scores = dict[tuple[str, str], list[Score]]  # (method, ratio) -> scores of all inserts
Show = Callable[[Mapping[str, float]], str]


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Score every method at every ratio on every video."""
    library = load_library(small, echo)
    options = {name: {"method": name, **get_widen_options(name)} for name in methods.list_methods()}
    planted = make_videos(library, COUNTS if library.is_real else SYNTHETIC_COUNTS)
    videos, scores, failed = score_methods(planted, options, echo)
    return {**library.describe(), "films": count_inserts(videos), "scores": make_records(videos, scores, failed)}


def score_methods(
    planted: Iterable[PlantedVideo], options: Mapping[str, Mapping[str, Any]], echo: Echo
) -> tuple[list[PlantedVideo], Scores, dict[tuple[str, str], str]]:
    """Compress every video with all methods at all ratios.

    Args:
        planted: The videos.
        options: Arguments of `floc.compress`, by the name of the method.
        echo: Called with a line for each video.

    Returns:
        The videos; the scores; and, by method and ratio, the error if a ratio could not be reached.
    """
    videos: list[PlantedVideo] = []
    scores: Scores = {(method, ratio): [] for method in options for ratio in RATIOS}
    failed: dict[tuple[str, str], str] = {}
    for video in planted:
        for (method, ratio), case_scores in scores.items():
            kept = _compress(video, ratio, options[method])
            if isinstance(kept, str):
                failed[method, ratio] = kept
            else:
                case_scores += score_inserts(video, kept)
        videos.append(video)
        echo(f"video {len(videos)}, {video.name}: {len(video.inserts)} inserts, {len(video.tokens)} frames")
    return videos, scores, failed


def _compress(video: PlantedVideo, ratio: str, options: Mapping[str, Any]) -> floc.Kept | str:
    """Return what is kept, or the error if the ratio is below the method's minimum or a package is missing."""
    try:
        return floc.compress(video.tokens, ratio=ratio, **options)
    except (ValueError, ImportError) as error:
        return str(error)


def count_inserts(videos: Sequence[PlantedVideo]) -> list[dict[str, Any]]:
    """Return the number of videos, their mean length and the number of inserts, by source."""
    records = []
    for name in dict.fromkeys(video.name for video in videos):
        parts = [video for video in videos if video.name == name]
        kinds = [insert.kind for video in parts for insert in video.inserts]
        frames = round(float(np.mean([len(video.tokens) for video in parts])))
        counts = {kind: kinds.count(kind) for kind in KINDS}
        records.append({"source": name, "films": len(parts), "frames": frames, "inserts": counts})
    return records


def make_records(
    videos: Sequence[PlantedVideo], scores: Scores, failed: Mapping[tuple[str, str], str]
) -> list[dict[str, Any]]:
    """Return one record for each method, ratio and kind of insert: over all videos, and by source."""
    inserts = [(video.name, insert.kind) for video in videos for insert in video.inserts]
    sources = dict.fromkeys(video.name for video in videos)
    records: list[dict[str, Any]] = []
    for method, ratio in scores:
        case = {"method": method, "keep": ratio}
        if (method, ratio) in failed:
            records.append({**case, "failed": failed[method, ratio]})
            continue
        for source, kind in itertools.product([None, *sources], KINDS):
            places = [
                at for at, (name, insert_kind) in enumerate(inserts) if insert_kind == kind and source in (None, name)
            ]
            ours, reference = ([scores[name, ratio][at] for at in places] for name in (method, REFERENCE))
            records.append({**case, "source": source, "kind": kind, **summarize(ours, reference, REFERENCE)})
    return records


def _show_kept(kind: str, document: dict[str, Any]) -> str:
    """Show shares of inserts, and the paper's accuracy on the closest task."""
    task, part = PAPER_TASKS[kind]
    published = {(row["method"], row["ratio"]): f"{row['scores'][part]:.2f}" for row in paper.get_table("table6").rows}
    rows = [
        [*row, ", ".join(published[method, ratio] for ratio in PAPER_RATIOS if (method, ratio) in published)]
        for method, row in _make_rows(document, kind, "kept", show_percent)
    ]
    head = [f"{kind}s with a kept token", *RATIOS, f"paper: {task} at {', '.join(PAPER_RATIOS)}"]
    note = (
        f"Share of {_count(document, kind)} {kind}s that have a kept token, with its 95% interval (which has no width "
        "if all or none have one). After the bar: the share of background parts. Paper: accuracy on MLVU's "
        f"{task} with an LLM, in percent, if the paper states it. This is another scale, so compare only the order of "
        "methods."
    )
    return show_rows(head, rows, note, _explain_marks(document), *_list_notes(document))


def _show_similarity(kind: str, document: dict[str, Any]) -> str:
    rows = [row for _, row in _make_rows(document, kind, "similarity", show_cosine)]
    note = (
        "Highest cosine of each token with a kept token (for methods that merge, with a merged token), averaged over "
        f"the tokens of an insert, then over {_count(document, kind)} {kind}s, with the 95% interval. After the bar: "
        "the same for background parts. Keeping all tokens would give 1."
    )
    head = [f"similarity of {kind}s to kept tokens", *RATIOS]
    return show_rows(head, rows, note, _explain_marks(document), *_list_notes(document))


def _make_rows(document: dict[str, Any], kind: str, measure: str, show: Show) -> list[tuple[str, list[str]]]:
    """Return methods and the cells of their rows, best first."""
    by_case = _index_records(document, kind)
    best = {
        ratio: max(record[measure]["mean"] for (_, kept), record in by_case.items() if kept == ratio)
        for ratio in RATIOS
    }
    rows = []
    for method in _order_methods(document, kind, measure):
        row = [_label(method)]
        for ratio in RATIOS:
            record = by_case.get((method, ratio))
            row.append("-" if record is None else _make_cell(record, measure, show, best[ratio]))
        rows.append((method, row))
    return rows


def _make_cell(record: Mapping[str, Any], measure: str, show: Show, best: float) -> str:
    value, difference = record[measure], record[f"{measure}_above_{REFERENCE}"]
    shown = f"**{show(value)}**" if value["mean"] == best else show(value)
    background = show({"mean": record[f"background_{measure}"]["mean"]})
    return f"{shown}{show_arrow(difference['low'], difference['high'])} \\| {background}"


def _show_shares(document: dict[str, Any]) -> str:
    cases = list(itertools.product(KINDS, RATIOS))
    by_kind = {kind: _index_records(document, kind) for kind in KINDS}
    rows = []
    for method in _order_methods(document, CLIP, "share"):
        records = [by_kind[kind].get((method, ratio)) for kind, ratio in cases]
        rows.append([_label(method), *("-" if record is None else _make_share(record) for record in records)])
    head = ["tokens of inserts that are kept", *(f"{kind}s, {ratio}" for kind, ratio in cases)]
    note = (
        "Share of an insert's tokens that are kept, averaged over inserts. After the bar: the same for background "
        "parts. Of methods that merge, merged tokens count if more than half of their tokens are the insert's."
    )
    return show_rows(head, rows, note, *_list_notes(document))


def _make_share(record: Mapping[str, Any]) -> str:
    return f"{record['share']['mean']:.1%} \\| {record['background_share']['mean']:.1%}"


def _show_sources(document: dict[str, Any]) -> str:
    """Show each source by itself, at one ratio."""
    cases = list(itertools.product([record["source"] for record in document["films"]], KINDS))
    by_case = {(source, kind): _index_records(document, kind, source) for source, kind in cases}
    rows = []
    for method in _order_methods(document, OBJECT, "kept"):
        records = [by_case[case].get((method, ORDERED_BY)) for case in cases]
        cells = [f"{show_percent(row['kept'])}, {show_cosine(row['similarity'])}" if row else "-" for row in records]
        rows.append([_label(method), *cells])
    head = [f"kept {ORDERED_BY}", *(f"{source}, {kind}s" for source, kind in cases)]
    note = "Share of inserts with a kept token, and similarity to the kept tokens."
    return show_rows(head, rows, note, *_list_notes(document))


def _show_videos(document: dict[str, Any]) -> str:
    head = ["video", "parts used", "frames in a part, with inserts", *(f"{kind}s" for kind in KINDS)]
    rows = [
        [row["source"], f"{row['films']}", f"{row['frames']}", *(f"{row['inserts'][kind]}" for kind in KINDS)]
        for row in document["films"]
    ]
    return show_rows(head, rows)


def _index_records(
    document: dict[str, Any], kind: str, source: str | None = None
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the records of one kind of insert, by method and ratio."""
    return {
        (record["method"], record["keep"]): record
        for record in document["scores"]
        if "failed" not in record and (record["kind"], record["source"]) == (kind, source)
    }


def _order_methods(document: dict[str, Any], kind: str, measure: str) -> list[str]:
    """Return methods, best first; those that cannot reach the ratio last."""
    by_case = _index_records(document, kind)

    def rank(method: str) -> tuple[float, float]:
        record = by_case.get((method, ORDERED_BY))
        return (-1.0, 0.0) if record is None else (record[measure]["mean"], record["similarity"]["mean"])

    return sorted(dict.fromkeys(record["method"] for record in document["scores"]), key=rank, reverse=True)


def _count(document: dict[str, Any], kind: str) -> int:
    return sum(record["inserts"][kind] for record in document["films"])


def _label(method: str) -> str:
    return f"{method}, widen" if get_widen_options(method) else method


def _explain_marks(document: dict[str, Any]) -> str:
    """Explain bold, arrows and dashes."""
    reasons = {record["method"]: record["failed"] for record in document["scores"] if "failed" in record}
    dashes = "".join(f" A dash: {reason.rstrip('.')}." for reason in reasons.values())
    return (
        f"Bold: the highest. ↑ ↓: above or below {REFERENCE}, where the 95% interval of the difference, insert by "
        f"insert, excludes 0.{dashes}"
    )


def _list_notes(document: dict[str, Any]) -> list[str]:
    environment = show_environment(document, "numpy", "torch", "numba", "scikit-learn", "kmedoids", "av")
    return [describe_source(document), environment]


def _plot(document: dict[str, Any]) -> Figure:
    """Plot shares and similarity against the ratio, for both kinds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8.5), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    titles = {"kept": "at least one token kept", "similarity": "similarity to kept tokens"}
    for (measure, kind), axes in zip(itertools.product(titles, KINDS), panels.ravel(), strict=True):
        _draw(axes, _index_records(document, kind), measure)
        axes.set_title(f"{kind}s: {titles[measure]}")
    panels[0, 1].legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def _draw(axes: Axes, by_case: Mapping[tuple[str, str], dict[str, Any]], measure: str) -> None:
    """Draw a line for each method; those in colour are shifted sideways to separate their intervals."""
    others = [method for method in dict.fromkeys(method for method, _ in by_case) if method not in DRAWN]
    for method in (*others, *DRAWN):
        at = [number for number, ratio in enumerate(RATIOS) if (method, ratio) in by_case]
        values = [by_case[method, RATIOS[number]][measure] for number in at]
        means = [value["mean"] for value in values]
        if method in others:
            axes.plot(at, means, color=GREY, linewidth=1, label="all others" if method == others[0] else None)
            continue
        shift = 0.04 * (list(DRAWN).index(method) - len(DRAWN) / 2)
        x = [number + shift for number in at]
        axes.plot(x, means, color=DRAWN[method], label=method, marker="o", markersize=3, linewidth=1.3)
        low, high = ([value[end] for value in values] for end in ("low", "high"))
        axes.vlines(x, low, high, color=DRAWN[method], linewidth=1)
    axes.set_xticks(range(len(RATIOS)), RATIOS)
    axes.spines[["top", "right"]].set_visible(False)


TABLE = BenchTable(
    "needle",
    run,
    views={
        "needle-films": _show_videos,
        "needle-clips": partial(_show_kept, CLIP),
        "needle-clips-similarity": partial(_show_similarity, CLIP),
        "needle-objects": partial(_show_kept, OBJECT),
        "needle-objects-similarity": partial(_show_similarity, OBJECT),
        "needle-share": _show_shares,
        "needle-sources": _show_sources,
    },
    plots={"needle": _plot},
)
