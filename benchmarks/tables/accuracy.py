"""Table "accuracy": answers of the trained tiny model about films with known content, by method and ratio.

The model and the films are those of `examples/tiny_video_model`: a small model and drawn films. The table compares
methods with each other and says nothing about Video-MME.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import floc
from benchmarks.markdown import show_environment, show_rows
from benchmarks.registry import BenchTable, Echo, Unavailable
from benchmarks.scoring import get_widen_options, show_arrow
from floc import methods

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATIOS = ("1/4", "1/8", "1/16", "1/32", "1/64")
FILMS, SMALL_FILMS = 100, 2
BASE = "floc"
FULL = "all tokens"
CLUSTERINGS = {"kmeans": "sklearn", "kmedoids": "kmedoids"}  # computed by these packages on a CPU, else by torch
# options worth a row of their own
VARIANTS: dict[str, dict[str, Any]] = {
    "floc:detail=1": {"method": "floc", "detail": 1},
    "floc:horizon=none": {"method": "floc", "horizon": None},
    "floc:dedupe=2": {"method": "floc", "dedupe": 2},
}
# plotted, with the best others at 1/16
PLOTTED = {"floc": "#16a34a", "floc-paper": "#0ea5a4", "random": "#94a3b8"}
OTHERS = ("#ea580c", "#2563eb", "#ca8a04", "#9333ea")


def run(small: bool, echo: Echo, processes: int = 1, films: int | None = None) -> dict[str, Any]:
    """Measure the model of the repository."""
    try:
        from examples.tiny_video_model.checkpoint import CHECKPOINT, check_files, describe_checkpoint

        check_files(CHECKPOINT)
    except (ImportError, ValueError) as error:
        raise Unavailable(f"the trained model cannot be loaded: {error}") from error
    sums = describe_checkpoint(CHECKPOINT)["checkpoint"]
    return {"checkpoint": sums, **measure_model(CHECKPOINT, small, echo, processes, films)}


def measure_model(source: Path, small: bool, echo: Echo, processes: int, films: int | None = None) -> dict[str, Any]:
    """Ask a model the same questions about the same films with all tokens and with each method's tokens.

    Args:
        source: Its checkpoint.
        small: Ask about few films.
        echo: Called with each line to show.
        processes: That measure methods side by side.
        films: To ask about, in place of FILMS.
    """
    from examples.tiny_video_model.exam import TEST_SEED

    films = films or (SMALL_FILMS if small else FILMS)
    names = {FULL: None, **{name: {"method": name} for name in methods.list_methods()}, **VARIANTS}
    counts: dict[tuple[str, str], np.ndarray] = {}
    notes: dict[str, str] = {}
    with start_graders(source, films, processes) as grade:
        for name, (graded, remarks) in zip(names, grade(names.values()), strict=True):
            counts |= {(name, ratio): right for ratio, right in graded.items()}
            notes |= remarks
            echo(f"{name}: {len(graded)} of {1 if name == FULL else len(RATIOS)} ratios")
    return {
        "seed": TEST_SEED,
        "films": films,
        "questions": int(counts[FULL, "1"][..., 1].sum()),
        "notes": notes,
        "accuracy": [make_record(name, ratio, counts) for name, ratio in counts],
    }


Graded: TypeAlias = tuple[dict[str, np.ndarray], dict[str, str]]  # counts [films, kinds, 2] by ratio, remarks
_grader: Grader  # of this process


@contextmanager
def start_graders(
    source: Path, films: int, processes: int
) -> Iterator[Callable[[Iterable[dict[str, Any] | None]], Iterator[Graded]]]:
    """Yield a function that grades methods, given their options, in order; None: all tokens."""
    if processes == 1:
        grader = Grader(source, films)
        yield lambda all_options: map(grader.grade, all_options)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _start_grader, (source, films)) as pool:
        yield lambda all_options: pool.map(_grade, all_options)


def _start_grader(source: Path, films: int) -> None:
    import torch

    global _grader
    torch.set_num_threads(1)
    _grader = Grader(source, films)


def _grade(options: dict[str, Any] | None) -> Graded:
    return _grader.grade(options)


class Grader:
    """A model, and films with questions about them."""

    def __init__(self, source: Path, films: int) -> None:
        from examples.tiny_video_model.checkpoint import describe_checkpoint, load_answerer
        from examples.tiny_video_model.exam import Examiner, make_exams
        from examples.tiny_video_model.model import CELL

        training = describe_checkpoint(source)["training"]
        size = {"height": training["rows"] * CELL, "width": training["columns"] * CELL}
        model, tokenizer = load_answerer(source)
        self.examiner = Examiner(model, tokenizer, **size)
        self.exams = list(make_exams(model, films, **size))

    def grade(self, options: dict[str, Any] | None) -> Graded:
        """Return right answers and questions at each ratio that a method can keep, and what it did without.

        A method that draws at random has another seed for every film.
        """
        if options is None:
            return {"1": np.stack([self.examiner.grade(exam, None) for exam in self.exams])}, {}
        notes: dict[str, str] = {}
        counts = {ratio: self._grade_at(ratio, options, notes) for ratio in RATIOS}
        return {ratio: right for ratio, right in counts.items() if right is not None}, notes

    def _grade_at(self, ratio: str, options: dict[str, Any], notes: dict[str, str]) -> np.ndarray | None:
        method = options["method"]
        if method in CLUSTERINGS and importlib.util.find_spec(CLUSTERINGS[method]) is None:
            options = {**options, "backend": "torch"}
            notes[method] = f"{CLUSTERINGS[method]} is not installed, so torch computed the clusters"
        draws = "seed" in methods.list_options(method)
        graded: list[np.ndarray] = []
        for exam in self.exams:
            seed: dict[str, Any] = {"seed": exam.film.seed} if draws else {}
            try:
                kept = floc.compress(exam.tokens, ratio=ratio, **options, **seed, **get_widen_options(method))
            except (ImportError, ValueError) as error:
                if graded:  # all films have as many tokens
                    raise
                notes[f"{method} at {ratio}"] = str(error)
                return None
            if kept.settings.get("fallback"):
                notes[method] = str(kept.settings["fallback"])
            graded.append(self.examiner.grade(exam, kept))
        return np.stack(graded)


def make_record(name: str, ratio: str, counts: dict[tuple[str, str], np.ndarray]) -> dict[str, Any]:
    """Return a method's accuracy at a ratio, and its difference to BASE over the same films."""
    from examples.tiny_video_model.exam import compute_accuracy, estimate_interval
    from examples.tiny_video_model.questions import GROUPS, KINDS

    own, base = counts[name, ratio], counts.get((BASE, ratio))
    kinds, groups, mean = compute_accuracy(own.sum(0))
    record: dict[str, Any] = {
        "method": name,
        "keep": ratio,
        "mean": float(mean),
        "interval": estimate_interval(own),
        "groups": dict(zip(GROUPS, map(float, groups), strict=True)),
        "kinds": dict(zip(KINDS, map(float, kinds), strict=True)),
    }
    if base is not None and name != BASE:
        record["difference"] = float(mean - compute_accuracy(base.sum(0))[2])
        record["difference_interval"] = estimate_interval(own, base)
    return record


