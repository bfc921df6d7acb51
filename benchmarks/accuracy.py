"""The paper's tables of accuracy, with a place for ours: nothing here is measured, `floc eval` does that.

Ours are read from the report of `floc eval --out benchmarks/results/eval`, where there is one. A number counts where
its cell has the paper's settings: its frames, its blocks, all questions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from floc._format import markdown_table
from floc.evaluation import paper
from floc.evaluation.tasks import title

REPORT = Path("eval") / "report.json"  # in a folder of results
# (model, method, ratio, budget, task or part of one) -> percent
Scores = dict[tuple[Any, ...], float]


def _view(name: str, results: Path) -> str:
    """One table of the paper: two columns for a task, the paper's and ours."""
    table = paper.table(name)
    ours = _measured(results / REPORT)
    tasks = list(dict.fromkeys(task for row in table.rows for task in row["scores"]))
    head = ["model", "method", "kept"] + [each for task in tasks for each in (title(task), "ours")]
    rows = [_row(row, tasks, ours) for row in table.rows]
    found = sum(_key(row, task) in ours for row in table.rows for task in row["scores"])
    return "\n\n".join([markdown_table(head, rows), " ".join([_told(found), *table.notes])])


def _row(row: dict[str, Any], tasks: list[str], ours: Scores) -> list[str]:
    cells = [row["model"], row["method"], row["ratio"] if "ratio" in row else f"{row['budget']:,} tokens"]
    for task in tasks:
        score, measured = row["scores"].get(task), ours.get(_key(row, task))
        cells += ["" if score is None else f"{score:.2f}", "" if measured is None else f"{measured:.2f}"]
    return cells


def _key(row: dict[str, Any], task: str) -> tuple[Any, ...]:
    return (row["model"], row["method"], row.get("ratio"), row.get("budget"), task)


def _measured(report: Path) -> Scores:
    """What a report of `floc eval` has with the paper's settings."""
    if not report.exists():
        return {}
    document = json.loads(report.read_text())
    if not isinstance(document, dict) or "cells" not in document:
        raise ValueError(f"{report}: not a report of `floc eval`; remove it, or run floc eval --out {report.parent}")
    scores: Scores = {}
    for cell in document["cells"]:
        for task, told in {cell["task"]: cell, **cell["parts"]}.items():
            if told["paper"] is None:
                continue
            key = _key(cell, task)
            if key in scores:
                what = ", ".join(str(each) for each in key if each is not None)
                raise ValueError(
                    f"{report}: two cells, {scores[key]:.2f} and {told['score']:.2f}, for {what}: they differ in "
                    "weights or further arguments; keep one of them in this folder"
                )
            scores[key] = told["score"]
    return scores


def _told(found: int) -> str:
    numbers = "1 number" if found == 1 else f"{found} numbers"
    return (
        f"Accuracy in percent; ours: {numbers} measured." if found else "Accuracy in percent; ours: not measured yet."
    )


VIEWS: dict[str, Callable[[Path], str]] = {f"paper-{name}": partial(_view, name) for name in paper.ACCURACY}
