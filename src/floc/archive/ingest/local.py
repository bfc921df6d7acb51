"""The local engine: processes that each hold an encoder and process whole spans.

If a worker process dies, killed or out of memory, another one repeats its task; the third time, the video is recorded
as failed. If this process dies, the workers find their pipes closed and exit.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Self

import torch

from floc._atomic import create_temporary_folder
from floc._text import hide_secrets
from floc.archive.ingest.job import IngestEvent, IngestJob, IngestOptions, VideoFailed, VideoPlan, VideoSpan
from floc.archive.ingest.ledger import Ledger
from floc.archive.ingest.sources import VideoFile
from floc.archive.ingest.worker import Worker, plan_video

MAX_TRIES = 3
MOST_PER_CORE = 8  # workers; each holds an encoder, and more only take memory
MAX_LAST_WORDS = 500  # characters that a worker printed before it died
EXIT_TIMEOUT_S = 10.0

Task = VideoFile | VideoSpan  # a video to plan, or a span to write


class IngestError(RuntimeError):
    """The ingest cannot go on, because its workers cannot start."""


class _WorkerProcess:
    """A worker process, seen from this process."""

    def __init__(self, options: IngestOptions, store: str, threads: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share locks and GPUs with this process
        self.pipe, child_pipe = context.Pipe()
        self._output = folder / f"{uuid.uuid4().hex}.txt"  # what it prints
        arguments = options, store, threads, child_pipe, self._output
        self.process = context.Process(target=_run_worker, args=arguments, daemon=True)
        # Ctrl-C reaches the worker as well, which must not print a traceback while it starts
        resource_tracker.ensure_running()  # its start would unblock the signal
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        child_pipe.close()
        self.is_ready = False  # whether its encoder is loaded
        self.task: Task | None = None

    def kill(self) -> None:
        self.process.kill()
        self.process.join(EXIT_TIMEOUT_S)
        self.pipe.close()

    def describe_exit(self) -> str:
        self.process.join(EXIT_TIMEOUT_S)
        status = self.process.exitcode
        reason = f"its process ended with status {status}"
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            reason = f"its process was ended by {name}" + (", perhaps out of memory" if name == "SIGKILL" else "")
        lines = self._output.read_text(errors="replace").split("\n") if self._output.exists() else []
        last = [line.strip()[:MAX_LAST_WORDS] for line in lines if line.strip()][-1:]
        return reason + "".join(f" after it printed {hide_secrets(line)!r}" for line in last)


class LocalWorkers:
    """Runs an ingest in processes on this machine."""

    def __init__(self, options: IngestOptions, store: str, workers: int | None = None) -> None:
        devices = _list_gpus(options)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        count = workers or 2 * len(devices) or cores  # on a GPU, one worker decodes while the other encodes
        most = max(MOST_PER_CORE * cores, 2 * len(devices))
        if count > most:
            limit = f"at most {most} on this machine, {MOST_PER_CORE} for each core"
            raise ValueError(f"workers must be {limit}; got {count}")
        self.store = store
        # the options of each worker, which differ in the device
        self.options = [replace(options, device=device) for device in islice(cycle(devices or [options.device]), count)]
        self.threads = max(1, cores // count)
        self.failed_starts = 0  # consecutive workers that died before their encoder was loaded
        self.workers: list[_WorkerProcess] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._folder = self._stack.enter_context(create_temporary_folder("floc-ingest-", may_be_old=True))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        self._stack.close()

    def start(self) -> IngestJob:
        """Start the workers, wait until one has loaded its encoder, and return the job."""
        for options in self.options:
            self.workers.append(_WorkerProcess(options, self.store, self.threads, self._folder))
        while True:
            for _, message in self._receive():
                if isinstance(message, IngestJob):
                    return message

    def run(self, files: Sequence[VideoFile], ledger: Ledger) -> Iterator[IngestEvent]:
        """Ingest videos and yield events. The caller adds each event to the ledger before it asks for the next."""
        queue: deque[Task] = deque(files)
        deaths: Counter[Task] = Counter()
        while True:
            self._assign_tasks(queue, ledger)
            if not queue and not any(worker.task for worker in self.workers):
                return
            for worker, message in self._receive():
                if isinstance(message, str):  # the worker died
                    if (task := worker.task) is None:
                        continue
                    deaths[task] += 1
                    if deaths[task] < MAX_TRIES:
                        queue.appendleft(task)
                    else:
                        file = task.file if isinstance(task, VideoSpan) else task
                        yield VideoFailed(file, f"RuntimeError: {message}, {MAX_TRIES} times")
                elif message is not None and not isinstance(message, IngestJob):
                    if isinstance(message, VideoPlan) and message.video not in ledger.open:
                        queue.extendleft(reversed(message.spans))  # finish started videos first
                    yield message

    def _assign_tasks(self, queue: deque[Task], ledger: Ledger) -> None:
        for worker in self.workers:
            while worker.is_ready and worker.task is None and queue:
                task, existing = queue.popleft(), frozenset[int]()
                if isinstance(task, VideoSpan):
                    if task.video not in ledger.open:  # it failed
                        continue
                    existing = frozenset(ledger.open[task.video].pieces)
                worker.task = task
                with contextlib.suppress(OSError):  # it died, which `_receive` detects
                    worker.pipe.send((task, existing))

    def _receive(self) -> Iterator[tuple[_WorkerProcess, IngestJob | IngestEvent | str | None]]:
        """Wait for messages of workers, yield each with its worker, and replace workers that died.

        A message is the job once the encoder is loaded, an event, None at the end of a task, or the reason of a death.
        """
        ready = wait([worker.pipe for worker in self.workers])
        for worker in [worker for worker in self.workers if worker.pipe in ready]:
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                message = self._replace(worker)
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, IngestJob):
                worker.is_ready, self.failed_starts = True, 0
            elif message is None:
                worker.task = None
            yield worker, message

    def _replace(self, worker: _WorkerProcess) -> str:
        """Replace a worker that died, and return the reason."""
        reason, place = worker.describe_exit(), self.workers.index(worker)
        worker.kill()
        self.failed_starts += not worker.is_ready
        if self.failed_starts == MAX_TRIES:
            problem = f"a worker could not load the encoder: {reason}, {MAX_TRIES} times in a row"
            fix = "use fewer workers if memory is short, and run the same command again. Committed data is kept"
            raise IngestError(f"{problem}; {fix}")
        self.workers[place] = _WorkerProcess(self.options[place], self.store, self.threads, self._folder)
        return reason


def _list_gpus(options: IngestOptions) -> list[str]:
    if options.device is not None:
        return [options.device] if options.device.startswith("cuda") else []
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())] if options.encoder != "pixels" else []


def _run_worker(options: IngestOptions, store: str, threads: int, pipe: Connection, output: Path) -> None:
    """Process tasks until the pipe is closed; what the process prints goes to a file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends it
    with output.open("ab") as file:
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(threads)
    try:
        worker = Worker(options, store)
        pipe.send(worker.job)
        while True:
            task, existing = pipe.recv()
            if isinstance(task, VideoFile):
                pipe.send(plan_video(worker.job, task))
            else:
                for event in worker.write_span(task, existing):
                    pipe.send(event)
            pipe.send(None)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        pipe.send(error)
