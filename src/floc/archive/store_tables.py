"""Read the two tables of a store: list videos, locate rows, and verify every row that is returned."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from floc.archive.lance_tables import LanceTable, match_any
from floc.archive.schema import LOCATION_COLUMNS, DamagedStoreError, StoredVideo, decode_video, hash_segment
from floc.archive.segments import TimeRange

REINGEST = "remove the video and ingest it again"

Row = Mapping[str, Any]


class StoreTables:
    """The tables `videos` and `segments` of one store."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.videos = LanceTable(f"{path}/videos.lance")
        self.segments = LanceTable(f"{path}/segments.lance")

    def list_videos(self, where: str | None = None) -> list[StoredVideo]:
        """Return every row of `videos` that matches a filter, including several rows with one id."""
        rows = self.videos.read(lambda table: table.to_table(filter=where).to_pylist())
        return [decode_video(row, self.videos.uri) for row in rows]

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
                    piece = f"video {video.id} ({video.uri}), piece {number}"
                    raise DamagedStoreError(f"{self.segments.uri}: {piece}: {problem}; {REINGEST}")

        return self.read_pieces(video, numbers, where, require_complete)

    def read_pieces(
        self,
        video: StoredVideo,
        numbers: Sequence[int],
        where: Sequence[str],
        require: Callable[[list[Row]], None] = lambda rows: None,
    ) -> list[Row]:
        """Return the rows of some pieces that match all filters, in order, after verifying each and all of them."""
        condition = " AND ".join([match_any("attempt", [video.pieces[number] for number in numbers]), *where])

        def read_fragments(table: Any, fragments: list[Any] | None) -> list[Row]:
            # late materialization reads the filter's columns first, then the others for matching rows only
            scanner = table.scanner(filter=condition, fragments=fragments, late_materialization=True)
            rows = scanner.to_table().to_pylist()
            for row in rows:
                if problem := find_row_problem(row):
                    raise DamagedStoreError(f"{self.segments.uri}: {problem}; {REINGEST}")
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

        return self.segments.read(read)

    def read_locations(self, where: str) -> list[Row]:
        """Return the location columns of matching rows of `segments`, without their contents."""
        return self.segments.read(
            lambda table: table.to_table(columns=LOCATION_COLUMNS, filter=where, with_row_address=True).to_pylist()
        )


def group_by_attempt(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group rows by attempt, each group in order."""
    key = itemgetter("attempt")
    return {attempt: list(group) for attempt, group in groupby(sorted(_sort_unique(rows), key=key), key=key)}


def find_piece_problem(rows: Sequence[Row], video: str, time_range: TimeRange | None = None) -> str | None:
    """Return what is wrong with the rows of one attempt at a piece, or None; they must cover `time_range`, or all."""
    if not rows:
        return "all of its rows are missing"
    first, last = rows[0], rows[-1]
    if any((row["video"], row["piece"]) != (video, first["piece"]) for row in rows):
        return "it has rows of another piece"
    has_start = first["row"] == 0 or (time_range is not None and first["start_s"] <= time_range.start_s)
    has_end = last["last"] or (time_range is not None and last["end_s"] >= time_range.end_s)
    ends = [(row["row"] + 1, row["first"] + row["slices"]) for row in rows[:-1]]
    is_consecutive = ends == [(row["row"], row["first"]) for row in rows[1:]]
    return None if has_start and has_end and is_consecutive else "rows are missing"


def find_row_problem(row: Row) -> str | None:
    """Return what is wrong with a row of `segments` if its hash does not match, or None."""
    problem = f"video {row['video']}, {row['start_s']:g} s to {row['end_s']:g} s was changed after it was written"
    return None if row["sha256"] == hash_segment(row) else problem


def resolve_duplicates(videos: Iterable[StoredVideo]) -> list[StoredVideo]:
    """Return one row per id: the first one done, or the last one failed if its file was not ingested later."""
    groups: dict[str, list[StoredVideo]] = defaultdict(list)
    for video in videos:
        groups[video.id].append(video)
    preferred = [min(group, key=_preference) for group in groups.values()]
    # only files that failed need the time of their latest ingest
    failed = {video.uri for video in preferred if video.status != "done"}
    latest: dict[tuple[str, ...], float] = defaultdict(float)
    for video in preferred:
        if video.uri in failed:
            latest[_file_key(video)] = max(video.written_s, latest[_file_key(video)])
    return [video for video in preferred if video.status == "done" or video.written_s >= latest[_file_key(video)]]


def _file_key(video: StoredVideo) -> tuple[str, ...]:
    return video.uri, video.encoder, json.dumps(dict(video.options), sort_keys=True)


def _preference(video: StoredVideo) -> tuple[bool, float, tuple[str, ...]]:
    failed = video.status != "done"
    return failed, -video.written_s if failed else video.written_s, video.pieces[:1]


def _sort_unique(rows: Iterable[Row]) -> list[Row]:
    """Sort rows by piece and drop copies, which exist if a piece was committed twice."""
    key = itemgetter("piece", "attempt", "row")
    return [next(copies) for _, copies in groupby(sorted(rows, key=key), key=key)]
