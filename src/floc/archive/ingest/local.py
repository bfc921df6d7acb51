"""The engine of one machine: processes that each hold the encoder and take in whole stretches of film.

A process that dies, killed or out of memory, costs what it had in hand: another takes that over, and after the third
time the video is noted as failed. Where this process is gone, its workers find their pipes closed, and end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import torch

from floc.archive.ingest.order import Brief, Event, Failed, Order, Planned, Source, Span

if TYPE_CHECKING:
    from floc.archive.ingest.ledger import Ledger

TRIES = 3
PATIENCE_S = 10.0  # with a worker that is asked to end


@dataclass(frozen=True)
class _Task:
    """What a worker is asked for."""

    what: str  # a method of `Worker`
    about: Source | Span
    more: tuple[Any, ...] = ()

    @property
    def source(self) -> Source:
        return self.about.source if isinstance(self.about, Span) else self.about


class _Worker:
    """A process, as this side sees it."""

    def __init__(self, order: Order, store: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share locks and GPUs with this process
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(order, store, threads, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.brief: Brief | None = None
        self.task: _Task | None = None

    def give(self, task: _Task) -> None:
        self.task = task
        self.pipe.send(task)

    def end(self) -> None:
        self.process.kill()
        self.process.join(PATIENCE_S)
        self.pipe.close()

    def last_words(self) -> str:
        self.process.join(PATIENCE_S)
        status = self.process.exitcode
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            return f"its process was ended by {name}" + (", out of memory perhaps" if name == "SIGKILL" else "")
        return f"its process ended with status {status}"


class Local:
    """See `Engine`."""

    def __init__(self, order: Order, store: str, workers: int | None = None) -> None:
        devices = _gpus(order)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        count = workers or 2 * len(devices) or cores  # on a GPU one decodes while the other encodes
        self.store = store
        self.orders = [replace(order, device=each) for each in islice(cycle(devices or [order.device]), count)]
        self.threads = max(1, cores // count)
        self.false_starts = 0  # workers that died before they had their encoder, one after another
        self.workers: list[_Worker] = []

    def __enter__(self) -> Local:
        self.workers = [_Worker(order, self.store, self.threads) for order in self.orders]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.end()

    def brief(self) -> Brief:
        """What workers are told, once one of them has its encoder."""
        while True:
            for worker in self._talking():
                try:
                    self._hear(worker)
                except EOFError:
                    self._replace(worker)
                if worker.brief is not None:
                    return worker.brief

    def run(self, sources: Sequence[Source], ledger: Ledger) -> Iterator[Event]:
        """Take in videos."""
        queue = deque(_Task("plan", source) for source in sources)
        tries: dict[Source | Span, int] = {}
        while True:
            self._share_out(queue, ledger)
            if not queue and not any(worker.task for worker in self.workers):
                return
            for worker in self._talking():
                try:
                    event = self._hear(worker)
                except EOFError:
                    yield from self._bury(worker, queue, tries)
                    continue
                if event is None:
                    continue
                if isinstance(event, Planned) and event.video not in ledger.open:
                    about = {"fps": event.fps, "duration_s": event.duration_s}
                    # what was begun comes before what was not
                    queue.extendleft(_Task("keep", span, (about,)) for span in reversed(event.spans))
                yield event

    def _share_out(self, queue: deque[_Task], ledger: Ledger) -> None:
        for worker in self.workers:
            while worker.brief is not None and worker.task is None and queue:
                task = queue.popleft()
                if isinstance(task.about, Span):
                    if not ledger.wants(task.about):
                        continue
                    task = replace(task, more=(*task.more[:1], ledger.have(task.about.video)))
                with contextlib.suppress(OSError):  # it is dead, which shows when it is listened to
                    worker.give(task)

    def _talking(self) -> Iterator[_Worker]:
        ready = wait([worker.pipe for worker in self.workers])
        yield from [worker for worker in self.workers if worker.pipe in ready]

    def _hear(self, worker: _Worker) -> Event | None:
        """The next thing a worker says."""
        try:
            said = worker.pipe.recv()
        except OSError as error:
            raise EOFError from error
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, Brief):
            worker.brief = said
            self.false_starts = 0
            return None
        if said is None:
            worker.task = None
        return said

    def _bury(self, worker: _Worker, queue: deque[_Task], tries: dict[Source | Span, int]) -> Iterator[Event]:
        """Put another in the place of a worker that died, and let it try again what was in hand."""
        task, words = worker.task, self._replace(worker)
        if task is None:
            return
        tries[task.about] = tries.get(task.about, 0) + 1
        if tries[task.about] < TRIES:
            queue.appendleft(task)
        else:
            yield Failed(task.source, f"RuntimeError: {words}, {TRIES} times")

    def _replace(self, worker: _Worker) -> str:
        """Start another in the place of a worker that died: its last words."""
        words, place = worker.last_words(), self.workers.index(worker)
        worker.end()
        self.false_starts += worker.brief is None
        if self.false_starts == TRIES:
            raise RuntimeError(
                f"the encoder could not be loaded: {words}, {TRIES} times; fewer workers need less memory"
            )
        self.workers[place] = _Worker(self.orders[place], self.store, self.threads)
        return words


def _gpus(order: Order) -> list[str]:
    """Those that encoders run on."""
    if order.device is not None:
        return [order.device] if order.device.startswith("cuda") else []
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())] if order.encoder != "pixels" else []


def _work(order: Order, store: str, threads: int, pipe: Connection) -> None:
    """What a worker does, until its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    torch.set_num_threads(threads)
    try:
        from floc.archive.ingest.pipeline import Worker

        worker = Worker(order, store)
        pipe.send(worker.brief)
        while True:
            task = pipe.recv()
            for event in getattr(worker, task.what)(task.about, *task.more):
                pipe.send(event)
            pipe.send(None)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        pipe.send(_portable(error))


def _portable(error: Exception) -> Exception:
    """The same error, or one that says the same where it cannot be sent."""
    import pickle

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
