"""One Lance table: open its latest version, append with many writers, and report Lance's errors in plain words."""

import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from operator import methodcaller
from pathlib import Path
from typing import Any, Literal, TypeVar

import lance
import pyarrow as pa
from lance.file import LanceFileReader

from floc._text import hide_secrets, redact_source
from floc.archive.schema import DamagedStoreError, StoreError

T = TypeVar("T")

# the newest version that Lance calls stable. Each large value is in one place, so a row is read without its neighbours
STORAGE_VERSION: Literal["2.2"] = "2.2"
MAX_ATTEMPTS = 20  # of a change that conflicts with other writers
PAUSE_S = 0.05  # mean pause before the second attempt
VALUES_PER_FILTER = 1000  # in one deletion

_checked_files: set[str] = set()  # their names are unique, and they never change


class LanceTable:
    """One table of a store. A version that was read stays as it is, whatever other processes write."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.name = redact_source(uri)  # for messages
        self._session = lance.Session()  # caches file metadata across versions
        self._latest: Any = None

    def exists(self) -> bool:
        """Return whether the table exists, readable or not."""
        if is_local(self.uri):
            return Path(self.uri).is_dir()
        try:
            self.latest()
        except DamagedStoreError as error:
            return "was not found" not in str(error)
        return True

    def is_complete(self) -> bool:
        """Return whether the table exists and was committed once; a process may be killed while it creates one."""
        return self.exists() and not (is_local(self.uri) and not any((Path(self.uri) / "_versions").glob("*")))

    def create(self, schema: pa.Schema) -> None:
        """Create an empty table, unless another process just did."""
        with explain_errors(self.name, writing=True):
            try:
                lance.write_dataset(schema.empty_table(), self.uri, data_storage_version=STORAGE_VERSION)
            except OSError as error:
                if "already exists" not in str(error):
                    raise

    def latest(self) -> Any:
        """Return the newest version as a Lance dataset."""
        with explain_errors(self.name):
            if self._latest is None or self._latest.latest_version != self._latest.version:
                self._latest = lance.dataset(self.uri, session=self._session)
            return self._latest

    def read(self, read: Callable[[Any], T], *, check: bool = True) -> T:
        """Call `read` with the latest version, and once more if a newer version has replaced its files meanwhile.

        If `check` is False, `read` must call `check_files`.
        """
        version = first = self.latest()
        while True:
            try:
                with explain_errors(self.name):
                    if check:
                        self.check_files(version.get_fragments())
                    return read(version)
            except DamagedStoreError:
                version, previous = self.latest(), version
                if previous is not first or version.version == first.version:
                    raise

    def check_files(self, fragments: Iterable[Any]) -> None:
        """Raise an error if the metadata of a file is damaged: reading such a file can end the process."""
        for name in [file.path for fragment in fragments for file in fragment.data_files()]:
            path = f"{self.uri}/data/{name}"
            if not re.fullmatch(r"\w[\w.-]*", name):
                raise ValueError(f"{name!r} is not the name of a data file")
            if is_local(path) and path not in _checked_files:
                LanceFileReader(path).metadata()
                _checked_files.add(path)

    def write(self, rows: pa.Table) -> tuple[str, ...]:
        """Write files that are invisible until they are appended; return Lance's JSON of their fragments."""
        options: dict[str, Any] = dict(data_storage_version=STORAGE_VERSION, session=self._session)
        with explain_errors(self.name, writing=True):
            fragments = lance.fragment.write_fragments(rows, self.latest(), mode="append", **options)
        return tuple(json.dumps(fragment.to_json()) for fragment in fragments)

    def append(self, fragments: Sequence[str]) -> dict[str, int]:
        """Append written files in one commit; return the fragment number for each item of `fragments`."""
        if not fragments:
            return {}
        parts = [lance.FragmentMetadata.from_json(fragment) for fragment in fragments]
        files = [file.path for part in parts for file in part.files]
        missing = [path for path in files if is_local(self.uri) and not (Path(self.uri) / "data" / path).exists()]
        if missing:
            reason = "removed by compact before they were committed, or the store was moved or deleted"
            problem = f"{len(missing)} written files no longer exist, such as {missing[0]}"
            raise StoreError(f"{self.name}: {problem}. They were {reason}; ingest the video again")
        operation = lance.LanceOperation.Append(parts)
        fragment_of = {part.files[0].path: fragment for part, fragment in zip(parts, fragments, strict=True)}
        with explain_errors(self.name, writing=True):
            table: Any = self.change(lambda latest: lance.LanceDataset.commit(latest, operation, latest.version))
            # the newest fragments have the highest numbers
            newest = ((table.get_fragment(n).metadata.files[0].path, n) for n in reversed(list(table.fragment_ids())))
            added = islice(((path, number) for path, number in newest if path in fragment_of), len(fragment_of))
            return {fragment_of[path]: number for path, number in added}

    def change(self, change: Callable[[Any], T]) -> T:
        """Apply a change to the latest version; retry if it conflicts with another writer's."""
        attempts = 0
        while True:
            try:
                return change(self.latest())
            except (OSError, RuntimeError) as error:
                attempts += 1
                is_conflict = re.search(r"conflict|concurrent|preempted|retryable", str(error), re.IGNORECASE)
                if attempts == MAX_ATTEMPTS or not is_conflict:
                    raise
            time.sleep(PAUSE_S * min(2**attempts, 32) * random.uniform(0.5, 1.5))

    def delete(self, column: str, values: Sequence[str]) -> None:
        """Delete the rows whose column has one of the values."""
        for start in range(0, len(values), VALUES_PER_FILTER):
            self.change(methodcaller("delete", match_any(column, values[start : start + VALUES_PER_FILTER])))


def is_local(uri: str) -> bool:
    """Return whether a URI is a path on this machine."""
    return "://" not in uri


def match_any(column: str, values: Sequence[str]) -> str:
    """Build a Lance filter for rows whose column has one of the values."""
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"{column} IN ({quoted})" if values else "false"


@contextmanager
def explain_errors(name: str, *, writing: bool = False) -> Iterator[None]:
    """Turn an error of Lance or Arrow into a DamagedStoreError, or a StoreError, that says what to do."""
    try:
        yield
    except BaseException as error:
        # pyo3's PanicException is not an Exception and has no public name
        is_known = isinstance(error, Exception) or type(error).__name__ == "PanicException"
        if not is_known or isinstance(error, StoreError | DamagedStoreError | ImportError):
            raise
        first = (str(error).splitlines() or [type(error).__name__])[0]
        problem = re.sub(r",? ?/\S+\.rs:\d+(:\d+)?", "", first)  # without positions in Rust sources
        problem = re.sub(r"[\x00-\x1f\x7f]", "?", hide_secrets(problem)).strip()[:300]
        if not writing:
            fix = "if files were changed or lost, restore them, or ingest the videos again into a new store"
            raise DamagedStoreError(f"{name}: this table cannot be read ({problem}); {fix}") from error
        full = re.search(r"no space left|os error 28|file too large|os error 27|quota", str(error), re.IGNORECASE)
        fix = "the disk is full: free some space" if full else "check that the store exists and is writable"
        fix += ", then run the same command again. Committed data is kept"
        raise StoreError(f"{name}: cannot be written to ({problem}); {fix}") from error
