"""The report on an evaluation, from its result files: each measured number beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any

from floc._format import markdown_table
from floc.evaluation import models, paper
from floc.evaluation.folder import Folder, write_json
from floc.evaluation.plan import FULL, Cell
from floc.evaluation.tasks import TASKS, title
from floc.files import write_atomic

NOTES = (
    "Accuracy in percent of all questions, with the standard error of that share; the paper gives none. lmms-eval's "
    "own number for MLVU is the mean of its sub-tasks, and is in the JSON.",
    "The paper's number stands beside cells with the paper's settings: its frames, its blocks, all questions. "
    "Weights and further arguments are those that the heading of a table tells. "
    "`floc-paper` is the paper's FLoC; `floc` goes beyond it, and is held against the same number.",
    "Methods that cannot go down to a ratio as published take longer windows (`dycoke` and `longvu`, by `widen`), and "
    "where that is not enough, as with short films, keep their fewest (`nearest`): see the tokens kept.",
)


def make(folder: Folder) -> dict[str, Any]:
    """All there is to report, as JSON takes it."""
    cells = [_record(each) for each in folder.results()]
    cells.sort(key=_place)
    failed = [{**each["cell"], "reason": each["failure"], "log": each["log"]} for each in folder.failures()]
    held = {each["model"] for each in cells}
    assumed = [f"Assumed of {each}." for each in models.assumptions(each for each in models.MODELS if each in held)]
    used = {told["table"] for each in cells for told in (each, *each["parts"].values())}
    printed = [
        f"{table.title} of the paper: {note}"
        for table in paper.tables().values()
        if table.name in used
        for note in table.notes
    ]
    return {"cells": cells, "failed": failed, "notes": [*NOTES, *assumed, *printed]}


def write(folder: Folder) -> tuple[Path, Path]:
    """Put report.md and report.json in place."""
    document = make(folder)
    pages = folder.path / "report.md", folder.path / "report.json"
    text = markdown(document)
    write_atomic(pages[0], lambda temporary: temporary.write_text(text, encoding="utf-8"))
    write_json(pages[1], document)
    return pages


def markdown(document: dict[str, Any]) -> str:
    """The report as a page."""
    parts = ["# Evaluation", *_accuracies(document["cells"])]
    if any(each["parts"] for each in document["cells"]):
        parts += ["## Parts of the tasks", _parts(document["cells"])]
    if any(each["selection"] for each in document["cells"]):
        parts += ["## What was kept", _kept(document["cells"])]
    if document["failed"]:
        rows = [
            [each["model"], each["method"], _dial(each), each["task"], each["reason"], each["log"]]
            for each in document["failed"]
        ]
        parts += [
            "## Failed",
            markdown_table(
                ["model", "method", "kept", "task", "why", "log"], [[_safe(cell) for cell in row] for row in rows]
            ),
        ]
    if not document["cells"]:
        parts.insert(1, "No cell is finished.")
    parts += ["## Notes", "\n".join(f"- {each}" for each in document["notes"])]
    return "\n\n".join(parts) + "\n"


def _record(result: dict[str, Any]) -> dict[str, Any]:
    """A finished cell, with the paper's numbers for it."""
    cell = Cell(**result["cell"])
    own = {name: result[name] for name in ("score", "error", "questions", "lmms_eval", "selection", "seconds", "date")}
    parts = {name: {**each, **_beside(each["score"], cell.published(name))} for name, each in result["parts"].items()}
    return {**cell.settings, **own, **_beside(result["score"], cell.published()), "parts": parts}


def _beside(score: float, published: paper.Published | None) -> dict[str, Any]:
    if published is None:
        return {"paper": None, "table": None, "difference": None}
    return {"paper": published.value, "table": published.table, "difference": score - published.value}


