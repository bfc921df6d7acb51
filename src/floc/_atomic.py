"""Temporary folders, and atomic writes: a reader sees the old file or the whole new one, whatever ends the process."""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

NAME_BYTES = 255  # in a file name, on all usual file systems
NEW_S, OLD_S = 1.0, 86_400.0  # minimum age of a folder to remove, with and without locks


def check_writable(path: Path) -> None:
    """Raise OSError if a file cannot be written to `path`; commands call it before their work."""
    name, folder = path.name, path.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{path}: the folder {folder} does not exist; create it first")
    if len(os.fsencode(name)) > NAME_BYTES:
        raise OSError(f"the file name {name[:60]!r}... is too long; use at most {NAME_BYTES} bytes")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: is a folder; give the name of a file")
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: is not a regular file, so it cannot be replaced; give another name")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{path}: the folder {folder} is not writable; choose another folder")


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file with `write` in a temporary folder beside it, and move it when it is complete and on disk.

    The next write to the same path removes what a killed process left behind.
    """
    check_writable(path)
    prefix = f".floc-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:12]}-"
    try:
        with create_temporary_folder(prefix, path.parent) as folder:
            temporary = folder / "part"
            with temporary.open("xb") as empty:
                mode = stat.S_IMODE(os.fstat(empty.fileno()).st_mode)  # the default of the process for new files
            write(temporary)  # may replace the file
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.chmod(mode)
            temporary.replace(path)
    except Exception as error:
        # safetensors has an error class of its own, which names the system's error number
        code = re.search(r"\(os error (\d+)\)", str(error))
        number = error.errno if isinstance(error, OSError) else code and int(code[1])
        is_full = number in (errno.ENOSPC, errno.EDQUOT)
        if number is None or (isinstance(error, OSError) and not is_full and number != errno.EFBIG):
            raise
        remedy = "free space" if is_full else "choose another folder"
        failed = OSError(f"{path}: cannot be written ({os.strerror(number)}); {remedy} and run again")
        failed.errno = number
        raise failed from error
    # flush the folder's entries, so that after a power failure no later file exists without this one
    with contextlib.suppress(OSError):  # not every system can open or flush folders
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def create_temporary_folder(prefix: str, parent: Path | None = None, *, may_be_old: bool = False) -> Iterator[Path]:
    """Create a temporary folder and delete it at the end, as well as those that killed processes left behind.

    Other processes see by a lock that it is in use. Without a parent it is in the system's folder for such folders.
    Where folders cannot be locked, those that are a day old are deleted, unless they may be in use for so long.
    """
    parent = parent or Path(tempfile.gettempdir())
    for leftover in parent.glob(f"{prefix}*.tmp"):
        with contextlib.suppress(OSError), _lock_folder(leftover, wait=False) as is_locked:
            if not is_locked and may_be_old:
                continue
            if time.time() - leftover.stat().st_mtime > (NEW_S if is_locked else OLD_S):
                shutil.rmtree(leftover)
    folder = Path(tempfile.mkdtemp(".tmp", prefix, parent))
    try:
        with _lock_folder(folder, wait=True):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _lock_folder(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Lock a folder, and yield whether folders can be locked; raise BlockingIOError if another process has it."""
    if fcntl is None:
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        is_locked = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:  # such as a network drive without locks
            is_locked = False
        yield is_locked
    finally:
        os.close(handle)
