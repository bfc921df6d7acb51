"""One trial: start a command, stop it, and compare what a second run completes with an uninterrupted run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import child_environment
from tests.kill.operations import Operation, copy_inputs

START_LIMIT_S = 120.0  # imports, on a busy machine
RUN_LIMIT_S = 180.0
END_LIMIT_S = 20.0  # from a signal to the end of the process; 10 s on a quiet machine
LINGER_S = 10.0  # for workers, after the end of their parent


class Defect(AssertionError):
    """A command that did not survive a stop."""


@dataclass
class Ended:
    """A process that ended, or was killed."""

    status: int
    stderr: str
    stdout: str
    work_s: float  # from the start of the command, without its imports
    writes: int | None  # if it ended by itself


@dataclass(frozen=True)
class Reference:
    """An uninterrupted run."""

    outputs: dict[str, Any]
    final: Any  # of `Operation.read_final`
    files: frozenset[str]
    work_s: float
    writes: int
    written_bytes: int
    largest_bytes: int  # of the files that it wrote


@dataclass(frozen=True)
class Moment:
    """When to stop a command: after some time, or at a write."""

    after_s: float | None = None  # from the start of the command
    from_start: bool = False  # count from the first line of floc, which then still has to import everything
    write: int | None = None
    delay_s: float = 0.0

    def __str__(self) -> str:
        if self.write is not None:
            return f"{self.delay_s * 1e3:.1f} ms after write {self.write}"
        return f"after {self.after_s:.3f} s" + (" with imports" if self.from_start else "")


@dataclass
class Workspace:
    """A folder for trials, with the inputs and reference runs of operations."""

    folder: Path
    references: dict[str, Reference] = field(default_factory=dict)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def open_trial(self, operation: Operation, parent: Path | None = None) -> Iterator[Path]:
        """Yield a new folder with the inputs of an operation; remove it in the end."""
        with self._lock:
            lock = self._locks.setdefault(operation.name, threading.Lock())
        root = Path(tempfile.mkdtemp(dir=parent or self.folder))
        try:
            with lock:
                copy_inputs(operation, self.folder / "inputs", root / "work")
            yield root / "work"
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def get_reference(self, operation: Operation) -> Reference:
        """Run an operation without interruption, once."""
        if operation.name not in self.references:
            with self.open_trial(operation) as work:
                before = measure_files(work)
                ended = run(operation, work)
                _require_success(ended)
                sizes = [size for name, size in measure_files(work).items() if before.get(name) != size]
                reference = Reference(
                    operation.read_outputs(work),
                    operation.read_final(work) if operation.read_final else None,
                    list_files(work),
                    ended.work_s,
                    ended.writes or 0,
                    sum(sizes),
                    max(sizes, default=0),
                )
                self.references.setdefault(operation.name, reference)
        return self.references[operation.name]


class Launch:
    """A command in a process group of its own."""

    def __init__(self, operation: Operation, work: Path, *, preload: bool = True, **settings: Any) -> None:
        self.notes = Path(tempfile.mkdtemp())  # not in the work folder, whose disk may be full
        self.ready = self.notes / "ready"
        values = {**operation.settings, **settings, "ready": str(self.ready)}
        if preload:
            values["preload"] = operation.preload
        command = [sys.executable, "-m", "tests.kill.launch", json.dumps(values), "--", *operation.arguments.split()]
        self.process = subprocess.Popen(
            command,
            cwd=work,
            env={**child_environment(), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # a pipe holds what a command prints here, even if files cannot be written
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.started_s = time.monotonic()

    def wait_ready(self) -> None:
        """Wait until the command starts."""
        limit_s = time.monotonic() + START_LIMIT_S
        while not self.ready.exists() and self.process.poll() is None and time.monotonic() < limit_s:
            time.sleep(0.001)
        self.started_s = time.monotonic()

    def send(self, number: int) -> None:
        """Send a signal to the process group, as a terminal does for Ctrl-C, unless the command has ended."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def wait(self, limit_s: float) -> Ended:
        """Wait for the end of the command, and of all processes that it started."""
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Defect(f"still running after {limit_s:.0f} s: {_shorten(self._read()[1])}") from None
        work_s = time.monotonic() - self.started_s
        limit = time.monotonic() + LINGER_S
        while has_members(self.process.pid):
            if time.monotonic() > limit:
                self.kill()
                self._read()
                raise Defect(f"processes that it started still run {LINGER_S:.0f} s after its end")
            time.sleep(0.02)
        text = self.ready.read_text() if self.ready.exists() else ""
        printed, errors = self._read()
        shutil.rmtree(self.notes)
        return Ended(self.process.returncode, errors, printed, work_s, int(text) if text else None)

    def kill(self) -> None:
        """End all processes of the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _read(self) -> tuple[str, str]:
        printed, errors = self.process.communicate()
        return printed.decode(errors="replace"), errors.decode(errors="replace")


def has_members(group: int) -> bool:
    """Return whether a process group has living members."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def run(operation: Operation, work: Path, **settings: Any) -> Ended:
    """Run a command to its end."""
    launch = Launch(operation, work, **settings)
    launch.wait_ready()
    return launch.wait(RUN_LIMIT_S)


def measure_files(work: Path) -> dict[str, int]:
    """Return the size of every file in a folder."""
    return {str(path): path.stat().st_size for path in work.rglob("*") if path.is_file()}


def list_files(work: Path) -> frozenset[str]:
    """Return the files in a folder; of a store only its name, because Lance names its files at random."""
    paths = (path.relative_to(work) for path in work.rglob("*") if path.is_file())
    names = {str(path) for path in paths if path.parts[0] not in ("store", "notes")}
    return frozenset(name for name in names if "/runs/" not in name and not name.endswith(".log"))


