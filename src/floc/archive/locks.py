"""Locks on folders, shared or exclusive, which the system releases when a process ends.

A writer shares the lock of the store as long as it has data that is not committed, and the lock of the table `videos`
while it commits. `compact` takes the second one alone while it deletes: what a writer has checked is still there when
it commits. To delete recent data it takes the first one alone, too.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from floc.archive.schema import StoreError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

PAUSE_S = 0.02  # between two attempts


class FolderLock(AbstractContextManager["FolderLock"]):
    """A lock on a folder that exists. `is_held` is False if folders cannot be locked there."""

    def __init__(self, folder: str | Path, *, exclusive: bool = False, wait_s: float = 600.0) -> None:
        """Wait for the lock; raise StoreError if another process still has it after `wait_s`."""
        self.is_held = False
        self._handle: int | None = None
        if fcntl is None or "://" in str(folder):
            return
        try:
            self._handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            problem = f"{folder}: cannot be locked ({error.strerror})"
            raise StoreError(f"{problem}; check that the store exists and is writable") from None
        deadline = time.monotonic() + wait_s
        try:
            while not self.is_held:
                try:
                    fcntl.flock(self._handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                    self.is_held = True
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StoreError(f"{folder}: another process is using this folder; try again later") from None
                    time.sleep(PAUSE_S)
                except OSError:  # such as a network drive without locks
                    return
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __exit__(self, *_: object) -> None:
        self.release()

    __del__ = release


@contextmanager
def create_temporary_folder(prefix: str) -> Iterator[Path]:
    """Create a temporary folder and delete it at the end, as well as those that killed processes left behind."""
    for leftover in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError), FolderLock(leftover, exclusive=True, wait_s=0) as lock:
            if lock.is_held and time.time() - leftover.stat().st_mtime > 1:  # a new one is not locked yet
                shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder, FolderLock(folder):
        yield Path(folder)
