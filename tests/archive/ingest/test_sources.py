from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from floc.archive import StoreError
from floc.archive.ingest import sources
from floc.archive.ingest.order import Source
from floc.archive.ingest.sources import content_of, fetched, find, renewed


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


@pytest.mark.parametrize("name", ["a film.mp4", "50%.mp4", "what?.mp4", "a#b.mp4", "%20.mp4"])
def test_any_name_at_an_address(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(b"film")
    (source,) = find([f"file://{tmp_path}/"])
    with fetched(source) as path:
        assert path.read_bytes() == b"film"


def test_what_says_where_a_bucket_is_goes_with_its_files(monkeypatch) -> None:
    fs = pytest.importorskip("pyarrow.fs")
    files = [fs.FileInfo(f"bucket/cameras/{name}", fs.FileType.File, size=3) for name in ("b c.mp4", "a.mp4", "notes")]

    class Bucket:
        def get_file_info(self, what):
            return fs.FileInfo("bucket/cameras", fs.FileType.Directory) if isinstance(what, str) else files

    monkeypatch.setattr(sources, "_opened", lambda address: (Bucket(), "bucket/cameras"))
    found = [source.uri for source in find(["s3://bucket/cameras/?endpoint_override=minio:9000"])]
    assert found == [f"s3://bucket/cameras/{name}?endpoint_override=minio:9000" for name in ("a.mp4", "b%20c.mp4")]


def test_no_room_for_a_copy_stops_it(folder: Path, monkeypatch) -> None:
    """It is not the video that is wrong."""
    pytest.importorskip("pyarrow")
    (source,) = find([f"file://{folder}/b.mp4"])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sources.shutil, "copyfileobj", full)
    with pytest.raises(StoreError, match=r"no room for a copy of .*b\.mp4.*set TMPDIR"), fetched(source):
        pass


def test_a_file_at_an_address_that_is_not_what_it_was(folder: Path) -> None:
    pytest.importorskip("pyarrow")
    (source,) = find([f"file://{folder}/b.mp4"])
    (folder / "b.mp4").write_bytes(b"longer than before")
    with pytest.raises(ValueError, match="changed while it was read"), fetched(source):
        pass
    (folder / "b.mp4").unlink()
    with pytest.raises(FileNotFoundError, match="no such file"):
        renewed(source)


def test_links_to_nowhere_are_told_of_and_pipes_left_alone(folder: Path) -> None:
    (folder / "link.mp4").symlink_to(folder / "gone.mp4")
    os.mkfifo(folder / "pipe.mp4")
    assert [Path(source.uri).name for source in find([folder])] == ["b.mp4", "a.MKV", "link.mp4"]


def test_a_folder_that_cannot_be_read_is_not_passed_over(folder: Path, monkeypatch) -> None:
    listed = os.scandir

    def closed(path):
        if Path(path).name == "inner":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(PermissionError, match="inner: this folder cannot be read"):
        find([folder])


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
