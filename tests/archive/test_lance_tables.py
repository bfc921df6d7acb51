"""`LanceTable`: reads and changes survive what other processes do meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")

from floc import Store
from floc.archive import lance_tables
from tests.archive.builders import add_video, make_pieces


def test_read_is_repeated_if_its_files_vanish(store: Store) -> None:
    for number in range(3):
        add_video(store, make_pieces(1), uri=f"/films/{number}.mp4")
    versions = []

    def read(table: Any) -> int:
        versions.append(table.version)
        if len(versions) == 1:
            Store(store.path).compact(older_than_s=0)
        return sum(map(len, table.to_table()["features"].to_pylist()))

    rows = Store(store.path)._tables.token_rows
    assert rows.read(read) == sum(video.kept for video in store.videos()) * 8 * 2
    assert len(versions) == 2


def test_conflicting_change_is_repeated(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance_tables, "PAUSE_S", 0)
    attempts = []

    def change(table: Any) -> int:
        attempts.append(table)
        if len(attempts) < 4:
            raise OSError("Retryable commit conflict for version 7")
        return len(attempts)

    assert store._tables.token_rows.change(change) == 4


@pytest.mark.parametrize(
    ("message", "count"), [("Retryable commit conflict", lance_tables.MAX_ATTEMPTS), ("No such device", 1)]
)
def test_change_gives_up(store: Store, monkeypatch: pytest.MonkeyPatch, message: str, count: int) -> None:
    monkeypatch.setattr(lance_tables, "PAUSE_S", 0)
    attempts = []

    def change(table: Any) -> None:
        attempts.append(table)
        raise OSError(message)

    with pytest.raises(OSError, match=message):
        store._tables.token_rows.change(change)
    assert len(attempts) == count


@pytest.mark.parametrize("table", ["videos", "segments"])
def test_file_whose_error_has_a_null_byte_does_not_end_the_process(store: Store, table: str) -> None:
    add_video(store, make_pieces(1))
    (file,) = Path(store.path, f"{table}.lance", "data").iterdir()
    data = file.read_bytes()
    assert b"/lance.encodings" in data
    file.write_bytes(data.replace(b"/lance.encodings", b"/lan\x00e.encodings"))
    script = "import sys, floc; store = floc.Store(sys.argv[1]); store.open(store.videos()[0].id)"
    done = subprocess.run([sys.executable, "-c", script, store.path], capture_output=True, text=True, check=False)
    assert done.returncode == 1  # it ended with an exception, and was not aborted
    message = done.stderr.splitlines()[-1]
    assert "DamagedStoreError" in message
    assert "\x00" not in message


@pytest.mark.parametrize("name", ["../../secret.lance", "/etc/passwd", ".hidden", "a\0b"])
def test_data_files_are_in_the_folder_of_the_table(store: Store, name: str) -> None:
    fragment = SimpleNamespace(data_files=lambda: [SimpleNamespace(path=name)])
    with pytest.raises(ValueError, match="is not the name of a data file"):
        store._tables.videos.check_files([fragment])
