from __future__ import annotations

from pathlib import Path

import pytest

from floc.corpus.order import Source
from floc.corpus.sources import content_of, fetched, find


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.mp4", "inner/a.MKV", "notes.txt", "inner/none"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def test_videos_of_a_folder_and_files_that_are_named(folder: Path) -> None:
    names = [Path(source.uri).name for source in find([folder, folder / "notes.txt", folder / "b.mp4"])]
    assert names == ["b.mp4", "a.MKV", "notes.txt"]
    assert find([folder / "b.mp4"]) == [
        Source(str(folder / "b.mp4"), 5, (folder / "b.mp4").stat().st_mtime),
    ]


def test_an_address_is_fetched_as_long_as_it_is_needed(folder: Path) -> None:
    pytest.importorskip("pyarrow")
    (source,) = find([f"file://{folder}/b.mp4"])
    assert source.uri == f"file://{folder}/b.mp4"
    assert (source.size, source.modified_s) == (5, pytest.approx((folder / "b.mp4").stat().st_mtime))
    with fetched(source) as path:
        assert path != folder / "b.mp4"
        assert path.read_bytes() == b"b.mp4"
        assert content_of(path) == content_of(folder / "b.mp4")
    assert not path.exists()
    found = [source.uri for source in find([f"file://{folder}"])]
    assert found == [f"file://{folder}/b.mp4", f"file://{folder}/inner/a.MKV"]


def test_a_file_that_is_here_is_not_copied(folder: Path) -> None:
    (source,) = find([folder / "b.mp4"])
    with fetched(source) as path:
        assert path == folder / "b.mp4"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere", "no such file or folder"),
        ("inner/empty", "no videos in this folder"),
        ("file:///nowhere/at/all", "nothing there"),
        ("gopher://old", "not an address that can be read here"),
    ],
)
def test_what_is_no_source(folder: Path, given: str, message: str) -> None:
    pytest.importorskip("pyarrow")
    (folder / "inner" / "empty").mkdir()
    with pytest.raises((ValueError, OSError), match=message):
        find([given if "://" in given else folder / given])
