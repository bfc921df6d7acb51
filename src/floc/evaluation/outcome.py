"""What a cell's run wrote, read back: scores from the answers, and what was kept of the tokens.

lmms-eval writes DATE_results.json and DATE_samples_TASK.jsonl somewhere below its output folder. It ends with status 0
even where it failed, so a run without results is a failure, whatever its status.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

from floc.evaluation.tasks import Task, find

# what `floc.integrations.lmms_eval` notes of a sample; of times the median, since the first sample compiles
NOTED: dict[str, Callable[[list[float]], float]] = {
    "tokens": fmean,
    "kept": fmean,
    "coverage": fmean,
    "select_s": median,
    "total_s": median,
}
REASON_CHARACTERS = 400
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class NoResults(ValueError):
    """A run wrote no results."""


def read(folder: Path, task: str) -> dict[str, Any]:
    """The outcome of a run, as JSON takes it.

    Returns:
        score in percent and its standard error, how many questions, the scores of parts, what lmms-eval itself says,
        and the means of what the model noted on its tokens.
    """
    found = sorted(folder.rglob("*_results.json"))
    if not found:
        raise NoResults(f"no results in {folder}")
    document = _json(found[-1])
    if task not in document.get("results", {}):
        raise NoResults(f"{found[-1]} has no results for {task}")
    theirs = {key.partition(",")[0]: value for key, value in document["results"][task].items() if _is_number(value)}
    samples = _lines(found[-1].with_name(found[-1].name.replace("_results.json", f"_samples_{task}.jsonl")))
    asked = document.get("n-samples", {}).get(task, {}).get("effective", len(samples))
    if asked != len(samples):
        raise NoResults(f"{found[-1].parent}: {asked} questions were asked, {len(samples)} answers are there")
    known = find(task)
    counted = _as_told(theirs, task, len(samples)) if known is None else _count(known, samples)
    return {**counted, "lmms_eval": theirs, "selection": _selection(samples)}


def reason(log: Path) -> str:
    """Why a run failed, in a line: how its last traceback ends, or else its last line."""
    lines = [_COLOURS.sub("", each).rstrip() for each in log.read_text(errors="replace").splitlines()]
    told = [each for each in lines if each.strip()]
    starts = [place for place, each in enumerate(told) if each.startswith("Traceback (most recent call last)")]
    if starts:
        after = told[starts[-1] + 1 :]
        told = [next((each for each in after if not each.startswith(" ")), told[-1])]
    return told[-1].strip()[:REASON_CHARACTERS] if told else "it wrote nothing"


def _count(task: Task, samples: list[dict[str, Any]]) -> dict[str, Any]:
    if not samples:
        raise NoResults(f"{task.name}: no question was answered")
    try:
        judged = [(task.part_of(sample), task.is_right(sample)) for sample in samples]
    except (KeyError, TypeError) as error:
        raise NoResults(f"an answer to {task.name} is not as lmms-eval 0.7 writes it ({error!r})") from None
    parts: dict[str | None, list[bool]] = {}
    for part, right in judged:
        parts.setdefault(part, []).append(right)
    named = {name: _share(right) for name, right in parts.items() if name is not None}
    return {**_share([right for _, right in judged]), "parts": dict(sorted(named.items()))}


def _share(right: list[bool]) -> dict[str, Any]:
    """Percent of right answers, with the standard error of that share."""
    share = fmean(right)
    error = math.sqrt(share * (1 - share) / len(right))
    return {"score": 100 * share, "error": 100 * error, "questions": len(right)}


def _as_told(theirs: dict[str, float], task: str, questions: int) -> dict[str, Any]:
    """Of a task that is not the paper's: the first number that lmms-eval gives, in its own scale."""
    scores = [value for name, value in theirs.items() if "_stderr" not in name]
    if not scores:
        raise NoResults(f"lmms-eval gives no number for {task}")
    return {"score": scores[0], "error": None, "questions": questions, "parts": {}}


def _selection(samples: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the model noted of its tokens, over all samples; None where it noted nothing."""
    records = [
        each["floc"] for sample in samples for each in sample.get("token_counts") or () if each and "floc" in each
    ]
    if not records:
        return None
    noted = {name: [each[name] for each in records if _is_number(each.get(name))] for name in NOTED}
    return {"samples": len(records), **{name: NOTED[name](values) for name, values in noted.items() if values}}


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise NoResults(f"{path} is missing, which has the answers")
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except ValueError as error:
        raise NoResults(f"{path} is not readable as lines of JSON ({error})") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise NoResults(f"{path} is not readable as JSON ({error})") from None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
