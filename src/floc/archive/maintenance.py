"""Maintain a store: find damage, drop data that nothing refers to, and remove videos."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from floc.archive import store_tables
from floc.archive.lance_tables import LanceTable, explain_errors, is_local, match_any
from floc.archive.locks import FolderLock
from floc.archive.schema import DamagedStoreError, StoredVideo, StoreError, encode_video
from floc.archive.search import list_vector_tables
from floc.archive.store_tables import REINGEST, ROWS_PER_BATCH, Row, StoreTables, find_problem, resolve_duplicates
from floc.archive.token_rows import check_fit, check_totals

MERGED_BYTES = 1 << 30  # of a merged file: deleting rows from larger files costs more, and they are not read faster
MAX_MERGED_ROWS = 1 << 20
VIDEOS_PER_BATCH = 100
MAX_AGE_S = 1e9
SAFE_AGE_S = 3600  # files of this age are not about to be committed
MAX_WAIT_S = 2.0  # for writers


@dataclass(frozen=True)
class StoreProblem:
    """A problem found in a store."""

    video: str  # the id; "" if unknown
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.video or 'the store'}: {self.problem}; {self.fix}"


@dataclass(frozen=True)
class CompactionResult:
    """What `compact` removed."""

    videos: int  # superseded rows of `videos`
    rows: int  # rows of pieces that belong to no video
    files: int  # files merged into larger ones, or used by no version
    bytes: int  # reduction in size


def check_store(tables: StoreTables, progress: Callable[[float], object]) -> list[StoreProblem]:
    """Return every problem in a store, as far as it can be read."""
    problems: list[StoreProblem] = []
    for table in (tables.videos, tables.token_rows):
        with _collect(problems, "", "restore its files, or ingest again into a new store"):
            table.read(lambda latest: latest.validate(), check=False)
    if problems:
        return problems
    videos = tables.list_videos()
    problems += [StoreProblem(video.id, video.error, REINGEST) for video in videos if video.status == "damaged"]
    done = [video for video in resolve_duplicates(videos) if video.status == "done"]
    problems += _check_videos(tables, done)
    owners = {attempt: video for video in done for attempt in video.pieces}
    firsts: dict[str, Row] = {}  # one row of each video
    fragments = tables.token_rows.read(lambda table: table.get_fragments(), check=False)
    for number, fragment in enumerate(fragments):
        files = ", ".join(f"{tables.token_rows.name}/data/{file.path}" for file in fragment.data_files())
        fix = "remove the videos with pieces in it, and ingest them again"
        with _collect(problems, "", fix), explain_errors(files):
            tables.token_rows.check_files([fragment])
            for batch in fragment.to_batches(batch_size=ROWS_PER_BATCH):
                for row in batch.to_pylist():
                    problem, video = store_tables.find_row_problem(row), owners.get(row["attempt"])
                    if not problem and video:
                        small = {**row, "features": None, "deep": [None] * len(row["deep"])}
                        problem = find_problem(check_fit, row, video, firsts.setdefault(video.id, small))
                    problems += [StoreProblem(row["video"], problem, REINGEST)] if problem else []
        progress((number + 1) / len(fragments))
    return problems


@contextmanager
def _collect(problems: list[StoreProblem], video: str, fix: str) -> Iterator[None]:
    """Turn an error about damaged data into a problem."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        problems.append(StoreProblem(video, str(error), fix))


def _check_videos(tables: StoreTables, videos: Sequence[StoredVideo]) -> list[StoreProblem]:
    """Find videos whose pieces are incomplete."""
    problems: list[StoreProblem] = []
    for start in range(0, len(videos), VIDEOS_PER_BATCH):
        batch = videos[start : start + VIDEOS_PER_BATCH]
        try:
            rows = tables.read_locations(match_any("video", [video.id for video in batch]))
        except DamagedStoreError:
            for video in batch:  # find out which of them cannot be read
                with _collect(problems, video.id, REINGEST):
                    tables.read_range(video, None)
            continue
        attempts = store_tables.group_by_attempt(rows)
        for video in batch:
            pieces = [attempts.get(attempt, []) for attempt in video.pieces]
            results = enumerate(store_tables.find_piece_problem(piece, video.id) for piece in pieces)
            texts = [f"{video.uri}, piece {number}: {problem}" for number, problem in results if problem]
            problem = find_problem(check_totals, [row for piece in pieces for row in piece], video)
            texts += [f"{video.uri}: {problem}"] if problem and not texts else []
            problems += [StoreProblem(video.id, text, REINGEST) for text in texts]
    return problems


