"""Threads, memory and interrupts of the process, and a limit of one thread for BLAS."""

import contextlib
import ctypes
import functools
import os
import threading
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch

from floc._text import format_bytes

_Item = TypeVar("_Item")
_thread = threading.local()


def count_threads() -> int:
    """Return how many worker threads to use: torch's setting, so `torch.set_num_threads` and OMP_NUM_THREADS apply."""
    return 1 if getattr(_thread, "is_alone", False) else torch.get_num_threads()


@contextlib.contextmanager
def use_one_thread() -> Iterator[None]:
    """Run all floc work of the current thread in that thread, without a pool."""
    before = getattr(_thread, "is_alone", False)
    _thread.is_alone = True
    try:
        yield
    finally:
        _thread.is_alone = before


@contextlib.contextmanager
def restore_interrupts() -> Iterator[None]:
    """Raise what a signal handler raised in compiled code, such as KeyboardInterrupt; numba makes it a SystemError."""
    try:
        yield
    except SystemError as error:
        if error.__cause__ is None:
            raise
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        single_threaded_blas.release()
        raise cause from None
    except KeyboardInterrupt:
        single_threaded_blas.release()
        raise


class _SingleThreadedBlas:
    """Context manager that limits numpy's BLAS to one thread; floc's worker threads provide the parallelism.

    The setting is global: users are counted, and the last one restores it. Only the thread that changed it may restore
    it, so a separate thread holds the limit.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: set[tuple[int, object]] = set()  # with the thread of each
        self._usual = 1  # threads without a limit
        self._holder: _Holder | None = None
        self._controller: Any = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        user = threading.get_ident(), object()
        try:
            self._add(user)
            yield
        finally:
            try:
                self._remove(user)
            except BaseException:  # an interrupt came in between
                self._remove(user)
                raise

    def limit_this_thread(self) -> None:
        """Limit a worker thread too: a BLAS built on OpenMP has one setting per thread."""
        if not self._users:
            return
        before = self._count_threads()
        limiter = self._controller.limit(limits=1, user_api="blas")
        # the caller was interrupted and has lifted the limit; for a BLAS with one setting for all, so must this thread
        if not self._users and before != 1:
            limiter.restore_original_limits()

    def release(self) -> None:
        """Lift the limit after an interrupt in this thread, which may have left users and workers behind."""
        for user in tuple(self._users):
            if user[0] == threading.get_ident():
                self._remove(user)
        if self._controller is not None and not self._users:
            self._controller.limit(limits=self._usual, user_api="blas")

    def _add(self, user: tuple[int, object]) -> None:
        from threadpoolctl import ThreadpoolController

        with self._lock:
            if self._controller is None:  # inspecting the loaded libraries takes milliseconds
                self._controller = ThreadpoolController()
            self._users.add(user)
            if self._holder is None:
                self._holder = _Holder()
                start_new_thread(self._hold, (self._holder,))
                with self._holder.holds:
                    pass  # it holds the limit now

    def _hold(self, holder: "_Holder") -> None:
        holder.has_begun, is_waited_for = True, True
        try:
            self._usual = max(self._usual, self._count_threads())
            with self._controller.limit(limits=1, user_api="blas"):
                holder.holds.release()
                is_waited_for = False
                holder.leave.acquire()
        finally:
            if is_waited_for:  # the limit failed
                holder.holds.release()
            holder.has_left.release()

    def _count_threads(self) -> int:
        """Return the threads of BLAS, the fewest of several libraries; `threadpoolctl` warns where these differ."""
        return min(
            (library["num_threads"] for library in self._controller.info() if library["user_api"] == "blas"), default=1
        )

    def _remove(self, user: tuple[int, object]) -> None:
        with self._lock:
            self._users.discard(user)
            if self._holder is not None and not self._users:
                if self._holder.leave.locked():
                    self._holder.leave.release()
                if self._holder.has_begun:  # else an interrupt came before; if it begins, it leaves at once
                    with self._holder.has_left:
                        pass  # it holds the limit no longer
                self._holder = None


class _Holder:
    """The state of the thread that holds the limit.

    Each lock starts locked, and its release signals an event. An interrupt can leave a `threading.Event` unusable.
    """

    def __init__(self) -> None:
        self.holds, self.leave, self.has_left = (_create_locked() for _ in range(3))
        self.has_begun = False


def _create_locked() -> Any:
    lock = allocate_lock()
    lock.acquire()
    return lock


single_threaded_blas = _SingleThreadedBlas()


def run_in_threads(
    task: Callable[[_Item], object],
    items: Iterable[_Item],
    threads: int | None = None,
    prepare: Callable[[], object] = single_threaded_blas.limit_this_thread,
) -> None:
    """Run `task` on all items in new threads, as many as torch uses, and raise the first error.

    A single thread is the calling thread. Otherwise each thread first calls `prepare`. After an error or an interrupt
    the threads stop when their current item is done. No `Executor` is used, because an interrupt inside one of its
    methods can leave a lock that is never released.
    """
    items = list(items)
    threads = min(threads or count_threads(), len(items))
    if threads <= 1:
        for item in items:
            task(item)
        return
    # operations of lists and of their iterators are atomic
    left, errors, running, is_done = iter(items), list[BaseException](), [*range(threads)], _create_locked()

    def work() -> None:
        try:
            prepare()
            for item in left:
                if errors:
                    break
                task(item)
        except BaseException as error:
            errors.append(error)
        finally:
            if running.pop() == 0:
                is_done.release()

    started = 0
    try:
        for _ in range(threads):
            start_new_thread(work, ())
            started += 1
        is_done.acquire()
    except BaseException as error:
        errors.append(error)
        while len(running) > threads - started:
            time.sleep(0.001)
        raise
    if errors:
        raise errors[0]


def available_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device, or None if it is unknown."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    limits = (_system_available(), _cgroup_available()) if device.type == "cpu" else ()
    return min((limit for limit in limits if limit is not None), default=None)


def check_memory(n: int, needed_bytes: int, device: torch.device, remedy: str) -> None:
    """Raise MemoryError if selecting from `n` tokens needs more memory than free; `remedy` is what to pass instead."""
    if device.type == "cuda" and needed_bytes < 1 << 30:
        return  # any supported GPU has that much, and querying it takes longer than the selection
    available = available_bytes(device)
    if available is not None and needed_bytes > available:
        needs, free = format_bytes(needed_bytes), format_bytes(available)
        raise MemoryError(f"selecting from {n} tokens at once needs {needs}, but only {free} are free; pass {remedy}")


def _system_available() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _cgroup_available() -> int | None:
    """Return the memory left under a container's limit; its file cache can be reclaimed, so it counts as free."""
    for folder, usage, limit, cached in (
        ("", "memory.current", "memory.max", "inactive_file"),
        ("memory", "memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError, KeyError):
            root = Path("/sys/fs/cgroup", folder)
            stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
            return int((root / limit).read_text()) - int((root / usage).read_text()) + int(stat[cached])
    return None


def resident_bytes() -> int | None:
    """Return the resident memory of this process, or None if it is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def release_memory() -> None:
    """Return free memory of this process to the system; glibc would keep it, fragmented, for later allocations."""
    with contextlib.suppress(OSError, AttributeError):
        _load_libc().malloc_trim(0)


_load_libc = functools.cache(lambda: ctypes.CDLL(None))
