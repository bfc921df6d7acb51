"""The table "needle": are short inserts in long footage still there after compression?

That is what the needle and ego tasks in the paper are about, measured on tokens alone: clips of other footage spliced
into a film, and small objects pasted over it for a moment (see `inserts`). For every method and ratio: of how many
inserts at least one token is kept, and how close an insert's tokens are to what is kept; and the same for a place of
the background with as many tokens in the same arrangement.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import floc
from benchmarks.inserts import CLIP, KINDS, OBJECT, Film, Score, interval, plant, score
from benchmarks.sources import Library, library, origin
from benchmarks.tables import Echo, Table, where
from floc import methods
from floc._format import markdown_table
from floc.evaluation import paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RATIOS = ("1/8", "1/16", "1/32", "1/64")
ORDERED_BY = "1/32"  # rows of the tables
FILMS = {"intel_person.mp4": 34, "vtest.avi": 34}  # a clip and an object of each of three others: 204 of each kind
MADE_UP_FILMS = {"made up 0": 2}
REFERENCE = "floc"  # that others are compared with, insert by insert
MEASURES = ("kept", "share", "similarity")
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

# the paper's tasks that inserts of each kind come closest to: its names, and those of its parts of MLVU
PAPER_TASKS = {CLIP: ("NQA", "mlvu_dev/needle"), OBJECT: ("ER", "mlvu_dev/ego")}
PAPER_RATIOS = ("1/8", "1/16", "1/32")

Scores = dict[tuple[str, str], list[Score]]  # by method and ratio, of all inserts


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Score every method at every ratio on every film."""
    shelf = library(small, echo)
    ways = {name: {"method": name, **widened(name)} for name in methods.names()}
    made = films(shelf, FILMS if shelf.is_real else MADE_UP_FILMS)
    planted, scores, failed = scored(made, ways, echo)
    return {**shelf.about(), "films": about(planted), "scores": records(planted, scores, failed)}


def films(shelf: Library, counts: Mapping[str, int]) -> Iterator[Film]:
    """Films with inserts, so many of each source, one at a time; always the same."""
    by_name = {source.name: source for source in shelf.sources}
    seeds = itertools.count()
    for name, count in counts.items():
        others = [source for source in shelf.sources if source.name != name]
        for _ in range(count):
            yield plant(by_name[name], others, shelf.encode, seed=next(seeds))


def widened(method: str) -> dict[str, Any]:
    """What a method is told so that it reaches any ratio."""
    return {"widen": True} if "widen" in methods.options(method) else {}


def scored(
    made: Iterator[Film], ways: Mapping[str, Mapping[str, Any]], echo: Echo
) -> tuple[list[Film], Scores, dict[tuple[str, str], str]]:
    """Compress every film in all ways at all ratios.

    Args:
        made: the films.
        ways: by name, what to give to `floc.compress`.
        echo: called with a line for each film.

    Returns:
        The films, the scores of what was kept, and why there are none where a ratio could not be reached.
    """
    planted: list[Film] = []
    scores: Scores = {(way, ratio): [] for way in ways for ratio in RATIOS}
    failed: dict[tuple[str, str], str] = {}
    for film in made:
        for (way, ratio), found in scores.items():
            kept = _compressed(film, ratio, ways[way])
            if isinstance(kept, str):
                failed[way, ratio] = kept
            else:
                found += score(film, kept)
        planted.append(film)
        echo(f"film {len(planted)}, {film.name}: {len(film.inserts)} inserts, {len(film.tokens)} frames")
    return planted, scores, failed


def _compressed(film: Film, ratio: str, options: Mapping[str, Any]) -> floc.Kept | str:
    """What was kept, or why nothing was."""
    try:
        return floc.compress(film.tokens, ratio=ratio, **options)
    except (ValueError, ImportError) as error:  # below its floor, or not installed
        return str(error)


