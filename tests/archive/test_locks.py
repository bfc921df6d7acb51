"""Locks on folders, and temporary folders that killed processes left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
pytest.importorskip("fcntl", reason="this system has no locks on folders")

from floc._atomic import create_temporary_folder
from floc.archive import StoreError
from floc.archive.locks import FolderLock

HOLD = """
import sys, time
from floc._atomic import create_temporary_folder
with create_temporary_folder("floc-test-") as folder:
    (folder / "film").write_bytes(b"x")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_shared_and_exclusive_locks(tmp_path: Path) -> None:
    with FolderLock(tmp_path) as first, FolderLock(tmp_path) as second:
        assert first.is_held
        assert second.is_held
        with pytest.raises(StoreError, match="another process is using this folder"):
            FolderLock(tmp_path, exclusive=True, wait_s=0)
    with FolderLock(tmp_path, exclusive=True, wait_s=0), pytest.raises(StoreError):
        FolderLock(tmp_path, wait_s=0.05)
    lock = FolderLock(tmp_path, exclusive=True)
    del lock
    assert FolderLock(tmp_path, exclusive=True, wait_s=0).is_held


def test_rejects_what_is_not_a_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "none"):
        with pytest.raises(StoreError, match="cannot be locked"):
            FolderLock(tmp_path / name)
    assert not FolderLock("s3://bucket/store").is_held


def test_folder_of_a_killed_process_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = [sys.executable, "-c", HOLD]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        os.utime(folder, (1, 1))
        with create_temporary_folder("floc-test-"):
            assert (folder / "film").exists()  # in use
        process.send_signal(signal.SIGKILL)
    with create_temporary_folder("floc-test-") as own:
        assert not folder.exists()
    assert not own.exists()
