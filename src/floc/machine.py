"""What the machine offers: threads to work with, memory that is free, BLAS held to one thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import torch


def threads() -> int:
    """Worker threads to use: torch's own setting, so `torch.set_num_threads` and OMP_NUM_THREADS govern floc too."""
    return torch.get_num_threads()


class _SingleThreadedBlas:
    """Holds numpy's BLAS to one thread while anyone is inside; the workers are the parallelism.

    The setting belongs to the process, so nested and concurrent users are counted and the last one restores it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limits: contextlib.ExitStack | None = None
        self._controller = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._limit()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._limits is not None:
                    self._limits.close()

    def _limit(self) -> None:
        from threadpoolctl import ThreadpoolController

        if self._controller is None:  # looking through the loaded libraries takes milliseconds: once is enough
            self._controller = ThreadpoolController()
        self._limits = contextlib.ExitStack()
        self._limits.enter_context(self._controller.limit(limits=1, user_api="blas"))


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


def _system_available() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _cgroup_available() -> int | None:
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            root = Path("/sys/fs/cgroup")
            return int((root / limit).read_text()) - int((root / usage).read_text())
    return None


def in_words(size_bytes: float) -> str:
    """A size for people.

    >>> in_words(5_000_000_000)
    '4.7 GiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            break
        size_bytes /= 1024
    else:
        unit = "TiB"
    return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.1f} {unit}"