def try_kill(workspace: Workspace, operation: Operation, moment: Moment) -> bool:
    """Kill a command at a moment, run it again, and raise Defect unless all is as if it had not been killed.

    Returns:
        False if the command ended before it was killed.
    """
    reference = workspace.get_reference(operation)
    with workspace.open_trial(operation) as work:
        earlier = operation.read_outputs(work) if operation.has_earlier_output else {}
        settings: dict[str, Any] = {} if moment.write is None else {"write": moment.write, "delay_s": moment.delay_s}
        launch = Launch(operation, work, **settings)
        launch.wait_ready()
        if moment.after_s is not None:
            _sleep_until(launch, moment.after_s)
            launch.send(signal.SIGKILL)
        ended = launch.wait(RUN_LIMIT_S)
        if ended.status >= 0:
            _require_success(ended)
            return False
        require_complete(operation, work, reference, earlier)
        again = run(operation, work)
        _require_success(again, "the second run")
        require_same(operation, work, reference)
    return True


def try_signal(workspace: Workspace, operation: Operation, number: int, moment: Moment) -> bool:
    """Send SIGINT or SIGTERM to a command at a moment; raise Defect unless it ends as it should.

    Returns:
        False if the command ended before the signal.
    """
    reference = workspace.get_reference(operation)
    with workspace.open_trial(operation) as work:
        earlier = operation.read_outputs(work) if operation.has_earlier_output else {}
        launch = Launch(operation, work, preload=not moment.from_start)
        launch.wait_ready()
        assert moment.after_s is not None
        _sleep_until(launch, moment.after_s)
        was_running = launch.process.poll() is None
        if number == signal.SIGINT:
            launch.send(number)
        elif was_running:  # `kill PID` and service managers send SIGTERM to the command itself
            launch.process.send_signal(number)
        ended = launch.wait(END_LIMIT_S)
        if not was_running:
            _require_success(ended)
            return False
        # 0: it was about to end; a shell shows a process that a signal ended as 130 or 143, too
        expected = {128 + number, -number, 0}
        if operation.ends_in_order:
            expected.add(1)
        require_no_traceback(ended)
        if ended.status not in expected:
            raise Defect(f"status {ended.status} instead of {128 + number}: {_shorten(ended.stderr)}")
        require_complete(operation, work, reference, earlier)
        left = {name for name in list_files(work) - reference.files if _is_hidden(name)}
        if left and number == signal.SIGINT:
            raise Defect(f"left behind: {sorted(left)}")
        if operation.ends_in_order or operation.name == "ingest":  # another run continues it
            again = run(operation, work)
            _require_success(again, "the second run")
            if operation.read_final is None:
                require_same(operation, work, reference)
            elif (final := operation.read_final(work)) != reference.final:
                raise Defect(
                    f"another result than that of an uninterrupted run: {_find_difference(final, reference.final)}"
                )
    return True


def _sleep_until(launch: Launch, after_s: float) -> None:
    end_s = launch.started_s + after_s
    while launch.process.poll() is None and (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, 0.01))


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in Path(name).parts)


def _require_success(ended: Ended, what: str = "an uninterrupted run") -> None:
    if ended.status != 0:
        raise Defect(f"{what} ended with status {ended.status}: {_shorten(ended.stderr)}")


def require_no_traceback(ended: Ended) -> None:
    """Raise Defect if a command printed a traceback."""
    for mark in ("Traceback (most recent call last)", "Exception ignored", "Fatal Python error", "panicked at"):
        if mark in ended.stderr:
            raise Defect(f"prints {mark!r}: {_shorten(ended.stderr)}")


def require_complete(operation: Operation, work: Path, reference: Reference, earlier: dict[str, Any]) -> None:
    """Raise Defect if an output is neither absent, nor that of an earlier run, nor complete."""
    try:
        outputs = operation.read_outputs(work)
    except Exception as error:
        raise Defect(f"an output cannot be read after the stop: {type(error).__name__}: {error}") from error
    unknown = {name for name in list_files(work) - reference.files if not _is_hidden(name)}
    if unknown and operation.read_final is None:
        raise Defect(f"files with unknown names after the stop: {sorted(unknown)}")
    if operation.has_earlier_output:
        for name, output in outputs.items():
            if output not in (reference.outputs.get(name), earlier.get(name)):
                raise Defect(f"{name} is neither the earlier nor the new output")


def require_same(operation: Operation, work: Path, reference: Reference) -> None:
    """Raise Defect unless outputs and files equal those of an uninterrupted run."""
    try:
        outputs = operation.read_outputs(work)
    except Exception as error:
        raise Defect(f"an output cannot be read after the second run: {type(error).__name__}: {error}") from error
    if outputs != reference.outputs:
        raise Defect(
            f"another result than that of an uninterrupted run: {_find_difference(outputs, reference.outputs)}"
        )
    left = list_files(work) - reference.files
    if left:
        raise Defect(f"left behind after the second run: {sorted(left)}")
    if missing := reference.files - list_files(work):
        raise Defect(f"missing after the second run: {sorted(missing)}")


def _find_difference(first: Any, second: Any, path: str = "") -> str:
    if isinstance(first, dict) and isinstance(second, dict):
        for name in sorted({*first, *second}, key=str):
            if first.get(name) != second.get(name):
                return _find_difference(first.get(name), second.get(name), f"{path}/{name}")
    return f"{path or 'outputs'}: {str(first)[:200]} instead of {str(second)[:200]}"


def _shorten(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return " | ".join(lines[-6:])[-800:] or "no message"
