"""What the machine offers: threads to work with, memory that is free or given back, BLAS held to one thread."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from floc._format import format_bytes

SMALL_BYTES = 1 << 30  # that any GPU has
_alone = threading.local()


def count_threads() -> int:
    """Worker threads to use: torch's own setting, so `torch.set_num_threads` and OMP_NUM_THREADS govern floc too."""
    return 1 if getattr(_alone, "is_asked", False) else torch.get_num_threads()


@contextlib.contextmanager
def use_one_thread() -> Iterator[None]:
    """All work of this thread is done by itself meanwhile."""
    before = getattr(_alone, "is_asked", False)
    _alone.is_asked = True
    try:
        yield
    finally:
        _alone.is_asked = before


class _SingleThreadedBlas:
    """Holds numpy's BLAS to one thread while anyone is inside; the workers are the parallelism.

    The setting belongs to the process, so nested and concurrent users are counted and the last one restores it. It may
    only be restored by the thread that made it, so a thread of its own holds it meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._leave = threading.Event()
        self._holder: threading.Thread | None = None
        self._controller: Any = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._start_holding()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._holder is not None:
                    self._leave.set()
                    self._holder.join()

    def limit_this_thread(self) -> None:
        """For a worker inside: a BLAS built on OpenMP keeps the setting for each thread."""
        self._controller.limit(limits=1, user_api="blas")

    def _start_holding(self) -> None:
        from threadpoolctl import ThreadpoolController

        if self._controller is None:  # looking through the loaded libraries takes milliseconds: once is enough
            self._controller = ThreadpoolController()
        held, self._leave = threading.Event(), threading.Event()

        def hold(leave: threading.Event = self._leave) -> None:
            try:
                with self._controller.limit(limits=1, user_api="blas"):
                    held.set()
                    leave.wait()
            finally:
                held.set()  # whoever waits must not wait for ever, should the limit fail

        self._holder = threading.Thread(target=hold, name="floc-blas", daemon=True)
        self._holder.start()
        held.wait()


single_threaded_blas = _SingleThreadedBlas()


def available_bytes(device: torch.device) -> int | None:
    """Memory that can still be had on a device, or None where the system does not tell."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    limits = [limit for limit in (_system_available(), _cgroup_available()) if limit is not None]
    return min(limits, default=None)


def check_memory(n: int, needed_bytes: int, device: torch.device, remedy: str) -> None:
    """Complain, and say what to pass instead, where choosing from `n` tokens needs more memory than a device has."""
    if device.type == "cuda" and needed_bytes < SMALL_BYTES:
        return  # asking a GPU takes longer than it takes to choose
    available = available_bytes(device)
    if available is not None and needed_bytes > available:
        raise MemoryError(
            f"selecting from {n} tokens at once needs {format_bytes(needed_bytes)}, but only "
            f"{format_bytes(available)} are free; pass {remedy}"
        )


def _system_available() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _cgroup_available() -> int | None:
    """What a container's limit leaves; its file cache is given back when memory is short, so it does not count."""
    root = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError, KeyError):
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        used = int((root / "memory.current").read_text()) - int(stat["inactive_file"])
        return int((root / "memory.max").read_text()) - used
    with contextlib.suppress(OSError, ValueError, KeyError):
        stat = dict(line.split() for line in (root / "memory/memory.stat").read_text().splitlines())
        used = int((root / "memory/memory.usage_in_bytes").read_text()) - int(stat["total_inactive_file"])
        return int((root / "memory/memory.limit_in_bytes").read_text()) - used
    return None


def resident_bytes() -> int | None:
    """Memory that this process holds now, or None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def release_memory() -> None:
    """Hand memory that is free in this process back to the system, which glibc else keeps in pieces for later."""
    if (trim := _trim()) is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL(None).malloc_trim
    return None
