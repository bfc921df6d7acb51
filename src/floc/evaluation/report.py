"""Write the report of an evaluation: every measured score next to the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any

from floc._text import markdown_table
from floc.evaluation import models, paper
from floc.evaluation.plan import FULL, Cell
from floc.evaluation.results import ResultFolder, write_json
from floc.evaluation.tasks import TASKS, title
from floc.files import write_atomic

NOTES = (
    "Accuracy is the percentage of all questions, with its standard error; the paper gives no error. lmms-eval's own "
    "number for MLVU is the mean of its sub-tasks; it is in the JSON file.",
    "The paper's number is shown for cells with the paper's settings: its frames, its blocks, all questions. The "
    "heading of a table names other weights and arguments. `floc-paper` is the paper's FLoC; `floc` goes beyond it and "
    "is compared with the same number.",
    "Methods that cannot reach a ratio as published use longer windows (`dycoke` and `longvu`, option `widen`). If "
    "that is not enough, as for short videos, they keep as few tokens as they can (`nearest`): see the tokens kept.",
)
_FORMATS = {"tokens": ",.0f", "kept": ",.0f", "coverage": ".4f", "select_s": ".3f", "total_s": ".2f"}


def build_report(folder: ResultFolder) -> dict[str, Any]:
    """Return all results, failures and notes, JSON-serialisable."""
    cells = sorted(map(_add_paper_scores, folder.read_results()), key=_get_order)
    failed = [{**item["cell"], "reason": item["failure"], "log": item["log"]} for item in folder.read_failures()]
    tables = {score["table"] for cell in cells for score in (cell, *cell["parts"].values())}
    assumed = models.list_assumptions(dict.fromkeys(cell["model"] for cell in cells))
    notes = [*NOTES, *(f"Assumed: {text}." for text in assumed)]
    for table in paper.tables().values():
        notes += [f"{table.title} of the paper: {note}" for note in table.notes if table.name in tables]
    return {"cells": cells, "failed": failed, "notes": notes}


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
    cells, failed = document["cells"], document["failed"]
    blocks = ["# Evaluation", *(_format_accuracies(cells) if cells else ["No cell is finished."])]
    if any(cell["parts"] for cell in cells):
        blocks += ["## Parts of the tasks", _format_parts(cells)]
    if any(cell["selection"] for cell in cells):
        blocks += ["## What was kept", _format_costs(cells)]
    if failed:
        head = ["model", "method", "kept", "task", "reason", "log"]
        rows = [[_get_size(cell) if name == "kept" else cell[name] for name in head] for cell in failed]
        escaped = [[text.replace("|", "\\|").replace("\n", " ") for text in row] for row in rows]
        blocks += ["## Failed", markdown_table(head, escaped)]
    blocks += ["## Notes", "\n".join(f"- {note}" for note in document["notes"])]
    return "\n\n".join(blocks) + "\n"


def _add_paper_scores(result: dict[str, Any]) -> dict[str, Any]:
    cell = Cell(**result["cell"])
    names = ("score", "error", "questions", "lmms_eval", "selection", "seconds", "date")
    parts = {name: {**part, **_compare(cell, part["score"], name)} for name, part in result["parts"].items()}
    numbers = {name: result[name] for name in names}
    return {**asdict(cell), **numbers, **_compare(cell, result["score"]), "parts": parts}


def _compare(cell: Cell, score: float, part: str | None = None) -> dict[str, Any]:
    published = cell.find_paper_score(part)
    if published is None:
        return {"paper": None, "table": None, "difference": None}
    return {"paper": published.value, "table": published.table, "difference": score - published.value}


def _format_accuracies(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a heading and a table per setting: a row per ratio and method, two columns per task."""
    settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        key = tuple(cell[name] for name in ("model", "weights", "max_frames", "fps", "limit", "more", "lmms"))
        settings.setdefault(key, []).append(cell)
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
        tasks = sorted({cell["task"] for cell in own}, key=_get_task_order)
        head = ["kept", "method"] + [name for task in tasks for name in (title(task), "paper")] + ["mean", "paper"]
        rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        for cell in own:
            method = cell["method"] if cell["block"] is None else f"{cell['method']}, T = {cell['block']}"
            rows.setdefault((_get_size(cell), method), {})[cell["task"]] = cell
        yield markdown_table(head, [[*row, *_format_row(by_task, tasks)] for row, by_task in rows.items()])


def _format_row(by_task: dict[str, dict[str, Any]], tasks: Sequence[str]) -> list[str]:
    """Return the score and the paper's score of each task, and the means of both if no task is missing."""
    texts = [text for task in tasks for text in _format_scores(by_task.get(task))]
    if len(by_task) < len(tasks):
        return [*texts, "", ""]
    published = [cell["paper"] for cell in by_task.values()]
    mean = f"{fmean(cell['score'] for cell in by_task.values()):.2f}"
    return [*texts, mean, "" if None in published else f"{fmean(published):.2f}"]


def _format_scores(cell: dict[str, Any] | None) -> tuple[str, str]:
    if cell is None:
        return "", ""
    score = f"{cell['score']:.2f}" + ("" if cell["error"] is None else f" ± {cell['error']:.2f}")
    return score, "" if cell["paper"] is None else f"{cell['paper']:.2f}"


def _format_parts(cells: Sequence[dict[str, Any]]) -> str:
    head = ["part", "model", "method", "kept", "measured", "paper", "questions"]
    rows = [
        [title(name), cell["model"], cell["method"], _get_size(cell), *_format_scores(part), f"{part['questions']:,}"]
        for cell in cells
        for name, part in cell["parts"].items()
    ]
    return markdown_table(head, rows)


def _format_costs(cells: Sequence[dict[str, Any]]) -> str:
    head = ["cell", "task", "tokens", "kept", "coverage", "selection, s", "question, s", "cell, min"]
    rows = []
    for cell in cells:
        costs = cell["selection"] or {}
        numbers = [f"{costs[name]:{form}}" if name in costs else "" for name, form in _FORMATS.items()]
        name = f"{cell['model']}, {cell['method']}, {_get_size(cell)}"
        rows.append([name, title(cell["task"]), *numbers, f"{cell['seconds'] / 60:.1f}"])
    return markdown_table(head, rows) + "\n\nMeans over the samples of a cell; for seconds, medians."


def _get_size(cell: dict[str, Any]) -> str:
    if cell["method"] == FULL:
        return "all"
    return cell["ratio"] if cell["budget"] is None else f"{cell['budget']:,} tokens"


def _get_order(cell: dict[str, Any]) -> tuple:
    """Sort by model, frames, kept tokens from most to least, method, task."""
    share = -Fraction(cell["ratio"]) if cell["budget"] is None else Fraction(-1, 2)
    model = list(models.MODELS).index(cell["model"])
    return model, cell["max_frames"], share, cell["method"], _get_task_order(cell["task"])


def _get_task_order(task: str) -> tuple[int, str]:
    names = list(TASKS)
    return (names.index(task) if task in names else len(names)), task
