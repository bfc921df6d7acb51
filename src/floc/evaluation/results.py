"""The folder of an evaluation: which runs are done, and what lmms-eval wrote.

results/NAME.json   a finished run; written atomically
failed/NAME.json    a failed run and the reason
logs/NAME.log       the output of lmms-eval in its last attempt
runs/NAME/          the files that lmms-eval wrote in its last attempt
report.md, report.json

lmms-eval writes DATE_results.json and DATE_samples_TASK.jsonl below its output folder. It exits with status 0 even if
it fails, so a run without results counts as failed, whatever its status.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from floc._atomic import write_atomic
from floc._checked_file import Fields
from floc._checks import is_number
from floc.evaluation.plan import EvalRun
from floc.evaluation.tasks import TASKS, Task

# costs that `floc.integrations.lmms_eval` logs per sample
COSTS = ("tokens", "kept", "coverage", "select_s", "total_s")


class NoResultsError(ValueError):
    """A run wrote no complete results."""


@dataclass(frozen=True)
class ResultFolder:
    """The folder with the runs of one or more plans."""

    path: Path

    def get_state(self, run: EvalRun) -> Literal["done", "failed", "to do"]:
        """Return whether a run is done, failed, or to do."""
        if self._get_path("results", run).exists():
            return "done"
        return "failed" if self._get_path("failed", run).exists() else "to do"

    def get_log(self, run: EvalRun) -> Path:
        """Return the path of a run's log."""
        return self.path / "logs" / f"{run.name}.log"

    def get_output(self, run: EvalRun) -> Path:
        """Return the folder that lmms-eval writes to."""
        return self.path / "runs" / run.name

    def save_result(self, run: EvalRun, result: dict[str, Any]) -> None:
        """Write a run's result, which makes it done."""
        write_json(self._get_path("results", run), {"run": asdict(run), **result})
        self._get_path("failed", run).unlink(missing_ok=True)

    def save_failure(self, run: EvalRun, failure: dict[str, Any]) -> None:
        """Write why a run failed."""
        write_json(self._get_path("failed", run), {"run": asdict(run), "log": str(self.get_log(run)), **failure})

    def read_results(self) -> list[dict[str, Any]]:
        """Read all finished runs."""
        return [_read_record(path, _check_result) for path in sorted((self.path / "results").glob("*.json"))]

    def read_failures(self) -> list[dict[str, Any]]:
        """Read all failed runs."""
        return [_read_record(path, _check_failure) for path in sorted((self.path / "failed").glob("*.json"))]

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out of the folder. The system releases the lock however this process ends."""
        try:
            import fcntl
        except ImportError as error:
            message = "floc eval needs fcntl, which only Linux and macOS have; use --dry-run elsewhere"
            raise ImportError(message) from error
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                owner = f"{self.path} is in use by process {file.read().strip() or 'unknown'}"
                raise ValueError(f"{owner}; wait for it, or use another folder with --output") from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def _get_path(self, kind: str, run: EvalRun) -> Path:
        return self.path / kind / f"{run.name}.json"


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file atomically, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda temporary: temporary.write_text(json.dumps(document, indent=1) + "\n"))


def _read_record(path: Path, check: Callable[[Fields], None]) -> dict[str, Any]:
    """Read a file of `save_result` or `save_failure`. Its name holds a hash of the run's settings."""
    try:
        record = Fields(json.loads(path.read_text(encoding="utf-8")))
        record.values.setdefault("run", record.values.pop("cell", None))  # its name in earlier versions
        if EvalRun(**record.section("run").values).name != path.stem:
            raise ValueError("its name does not fit the settings in it")
        check(record)
    except (ValueError, TypeError, RecursionError) as error:
        hint = "delete it, and floc eval repeats the run"
        raise ValueError(f"{path} is damaged, or not a file of `floc eval`: {error}; {hint}") from None
    return record.values


