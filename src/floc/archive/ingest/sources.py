"""Find video files in folders and object storage, fetch them, and detect changes while they are read."""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from floc._atomic import create_temporary_folder
from floc._text import hide_secrets, redact_source
from floc.archive.lance_tables import is_local
from floc.archive.schema import StoreError

# in folders; a file given by name may have any suffix
_NAMES = "3gp asf avi flv h264 hevc m2ts m4v mkv mov mp4 mpeg mpg mts mxf ogv ts vob webm wmv"
SUFFIXES = tuple(f".{name}" for name in _NAMES.split())
Warn = Callable[[str, str], object]  # called with a path and a warning


@dataclass(frozen=True)
class VideoFile:
    """A video file, local or in object storage."""

    uri: str
    size: int  # bytes
    modified_s: float


def find_videos(sources: Iterable[str | Path], warn: Warn = lambda uri, warning: None) -> list[VideoFile]:
    """Find the videos in files, folders and URIs; each is listed once, sorted by name within a source.

    `warn` is called with the path of each pipe or device in a folder that is named like a video.
    """
    videos: dict[str, VideoFile] = {}
    for source in sources:
        files = list(_find_local(Path(source), warn) if is_local(str(source)) else _find_remote(str(source)))
        if not files:
            problem = f"{redact_source(str(source))}: no videos in this folder"
            raise ValueError(f"{problem}; videos have one of the suffixes {', '.join(SUFFIXES)}")
        videos |= {file.uri: file for file in files}
    return list(videos.values())


def _find_local(path: Path, warn: Warn) -> Iterator[VideoFile]:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if not path.is_dir():
        _require_regular(path)
    for video in sorted(_list_folder(path, warn)) if path.is_dir() else [path]:
        file = VideoFile(str(video.absolute()), 0, 0.0)
        with suppress(OSError):  # a broken link fails later, as any file that cannot be read
            file = refresh_file(replace(file, uri=str(video.resolve(strict=True))))
        yield file


def _require_regular(path: str | Path) -> os.stat_result:
    """Return the status of a regular file; raise ValueError for a pipe or a device, which reading may block."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path}: not a regular file; give a video or a folder")
    return status


def _list_folder(folder: Path, warn: Warn) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        problem = f"{error.filename}: this folder cannot be read ({error.strerror})"
        raise PermissionError(f"{problem}; make it readable or leave it out")

    for parent, _, names in os.walk(folder, onerror=fail):
        for video in (Path(parent) / name for name in names if name.lower().endswith(SUFFIXES)):
            if video.is_file() or not video.exists():
                yield video
            else:
                warn(str(video), "skipped, since it is not a regular file")


def _find_remote(uri: str) -> Iterator[VideoFile]:
    filesystem, path = _open_filesystem(uri)
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        raise FileNotFoundError(f"{redact_source(uri)}: no such file or folder")
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
        problem = hide_secrets(str(error).splitlines()[0])
        raise ValueError(f"{redact_source(uri)}: this URI cannot be read ({problem}); {fix}") from None


def _describe_remote(uri: str, info: Any) -> VideoFile:
    return VideoFile(uri, info.size or 0, info.mtime_ns / 1e9 if info.mtime_ns else 0.0)


def refresh_file(file: VideoFile) -> VideoFile:
    """Return the current size and modification time of a file."""
    if is_local(file.uri):
        status = _require_regular(file.uri)
        return VideoFile(file.uri, status.st_size, status.st_mtime)
    filesystem, path = _open_filesystem(file.uri)
    info = filesystem.get_file_info(path)
    if not info.is_file:
        raise FileNotFoundError(f"{redact_source(file.uri)}: no such file any more")
    return _describe_remote(file.uri, info)


def require_unchanged(file: VideoFile, *, is_copied: bool = False) -> None:
    """Raise ValueError if a file has changed. A remote file is checked once, after it is copied."""
    if (is_local(file.uri) or is_copied) and (now := refresh_file(file)) != file:
        change = f"from {file.size:,} to {now.size:,} bytes"
        raise ValueError(f"{redact_source(file.uri)}: changed while it was read ({change}); ingest it again later")


@contextmanager
def fetch_file(file: VideoFile) -> Iterator[Path]:
    """Provide a file on this machine; a remote file is copied to a temporary folder."""
    if is_local(file.uri):
        yield Path(file.uri)
        return
    filesystem, path = _open_filesystem(file.uri)
    with create_temporary_folder("floc-ingest-", may_be_old=True) as folder:
        copy = folder / ("video" + Path(path).suffix)  # its name may be too long or strange for this system
        try:
            with filesystem.open_input_stream(path) as stream, copy.open("wb") as output:
                shutil.copyfileobj(stream, output, 1 << 20)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            # a StoreError stops the ingest: every other video would fail too
            problem = f"no space for a copy of {redact_source(file.uri)}, {file.size:,} bytes ({error.strerror})"
            fix = "free some, or set TMPDIR to a folder with space, and run the same command again"
            raise StoreError(f"{folder}: {problem}; {fix}. Committed data is kept") from error
        require_unchanged(file, is_copied=True)
        yield copy
