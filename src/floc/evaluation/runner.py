"""Run cells: one at a time per GPU, each in a process of its own.

A cell is done once its result file is in place, so a kill loses only the cells that were running. A failure is saved
with its reason and its log, and the other cells go on.
"""

from __future__ import annotations

import importlib.metadata
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean
from typing import Any

from floc.evaluation.command import CommandBuilder, split_gpus
from floc.evaluation.plan import Cell
from floc.evaluation.results import NoResultsError, ResultFolder, find_failure_reason, read_run

WATCHDOG = Path(__file__).with_name("watchdog.py")
POLL_S = 0.1
PACKAGES = ("floc-video", "lmms_eval", "transformers", "torch")


@dataclass
class EvalStatus:
    """The progress of a run."""

    cells: int
    done: int  # earlier runs included
    failed: int
    running: dict[str, Cell] = field(default_factory=dict)  # by GPUs
    seconds: list[float] = field(default_factory=list)  # of each cell that this run finished

    @property
    def to_do(self) -> int:
        """Number of cells that wait."""
        return self.cells - self.done - self.failed - len(self.running)

    def estimate_left(self, workers: int) -> float | None:
        """Estimate the remaining seconds; None before the first cell is done."""
        if not self.seconds:
            return None
        return fmean(self.seconds) * (self.to_do + len(self.running) / 2) / workers


def list_pending(cells: Sequence[Cell], folder: ResultFolder, *, retry: bool = False) -> list[Cell]:
    """Return the cells that a run would start."""
    states = ("to do", "failed") if retry else ("to do",)
    return [cell for cell in cells if folder.get_state(cell) in states]


def run_cells(
    cells: Sequence[Cell],
    folder: ResultFolder,
    command: CommandBuilder,
    *,
    gpus: Sequence[str] = ("",),
    retry: bool = False,
    on_poll: Callable[[EvalStatus], object] = lambda status: None,
    should_stop: Callable[[], bool] = lambda: False,
    on_finish: Callable[[Cell], object] = lambda cell: None,
) -> EvalStatus:
    """Run the cells that are not done.

    Args:
        cells: the plan.
        folder: where results are written.
        command: builds the command of a cell.
        gpus: the GPUs of each worker: "0", "0+1" for two, "" for none.
        retry: run failed cells again.
        on_poll: called with the status every 0.1 s.
        should_stop: whether to stop. Running cells are killed, and stay to do.
        on_finish: called with each cell that is done or failed.
    """
    with folder.lock():
        pending = list_pending(cells, folder, retry=retry)
        # find errors before hours of work: files that the report cannot read, cells without a command
        folder.read_results(), folder.read_failures()
        for cell in pending:
            command(cell, folder.path, ())
        done = sum(folder.get_state(cell) == "done" for cell in cells)
        status = EvalStatus(len(cells), done, failed=len(cells) - done - len(pending))
        runner = _CellRunner(folder, command, status, on_finish)
        for worker in gpus:
            runner.free.put(worker)
        with ThreadPoolExecutor(len(gpus)) as pool:
            futures = [pool.submit(runner.run, cell) for cell in pending]
            try:
                while not all(future.done() for future in futures):
                    if should_stop() or any(future.done() and future.exception() for future in futures):
                        runner.stop.set()
                    on_poll(status)
                    time.sleep(POLL_S)
            finally:
                runner.stop.set()
        for future in futures:
            future.result()  # raises errors, such as a full disk
        return status


@dataclass(frozen=True)
class _CellRunner:
    """Runs cells, in several threads."""

    folder: ResultFolder
    command: CommandBuilder
    status: EvalStatus
    on_finish: Callable[[Cell], object]
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)  # for the status and `on_finish`
    free: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)  # GPUs of the idle workers

    def run(self, cell: Cell) -> None:
        """Run a cell on free GPUs, and save its result or failure."""
        if self.stop.is_set():
            return
        gpus = self.free.get_nowait()  # there are as many threads as entries
        self.status.running[gpus] = cell
        started = time.monotonic()
        try:
            result = self._run_process(cell, split_gpus(gpus))
        finally:
            self.status.running.pop(gpus)
            self.free.put(gpus)
        if result is None:
            return
        seconds = time.monotonic() - started
        date = datetime.now(timezone.utc).isoformat(timespec="seconds")
        result |= {"seconds": seconds, "gpus": gpus, "date": date, "versions": _get_versions()}
        with self.lock:
            if "failure" in result:
                self.folder.save_failure(cell, result)
                self.status.failed += 1
            else:
                self.folder.save_result(cell, result)
                self.status.done += 1
                self.status.seconds.append(seconds)
            self.on_finish(cell)

    def _run_process(self, cell: Cell, gpus: list[str]) -> dict[str, Any] | None:
        """Run a cell and return its result or failure; None if it was stopped."""
        output = self.folder.create_run(cell)
        command = self.command(cell, output, gpus)
        log = self.folder.get_log(cell)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, str(WATCHDOG), *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}),
                start_new_session=True,
            )
            status = self._wait(process)
        if status is None:
            return None
        try:
            if status != 0:
                raise NoResultsError(f"status {status}")
            outcome = read_run(output, cell.task)
        except NoResultsError as error:
            outcome = {"failure": f"{error}; {find_failure_reason(log)}"}
        return {"command": command, "status": status, **outcome}

    def _wait(self, process: subprocess.Popen) -> int | None:
        """Wait for a process and return its exit status; None if it was stopped."""
        assert process.stdin is not None
        while process.poll() is None and not self.stop.is_set():
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
        status = process.poll()
        process.stdin.close()  # the watchdog kills everything that still runs
        process.wait()
        return status


def _get_versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
