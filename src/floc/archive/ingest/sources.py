"""Find video files in folders and object storage, fetch them, and detect changes while they are read."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from floc.archive.ingest.job import VideoFile
from floc.archive.lance_tables import is_local
from floc.archive.schema import StoreError

# in folders; a file given by name may have any suffix
_NAMES = "3gp asf avi flv h264 hevc m2ts m4v mkv mov mp4 mpeg mpg mts mxf ogv ts vob webm wmv"
SUFFIXES = tuple(f".{name}" for name in _NAMES.split())


def find_videos(sources: Iterable[str | Path]) -> list[VideoFile]:
    """Find the videos in files, folders and URIs; each is listed once, sorted by name within a source."""
    videos: dict[str, VideoFile] = {}
    for source in sources:
        files = list(_find_local(Path(source)) if is_local(str(source)) else _find_remote(str(source)))
        if not files:
            suffixes = ", ".join(SUFFIXES)
            raise ValueError(f"{source}: no videos in this folder; videos have one of the suffixes {suffixes}")
        videos |= {file.uri: file for file in files}
    return list(videos.values())


def _find_local(path: Path) -> Iterator[VideoFile]:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    for video in [path] if path.is_file() else sorted(_list_folder(path)):
        file = VideoFile(str(video.absolute()), 0, 0.0)
        with suppress(OSError):  # a broken link fails later, as any file that cannot be read
            file = refresh_file(replace(file, uri=str(video.resolve(strict=True))))
        yield file


def _list_folder(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        problem = f"{error.filename}: this folder cannot be read ({error.strerror})"
        raise PermissionError(f"{problem}; make it readable or leave it out")

    for parent, _, names in os.walk(folder, onerror=fail):
        videos = [Path(parent) / name for name in names if name.lower().endswith(SUFFIXES)]
        yield from (video for video in videos if video.is_file() or not video.exists())  # reading a pipe would block


def _find_remote(uri: str) -> Iterator[VideoFile]:
    filesystem, path = _open_filesystem(uri)
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        raise FileNotFoundError(f"{uri}: no such file or folder")
    if info.is_file:
        yield _describe_remote(uri, info)
        return
    files = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    videos = [file for file in files if file.is_file and file.path.lower().endswith(SUFFIXES)]
    folder, mark, query = uri.partition("?")  # the query says where the bucket is, so each file needs it too
    for file in sorted(videos, key=lambda file: file.path):
        name = quote(file.path.removeprefix(path).lstrip("/"))
        yield _describe_remote(f"{folder.rstrip('/')}/{name}{mark}{query}", file)


def _open_filesystem(uri: str) -> tuple[Any, str]:
    try:
        return fs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, OSError) as error:
        fix = "give a file, a folder, or a URI such as s3://bucket/folder"
        raise ValueError(f"{uri}: this URI cannot be read ({str(error).splitlines()[0]}); {fix}") from error


def _describe_remote(uri: str, info: Any) -> VideoFile:
    return VideoFile(uri, info.size or 0, info.mtime_ns / 1e9 if info.mtime_ns else 0.0)


def refresh_file(file: VideoFile) -> VideoFile:
    """Return the current size and modification time of a file."""
    if is_local(file.uri):
        stat = os.stat(file.uri)
        return VideoFile(file.uri, stat.st_size, stat.st_mtime)
    filesystem, path = _open_filesystem(file.uri)
    info = filesystem.get_file_info(path)
    if not info.is_file:
        raise FileNotFoundError(f"{file.uri}: no such file any more")
    return _describe_remote(file.uri, info)


def require_unchanged(file: VideoFile) -> None:
    """Raise ValueError if a local file has changed. Remote files are checked once, after they are copied."""
    if is_local(file.uri):
        _require_same(file)


def _require_same(file: VideoFile) -> None:
    now = refresh_file(file)
    if now != file:
        change = f"from {file.size:,} to {now.size:,} bytes"
        raise ValueError(f"{file.uri}: changed while it was read ({change}); ingest it again later")


@contextmanager
def fetch_file(file: VideoFile) -> Iterator[Path]:
    """Provide a file on this machine; a remote file is copied to a temporary folder."""
    if is_local(file.uri):
        yield Path(file.uri)
        return
    filesystem, path = _open_filesystem(file.uri)
    with tempfile.TemporaryDirectory(prefix="floc-") as folder:
        copy = Path(folder) / Path(path).name
        with filesystem.open_input_stream(path) as stream:
            _copy_stream(stream, copy, file)
        _require_same(file)
        yield copy


def _copy_stream(stream: Any, copy: Path, file: VideoFile) -> None:
    try:
        with copy.open("wb") as output:
            shutil.copyfileobj(stream, output, 1 << 20)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        # a StoreError stops the ingest: every other video would fail too
        fix = "free some, or set TMPDIR to a folder with space, and run the same command again. Committed data is kept"
        problem = f"{copy.parent}: no space for a copy of {file.uri}, {file.size:,} bytes ({error.strerror})"
        raise StoreError(f"{problem}; {fix}") from error
