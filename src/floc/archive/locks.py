"""Locks on folders, shared or exclusive, which the system releases when a process ends.

A writer shares the lock of the store as long as it has data that is not committed, and the lock of the table `videos`
while it commits. `compact` takes the second one alone while it deletes: what a writer has checked is still there when
it commits. To delete recent data it takes the first one alone, too.
"""

import os
import time
from contextlib import AbstractContextManager
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
