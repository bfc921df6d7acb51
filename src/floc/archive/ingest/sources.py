"""Where videos come from: files, folders and buckets."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from floc.archive.ingest.order import Source
from floc.archive.tables import StoreError

# of files in folders; a file that is named is taken whatever it is called
SUFFIXES = (
    *(".3gp", ".asf", ".avi", ".flv", ".h264", ".hevc", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg"),
    *(".mts", ".mxf", ".ogv", ".ts", ".vob", ".webm", ".wmv"),
)
REMOTE = "://"


def find(given: Iterable[str | Path]) -> list[Source]:
    """All videos in these files, folders and addresses, each once, in the order of their names within each."""
    found: dict[str, Source] = {}
    for each in given:
        sources = _remote(str(each)) if REMOTE in str(each) else _local(Path(each))
        found |= {source.uri: source for source in sources}
    return list(found.values())


def _local(path: Path) -> Iterator[Source]:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    wanted = [path] if path.is_file() else sorted(_inside(path))
    if not wanted:
        raise ValueError(f"{path}: no videos in this folder; files are known by {', '.join(SUFFIXES)}")
    yield from map(_file, wanted)


def _file(path: Path) -> Source:
    try:
        about = path.stat()
    except OSError:  # a link to nowhere, or gone by now: told of like any that cannot be read
        return Source(str(path.absolute()), 0, 0.0)
    return Source(str(path.resolve()), about.st_size, about.st_mtime)


def _inside(folder: Path) -> Iterator[Path]:
    def complain(error: OSError) -> None:
        raise PermissionError(
            f"{error.filename}: this folder cannot be read ({error.strerror}); see to it, or name others"
        )

    for parent, _, names in os.walk(folder, onerror=complain):
        films = [Path(parent) / name for name in names if name.lower().endswith(SUFFIXES)]
        yield from (each for each in films if each.is_file() or not each.exists())  # a pipe would be waited for


def _remote(address: str) -> Iterator[Source]:
    from pyarrow import fs

    files, path = _opened(address)
    about = files.get_file_info(path)
    if about.type == fs.FileType.NotFound:
        raise FileNotFoundError(f"{address}: nothing there")
    if about.type == fs.FileType.File:
        yield _source(address, about)
        return
    inside = files.get_file_info(fs.FileSelector(path, recursive=True))
    wanted = [each for each in inside if each.is_file and each.path.lower().endswith(SUFFIXES)]
    if not wanted:
        raise ValueError(f"{address}: no videos there; files are known by {', '.join(SUFFIXES)}")
    folder, mark, where = address.partition("?")  # what comes after says where the bucket is, of files in it as well
    for each in sorted(wanted, key=lambda one: one.path):
        name = quote(each.path.removeprefix(path).lstrip("/"))
        yield _source(f"{folder.rstrip('/')}/{name}{mark}{where}", each)


def _opened(address: str) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow import fs

    try:
        return fs.FileSystem.from_uri(address)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(
            f"{address}: not an address that can be read here ({str(error).splitlines()[0]}); give a file, a folder, "
            "or an address such as s3://bucket/folder"
        ) from error


def _source(uri: str, about: Any) -> Source:
    return Source(uri, about.size or 0, about.mtime_ns / 1e9 if about.mtime_ns else 0.0)


def renewed(source: Source) -> Source:
    """What there is to say of a file now."""
    if REMOTE not in source.uri:
        about = os.stat(source.uri)
        return Source(source.uri, about.st_size, about.st_mtime)
    files, path = _opened(source.uri)
    about = files.get_file_info(path)
    if not about.is_file:
        raise FileNotFoundError(f"{source.uri}: no such file any more")
    return _source(source.uri, about)


def require_unchanged(source: Source) -> None:
    """Complain of a file that is not what it was. Of an address a copy is read, which was compared when it was made."""
    if REMOTE not in source.uri:
        _compare(source)


def _compare(source: Source) -> None:
    now = renewed(source)
    if now != source:
        raise ValueError(
            f"{source.uri}: changed while it was read (it had {source.size:,} bytes, now {now.size:,}); ingest it "
            "again when nobody writes to it"
        )


@contextmanager
def fetched(source: Source) -> Iterator[Path]:
    """The file, on this machine: of an address a copy, as long as it is needed."""
    if REMOTE not in source.uri:
        yield Path(source.uri)
        return
    files, path = _opened(source.uri)
    with tempfile.TemporaryDirectory(prefix="floc-") as folder:
        copy = Path(folder) / Path(path).name
        with files.open_input_stream(path) as stream:
            _copy(stream, copy, source)
        _compare(source)
        yield copy


def _copy(stream: Any, copy: Path, source: Source) -> None:
    try:
        with copy.open("wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        # of this machine, not of the video: every other would fail as well
        raise StoreError(
            f"{copy.parent}: no room for a copy of {source.uri}, {source.size:,} bytes ({error.strerror}); make some, "
            "or set TMPDIR to a folder that has it, and run the same again; what was committed is kept"
        ) from error


def content_of(path: Path) -> str:
    """sha256 of a file, in hex."""
    told = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            told.update(part)
    return told.hexdigest()