def _list_names(document: dict[str, Any]) -> list[str]:
    """Return the methods, the best at 1/16 first."""
    scores = {record["method"]: record["mean"] for record in document["accuracy"] if record["keep"] == "1/16"}
    names = dict.fromkeys(record["method"] for record in document["accuracy"] if record["keep"] != "1")
    return sorted(names, key=lambda name: -scores.get(name, 0.0))


def _find(document: dict[str, Any], name: str, ratio: str) -> dict[str, Any] | None:
    records = (record for record in document["accuracy"] if (record["method"], record["keep"]) == (name, ratio))
    return next(records, None)


def show_cell(record: dict[str, Any] | None) -> str:
    """Format accuracy in percent; an arrow marks a difference to BASE whose interval excludes 0."""
    if record is None:
        return "-"
    return f"{100 * record['mean']:.1f}{show_arrow(*record.get('difference_interval', (0.0, 0.0)))}"


def show_methods(document: dict[str, Any]) -> str:
    """Return the accuracy of every method at every ratio as Markdown."""
    full = document["accuracy"][0]
    tokens = document.get("tokens", 768)
    rows = [[FULL] + [f"{100 * full['mean']:.1f}"] * len(RATIOS)]
    for name in _list_names(document):
        mark = " *" if name in document["notes"] else ""
        rows.append([name + mark, *(show_cell(_find(document, name, ratio)) for ratio in RATIOS)])
    base = _find(document, BASE, "1/16") or full
    half = 50 * (base["interval"][1] - base["interval"][0])
    note = (
        f"Right answers in percent, the mean of the three groups of questions; {document['films']} films of 64 frames "
        f"({tokens} visual tokens), {document['questions']:,} questions. The 95% interval of {BASE} at 1/16 is "
        f"±{half:.1f}. ↑ ↓: above or below {BASE}, where the 95% interval of the difference, film by film, excludes 0. "
        "Among so many comparisons, several arrows are expected by chance. A dash: the method cannot keep so few "
        "tokens. An asterisk: the method ran without the attention, the question or other features that it can use. "
        "The defaults of `floc` were chosen on other films of this kind, those of the other methods were not. Ordered "
        "by the accuracy at 1/16. The model has five million parameters and the films are drawn; this is not Video-MME."
    )
    return show_rows(["method", *RATIOS], rows, note, _show_machine(document))


