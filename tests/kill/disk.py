"""Full disks and read-only folders: a command ends with one clear line, and earlier outputs stay as they were."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.kill.operations import Operation
from tests.kill.trials import RUN_LIMIT_S, Defect, Launch, Workspace, measure_files, require_no_traceback

PAGE = 4096


def can_mount() -> bool:
    """Return whether this process may mount a small file system."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@contextlib.contextmanager
def mount_tmpfs(folder: Path, size: int) -> Iterator[Path]:
    """Mount a file system in memory."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)
        folder.rmdir()


def try_file_limit(workspace: Workspace, operation: Operation, share: float) -> None:
    """Run a command whose files may only reach a share of the size that its largest file needs."""
    reference = workspace.get_reference(operation)
    with workspace.open_trial(operation) as work:
        _require_refusal(operation, work, file_bytes=int(share * reference.largest_bytes))


def try_full_disk(workspace: Workspace, operation: Operation, share: float) -> None:
    """Run a command on a disk that has room for a share of what it writes."""
    reference = workspace.get_reference(operation)
    with workspace.open_trial(operation) as work:
        used = sum(-(-size // PAGE) * PAGE for size in measure_files(work).values())
    size = max(PAGE, used + int(share * reference.written_bytes) // PAGE * PAGE)
    mount = workspace.folder / f"disk-{operation.name.replace(' ', '-')}-{share}"
    with mount_tmpfs(mount, size) as disk, workspace.open_trial(operation, disk) as work:
        _require_refusal(operation, work, disk)


def try_read_only(workspace: Workspace, operation: Operation) -> None:
    """Run a command in a folder in which nothing can be written."""
    mount = workspace.folder / f"read-only-{operation.name.replace(' ', '-')}"
    with mount_tmpfs(mount, 64 << 20) as disk, workspace.open_trial(operation, disk) as work:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, capture_output=True)
        _require_refusal(operation, work, disk)


def _require_refusal(operation: Operation, work: Path, full: Path | None = None, **settings: int) -> None:
    """Run a command that cannot write; raise Defect unless it says so in one line and leaves no part of an output.

    Args:
        full: the full or read-only file system, which gets room before the outputs are read.
    """
    earlier = operation.read_outputs(work)
    launch = Launch(operation, work, **settings)
    launch.wait_ready()
    ended = launch.wait(RUN_LIMIT_S)
    if full is not None:
        subprocess.run(["mount", "-o", "remount,rw,size=64m", str(full)], check=True, capture_output=True)
    require_no_traceback(ended)
    errors = [line for line in ended.stderr.splitlines() if line.startswith("floc: ")]
    if ended.status != 2 or len(errors) != 1:
        raise Defect(f"status {ended.status} with {len(errors)} error lines: {ended.stderr[-600:].strip()}")
    if not any(words in errors[0] for words in ("space", "too large", "ead-only", "cannot write", "quota")):
        raise Defect(f"does not say that the disk is full: {errors[0]}")
    try:
        outputs = operation.read_outputs(work)
    except Exception as error:
        raise Defect(f"an output cannot be read: {type(error).__name__}: {error}") from error
    if operation.has_earlier_output and outputs != earlier:
        raise Defect("the earlier output has changed")
    hidden = [path.name for path in work.rglob(".*") if path.is_file()]
    if hidden:
        raise Defect(f"left behind: {hidden}")