def _check_result(result: Fields) -> None:
    result.number("seconds")
    result.text("date")
    result.section("lmms_eval")
    if result.has("selection"):
        costs = result.section("selection")
        for name in costs.values:
            costs.number(name)
    parts = result.section("parts")
    for score in (result, *map(parts.section, parts.values)):
        score.number("score")
        score.integer("questions")
        if score.has("error"):
            score.number("error")


def _check_failure(failure: Fields) -> None:
    failure.text("failure")
    failure.text("log")


def read_output(folder: Path, task: str) -> dict[str, Any]:
    """Read what lmms-eval wrote: scores, lmms-eval's own numbers, and the mean costs of the samples."""
    files = sorted(folder.rglob("*_results.json"))
    if not files:
        raise NoResultsError(f"no results in {folder}")
    try:
        return _read_results(files[-1], task)
    except NoResultsError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        what = "or its samples are not valid JSON, or not in the format of lmms-eval 0.7"
        raise NoResultsError(f"{files[-1]} {what} ({error!r})") from None


def _read_results(path: Path, task: str) -> dict[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    if task not in document.get("results", {}):
        raise NoResultsError(f"{path} has no results for {task}")
    numbers = {key.partition(",")[0]: value for key, value in document["results"][task].items() if _is_finite(value)}
    log = path.with_name(path.name.replace("_results.json", f"_samples_{task}.jsonl"))
    if not log.exists():
        raise NoResultsError(f"{log}, the log of the answers, is missing")
    samples = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    expected = document.get("n-samples", {}).get(task, {}).get("effective", len(samples))
    if expected != len(samples):
        raise NoResultsError(f"{path.parent}: {expected} questions, but {len(samples)} answers")
    if task in TASKS:
        scores = score_answers(TASKS[task], samples)
    else:  # lmms-eval's first number, in its own scale
        own = [value for name, value in numbers.items() if "_stderr" not in name]
        if not own:
            raise NoResultsError(f"lmms-eval reports no number for {task}")
        scores = {"score": own[0], "error": None, "questions": len(samples), "parts": {}}
    return {**scores, "lmms_eval": numbers, "selection": _average_costs(samples)}


def score_answers(task: Task, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Score logged samples: score in percent, standard error and number of questions, of the task and its parts."""
    if not samples:
        raise NoResultsError(f"{task.name}: no question was answered")
    parts: dict[str | None, list[bool]] = {}
    for sample in samples:
        parts.setdefault(task.get_part(sample), []).append(task.is_correct(sample))
    total = [is_correct for part in parts.values() for is_correct in part]
    by_part = {name: _score(part) for name, part in parts.items() if name is not None}
    return {**_score(total), "parts": dict(sorted(by_part.items()))}


def _score(is_correct: list[bool]) -> dict[str, Any]:
    share = fmean(is_correct)
    error = math.sqrt(share * (1 - share) / len(is_correct))
    return {"score": 100 * share, "error": 100 * error, "questions": len(is_correct)}


def _average_costs(samples: list[dict[str, Any]]) -> dict[str, Any] | None:
    counts = [count for sample in samples for count in sample.get("token_counts") or ()]
    costs = [count["floc"] for count in counts if count and "floc" in count]
    if not costs:
        return None
    values = {name: [cost[name] for cost in costs if _is_finite(cost.get(name))] for name in COSTS}
    averages = {
        name: median(numbers) if name.endswith("_s") else fmean(numbers)  # the first sample compiles: median of seconds
        for name, numbers in values.items()
        if numbers
    }
    return {"samples": len(costs), **averages}


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def find_failure_reason(log: Path) -> str:
    """Return one line of a run's log that says why it failed: the end of the last traceback, or the last line."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in log.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if starts:
        lines = [next((line for line in lines[starts[-1] + 1 :] if not line.startswith(" ")), lines[-1])]
    return lines[-1].strip()[:400] if lines else "no output"
