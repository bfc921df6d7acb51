"""Execute runs, one at a time per GPU, each in a process of its own.

A run is done once its result file is in place, so a kill loses only the runs in progress. A failure is saved
with its reason and its log, and the other runs go on.
"""

import importlib.metadata
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from subprocess import PIPE, STDOUT, Popen

from floc.evaluation.command import CommandBuilder, split_gpus
from floc.evaluation.plan import EvalRun
from floc.evaluation.results import NoResultsError, ResultFolder, find_failure_reason, read_output

WATCHDOG = Path(__file__).with_name("watchdog.py")
POLL_S = 0.1


@dataclass
class EvalStatus:
    """The progress of an evaluation."""

    runs: int
    done: int  # earlier runs included
    failed: int
    running: dict[str, EvalRun] = field(default_factory=dict)  # by GPUs
    seconds: list[float] = field(default_factory=list)  # of each run that was finished here

    @property
    def to_do(self) -> int:
        """Number of runs that wait."""
        return self.runs - self.done - self.failed - len(self.running)

    def estimate_left(self, workers: int) -> float | None:
        """Estimate the remaining seconds; None before the first run is done."""
        if not self.seconds:
            return None
        return fmean(self.seconds) * (self.to_do + len(self.running) / 2) / workers


def list_pending(runs: Sequence[EvalRun], folder: ResultFolder, *, retry: bool = False) -> list[EvalRun]:
    """Return the runs that are not done, and with `retry` those that failed."""
    states = ("to do", "failed") if retry else ("to do",)
    return [run for run in runs if folder.get_state(run) in states]


def execute_runs(
    runs: Sequence[EvalRun],
    folder: ResultFolder,
    command: CommandBuilder,
    *,
    gpus: Sequence[str] = ("",),
    retry: bool = False,
    on_poll: Callable[[EvalStatus], object] = lambda status: None,
    should_stop: Callable[[], bool] = lambda: False,
    on_finish: Callable[[EvalRun], object] = lambda run: None,
) -> EvalStatus:
    """Execute the runs that `list_pending` returns.

    Args:
        gpus: the GPUs of each worker: "0", "0+1" for two, "" for none.
        on_poll: called with the status every 0.1 s.
        should_stop: whether to stop. Runs in progress are killed, and stay to do.
        on_finish: called with each run that is done or failed.
    """
    with folder.lock():
        pending = list_pending(runs, folder, retry=retry)
        # find errors before hours of work: files that the report cannot read, runs without a command
        folder.read_results(), folder.read_failures()
        for run in pending:
            command(run, folder.path, ())
        done = sum(folder.get_state(run) == "done" for run in runs)
        status = EvalStatus(len(runs), done, failed=len(runs) - done - len(pending))
        processes: dict[str, tuple[Popen, float]] = {}  # by GPUs, with their start
        try:
            while (pending or processes) and not should_stop():
                for worker in gpus:
                    if pending and worker not in processes:
                        run = status.running[worker] = pending.pop(0)
                        processes[worker] = _start_process(run, folder, command, split_gpus(worker)), time.monotonic()
                on_poll(status)
                time.sleep(POLL_S)
                for worker in [worker for worker, (process, _) in processes.items() if process.poll() is not None]:
                    process, started = processes.pop(worker)
                    process.communicate()
                    run = status.running.pop(worker)
                    _save_outcome(run, folder, status, process, gpus=worker, seconds=time.monotonic() - started)
                    on_finish(run)
        finally:
            for process, _ in processes.values():
                process.communicate()  # closes the pipe, so the watchdog kills everything that still runs
            status.running.clear()
        return status


def _start_process(run: EvalRun, folder: ResultFolder, command: CommandBuilder, gpus: list[str]) -> Popen:
    output, log = folder.get_output(run), folder.get_log(run)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)  # raises if files of an earlier run are left
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = [sys.executable, str(WATCHDOG), *command(run, output, gpus)]
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})
    with log.open("wb") as file:
        return Popen(arguments, stdin=PIPE, stdout=file, stderr=STDOUT, env=environment, start_new_session=True)


def _save_outcome(
    run: EvalRun, folder: ResultFolder, status: EvalStatus, process: Popen, *, gpus: str, seconds: float
) -> None:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    command = process.args[2:]  # type: ignore[index]  # without the watchdog
    facts = {"seconds": seconds, "gpus": gpus, "date": date, "versions": _get_versions()}
    try:
        if process.returncode != 0:
            raise NoResultsError(f"status {process.returncode}")
        outcome = read_output(folder.get_output(run), run.task)
    except NoResultsError as error:
        reason = f"{error}; {find_failure_reason(folder.get_log(run))}"
        folder.save_failure(run, {"command": command, "status": process.returncode, "failure": reason, **facts})
        status.failed += 1
    else:
        folder.save_result(run, {"command": command, "status": 0, **outcome, **facts})
        status.done += 1
        status.seconds.append(seconds)


def _get_versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = dict.fromkeys(("floc-video", "lmms_eval", "transformers", "torch"))
    for name in versions:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
