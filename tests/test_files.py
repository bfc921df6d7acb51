"""Token files and atomic writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from floc import files


def test_write_atomic_replaces_a_file_completely_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "kept.safetensors"
    target.write_bytes(b"what was there")

    def fail_half_way(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        files.write_atomic(target, fail_half_way)
    assert target.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [target]
    files.write_atomic(target, lambda temporary: temporary.write_bytes(b"new"))
    assert target.read_bytes() == b"new"
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask
