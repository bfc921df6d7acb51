"""Lance tables: opened at their latest version, appended to by many writers, and errors in plain words."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from floc.archive.tables import Damaged, StoreError

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

# 2.1 and later have each large value in one place and know where it is, so that a row is read without its neighbours;
# 2.2 is the newest that Lance calls stable, and packs the small columns that tell where rows are in half the bytes
STORAGE = "2.2"
TRIES = 20  # of a change that runs into others
PAUSE_S = 0.05  # before the second, on average


def lance() -> Any:
    """The package, or an error that says how to get it."""
    try:
        import lance
    except ImportError as error:
        raise ImportError("a store needs Lance: pip install 'floc-video[store]'") from error
    return lance


class Table:
    """One table of a store. What it hands out stays as it is, whatever others write."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._session = lance().Session()  # remembers what files look like, over all versions
        self._latest: Any = None

    def exists(self) -> bool:
        """Whether there is one, readable or not."""
        if is_local(self.uri):
            return Path(self.uri).is_dir()
        try:
            self.latest()
        except Damaged as error:
            return "was not found" not in str(error)
        return True

    def create(self, schema: pa.Schema) -> None:
        """Make an empty one, unless someone else just did."""
        with writing(self.uri):
            try:
                lance().write_dataset(schema.empty_table(), self.uri, data_storage_version=STORAGE)
            except OSError as error:
                if "already exists" not in str(error):
                    raise

    def latest(self) -> Any:
        """The newest version, as a Lance dataset."""
        with reading(self.uri):
            if self._latest is None or self._latest.latest_version != self._latest.version:
                self._latest = lance().dataset(self.uri, session=self._session)
            return self._latest

    def read(self, read: Callable[[Any], T]) -> T:
        """What `read` makes of the latest version, or of one later still, where files of that are gone by then."""
        version = self.latest()
        try:
            with reading(self.uri):
                return read(version)
        except Damaged:
            newer = self.latest()
            if newer.version == version.version:
                raise
        with reading(self.uri):
            return read(newer)

    def write(self, rows: pa.Table) -> tuple[str, ...]:
        """Write files that nobody sees before they are appended: their descriptions, in Lance's JSON."""
        with writing(self.uri):
            written = lance().fragment.write_fragments(
                rows, self.latest(), mode="append", data_storage_version=STORAGE, session=self._session
            )
        return tuple(json.dumps(each.to_json()) for each in written)

    def append(self, fragments: Sequence[str]) -> dict[str, int]:
        """Make written files part of the table, all at once: the number of each description's fragment."""
        if not fragments:
            return {}
        parts = [lance().FragmentMetadata.from_json(each) for each in fragments]
        self._require_files(parts)
        with writing(self.uri):
            appended = self.change(lambda table: _append(table, parts))
            numbers = _numbers(appended, {_file(part) for part in parts})
        return {each: numbers[_file(part)] for each, part in zip(fragments, parts, strict=True)}

    def change(self, change: Callable[[Any], T]) -> T:
        """Make a change to the latest version, again where someone else's came first."""
        tried = 0
        while True:
            try:
                return change(self.latest())
            except (OSError, RuntimeError) as error:
                tried += 1
                if tried == TRIES or not _is_conflict(error):
                    raise
            time.sleep(PAUSE_S * min(2**tried, 32) * random.uniform(0.5, 1.5))

    def _require_files(self, parts: Sequence[Any]) -> None:
        if not is_local(self.uri):
            return
        missing = [
            file.path for part in parts for file in part.files if not (Path(self.uri) / "data" / file.path).exists()
        ]
        if missing:
            raise StoreError(
                f"{self.uri}: {len(missing)} files that were written are gone, {missing[0]} among them: they were "
                "compacted away before they were committed, or the store was moved or removed; ingest the video again"
            )


def _append(table: Any, parts: Sequence[Any]) -> Any:
    operation = lance().LanceOperation.Append(parts)
    return lance().LanceDataset.commit(table, operation, read_version=table.version)


def _numbers(table: Any, files: set[str]) -> dict[str, int]:
    """The number of the fragment that each file is in: the newest have the highest."""
    found: dict[str, int] = {}
    for number in reversed(list(table.fragment_ids())):
        if len(found) == len(files):
            break
        file = _file(table.get_fragment(number).metadata)
        if file in files:
            found[file] = number
    return found


def _file(part: Any) -> str:
    return part.files[0].path


def _is_conflict(error: Exception) -> bool:
    return re.search(r"conflict|concurrent|preempted|retryable", str(error), re.IGNORECASE) is not None


def is_local(uri: str) -> bool:
    """Whether it is a path on this machine."""
    return "://" not in uri


def quoted(value: str) -> str:
    """A string, for Lance's filters."""
    return "'" + value.replace("'", "''") + "'"


def one_of(column: str, values: Sequence[str]) -> str:
    """A filter for rows that have one of some values."""
    return f"{column} IN ({', '.join(map(quoted, values))})" if values else "false"


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Say of what goes wrong in here which table it is and what to do."""
    try:
        yield
    except BaseException as error:
        if not _is_lances(error):
            raise
        raise Damaged(
            f"{uri}: this table cannot be read ({_reason(error)}); where files were changed or lost, put them back or "
            "ingest the videos again into a new store"
        ) from error


@contextmanager
def writing(uri: str) -> Iterator[None]:
    """The same for what is written."""
    try:
        yield
    except BaseException as error:
        if not _is_lances(error) and not isinstance(error, ValueError):
            raise
        if re.search(r"no space left|os error 28|file too large|os error 27|quota", str(error), re.IGNORECASE):
            todo = "the disk is full: make room and run the same again; what was committed is kept"
        else:
            todo = (
                "see that the store is there and can be written to, and run the same again; what was committed is kept"
            )
        raise StoreError(f"{uri}: cannot be written to ({_reason(error)}); {todo}") from error


def _is_lances(error: BaseException) -> bool:
    """Whether Lance or Arrow complains, or one of them broke down over what it read."""
    if isinstance(error, StoreError | Damaged | ImportError):
        return False
    # pyo3's PanicException is no Exception, and has no public name
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _reason(error: BaseException) -> str:
    """The first line, without where in Lance's own sources it comes from."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r",? ?/\S+\.rs:\d+(:\d+)?", "", first).strip()[:300]
