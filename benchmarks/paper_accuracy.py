"""The paper's accuracy tables, with our numbers beside them where `floc eval` measured any.

Ours are read from the report of `floc eval -o benchmarks/results/eval`. A score counts only if it was measured with
the paper's settings: its frames, its blocks, all questions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.markdown import show_rows
from floc.evaluation import paper
from floc.evaluation.tasks import title

REPORT = Path("eval") / "report.json"  # in a folder of results
# (model, method, ratio, budget, task or part of one) -> percent
Scores = dict[tuple[Any, ...], float]


def _show(name: str, results: Path) -> str:
    """Return one table of the paper: for each task the paper's score, and ours if it was measured."""
    table = paper.get_table(name)
    ours = _read_scores(results / REPORT)
    tasks = list(dict.fromkeys(task for row in table.rows for task in row["scores"]))
    head = ["model", "method", "kept"] + [column for task in tasks for column in (title(task), "ours")]
    rows = [_make_row(row, tasks, ours) for row in table.rows]
    count = sum(_get_key(row, task) in ours for row in table.rows for task in row["scores"])
    measured = f"{count} {'number' if count == 1 else 'numbers'} measured" if count else "not measured yet"
    return show_rows(head, rows, f"Accuracy in percent; ours: {measured}.", *table.notes)


def _make_row(row: dict[str, Any], tasks: list[str], ours: Scores) -> list[str]:
    cells = [row["model"], row["method"], row["ratio"] if "ratio" in row else f"{row['budget']:,} tokens"]
    for task in tasks:
        score, measured = row["scores"].get(task), ours.get(_get_key(row, task))
        cells += ["" if score is None else f"{score:.2f}", "" if measured is None else f"{measured:.2f}"]
    return cells


def _get_key(row: dict[str, Any], task: str) -> tuple[Any, ...]:
    return (row["model"], row["method"], row.get("ratio"), row.get("budget"), task)


def _read_scores(report: Path) -> Scores:
    """Read the scores of a `floc eval` report that were measured with the paper's settings."""
    if not report.exists():
        return {}
    document = json.loads(report.read_text())
    if not isinstance(document, dict) or "runs" not in document:
        raise ValueError(f"{report}: not a report of `floc eval`; remove it, or run floc eval --output {report.parent}")
    scores: Scores = {}
    for run in document["runs"]:
        for task, result in {run["task"]: run, **run["parts"]}.items():
            if result["paper"] is None:
                continue
            key = _get_key(run, task)
            if key in scores:
                case = ", ".join(str(part) for part in key if part is not None)
                raise ValueError(
                    f"{report}: two runs, {scores[key]:.2f} and {result['score']:.2f}, for {case}: they differ in "
                    "weights or further arguments; keep one of them in this folder"
                )
            scores[key] = result["score"]
    return scores


VIEWS: dict[str, Callable[[Path], str]] = {f"paper-{name}": partial(_show, name) for name in paper.ACCURACY}
