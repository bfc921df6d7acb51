"""Find stored videos by their addresses, only below the folders that a server was given.

    floc://talks/monday.floc?ratio=1/32            a .floc file
    floc://archive/door.mp4?from=10:00&to=20:00    a part of a video in a store

Addresses come from clients. Whatever is wrong with one or with its video is a ValueError of one line that names no
folder of the server; the server's log has the rest.
"""

import functools
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from floc import _version
from floc._checks import check_choice, parse_time, require, shorten
from floc.budget import Budget
from floc.captured.captured import Captured
from floc.captured.floc_file import load
from floc.integrations.vllm.settings import LOG

if TYPE_CHECKING:
    from floc.archive.store import Store

SCHEME = "floc://"
EXAMPLE = "floc://talk.floc?ratio=1/32 or floc://archive/talk.mp4?from=10:00&to=20:00"
MOST_CHARACTERS = 2048
KEY = "floc-stored-"  # start of the cache keys of stored videos
SETTLED_NS = 2 * 10**9  # a file that changed later than this may change again with the same time


def is_stored(url: object) -> bool:
    """Return whether a URL names a stored video."""
    return isinstance(url, str) and url[: len(SCHEME)].lower() == SCHEME


@dataclass(frozen=True)
class Address:
    """An address, parsed. Nothing was opened."""

    text: str  # the path as it was given, for errors
    parts: tuple[str, ...]  # decoded names of folders, and of a file or video
    start_s: float | None = None
    end_s: float | None = None
    ratio: str | None = None

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Parse an address; raise ValueError if it could lead outside of a folder, or is malformed."""
        require(
            len(url) <= MOST_CHARACTERS, f"the address of a stored video has more than {MOST_CHARACTERS} characters"
        )
        require(is_stored(url), f"the address of a stored video must be like {EXAMPLE}; got {shorten(url)}")
        path, _, query = url[len(SCHEME) :].partition("?")
        try:
            parts = tuple(unquote(part, errors="strict") for part in path.split("/"))
            fields = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict")
        except ValueError:
            raise ValueError(f"{shorten(url)} is malformed; an address is like {EXAMPLE}") from None
        if not all(map(_is_plain_name, parts)):
            reason = "a name in it is empty, '.' or '..', or has a slash or a control character"
            raise ValueError(f"{shorten(url)}: {reason}; an address is like {EXAMPLE}")
        given = dict(fields)
        for name in given:
            check_choice("parameter of a stored video", name, ("from", "to", "ratio"))
        require(len(given) == len(fields), f"{shorten(url)}: a parameter is given twice; give it once")
        ratio = None if "ratio" not in given else str(Budget.parse(given["ratio"], None, None).ratio)
        return cls(shorten(SCHEME + path), parts, parse_time(given.get("from")), parse_time(given.get("to")), ratio)

    def __str__(self) -> str:
        return self.text


def name_stored_video(url: str) -> tuple[Address, dict[str, Any]]:
    """Return a stored video for `multi_modal_data` of `LLM.generate`; vLLM looks for it when it writes the prompt."""
    return Address.parse(url), {}


def _is_plain_name(part: str) -> bool:
    return part not in ("", ".", "..") and part.isprintable() and not {"/", "\\"} & {*part}


@dataclass(frozen=True)
class StoredVideo:
    """A stored video that was found, and is not loaded yet."""

    key: str  # changes with the content, the part and the ratio
    load: Callable[[], Captured]


class StoredVideos:
    """The folders of stored videos that a server may read.

    Args:
        folders: the only folders that are read.
        check: raises ValueError if the server cannot use a video.
        salt: part of every key; names the model.
    """

    def __init__(self, folders: Sequence[str], check: Callable[[Captured], None], salt: str) -> None:
        self.roots = [Path(os.path.realpath(folder)) for folder in folders]
        self.check = check
        self.salt = salt

    def find(self, address: Address) -> StoredVideo:
        """Find a video and compute its key, which reads a file once for as long as it does not change."""
        for root in self.roots:
            try:
                if address.parts[-1].endswith(".floc") and (file := _find_inside(root, address.parts, stat.S_ISREG)):
                    return self._find_file(address, file)
                if folder := _find_store(root, address.parts[:-1]):
                    return self._find_in_store(address, folder)
            except OSError as error:  # such as a name that is too long, or a folder that may not be read
                LOG.warning("%s below %s: %s", address, root, error)
        hint = "name a .floc file or a video of a store, by its path below a folder of stored videos of the server"
        raise ValueError(f"{address}: no such stored video; {hint}")

    def _find_file(self, address: Address, path: Path) -> StoredVideo:
        if (address.start_s, address.end_s) != (None, None):
            raise ValueError(f"{address}: only videos in a store have parts; leave out from and to")
        before = _get_state(path)
        is_settled = time.time_ns() - before[-1] > SETTLED_NS
        with _explain_errors(address, path):
            digest = (_hash_file if is_settled else _hash_file.__wrapped__)(path, before)

        def load_file() -> Captured:
            with _explain_errors(address, path):
                video = load(path)
                _require_unchanged(path, before)
                return self._prepare(video if address.ratio is None else video.at(ratio=address.ratio))

        return StoredVideo(self._make_key(digest, address), load_file)

    def _find_in_store(self, address: Address, folder: Path) -> StoredVideo:
        with _explain_errors(address, folder):
            store = _open_store(folder, (folder / "videos.lance").stat().st_ino)
        try:
            entry = store.find(address.parts[-1])
        except ValueError as error:  # its text names other videos
            LOG.warning("%s: %s", address, error)
            absent = "the store has no such video, or several; give the id that `floc store list` shows"
            is_damaged = type(error) is not ValueError
            problem = "the store is damaged; the server's log says where" if is_damaged else absent
            raise ValueError(f"{address}: {problem}") from None
        if entry.status != "done":
            LOG.warning("%s: %s", address, entry.error)
            raise ValueError(f"{address}: this video is {entry.status} in the store; the server's log says why")
        part: Any = {"start_s": address.start_s, "end_s": address.end_s, "ratio": address.ratio}

        def load_part() -> Captured:
            with _explain_errors(address, folder, entry.uri):
                return self._prepare(store.open(entry.id, **part))

        return StoredVideo(self._make_key([entry.id, *entry.pieces], address), load_part)

    def _prepare(self, video: Captured) -> Captured:
        self.check(video)
        return video

    def _make_key(self, content: Any, address: Address) -> str:
        values = [_version.__version__, self.salt, content, address.start_s, address.end_s, address.ratio]
        return KEY + hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _find_inside(root: Path, parts: Sequence[str], has_type: Callable[[int], bool]) -> Path | None:
    """Return a path below `root` without symbolic links, or None if there is none of this type, or it leads outside."""
    path = Path(os.path.realpath(root.joinpath(*parts)))
    try:
        return path if path.is_relative_to(root) and has_type(path.stat().st_mode) else None
    except (FileNotFoundError, NotADirectoryError):
        return None


def _find_store(root: Path, parts: Sequence[str]) -> Path | None:
    """Return the folder of a store below `root`, or `root` itself, if its tables are below `root` too."""
    tables = [_find_inside(root, [*parts, table], stat.S_ISDIR) for table in ("videos.lance", "segments.lance")]
    return _find_inside(root, parts, stat.S_ISDIR) if all(tables) else None


def _get_state(path: Path) -> tuple[int, ...]:
    """Return numbers that change whenever a file is written or replaced; the last is the time of its last change."""
    state = path.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _require_unchanged(path: Path, state: tuple[int, ...]) -> None:
    require(_get_state(path) == state, "the file changed while it was read; ask again")


@functools.lru_cache(maxsize=4096)
def _hash_file(path: Path, state: tuple[int, ...]) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _require_unchanged(path, state)
    return digest


@functools.lru_cache(maxsize=16)
def _open_store(folder: Path, inode: int) -> "Store":
    from floc.archive.store import Store

    return Store(folder)


@contextmanager
def _explain_errors(address: Address, *private: object) -> Iterator[None]:
    """Turn any error into a ValueError of one line that does not contain the `private` names; log the whole."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f"{address}: the server cannot read stores; install 'floc-video[store]' there") from error
    except (ValueError, TypeError, OSError) as error:
        LOG.warning("%s: %s", address, error)
        text = " ".join(str(error).split())
        for name in filter(None, map(str, private)):
            text = text.replace(f"{name}: ", "").replace(name, str(address))
        raise ValueError(f"{address}: {text}") from error