def compact_store(tables: StoreTables, older_than_s: float) -> CompactionResult:
    """Merge small files, update indices, and drop data that nothing refers to."""
    if not 0 <= older_than_s <= MAX_AGE_S:
        raise ValueError(f"older_than_s must be a number of seconds from 0 to {MAX_AGE_S:g}; got {older_than_s!r}")
    with _exclude_writers(tables, older_than_s):
        before = _measure_bytes(tables.path)
        if damaged := [video for video in tables.list_videos() if video.status == "damaged"]:
            raise DamagedStoreError(damaged[0].error)  # it is unknown which pieces it needs
        with explain_errors(tables.name, writing=True):
            with tables.lock_commits(exclusive=True):
                videos = _drop_superseded_videos(tables)
                rows = _drop_orphaned_pieces(tables, older_than_s)
            files = _merge_files(tables.videos, ["id"]) + _merge_files(tables.token_rows, ["video", "attempt"])
            with tables.lock_commits(exclusive=True):
                for table in (tables.videos, tables.token_rows, *list_vector_tables(tables)):
                    files += _drop_old_files(table, older_than_s)
        return CompactionResult(videos, rows, files, max(0, before - _measure_bytes(tables.path)))


def _exclude_writers(tables: StoreTables, older_than_s: float) -> FolderLock:
    """Take the exclusive lock to delete recent data, else a shared one; raise an error if writers would lose data."""
    if older_than_s >= SAFE_AGE_S:
        return FolderLock(tables.path)
    fix = f"wait for them, or set older_than_s to at least {SAFE_AGE_S}; got {older_than_s:g}"
    try:
        lock = FolderLock(tables.path, exclusive=True, wait_s=MAX_WAIT_S)
    except StoreError:
        raise StoreError(f"{tables.name}: other processes are writing to this store; {fix}") from None
    if not lock.is_held:
        raise StoreError(f"{tables.name}: other processes may be writing, since it cannot be locked; {fix}")
    return lock


def _drop_superseded_videos(tables: StoreTables) -> int:
    videos = tables.list_videos()
    superseded = {encode_video(video)["sha256"] for video in videos}
    superseded -= {encode_video(video)["sha256"] for video in resolve_duplicates(videos)}
    tables.videos.delete("sha256", sorted(superseded))
    return len(superseded)


def _drop_orphaned_pieces(tables: StoreTables, older_than_s: float) -> int:
    """Delete old pieces that no video has, left by an interrupted ingest or by the slower of two."""
    old = f"row = 0 AND written_s <= {time.time() - older_than_s!r}"
    attempts = tables.token_rows.read(lambda table: table.to_table(columns=["attempt"], filter=old)["attempt"])
    # read videos after pieces: a piece that was committed before now has its video, or is too recent
    needed = {attempt for video in resolve_duplicates(tables.list_videos()) for attempt in video.pieces}
    before = tables.token_rows.latest().count_rows()
    tables.token_rows.delete("attempt", sorted(set(attempts.to_pylist()) - needed))
    return max(0, before - tables.token_rows.latest().count_rows())


def _merge_files(table: LanceTable, indexed: Sequence[str]) -> int:
    """Merge small files, leave out deleted rows, and index some columns; return how many files fewer there are."""

    def merge(latest: Any) -> int:
        size = sum(file.file_size_bytes or 0 for part in latest.get_fragments() for file in part.data_files())
        rows = int(MERGED_BYTES * latest.count_rows() / max(1, size))
        # a power of two, so that the target does not change with every added row
        target = min(MAX_MERGED_ROWS, 1 << max(0, rows.bit_length() - 1))
        done = latest.optimize.compact_files(target_rows_per_fragment=target, batch_size=ROWS_PER_BATCH, num_threads=1)
        return max(0, done.files_removed - done.files_added)

    def update_indices(latest: Any) -> None:
        if latest.count_rows():
            existing = [index.field_names for index in latest.describe_indices()]
            for column in indexed:
                if [column] not in existing:
                    latest.create_scalar_index(column, "BTREE")
            latest.optimize.optimize_indices()

    count = table.change(merge)
    table.change(update_indices)
    return count


def _drop_old_files(table: LanceTable, older_than_s: float) -> int:
    """Delete old versions and old files that no version uses; return the number of files."""
    cleaned = table.latest().cleanup_old_versions(timedelta(seconds=older_than_s))
    count = cleaned.data_files_removed + cleaned.index_files_removed
    if not is_local(table.uri):
        return count  # Lance deletes files that were never committed after a week
    latest, oldest = table.latest(), datetime.now(UTC) - timedelta(seconds=older_than_s)
    files = latest.all_files().read_all().to_pylist()
    old = {file["path"] for file in files if file["last_modified"] <= oldest}
    old = {path for path in old if path.startswith(("data/", "_transactions/"))}  # of processes that were killed
    # list used files after all files, so that a file committed in between counts as used
    unused = old - set(latest.tracked_files().read_all()["path"].to_pylist()) if old else set()
    for path in unused:
        (Path(table.uri) / path).unlink(missing_ok=True)
    return count + len(unused)


def _measure_bytes(path: str) -> int:
    """Return the size of a local folder, or 0 for a remote one."""
    total = 0
    for file in Path(path).rglob("*") if is_local(path) else ():
        with suppress(FileNotFoundError):  # another process may delete files meanwhile
            total += file.stat().st_size if file.is_file() else 0
    return total