def _show_kinds(document: dict[str, Any]) -> str:
    rows = []
    for name, ratio in [(FULL, "1"), *((name, ratio) for ratio in RATIOS for name in _list_plotted(document))]:
        record = _find(document, name, ratio)
        if record is not None:
            values = [*record["groups"].values(), *record["kinds"].values()]
            rows.append([name, ratio, f"{100 * record['mean']:.1f}", *(f"{100 * value:.0f}" for value in values)])
    full = document["accuracy"][0]
    return show_rows(["method", "kept", "mean", *full["groups"], *full["kinds"]], rows, "Right answers in percent.")


def _show_differences(document: dict[str, Any]) -> str:
    rows = []
    for name in _list_names(document):
        if name == BASE:
            continue
        cells = []
        for ratio in RATIOS:
            record = _find(document, name, ratio)
            if record is None:
                cells.append("-")
                continue
            low, high = record["difference_interval"]
            cells.append(f"{100 * record['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")
        rows.append([name, *cells])
    note = f"Difference to {BASE} in percentage points, with the 95% interval over films (bootstrap, the same films)."
    return show_rows(["method", *RATIOS], rows, note)


def _list_plotted(document: dict[str, Any]) -> dict[str, str]:
    """Return the methods to plot and their colours: ours, random, and the best others at 1/16."""
    others = [name for name in _list_names(document) if name not in PLOTTED and not name.startswith(BASE)]
    return {**PLOTTED, **dict(zip(others, OTHERS, strict=False))}


def _show_machine(document: dict[str, Any]) -> str:
    return show_environment(document, "numpy", "torch", "transformers", "numba", "scikit-learn", "kmedoids")


def _plot(document: dict[str, Any]) -> Figure:
    """Plot accuracy against the ratio."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(RATIOS))
    axes.axhline(100 * document["accuracy"][0]["mean"], color="#111827", linewidth=1, linestyle=":", label=FULL)
    for name, colour in _list_plotted(document).items():
        records = [(place, _find(document, name, ratio)) for place, ratio in enumerate(RATIOS)]
        shown = [(place, record) for place, record in records if record is not None]
        x = [place for place, _ in shown]
        axes.plot(x, [100 * record["mean"] for _, record in shown], "o-", color=colour, label=name, markersize=4)
        low, high = zip(*(record["interval"] for _, record in shown), strict=True)
        axes.fill_between(x, 100 * np.array(low), 100 * np.array(high), color=colour, alpha=0.1, linewidth=0)
    axes.set_xticks(places, RATIOS)
    axes.set_xlabel("tokens kept")
    axes.set_ylabel("right answers, percent (mean of groups)")
    axes.legend(frameon=False, loc="lower left", fontsize=8)
    axes.grid(alpha=0.25)
    return figure


def _show_line(document: dict[str, Any]) -> str:
    """Return one sentence for the README."""
    full = document["accuracy"][0]["mean"]
    shares = {ratio: _find(document, BASE, ratio) or {} for ratio in ("1/8", "1/16", "1/32")}
    parts = [f"{100 * record['mean'] / full:.0f}% at {ratio}" for ratio, record in shares.items()]
    return (
        f"A tiny trained model is right about drawn films in {100 * full:.0f}% of its answers, and keeps "
        f"{', '.join(parts)} of that ([accuracy](docs/background/accuracy.md)): a comparison of methods, not "
        "Video-MME. Large models were not run; the [paper's numbers](docs/background/paper.md) are labelled as such."
    )


VIEWS = {
    "accuracy-line": _show_line,
    "accuracy": show_methods,
    "accuracy-differences": _show_differences,
    "accuracy-kinds": _show_kinds,
}
TABLE = BenchTable("accuracy", run, VIEWS, {"accuracy": _plot})