def about(planted: Sequence[Film]) -> list[dict[str, Any]]:
    """How many films there are of each source, how long they are, and how many inserts of each kind they have."""
    found = []
    for name in dict.fromkeys(film.name for film in planted):
        mine = [film for film in planted if film.name == name]
        kinds = [insert.kind for film in mine for insert in film.inserts]
        frames = round(float(np.mean([len(film.tokens) for film in mine])))
        counts = {kind: kinds.count(kind) for kind in KINDS}
        found.append({"source": name, "films": len(mine), "frames": frames, "inserts": counts})
    return found


def records(planted: Sequence[Film], scores: Scores, failed: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
    """One record for each way, ratio and kind of insert: over all films, and over those of each source."""
    inserts = [(film.name, insert.kind) for film in planted for insert in film.inserts]
    sources = dict.fromkeys(film.name for film in planted)
    found: list[dict[str, Any]] = []
    for way, ratio in scores:
        case = {"method": way, "keep": ratio}
        if (way, ratio) in failed:
            found.append({**case, "failed": failed[way, ratio]})
            continue
        for source, kind in itertools.product([None, *sources], KINDS):
            places = [at for at, (film, its) in enumerate(inserts) if its == kind and source in (None, film)]
            mine = [scores[way, ratio][at] for at in places]
            reference = [scores[REFERENCE, ratio][at] for at in places]
            found.append({**case, "source": source, "kind": kind, **measured(mine, reference)})
    return found


def measured(scores: Sequence[Score], reference: Sequence[Score], than: str = REFERENCE) -> dict[str, Any]:
    """The means of all measures over some inserts, and how far they are above another method's, insert by insert."""
    found: dict[str, Any] = {"inserts": len(scores)}
    for name in MEASURES:
        mine, background, others = (
            np.array([float(getattr(each, attribute)) for each in of])
            for of, attribute in ((scores, name), (scores, f"background_{name}"), (reference, name))
        )
        found[name], found[f"background_{name}"] = interval(mine), interval(background)
        found[f"{name}_above_{than}"] = interval(mine - others)
    return found


def _kept_view(kind: str) -> Callable[[dict[str, Any]], str]:
    def view(document: dict[str, Any]) -> str:
        """Shares of inserts, with the paper's accuracy on the task that is closest."""
        task, part = PAPER_TASKS[kind]
        published = {(row["method"], row["ratio"]): f"{row['scores'][part]:.2f}" for row in paper.table("table6").rows}
        rows = [
            [*row, *(published.get((method, ratio), "") for ratio in PAPER_RATIOS)]
            for method, row in _rows(document, kind, "kept", percent)
        ]
        head = [f"{kind}s of which a token is kept", *RATIOS, *(f"paper, {task}, {ratio}" for ratio in PAPER_RATIOS)]
        note = (
            f"Share of {_count(document, kind)} {kind}s with its 95% interval (where all or none are kept it has no "
            "width), and after the bar the share of as many places of the background. Paper: accuracy on MLVU's "
            f"{task} with an LLM, in percent; another scale, so only the order of methods can be compared. "
        )
        return f"{markdown_table(head, rows)}\n\n{note}{_marks(document)} {_where(document)}"

    return view


def _similarity_view(kind: str) -> Callable[[dict[str, Any]], str]:
    def view(document: dict[str, Any]) -> str:
        """Closeness of inserts to what was kept."""
        rows = [row for _, row in _rows(document, kind, "similarity", cosine)]
        note = (
            "The highest cosine of each token with anything kept (where a method merges, with what it made), its mean "
            f"over the tokens of an insert, and the mean over {_count(document, kind)} {kind}s with its 95% interval; "
            "after the bar the same for places of the background. Keeping all tokens would be 1. "
        )
        head = [f"similarity of {kind}s to what is kept", *RATIOS]
        return f"{markdown_table(head, rows)}\n\n{note}{_marks(document)} {_where(document)}"

    return view


def _rows(
    document: dict[str, Any], kind: str, measure: str, show: Callable[[Mapping[str, float]], str]
) -> list[tuple[str, list[str]]]:
    """Methods and the cells of their rows, the highest first."""
    found = _of(document, kind)
    highest = {
        ratio: max(each[measure]["mean"] for (_, its), each in found.items() if its == ratio) for ratio in RATIOS
    }
    rows = []
    for method in _order(document, kind, measure):
        row = [_label(method)]
        for ratio in RATIOS:
            record = found.get((method, ratio))
            row.append("-" if record is None else _cell(record, measure, show, highest[ratio]))
        rows.append((method, row))
    return rows


def _cell(record: Mapping[str, Any], measure: str, show: Callable[[Mapping[str, float]], str], highest: float) -> str:
    mine, above = record[measure], record[f"{measure}_above_{REFERENCE}"]
    shown = f"**{show(mine)}**" if mine["mean"] == highest else show(mine)
    return f"{shown}{mark(above)} \\| {show({'mean': record[f'background_{measure}']['mean']})}"


def _share_view(document: dict[str, Any]) -> str:
    """How much of its inserts a method keeps, whatever it keeps of the rest."""
    by_kind = {kind: _of(document, kind) for kind in KINDS}
    cases = list(itertools.product(KINDS, RATIOS))
    rows = []
    for method in _order(document, CLIP, "share"):
        records = [by_kind[kind].get((method, ratio)) for kind, ratio in cases]
        rows.append([_label(method), *("-" if each is None else _over_share(each) for each in records)])
    head = ["tokens of inserts that are kept", *(f"{kind}s, {ratio}" for kind, ratio in cases)]
    note = (
        "Tokens kept of an insert over all it has, the mean over inserts; after the bar the same for places of the "
        "background. Of a method that merges, its tokens that are made of the insert's by more than half. "
    )
    return f"{markdown_table(head, rows)}\n\n{note}{_where(document)}"


def _over_share(record: Mapping[str, Any]) -> str:
    return f"{record['share']['mean']:.1%} \\| {record['background_share']['mean']:.1%}"


def _sources_view(document: dict[str, Any]) -> str:
    """Each source by itself, at one ratio."""
    cases = list(itertools.product([each["source"] for each in document["films"]], KINDS))
    by_case = {case: _of(document, case[1], source=case[0]) for case in cases}
    rows = []
    for method in _order(document, OBJECT, "kept"):
        cells = []
        for case in cases:
            record = by_case[case].get((method, ORDERED_BY))
            cells.append(f"{percent(record['kept'])}, {cosine(record['similarity'])}" if record else "-")
        rows.append([_label(method), *cells])
    head = [f"kept {ORDERED_BY}", *(f"{source}, {kind}s" for source, kind in cases)]
    note = f"Share of inserts of which a token is kept, and similarity to what is kept. {_where(document)}"
    return f"{markdown_table(head, rows)}\n\n{note}"


def _films_view(document: dict[str, Any]) -> str:
    """What the inserts were put into."""
    head = ["film", "parts of it", "frames in a part, with inserts", *(f"{kind}s" for kind in KINDS)]
    rows = [
        [each["source"], f"{each['films']}", f"{each['frames']}", *(f"{each['inserts'][kind]}" for kind in KINDS)]
        for each in document["films"]
    ]
    return markdown_table(head, rows)


def _of(document: dict[str, Any], kind: str, source: str | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    """Records of one kind of insert, by method and ratio."""
    return {
        (each["method"], each["keep"]): each
        for each in document["scores"]
        if "failed" not in each and (each["kind"], each["source"]) == (kind, source)
    }


def _order(document: dict[str, Any], kind: str, measure: str) -> list[str]:
    """Methods, the highest first, those last that cannot go so low."""
    found = _of(document, kind)

    def value(method: str) -> tuple[float, float]:
        record = found.get((method, ORDERED_BY))
        return (-1.0, 0.0) if record is None else (record[measure]["mean"], record["similarity"]["mean"])

    return sorted(dict.fromkeys(each["method"] for each in document["scores"]), key=value, reverse=True)


def mark(above: Mapping[str, float]) -> str:
    """An arrow where a difference is not 0 with all of its interval.

    >>> mark({"low": 0.1, "high": 0.2}), mark({"low": -0.1, "high": 0.2})
    (' ↑', '')
    """
    return " ↑" if above["low"] > 0 else " ↓" if above["high"] < 0 else ""


def percent(of: Mapping[str, float]) -> str:
    """A share with its interval, where it has one.

    >>> percent({"mean": 0.953, "low": 0.92, "high": 0.98}), percent({"mean": 0.5})
    ('95% (92-98)', '50%')
    """
    spread = f" ({100 * of['low']:.0f}-{100 * of['high']:.0f})" if "low" in of else ""
    return f"{of['mean']:.0%}{spread}"


def cosine(of: Mapping[str, float]) -> str:
    """A cosine with its interval, where it has one.

    >>> cosine({"mean": 0.953, "low": 0.92, "high": 0.98}), cosine({"mean": 0.5})
    ('.953 (.920-.980)', '.500')
    """
    spread = f" ({_decimals(of['low'])}-{_decimals(of['high'])})" if "low" in of else ""
    return f"{_decimals(of['mean'])}{spread}"


def _decimals(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _count(document: dict[str, Any], kind: str) -> int:
    return sum(each["inserts"][kind] for each in document["films"])


def _label(method: str) -> str:
    return f"{method}, widen" if widened(method) else method


def _marks(document: dict[str, Any]) -> str:
    """What bold, arrows and dashes mean."""
    reasons = {each["method"]: each["failed"] for each in document["scores"] if "failed" in each}
    dashes = "".join(f" A dash: {reason.rstrip('.')}." for reason in reasons.values())
    return (
        f"Bold: the highest. ↑ ↓: above or below {REFERENCE}, insert by insert, with all of the difference's 95% "
        f"interval.{dashes}"
    )


def _where(document: dict[str, Any]) -> str:
    return f"{origin(document)} {where(document, 'numpy', 'torch', 'numba', 'scikit-learn', 'kmedoids', 'av')}"


def _figure(document: dict[str, Any]) -> Figure:
    """Both measures against the ratio, for both kinds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8.5))
    figure.set_layout_engine("constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    for (measure, kind), axis in zip(itertools.product(("kept", "similarity"), KINDS), axes.ravel(), strict=True):
        _draw(axis, _of(document, kind), measure)
        axis.set_title(f"{kind}s: {'at least one token kept' if measure == 'kept' else 'similarity to what is kept'}")
    axes[0, 1].legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def _draw(axis: Axes, found: Mapping[tuple[str, str], dict[str, Any]], measure: str) -> None:
    """A line for each method; those in colour side by side, so that their intervals can be told apart."""
    others = [method for method in dict.fromkeys(method for method, _ in found) if method not in DRAWN]
    for method in (*others, *DRAWN):
        at = [number for number, ratio in enumerate(RATIOS) if (method, ratio) in found]
        means = [found[method, RATIOS[number]][measure]["mean"] for number in at]
        if method in others:
            axis.plot(at, means, color=GREY, linewidth=1, label="all others" if method == others[0] else None)
            continue
        aside = 0.04 * (list(DRAWN).index(method) - len(DRAWN) / 2)
        places = [number + aside for number in at]
        low, high = ([found[method, RATIOS[number]][measure][end] for number in at] for end in ("low", "high"))
        axis.plot(places, means, color=DRAWN[method], label=method, marker="o", markersize=3, linewidth=1.3)
        axis.vlines(places, low, high, color=DRAWN[method], linewidth=1)
    axis.set_xticks(range(len(RATIOS)), RATIOS)
    axis.spines[["top", "right"]].set_visible(False)


TABLE = Table(
    "needle",
    run,
    views={
        "needle-films": _films_view,
        "needle-clips": _kept_view(CLIP),
        "needle-clips-similarity": _similarity_view(CLIP),
        "needle-objects": _kept_view(OBJECT),
        "needle-objects-similarity": _similarity_view(OBJECT),
        "needle-share": _share_view,
        "needle-sources": _sources_view,
    },
    plots={"needle": _figure},
)
