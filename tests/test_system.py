"""Threads, BLAS and memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import ThreadpoolController

import floc
from floc import _system
from floc._system import single_threaded_blas


def blas_threads() -> set[int]:
    """Return the threads of numpy's BLAS; other packages may load a BLAS of their own at any time."""
    found = ThreadpoolController().select(user_api="blas").info()
    return {each["num_threads"] for each in found if "numpy" in each["filepath"]}


def test_blas_limit_is_lifted_by_the_last_user() -> None:
    np.eye(2) @ np.eye(2)
    before = blas_threads()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with single_threaded_blas():
            inside.set()
            leave.wait()

    worker = threading.Thread(target=other)
    with single_threaded_blas():
        worker.start()
        inside.wait()
    assert blas_threads() == {1}
    leave.set()
    worker.join()
    assert blas_threads() == before


def test_blas_limit_is_lifted_after_an_error(tokens: np.ndarray) -> None:
    before = blas_threads()

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    for backend in ("cpu", "torch"):
        with pytest.raises(KeyboardInterrupt):
            floc.compress(tokens, ratio=1 / 8, progress=stop, backend=backend)
    assert blas_threads() == before
    assert not [each for each in threading.enumerate() if each.name.startswith("floc")]


def test_concurrent_calls_do_not_interfere(tokens: np.ndarray) -> None:
    alone = [floc.compress(tokens + shift, ratio=1 / 8).indices for shift in range(3)]
    found: dict[int, np.ndarray] = {}

    def run(shift: int) -> None:
        found[shift] = floc.compress(tokens + shift, ratio=1 / 8).indices

    workers = [threading.Thread(target=run, args=(shift,)) for shift in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for shift in range(3):
        np.testing.assert_array_equal(found[shift], alone[shift])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc_trim is specific to glibc")
def test_release_memory():
    """In a separate process: large freed blocks of memory, each followed by a small block in use."""
    script = """
import ctypes
from floc._system import release_memory, resident_bytes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
held = []
for _ in range(1000):
    block = libc.malloc(100_000)
    ctypes.memset(block, 1, 100_000)
    held.append(block)
    libc.malloc(5_000)
for block in held:
    libc.free(ctypes.c_void_p(block))
before = resident_bytes()
release_memory()
print(before - resident_bytes())
"""
    freed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(freed) > 50_000_000


def test_use_one_thread_nests_and_is_local_to_the_thread(set_threads) -> None:
    set_threads(2)
    with _system.use_one_thread():
        with _system.use_one_thread():
            assert _system.count_threads() == 1
        assert _system.count_threads() == 1
        with ThreadPoolExecutor(1) as others:
            assert others.submit(_system.count_threads).result() == torch.get_num_threads()
    assert _system.count_threads() == 2


def test_use_one_thread_starts_no_others(set_threads, monkeypatch) -> None:
    set_threads(2)
    tokens = np.random.default_rng(0).normal(size=(70, 3, 4, 16)).astype(np.float32)
    expected = floc.compress(tokens, ratio=1 / 8).indices.tolist()
    start, started = _system.start_new_thread, []

    def record(function: Any, arguments: tuple) -> None:
        started.append(function.__name__)
        start(function, arguments)

    monkeypatch.setattr(_system, "start_new_thread", record)
    with _system.use_one_thread():
        assert floc.compress(tokens, ratio=1 / 8).indices.tolist() == expected
    assert "work" not in started
    floc.compress(tokens, ratio=1 / 8)
    assert "work" in started


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_run_in_threads(threads: int) -> None:
    done: list[int] = []
    _system.run_in_threads(done.append, range(100), threads, prepare=lambda: None)
    assert sorted(done) == [*range(100)]
    _system.run_in_threads(done.append, [], threads)
    assert len(done) == 100


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_errors_in_threads_are_raised_and_stop_the_others(threads: int) -> None:
    done: list[int] = []

    def fail(item: int) -> None:
        if item == 3:
            raise ValueError("wrong")
        time.sleep(0.002)
        done.append(item)

    with pytest.raises(ValueError, match="wrong"):
        _system.run_in_threads(fail, range(1000), threads, prepare=lambda: None)
    assert len(done) < 100


def test_threads_have_ended_after_an_interrupt() -> None:
    running, items = [], []

    def work(item: int) -> None:
        running.append(item)
        items.append(item)
        time.sleep(0.05)
        running.pop()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(KeyboardInterrupt):
            _system.run_in_threads(work, range(100), 2, prepare=lambda: None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert running == []
    assert len(items) < 50


def test_a_thread_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = _system.start_new_thread, []

    def refuse(function: Any, arguments: tuple) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(True)
        start(function, arguments)

    monkeypatch.setattr(_system, "start_new_thread", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        _system.run_in_threads(lambda _: time.sleep(0.01), range(9), 3, prepare=lambda: None)


def test_restore_interrupts_raises_the_first_cause() -> None:
    @_system.restore_interrupts()
    def fail(error: BaseException | None) -> None:
        raise SystemError("returned a result with an exception set") from error

    middle = SystemError("inner")
    middle.__cause__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        fail(middle)
    with pytest.raises(TimeoutError):
        fail(TimeoutError())
    with pytest.raises(SystemError):
        fail(None)


ROOT = Path(__file__).parents[1]
INTERRUPTS = """
import gc, os, random, signal, sys, timeit
import numpy as np, torch, floc
from tests.test_system import blas_threads

torch.set_num_threads(int(sys.argv[1]))
tokens = np.random.default_rng(0).standard_normal((512, 4, 6, 64)).astype(np.float32)
rng, fired, lost = random.Random(0), [], []
sys.unraisablehook = lost.append  # Python drops what is raised in a weakref callback

def interrupt(*_):
    fired.append(True)
    raise KeyboardInterrupt

floc.compress(tokens, ratio=1 / 8)
before = blas_threads()
usual_s = min(timeit.repeat(lambda: floc.compress(tokens, ratio=1 / 8), number=1, repeat=5))
signal.signal(signal.SIGALRM, interrupt)
interrupted = swallowed = 0
for _ in range(60):
    fired.clear(), lost.clear()
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, usual_s))
        floc.compress(tokens, ratio=1 / 8)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
    else:
        swallowed += bool(fired and not lost)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
gc.collect()
print(interrupted > 0, swallowed, blas_threads() == before, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_interrupts_of_compress_are_keyboard_interrupts(threads: int) -> None:
    """At random moments; before the fix about one in ten was a SystemError, and BLAS kept its limit."""
    command = [sys.executable, "-c", INTERRUPTS, str(threads)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "0", "True"], done.stderr


def test_interrupts_while_the_blas_limit_is_taken_lift_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before, start = blas_threads(), _system.start_new_thread

    def interrupt(function: Any, arguments: Any) -> None:
        start(function, arguments)
        while not arguments[0].has_begun:
            time.sleep(0.001)
        raise KeyboardInterrupt

    monkeypatch.setattr(_system, "start_new_thread", interrupt)
    with pytest.raises(KeyboardInterrupt), single_threaded_blas():
        pass
    assert blas_threads() == before
