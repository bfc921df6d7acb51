"""Read the two tables of a store: list videos, locate rows, and check every row that is returned."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from floc._text import redact_source
from floc.archive.lance_tables import LanceTable, match_any
from floc.archive.locks import FolderLock
from floc.archive.schema import CHECK, LOCATION_COLUMNS, DamagedStoreError, StoredVideo, decode_video, hash_token_row
from floc.archive.token_rows import TimeRange, check_fit, check_location, check_totals, check_values

ROWS_PER_BATCH = 16  # rows in memory at a time
REINGEST = "remove the video and ingest it again"

Row = Mapping[str, Any]
RowsCheck = Callable[[list[Row]], None]


class StoreTables:
    """The tables of one store: `videos`, and token rows, whose table is called `segments` on disk."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = redact_source(path)  # for messages
        self.videos = LanceTable(f"{path}/videos.lance")
        self.token_rows = LanceTable(f"{path}/segments.lance")

    def lock_commits(self, *, exclusive: bool = False) -> FolderLock:
        """Share a lock with others that commit, or wait until none does."""
        return FolderLock(self.videos.uri, exclusive=exclusive)

    def list_videos(self, where: str | None = None) -> list[StoredVideo]:
        """Return every row of `videos` that matches a filter, including several with one id, and damaged ones."""
        rows = self.videos.read(lambda table: table.to_table(filter=where).to_pylist())
        return [decode_video(row, self.videos.name) for row in rows]

    def read_range(self, video: StoredVideo, time_range: TimeRange | None) -> list[Row]:
        """Return the rows of a video, or of a time range, in order. Raises DamagedStoreError if any is missing."""
        numbers = range(len(video.pieces))
        where = []
        if time_range is not None:
            numbers = numbers[slice(*time_range.visible_slices(np.array(video.starts_s)))]
            # the last slice of a piece stays visible until the next piece starts, which the piece does not know
            where.append(f"(end_s > {time_range.start_s!r} OR last)")
            if time_range.end_s < np.inf:
                where.append(f"start_s < {time_range.end_s!r}")

        def require_complete(rows: list[Row]) -> None:
            attempts = group_by_attempt(rows)
            for number in numbers:
                if problem := find_piece_problem(attempts.get(video.pieces[number], []), video.id, time_range):
                    raise self._report_damage(f"video {video.id} ({video.uri}), piece {number}: {problem}")
            problems = [find_problem(check_fit, row, video, rows[0]) for row in rows]
            if time_range is None:
                problems.append(find_problem(check_totals, rows, video))
            if problem := next(filter(None, problems), None):
                raise self._report_damage(f"video {video.id} ({video.uri}): {problem}")

        return self.read_pieces(video, numbers, where, require_complete)

    def read_pieces(
        self, video: StoredVideo, numbers: Sequence[int], where: Sequence[str], require: RowsCheck = lambda rows: None
    ) -> list[Row]:
        """Return the rows of some pieces that match all filters, in order, after verifying each and all of them."""
        condition = " AND ".join([match_any("attempt", [video.pieces[number] for number in numbers]), *where])

        def read_fragments(table: Any, fragments: list[Any] | None) -> list[Row]:
            self.token_rows.check_files(fragments or table.get_fragments())
            # late materialization reads the filter's columns first, then the others for matching rows only
            scanner = table.scanner(filter=condition, fragments=fragments, late_materialization=True)
            rows = scanner.to_table().to_pylist()
            if problem := next(filter(None, map(find_row_problem, rows)), None):
                raise self._report_damage(problem)
            rows = _sort_unique(rows)
            require(rows)
            return rows

        def read(table: Any) -> list[Row]:
            fragments = [table.get_fragment(i) for i in sorted({video.fragments[number] for number in numbers})]
            if None not in fragments:
                try:
                    return read_fragments(table, fragments)
                except DamagedStoreError:
                    pass  # the rows may have moved to other fragments
            return read_fragments(table, None)

        return self.token_rows.read(read, check=False)

    def read_locations(self, where: str) -> list[Row]:
        """Return the location columns of matching token rows, without their contents; leaves out damaged rows."""
        wanted = dict(columns=LOCATION_COLUMNS, filter=where, with_row_address=True)
        rows = self.token_rows.read(lambda table: table.to_table(**wanted).to_pylist())
        return [row for row in rows if find_problem(check_location, row) is None]

    def _report_damage(self, problem: str) -> DamagedStoreError:
        return DamagedStoreError(f"{self.token_rows.name}: {problem}; {CHECK}. To repair it, {REINGEST}")


def group_by_attempt(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group rows by attempt, each group in order."""
    key = itemgetter("attempt")
    return {attempt: list(group) for attempt, group in groupby(sorted(_sort_unique(rows), key=key), key=key)}


def find_piece_problem(rows: Sequence[Row], video: str, time_range: TimeRange | None = None) -> str | None:
    """Return what is wrong with the rows of one attempt at a piece, or None; they must cover `time_range`, or all."""
    if not rows:
        return "all of its rows are missing"
    first, last = rows[0], rows[-1]
    expected = video, first["piece"], first["shape"]
    if any((row["video"], row["piece"], row["shape"]) != expected for row in rows):
        return "it has rows of another piece"
    has_start = first["row"] == first["first"] == 0
    has_end = last["last"] and last["first"] + last["slices"] == last["shape"][0]
    if time_range is not None:
        has_start = has_start or first["start_s"] <= time_range.start_s
        has_end = has_end or last["end_s"] >= time_range.end_s
    ends = [(row["row"] + 1, row["first"] + row["slices"]) for row in rows[:-1]]
    is_consecutive = ends == [(row["row"], row["first"]) for row in rows[1:]]
    return None if has_start and has_end and is_consecutive else "rows are missing"


def find_row_problem(row: Row) -> str | None:
    """Return what is wrong with a token row, or None."""
    is_changed = row["sha256"] != hash_token_row(row)
    problem = "it was changed after it was written" if is_changed else find_problem(check_values, row)
    return f"video {row['video']}, {row['start_s']} s to {row['end_s']} s: {problem}" if problem else None


def find_problem(check: Callable[..., None], *arguments: Any) -> str | None:
    """Return the error that a check raises, or None."""
    try:
        check(*arguments)
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def resolve_duplicates(videos: Iterable[StoredVideo]) -> list[StoredVideo]:
    """Return one row per id: the first one done, or the last one failed if its file was not ingested later."""
    groups: dict[str, list[StoredVideo]] = defaultdict(list)
    for video in videos:
        groups[video.id].append(video)
    preferred = [min(group, key=_preference) for group in groups.values()]
    # only files that failed need the time of their latest ingest
    failed = {video.uri for video in preferred if video.status == "failed"}
    latest: dict[tuple[str, ...], float] = defaultdict(float)
    for video in preferred:
        if video.uri in failed:
            latest[_file_key(video)] = max(video.written_s, latest[_file_key(video)])
    return [video for video in preferred if video.status != "failed" or video.written_s >= latest[_file_key(video)]]


def _file_key(video: StoredVideo) -> tuple[str, ...]:
    return video.uri, video.encoder, json.dumps(dict(video.options), sort_keys=True)


def _preference(video: StoredVideo) -> tuple[bool, float, tuple[str, ...]]:
    failed = video.status != "done"
    return failed, -video.written_s if failed else video.written_s, video.pieces[:1]


def _sort_unique(rows: Iterable[Row]) -> list[Row]:
    """Sort rows by piece and drop copies, which exist if a piece was committed twice."""
    key = itemgetter("piece", "attempt", "row")
    return [next(copies) for _, copies in groupby(sorted(rows, key=key), key=key)]
