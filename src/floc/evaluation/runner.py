"""Cells to a queue, a process for each GPU, and a result file for each cell that ends well.

A cell is finished when its result file is in place, and not before, so a run that is killed at any moment loses the
cells that were running, and no others. What fails is noted with its reason and its log, and the rest goes on.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean

import torch

from floc.evaluation import outcome
from floc.evaluation.command import Command, gpus_of
from floc.evaluation.folder import Folder
from floc.evaluation.plan import Cell

LEASH = Path(__file__).with_name("leash.py")
POLL_S = 0.1
PACKAGES = ("floc", "lmms_eval", "transformers", "torch")


@dataclass
class Status:
    """Where a run stands."""

    cells: int
    done: int  # earlier runs included
    failed: int
    running: dict[str, Cell] = field(default_factory=dict)  # by the GPUs they are on
    seconds: list[float] = field(default_factory=list)  # what each cell took that is done since this run began

    @property
    def to_do(self) -> int:
        """Cells that nobody has begun."""
        return self.cells - self.done - self.failed - len(self.running)

    def left_s(self, workers: int) -> float | None:
        """Seconds left, once a cell has shown how long one takes."""
        if not self.seconds:
            return None
        return fmean(self.seconds) * (self.to_do + len(self.running) / 2) / workers


Show = Callable[[Status], object]


def run(
    cells: Sequence[Cell],
    folder: Folder,
    command: Command,
    *,
    gpus: Sequence[str] = ("",),
    retry: bool = False,
    show: Show = lambda status: None,
    stopped: Callable[[], bool] = lambda: False,
    finished: Callable[[Cell], object] = lambda cell: None,
) -> Status:
    """Run what is not finished yet.

    Args:
        cells: of these.
        folder: where results go.
        command: what runs a cell.
        gpus: a process for each: "0", "0+1" for one that has both, "" for one without.
        retry: run those again that failed.
        show: called now and then with where it stands.
        stopped: whether to stop: cells in hand are ended, and count as not begun.
        finished: called with each cell that ended, well or not.
    """
    with folder.held():
        waiting = pending(cells, folder, retry=retry)
        folder.results(), folder.failures()  # a file that a report cannot be made of shows before hours of work
        for cell in waiting:
            command(cell, folder.path, ())  # and so does what cannot be run
        done = sum(folder.state(cell) == "done" for cell in cells)
        status = Status(len(cells), done, failed=len(cells) - done - len(waiting))
        _Run(folder, command, status, finished).all_of(waiting, gpus, show, stopped)
        return status


def pending(cells: Sequence[Cell], folder: Folder, *, retry: bool = False) -> list[Cell]:
    """The cells that a run would begin."""
    begun = ("to do", "failed") if retry else ("to do",)
    return [cell for cell in cells if folder.state(cell) in begun]


class _Run:
    """The workers of one run, and what they share."""

    def __init__(self, folder: Folder, command: Command, status: Status, finished: Callable[[Cell], object]) -> None:
        self.folder, self.command, self.status, self.finished = folder, command, status, finished
        self.waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
        self.stop = threading.Event()
        self.lock = threading.Lock()  # of the status, and of `finished`
        self.errors: list[BaseException] = []

    def all_of(self, cells: Sequence[Cell], gpus: Sequence[str], show: Show, stopped: Callable[[], bool]) -> None:
        """Run cells to their end."""
        for cell in cells:
            self.waiting.put(cell)
        workers = [threading.Thread(target=self._work, args=(each,), name=f"floc-eval-{each}") for each in gpus]
        for worker in workers:
            worker.start()
        try:
            while any(worker.is_alive() for worker in workers):
                if stopped() or self.errors:
                    self.stop.set()
                show(self.status)
                time.sleep(POLL_S)
        finally:
            self.stop.set()
            for worker in workers:
                worker.join()
        if self.errors:
            raise self.errors[0]

    def _work(self, gpus: str) -> None:
        try:
            with suppress(queue.Empty):
                while not self.stop.is_set():
                    self._one(self.waiting.get_nowait(), gpus)
        except BaseException as error:  # a full disk, say: it is the caller's to hear of
            self.errors.append(error)

    def _one(self, cell: Cell, gpus: str) -> None:
        self.status.running[gpus] = cell
        started = time.monotonic()
        try:
            about = self._outcome(cell, gpus)
        finally:
            self.status.running.pop(gpus)
        if about is None:
            return
        seconds = time.monotonic() - started
        about |= {"seconds": seconds, "gpus": gpus, "date": _now(), "versions": _versions()}
        with self.lock:
            if "failure" in about:
                self.folder.fail(cell, about)
                self.status.failed += 1
            else:
                self.folder.finish(cell, about)
                self.status.done += 1
                self.status.seconds.append(seconds)
            self.finished(cell)

    def _outcome(self, cell: Cell, gpus: str) -> dict | None:
        """What came of a cell, or None where it was stopped."""
        own = gpus_of(gpus)
        target = self.folder.fresh_run(cell)
        command = self.command(cell, target, own)
        log = self.folder.log(cell)
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | ({"CUDA_VISIBLE_DEVICES": ",".join(own)} if own else {})
        with log.open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, str(LEASH), *command],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            code = self._waited(process)
        if code is None:
            return None
        about = {"command": command, "status": code}
        try:
            if code != 0:
                raise outcome.NoResults(f"status {code}")
            return {**about, **outcome.read(target, cell.task)}
        except outcome.NoResults as error:
            return {**about, "failure": f"{error}; {outcome.reason(log)}"}

    def _waited(self, process: subprocess.Popen) -> int | None:
        """The status that a process ended with, or None where it was made to end."""
        assert process.stdin is not None
        while process.poll() is None and not self.stop.is_set():
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
        ended = process.poll()
        process.stdin.close()  # the leash: all that it started ends
        process.wait()
        return ended


def processes(given: str | None) -> list[str]:
    """The GPUs of each process, from "0,1" or "0+1,2+3"; all there are, or none, where nothing is given.

    >>> processes("0+1,2")
    ['0+1', '2']
    """
    if given is None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return [str(each) for each in range(torch.cuda.device_count())] or [""]
        named = [each.strip() for each in visible.split(",")]
        return [*itertools.takewhile(lambda each: each not in ("", "-1"), named)] or [""]  # as CUDA reads it
    named = [each.strip() for each in given.split(",") if each.strip()]
    single = [gpu for each in named for gpu in each.split("+")]
    if not named or "" in single or len(set(single)) < len(single):
        raise ValueError(f"--gpus must name each GPU once, such as 0,1 or 0+1,2+3; got {given!r}")
    return named


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _versions() -> dict[str, str | None]:
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None
