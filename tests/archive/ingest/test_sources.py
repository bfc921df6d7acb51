"""Finding, fetching and watching video files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")

from floc.archive import StoreError
from floc.archive.ingest import sources
from floc.archive.ingest.job import VideoFile
from floc.archive.ingest.sources import fetch_file, find_videos, refresh_file
from floc.archive.schema import hash_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.mp4", "inner/a.MKV", "notes.txt", "inner/none"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def test_finds_videos_in_folders_and_any_named_file(folder: Path) -> None:
    names = [Path(file.uri).name for file in find_videos([folder, folder / "notes.txt", folder / "b.mp4"])]
    assert names == ["b.mp4", "a.MKV", "notes.txt"]
    assert find_videos([folder / "b.mp4"]) == [
        VideoFile(str(folder / "b.mp4"), 5, (folder / "b.mp4").stat().st_mtime),
    ]


def test_remote_file_is_copied_while_it_is_needed(folder: Path) -> None:
    (file,) = find_videos([f"file://{folder}/b.mp4"])
    assert file.uri == f"file://{folder}/b.mp4"
    assert (file.size, file.modified_s) == (5, pytest.approx((folder / "b.mp4").stat().st_mtime))
    with fetch_file(file) as path:
        assert path != folder / "b.mp4"
        assert path.read_bytes() == b"b.mp4"
        assert hash_file(path) == hash_file(folder / "b.mp4")
    assert not path.exists()
    uris = [file.uri for file in find_videos([f"file://{folder}"])]
    assert uris == [f"file://{folder}/b.mp4", f"file://{folder}/inner/a.MKV"]


def test_local_file_is_not_copied(folder: Path) -> None:
    (file,) = find_videos([folder / "b.mp4"])
    with fetch_file(file) as path:
        assert path == folder / "b.mp4"


@pytest.mark.parametrize("name", ["a film.mp4", "50%.mp4", "what?.mp4", "a#b.mp4", "%20.mp4"])
def test_remote_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"film")
    (file,) = find_videos([f"file://{tmp_path}/"])
    with fetch_file(file) as path:
        assert path.read_bytes() == b"film"


def test_query_of_a_bucket_is_kept_for_its_files(monkeypatch) -> None:
    from pyarrow import fs

    files = [fs.FileInfo(f"bucket/cameras/{name}", fs.FileType.File, size=3) for name in ("b c.mp4", "a.mp4", "notes")]

    class Bucket:
        def get_file_info(self, what):
            return fs.FileInfo("bucket/cameras", fs.FileType.Directory) if isinstance(what, str) else files

    monkeypatch.setattr(sources, "_open_filesystem", lambda uri: (Bucket(), "bucket/cameras"))
    uris = [file.uri for file in find_videos(["s3://bucket/cameras/?endpoint_override=minio:9000"])]
    assert uris == [f"s3://bucket/cameras/{name}?endpoint_override=minio:9000" for name in ("a.mp4", "b%20c.mp4")]


def test_no_space_for_a_copy_is_a_store_error(folder: Path, monkeypatch) -> None:
    """It stops the ingest, because the video is not at fault."""
    (file,) = find_videos([f"file://{folder}/b.mp4"])

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sources.shutil, "copyfileobj", fail)
    with pytest.raises(StoreError, match=r"no space for a copy of .*b\.mp4.*set TMPDIR"), fetch_file(file):
        pass


def test_rejects_a_changed_remote_file(folder: Path) -> None:
    (file,) = find_videos([f"file://{folder}/b.mp4"])
    (folder / "b.mp4").write_bytes(b"longer than before")
    with pytest.raises(ValueError, match="changed while it was read"), fetch_file(file):
        pass
    (folder / "b.mp4").unlink()
    with pytest.raises(FileNotFoundError, match="no such file"):
        refresh_file(file)


def test_broken_links_are_listed_and_pipes_are_not(folder: Path) -> None:
    (folder / "link.mp4").symlink_to(folder / "gone.mp4")
    os.mkfifo(folder / "pipe.mp4")
    warnings: list[tuple[str, str]] = []
    files = find_videos([folder], lambda *warning: warnings.append(warning))
    assert [Path(file.uri).name for file in files] == ["b.mp4", "a.MKV", "link.mp4"]
    assert files[2].size == 0
    assert warnings == [(str(folder / "pipe.mp4"), "skipped, since it is not a regular file")]
    for read in (
        lambda: find_videos([folder / "pipe.mp4"]),
        lambda: refresh_file(VideoFile(str(folder / "pipe.mp4"), 0, 0)),
    ):
        with pytest.raises(ValueError, match="not a regular file"):
            read()


@pytest.mark.parametrize("uri", ["s3://KEY:SECRET@bucket/a", "odd://KEY:SECRET@bucket/a", "s3://KEY:SEC/RET@bucket/a"])
def test_secrets_of_an_address_are_not_shown(monkeypatch, uri: str) -> None:
    def fail(given: str) -> None:
        raise OSError(f"Cannot parse URI: '{given}' at position 3")

    monkeypatch.setattr(sources.fs, "FileSystem", type("FileSystem", (), {"from_uri": staticmethod(fail)}))
    with pytest.raises(ValueError, match="bucket/a: this URI cannot be read") as caught:
        find_videos([uri])
    assert "SEC" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_rejects_a_folder_that_cannot_be_read(folder: Path, monkeypatch) -> None:
    scandir = os.scandir

    def fail_in_inner(path):
        if Path(path).name == "inner":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail_in_inner)
    with pytest.raises(PermissionError, match="inner: this folder cannot be read"):
        find_videos([folder])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "no such file or folder"),
        ("inner/empty", "no videos in this folder"),
        ("file:///nowhere/at/all", "no such file or folder"),
        ("gopher://old", "this URI cannot be read"),
    ],
)
def test_rejects_invalid_sources(folder: Path, source: str, message: str) -> None:
    (folder / "inner" / "empty").mkdir()
    with pytest.raises((ValueError, OSError), match=message):
        find_videos([source if "://" in source else folder / source])
