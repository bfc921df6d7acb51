"""Atomic writes: complete or not at all, without leftovers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import SafetensorError

from floc._atomic import check_writable, write_atomic


def test_write_atomic_replaces_a_file_completely_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "kept.safetensors"
    target.write_bytes(b"what was there")

    def fail_half_way(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomic(target, fail_half_way)
    assert target.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [target]
    write_atomic(target, lambda temporary: temporary.write_bytes(b"new"))
    assert target.read_bytes() == b"new"
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask


def test_write_atomic_never_changes_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "umask", None)
    write_atomic(tmp_path / "a", lambda temporary: temporary.write_bytes(b"new"))


def test_write_atomic_takes_writers_that_replace_the_file(tmp_path: Path) -> None:
    """As `safetensors.torch.save_file` does, with a file that others cannot read."""

    def write(temporary: Path) -> None:
        other = temporary.with_name("other")
        other.touch(mode=0o600)
        other.replace(temporary)

    write_atomic(tmp_path / "a", write)
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_names_of_255_bytes_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127 + "a")
    write_atomic(path, lambda temporary: temporary.write_bytes(b"new"))
    assert path.read_bytes() == b"new"


def test_check_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path / "new")
    with pytest.raises(OSError, match="is too long; use at most 255 bytes"):
        check_writable(tmp_path / ("a" * 256))
    with pytest.raises(FileNotFoundError, match=r"the folder .*none does not exist; create it first"):
        check_writable(tmp_path / "none" / "a")
    with pytest.raises(IsADirectoryError, match="is a folder; give the name of a file"):
        check_writable(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is not a regular file"):
        check_writable(tmp_path / "pipe")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match="is not writable; choose another folder"):
        check_writable(tmp_path / "new")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "full"), r"\(No space left on device\); free space and run again"),
        (SafetensorError("I/O error: x (os error 28)"), r"\(No space left on device\); free space and run again"),
        (SafetensorError("I/O error: x (os error 27)"), r"\(File too large\); choose another folder and run again"),
        (SafetensorError("I/O error: x (os error 5)"), r"\(Input/output error\); choose another folder and run again"),
    ],
)
def test_a_full_disk_is_an_os_error(tmp_path: Path, error: Exception, message: str) -> None:
    def write(_: Path) -> None:
        raise error

    with pytest.raises(OSError, match=f"a: cannot be written {message}"):
        write_atomic(tmp_path / "a", write)
    assert list(tmp_path.iterdir()) == []


def test_the_next_write_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from floc._atomic import write_atomic
def write(temporary):
    temporary.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
write_atomic(Path(sys.argv[1]), write)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")], check=False)
    (leftover,) = tmp_path.iterdir()
    os.utime(leftover, (0, time.time() - 2))

    def write(temporary: Path) -> None:
        os.utime(temporary.parent, (0, 0))
        write_atomic(tmp_path / "a", lambda temporary: temporary.write_bytes(b"inner"))
        assert temporary.exists()  # in use, however old
        temporary.write_bytes(b"outer")

    write_atomic(tmp_path / "b", lambda temporary: temporary.write_bytes(b"other"))
    assert leftover.exists()  # of another file
    write_atomic(tmp_path / "a", write)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"outer", "b": b"other"}