def _accuracies(cells: Sequence[dict[str, Any]]) -> Iterable[str]:
    """A table for each model and way of reading videos: a row for a method and a ratio, two columns for a task."""
    for setting in dict.fromkeys(_setting(each) for each in cells):
        model, weights, frames, fps, limit, more, lmms = setting
        mine = [each for each in cells if _setting(each) == setting]
        tasks = sorted({each["task"] for each in mine}, key=_task_place)
        rate = f", {fps:g} a second" if fps else ""
        few = f", the first {limit} questions only" if limit else ""
        elsewhere = "" if weights == models.get(model).repository else f" in {weights}"
        told = (f", {more}" if more else "") + (f", lmms-eval {lmms}" if lmms else "")
        yield f"## {model}{elsewhere}, up to {frames:,} frames{rate}{told}{few}"
        head = ["kept", "method"] + [each for task in tasks for each in (title(task), "paper")] + ["mean", "paper"]
        rows = dict.fromkeys((_dial(each), each["method"], each["block"]) for each in mine)
        yield markdown_table(head, [_row(row, [each for each in mine if _of(each) == row], tasks) for row in rows])


def _row(row: tuple[str, str, str | None], cells: Sequence[dict[str, Any]], tasks: Sequence[str]) -> list[str]:
    dial, method, block = row
    by_task = {each["task"]: each for each in cells}
    told = [dial, method if block is None else f"{method}, T = {block}"]
    for task in tasks:
        told += [_score(by_task.get(task)), _paper(by_task.get(task))]
    whole = len(by_task) == len(tasks)
    papers = [each["paper"] for each in cells]
    told.append(f"{fmean(each['score'] for each in cells):.2f}" if whole else "")
    told.append(f"{fmean(papers):.2f}" if whole and None not in papers else "")
    return told


def _score(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    return f"{cell['score']:.2f}" + ("" if cell["error"] is None else f" ± {cell['error']:.2f}")


def _paper(cell: dict[str, Any] | None) -> str:
    return "" if cell is None or cell["paper"] is None else f"{cell['paper']:.2f}"


def _parts(cells: Sequence[dict[str, Any]]) -> str:
    head = ["part", "model", "method", "kept", "measured", "paper", "questions"]
    rows = [
        [title(name), each["model"], each["method"], _dial(each), _score(part), _paper(part), f"{part['questions']:,}"]
        for each in cells
        for name, part in each["parts"].items()
    ]
    return markdown_table(head, rows)


def _kept(cells: Sequence[dict[str, Any]]) -> str:
    head = ["cell", "task", "tokens", "kept", "coverage", "choosing, s", "a question, s", "the cell, min"]
    rows = []
    for each in cells:
        means = each["selection"] or {}
        numbers = [f"{means[name]:{form}}" if name in means else "" for name, form in _FORMS.items()]
        name = f"{each['model']}, {each['method']}, {_dial(each)}"
        rows.append([name, title(each["task"]), *numbers, f"{each['seconds'] / 60:.1f}"])
    return markdown_table(head, rows) + "\n\nMeans over the samples of a cell; of seconds, the median."


_FORMS = {"tokens": ",.0f", "kept": ",.0f", "coverage": ".4f", "select_s": ".3f", "total_s": ".2f"}


def _dial(cell: dict[str, Any]) -> str:
    if cell["method"] == FULL:
        return "all"
    return cell["ratio"] if cell["budget"] is None else f"{cell['budget']:,} tokens"


def _setting(cell: dict[str, Any]) -> tuple[Any, ...]:
    """All that cells of one table share."""
    return tuple(cell[name] for name in ("model", "weights", "max_frames", "fps", "limit", "more", "lmms"))


def _of(cell: dict[str, Any]) -> tuple[str, str, str | None]:
    return _dial(cell), cell["method"], cell["block"]


def _place(cell: dict[str, Any]) -> tuple:
    """The order of a report: by model, all tokens first, then by what is kept, the most first, then by method."""
    share = -Fraction(cell["ratio"]) if cell["budget"] is None else Fraction(-1, 2)
    known = list(models.MODELS)
    return known.index(cell["model"]), cell["max_frames"], share, cell["method"], _task_place(cell["task"])


def _task_place(task: str) -> tuple[int, str]:
    known = list(TASKS)
    return (known.index(task) if task in known else len(known)), task


def _safe(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")
