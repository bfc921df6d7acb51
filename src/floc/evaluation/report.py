"""Write the report of an evaluation: every measured score next to the paper's."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any

from floc._atomic import write_atomic
from floc._text import markdown_table
from floc.evaluation import models, paper
from floc.evaluation.plan import FULL, EvalRun
from floc.evaluation.results import ResultFolder, write_json
from floc.evaluation.tasks import TASKS, title

NOTES = (
    "Accuracy is the percentage of all questions, with its standard error; the paper gives no error. lmms-eval's own "
    "number for MLVU is the mean of its sub-tasks; it is in the JSON file.",
    "The paper's number is shown for runs with the paper's settings: its frames, its blocks, all questions. The "
    "heading of a table names other weights and arguments. `floc-paper` is the paper's FLoC; `floc` goes beyond it and "
    "is compared with the same number.",
    "Methods that cannot reach a ratio as published use longer windows (`dycoke` and `longvu`, option `widen`). If "
    "that is not enough, as for short videos, they keep as few tokens as they can (`nearest`): see the tokens kept.",
)
_FORMATS = {"tokens": ",.0f", "kept": ",.0f", "coverage": ".4f", "select_s": ".3f", "total_s": ".2f"}


def build_report(folder: ResultFolder) -> dict[str, Any]:
    """Return all results, failures and notes, JSON-serialisable."""
    runs = sorted(map(_add_paper_scores, folder.read_results()), key=_get_order)
    failed = [{**item["run"], "reason": item["failure"], "log": item["log"]} for item in folder.read_failures()]
    tables = {score["table"] for run in runs for score in (run, *run["parts"].values())}
    assumed = models.list_assumptions(dict.fromkeys(run["model"] for run in runs))
    notes = [*NOTES, *(f"Assumed: {text}." for text in assumed)]
    for table in paper.get_tables().values():
        notes += [f"{table.title} of the paper: {note}" for note in table.notes if table.name in tables]
    return {"runs": runs, "failed": failed, "notes": notes}


def write_report(folder: ResultFolder) -> tuple[Path, Path]:
    """Write report.md and report.json."""
    document = build_report(folder)
    text = format_report(document)
    page, data = folder.path / "report.md", folder.path / "report.json"
    write_atomic(page, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    write_json(data, document)
    return page, data


def format_report(document: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    runs, failed = document["runs"], document["failed"]
    blocks = ["# Evaluation", *(_format_accuracies(runs) if runs else ["No run is finished."])]
    if any(run["parts"] for run in runs):
        blocks += ["## Parts of the tasks", _format_parts(runs)]
    if any(run["selection"] for run in runs):
        blocks += ["## What was kept", _format_costs(runs)]
    if failed:
        head = ["model", "method", "kept", "task", "reason", "log"]
        rows = [[_get_size(run) if name == "kept" else run[name] for name in head] for run in failed]
        escaped = [[text.replace("|", "\\|").replace("\n", " ") for text in row] for row in rows]
        blocks += ["## Failed", markdown_table(head, escaped)]
    blocks += ["## Notes", "\n".join(f"- {note}" for note in document["notes"])]
    return "\n\n".join(blocks) + "\n"


def _add_paper_scores(result: dict[str, Any]) -> dict[str, Any]:
    run = EvalRun(**result["run"])
    names = ("score", "error", "questions", "lmms_eval", "selection", "seconds", "date")
    parts = {name: {**part, **_compare(run, part["score"], name)} for name, part in result["parts"].items()}
    numbers = {name: result[name] for name in names}
    return {**asdict(run), **numbers, **_compare(run, result["score"]), "parts": parts}


def _compare(run: EvalRun, score: float, part: str | None = None) -> dict[str, Any]:
    published = run.find_paper_score(part)
    if published is None:
        return {"paper": None, "table": None, "difference": None}
    return {"paper": published.value, "table": published.table, "difference": score - published.value}


def _format_accuracies(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a heading and a table per setting: a row per ratio and method, two columns per task."""
    settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        key = tuple(run[name] for name in ("model", "weights", "max_frames", "fps", "limit", "more", "lmms"))
        settings.setdefault(key, []).append(run)
    for (model, weights, frames, fps, limit, more, lmms), own in settings.items():
        parts = [
            model if weights == models.get(model).repository else f"{model} in {weights}",
            f"up to {frames:,} frames",
            f"{fps:g} per second" if fps else "",
            more,
            f"lmms-eval {lmms}" if lmms else "",
            f"the first {limit} questions only" if limit else "",
        ]
        yield "## " + ", ".join(filter(None, parts))
        tasks = sorted({run["task"] for run in own}, key=_get_task_order)
        head = ["kept", "method"] + [name for task in tasks for name in (title(task), "paper")] + ["mean", "paper"]
        rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        for run in own:
            method = run["method"] if run["block"] is None else f"{run['method']}, T = {run['block']}"
            rows.setdefault((_get_size(run), method), {})[run["task"]] = run
        yield markdown_table(head, [[*row, *_format_row(by_task, tasks)] for row, by_task in rows.items()])


def _format_row(by_task: dict[str, dict[str, Any]], tasks: Sequence[str]) -> list[str]:
    """Return the score and the paper's score of each task, and the means of both if no task is missing."""
    texts = [text for task in tasks for text in _format_scores(by_task.get(task))]
    if len(by_task) < len(tasks):
        return [*texts, "", ""]
    published = [run["paper"] for run in by_task.values()]
    mean = f"{fmean(run['score'] for run in by_task.values()):.2f}"
    return [*texts, mean, "" if None in published else f"{fmean(published):.2f}"]


def _format_scores(run: dict[str, Any] | None) -> tuple[str, str]:
    if run is None:
        return "", ""
    score = f"{run['score']:.2f}" + ("" if run["error"] is None else f" ± {run['error']:.2f}")
    return score, "" if run["paper"] is None else f"{run['paper']:.2f}"


def _format_parts(runs: Sequence[dict[str, Any]]) -> str:
    head = ["part", "model", "method", "kept", "measured", "paper", "questions"]
    rows = [
        [title(name), run["model"], run["method"], _get_size(run), *_format_scores(part), f"{part['questions']:,}"]
        for run in runs
        for name, part in run["parts"].items()
    ]
    return markdown_table(head, rows)


def _format_costs(runs: Sequence[dict[str, Any]]) -> str:
    head = ["run", "task", "tokens", "kept", "coverage", "selection, s", "question, s", "run, min"]
    rows = []
    for run in runs:
        costs = run["selection"] or {}
        numbers = [f"{costs[name]:{form}}" if name in costs else "" for name, form in _FORMATS.items()]
        name = f"{run['model']}, {run['method']}, {_get_size(run)}"
        rows.append([name, title(run["task"]), *numbers, f"{run['seconds'] / 60:.1f}"])
    return markdown_table(head, rows) + "\n\nMeans over the samples of a run; for seconds, medians."


def _get_size(run: dict[str, Any]) -> str:
    if run["method"] == FULL:
        return "all"
    return run["ratio"] if run["budget"] is None else f"{run['budget']:,} tokens"


def _get_order(run: dict[str, Any]) -> tuple:
    """Sort by model, frames, kept tokens from most to least, method, task."""
    share = -Fraction(run["ratio"]) if run["budget"] is None else Fraction(-1, 2)
    model = list(models.MODELS).index(run["model"])
    return model, run["max_frames"], share, run["method"], _get_task_order(run["task"])


def _get_task_order(task: str) -> tuple[int, str]:
    names = list(TASKS)
    return (names.index(task) if task in names else len(names)), task
