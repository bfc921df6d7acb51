"""Run cases in forked processes with limits on memory and time.

The parent has imported everything and has a single thread, so that a fork takes milliseconds. A child runs a batch of
cases and reports each one through a pipe. If a child dies or hangs, its cases so far run again one by one, each in a
process of its own, so that the right one is blamed.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.fuzz.outcomes import Outcome

TIME_S = 10.0  # of the processor, or without progress
MEMORY_BYTES = 1 << 30  # resident, over what the process had before
ADDRESS_BYTES = 5 << 30  # addresses over what the process had before: protects the machine
PR_SET_PDEATHSIG = 1  # of Linux
BLOCKED_S = 3.0  # without using the processor, after TIME_S

Run = Callable[[int], Outcome]


@dataclass
class _Child:
    pid: int
    pipe: int
    cases: Sequence[int]
    alone: bool
    done: list[int] = field(default_factory=list)
    text: bytes = b""
    started: float = field(default_factory=time.monotonic)  # of the current case
    cpu_s: float = 0.0  # used before the current case
    seen: tuple[float, float] = (0.0, 0.0)  # the last time of progress, and the processor time then


def run_cases(run: Run, cases: Sequence[int], batch: int, jobs: int) -> Iterator[tuple[int, Outcome]]:
    """Run cases, and yield each with its outcome.

    Args:
        run: Runs one case.
        batch: Cases in one process.
        jobs: Processes at a time.
    """
    queue = deque((list(cases[start : start + batch]), False) for start in range(0, len(cases), batch))
    children: dict[int, _Child] = {}
    while queue or children:
        while queue and len(children) < jobs:
            batch_cases, alone = queue.popleft()
            child = _start(run, batch_cases, alone or len(batch_cases) == 1)
            children[child.pipe] = child
        ready, _, _ = select.select(list(children), [], [], 0.5)
        for pipe in ready:
            yield from _read(children[pipe])
        for child in list(children.values()):
            ended, verdict = _check(child)
            if not ended:
                continue
            yield from _read(child)
            os.close(child.pipe)
            del children[child.pipe]
            rest = [case for case in child.cases if case not in child.done]
            if not rest:
                continue
            assert verdict is not None
            if rest[1:]:
                queue.appendleft((rest[1:], False))
            if child.alone or verdict.verdict == "hang":
                yield rest[0], replace(verdict, seconds=time.monotonic() - child.started)
            else:  # blame the right one: those before may have damaged the memory of this one
                queue.extendleft(([case], True) for case in (rest[0], *reversed(child.done)))


def _start(run: Run, cases: Sequence[int], alone: bool) -> _Child:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        os.set_blocking(read_end, False)
        return _Child(pid, read_end, cases, alone)
    status = 1
    try:
        os.close(read_end)
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # end with the parent
        used = _read_status("VmSize")
        resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_BYTES, used + ADDRESS_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for case in cases:
            line = json.dumps([case, run_measured(run, case).to_json()]) + "\n"
            os.write(write_end, line.encode())
        status = 0
    except BaseException:  # a defect of the suite itself, or memory that ran out
        traceback.print_exc(limit=-3)
    finally:
        os._exit(status)


def run_measured(run: Run, case: int) -> Outcome:
    """Run one case in this process, with its time and its peak of memory."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, started = _read_status("VmRSS"), time.monotonic()
    outcome = run(case)
    peak = max(0, _read_status("VmHWM") - before)
    outcome = replace(outcome, seconds=time.monotonic() - started, peak_bytes=peak)
    if peak > MEMORY_BYTES:
        return replace(outcome, verdict="memory", reason=f"{peak >> 20} MiB; {outcome.verdict}: {outcome.reason}")
    return outcome


def _read(child: _Child) -> Iterator[tuple[int, Outcome]]:
    while True:
        try:
            data = os.read(child.pipe, 1 << 16)
        except BlockingIOError:
            break
        if not data:
            break
        child.text += data
    *lines, child.text = child.text.split(b"\n")
    for line in lines:
        case, outcome = json.loads(line)
        child.done.append(case)
        child.started, child.cpu_s = time.monotonic(), _read_cpu(child.pid)
        yield case, Outcome(**outcome)


def _check(child: _Child) -> tuple[bool, Outcome | None]:
    """Return whether a child ended or was stopped, and what its last case ended in."""
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    if pid:
        code = os.waitstatus_to_exitcode(status)
        reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return True, Outcome("crash", reason)
    waited_s = time.monotonic() - child.started
    if waited_s < TIME_S:
        return False, None
    used = _read_cpu(child.pid)
    now = time.monotonic()
    if used - child.seen[1] > 0.05 or child.seen[0] < child.started:
        child.seen = now, used
    is_blocked = now - child.seen[0] > BLOCKED_S
    if used - child.cpu_s < TIME_S and not is_blocked:
        return False, None
    os.killpg(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    reason = "waits" if is_blocked else "computes"
    return True, Outcome("hang", f"{reason} after {TIME_S:g} s")


def _read_status(name: str) -> int:
    """Return a figure of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0


def _read_cpu(pid: int) -> float:
    """Return the processor time of a process and its children in seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # fields 13 and 14: of children that ended
    return own + sum(_read_cpu(int(child)) for child in children)
