"""Looking after a store: find what is damaged, drop what nobody needs, take a video out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from floc.archive import search
from floc.archive.holdings import REPAIR, Holdings, Row, by_attempt, resolved, told, wrong_with
from floc.archive.lances import Table, is_local, one_of, quoted, reading, writing
from floc.archive.rows import row_of, seal_of, video_of
from floc.archive.tables import Damaged, Video

CHECKED = 16  # rows in memory at a time
# of a merged file: larger ones cost more when rows in them are deleted, and are read no faster
MERGED_BYTES = 1 << 30
MOST_ROWS = 1 << 20
VIDEOS_AT_A_TIME = 100
INDEXED = {"videos": ("id",), "segments": ("video", "attempt")}
MANY = 1000  # values that one condition names at a time


@dataclass(frozen=True)
class Fault:
    """Something wrong in a store."""

    video: str  # the id; "" where that cannot be told
    what: str
    todo: str

    def __str__(self) -> str:
        return f"{self.video or 'the store'}: {self.what}; {self.todo}"


@dataclass(frozen=True)
class Compacted:
    """What `compact` did away with."""

    videos: int  # rows that another stands for
    rows: int  # of pieces without a video
    files: int  # that were merged into larger ones, or that no version needs
    bytes: int  # that the store is smaller by


def check(held: Holdings, progress: Callable[[float], None] | None = None) -> list[Fault]:
    """Everything that is wrong in a store, as far as it can be read."""
    faults = [fault for table in (held.videos, held.segments) for fault in _wrong_table(table)]
    if faults:
        return faults
    videos: list[Video] = []
    for row in held.videos.read(lambda table: table.to_table().to_pylist()):
        read = _video_in(row, held.videos.uri)
        (videos if isinstance(read, Video) else faults).append(read)  # type: ignore[arg-type]
    done = [video for video in resolved(videos) if video.status == "done"]
    faults += _wrong_videos(held, done)
    parts = held.segments.read(lambda table: table.get_fragments())
    for number, part in enumerate(parts):
        faults += _wrong_rows(part, held.segments.uri)
        if progress is not None:
            progress((number + 1) / len(parts))
    return faults


def compact(held: Holdings, older_than_s: float) -> Compacted:
    """Merge small files, bring indices up to date, and drop what nobody needs."""
    if not older_than_s >= 0:
        raise ValueError(f"older_than_s must be a number of seconds, at least 0; got {older_than_s!r}")
    before = _size(held.path)
    with writing(held.path):
        videos = _drop_losers(held)
        rows = _drop_orphans(held, older_than_s)
        files = 0
        for name, columns in INDEXED.items():
            files += _merge(getattr(held, name))
            _index(getattr(held, name), columns)
        for table in (held.videos, held.segments, *search.vector_tables(held)):
            files += _clean(table, older_than_s)
    return Compacted(videos, rows, files, max(0, before - _size(held.path)))


def remove(held: Holdings, video: str) -> None:
    """Take all rows of a video out: first nobody finds it, then it is not there."""
    with writing(held.path):
        held.videos.change(_deleting(f"id = {quoted(video)}"))
        held.segments.change(_deleting(f"video = {quoted(video)}"))


def _wrong_table(table: Table) -> list[Fault]:
    try:
        table.read(lambda each: each.validate())
    except Damaged as error:
        return [Fault("", str(error), "put its files back, or ingest again into a new store")]
    return []


def _video_in(row: Row, uri: str) -> Video | Fault:
    try:
        return video_of(row, uri)
    except (ValueError, TypeError, KeyError) as error:
        return Fault(str(row.get("id") or ""), f"its row in videos is damaged ({error})", REPAIR)


def _wrong_videos(held: Holdings, videos: Sequence[Video]) -> Iterator[Fault]:
    """Videos whose pieces are not all there."""
    for start in range(0, len(videos), VIDEOS_AT_A_TIME):
        few = videos[start : start + VIDEOS_AT_A_TIME]
        try:
            places = held.places(one_of("video", [video.id for video in few]))
        except Damaged:
            yield from (fault for video in few for fault in _unreadable(held, video))
        else:
            yield from _wrong_pieces(few, by_attempt(places))


def _unreadable(held: Holdings, video: Video) -> list[Fault]:
    try:
        held.stretch(video, None)
    except Damaged as error:
        return [Fault(video.id, str(error), REPAIR)]
    return []


def _wrong_pieces(videos: Sequence[Video], attempts: Mapping[str, list[Row]]) -> Iterator[Fault]:
    for video in videos:
        found = [wrong_with(attempts.get(each, []), video.id) for each in video.pieces]
        wrong = {number: each for number, each in enumerate(found) if each}
        yield from (Fault(video.id, f"{video.uri}, piece {number}: {each}", REPAIR) for number, each in wrong.items())
        kept = sum(row["kept"] for each in video.pieces for row in attempts.get(each, []))
        if not wrong and kept != video.kept:
            yield Fault(video.id, f"{video.uri} should have {video.kept} tokens, its rows have {kept}", REPAIR)


def _wrong_rows(part: Any, uri: str) -> list[Fault]:
    """Rows of a fragment that are not what was written; of a file that cannot be read, all to say is that."""
    faults: list[Fault] = []
    files = ", ".join(f"{uri}/data/{file.path}" for file in part.data_files())
    try:
        with reading(files):
            for batch in part.to_batches(batch_size=CHECKED):
                wrong = [row for row in batch.to_pylist() if row["sha256"] != seal_of(row)]
                faults += [
                    Fault(row["video"], f"{told(row)} was changed after it was written", REPAIR) for row in wrong
                ]
    except Damaged as error:
        faults.append(Fault("", str(error), "remove the videos that have pieces there, and ingest them again"))
    return faults


def _drop_losers(held: Holdings) -> int:
    """Of rows in `videos` with one id, all but the one that readers take."""
    videos = held.listed()
    losers = {row_of(each)["sha256"] for each in videos} - {row_of(each)["sha256"] for each in resolved(videos)}
    _delete(held.videos, "sha256", losers)
    return len(losers)


def _drop_orphans(held: Holdings, older_than_s: float) -> int:
    """Old pieces that no video has, of ingests that were broken off or came second."""
    old = f"row = 0 AND written_s <= {time.time() - older_than_s!r}"
    there = held.segments.read(lambda table: table.to_table(columns=["attempt"], filter=old)["attempt"])
    # videos after pieces: a piece that was committed first has its video by now, or is too young
    needed = {attempt for video in resolved(held.listed()) for attempt in video.pieces}
    before = held.segments.latest().count_rows()
    _delete(held.segments, "attempt", set(there.to_pylist()) - needed)
    return max(0, before - held.segments.latest().count_rows())


def _delete(table: Table, column: str, values: Set[str]) -> None:
    each = sorted(values)
    for start in range(0, len(each), MANY):
        table.change(_deleting(one_of(column, each[start : start + MANY])))


def _deleting(where: str) -> Callable[[Any], object]:
    return lambda table: table.delete(where)


def _merge(table: Table) -> int:
    """Small files into larger ones, and rows that were deleted left out: how many files there are fewer."""

    def merge(latest: Any) -> int:
        metrics = latest.optimize.compact_files(
            target_rows_per_fragment=_merged_rows(latest), batch_size=CHECKED, num_threads=1
        )
        return max(0, metrics.files_removed - metrics.files_added)

    return table.change(merge)


def _merged_rows(table: Any) -> int:
    """How many rows make a file of about `MERGED_BYTES`: a power of two, so that it does not change with every row."""
    size = sum(file.file_size_bytes or 0 for part in table.get_fragments() for file in part.data_files())
    rows = MERGED_BYTES * table.count_rows() / max(1, size)
    return min(MOST_ROWS, 1 << max(0, int(rows).bit_length() - 1))


def _index(table: Table, columns: Sequence[str]) -> None:
    """Have rows found by the values of some columns, also those that came since."""

    def index(latest: Any) -> None:
        there = [each.field_names for each in latest.describe_indices()]
        if latest.count_rows():
            for column in columns:
                if [column] not in there:
                    latest.create_scalar_index(column, "BTREE")
            latest.optimize.optimize_indices()

    table.change(index)


def _clean(table: Table, older_than_s: float) -> int:
    """Old versions, and old files that no version has: how many files."""
    cleaned = table.latest().cleanup_old_versions(timedelta(seconds=older_than_s))
    files = cleaned.data_files_removed + cleaned.index_files_removed
    return files + (_sweep(table, older_than_s) if is_local(table.uri) else 0)  # elsewhere Lance does, after a week


def _sweep(table: Table, older_than_s: float) -> int:
    """Files that were written and never committed."""
    latest, oldest = table.latest(), datetime.now(timezone.utc) - timedelta(seconds=older_than_s)
    files = latest.all_files().read_all().to_pylist()
    old = {each["path"] for each in files if each["path"].startswith("data/") and each["last_modified"] <= oldest}
    # after the files: what is committed in between is in use
    used = set(latest.tracked_files().read_all()["path"].to_pylist()) if old else set()
    for path in old - used:
        (Path(table.uri) / path).unlink(missing_ok=True)
    return len(old - used)


def _size(path: str) -> int:
    """Bytes of a folder; 0 of what is not on this machine."""
    if not is_local(path):
        return 0
    sizes = 0
    for file in Path(path).rglob("*"):
        with suppress(FileNotFoundError):  # someone else may be at work
            sizes += file.stat().st_size if file.is_file() else 0
    return sizes
