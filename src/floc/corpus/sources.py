"""Where videos come from: files, folders and buckets."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .order import Source

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
    named = path.is_file()
    files = [path] if named else sorted(each for each in path.rglob("*") if each.is_file())
    wanted = [each for each in files if named or each.suffix.lower() in SUFFIXES]
    if not wanted:
        raise ValueError(f"{path}: no videos in this folder; files are known by {', '.join(SUFFIXES)}")
    for each in wanted:
        about = each.stat()
        yield Source(str(each.resolve()), about.st_size, about.st_mtime)


def _remote(address: str) -> Iterator[Source]:
    from pyarrow import fs

    files, path = _opened(address)
    about = files.get_file_info(path)
    if about.type == fs.FileType.NotFound:
        raise FileNotFoundError(f"{address}: nothing there")
    scheme = address.split(REMOTE)[0]
    if about.type == fs.FileType.File:
        yield _source(address, about)
        return
    inside = files.get_file_info(fs.FileSelector(path, recursive=True))
    wanted = [each for each in inside if each.is_file and Path(each.path).suffix.lower() in SUFFIXES]
    if not wanted:
        raise ValueError(f"{address}: no videos there; files are known by {', '.join(SUFFIXES)}")
    for each in sorted(wanted, key=lambda one: one.path):
        yield _source(f"{scheme}{REMOTE}{each.path}", each)


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


@contextmanager
def fetched(source: Source) -> Iterator[Path]:
    """The file, on this machine: of an address a copy, as long as it is needed."""
    if REMOTE not in source.uri:
        yield Path(source.uri)
        return
    files, path = _opened(source.uri)
    with tempfile.TemporaryDirectory(prefix="floc-") as folder:
        copy = Path(folder) / Path(path).name
        with files.open_input_stream(path) as stream, copy.open("wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)
        yield copy


def content_of(path: Path) -> str:
    """sha256 of a file, in hex."""
    told = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            told.update(part)
    return told.hexdigest()
