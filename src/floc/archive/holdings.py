"""What the tables of a store hold: videos, where their rows are, and rows that are what was written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from floc.archive.cutting import Stretch, on_screen
from floc.archive.lances import Table, one_of
from floc.archive.rows import PLACE, seal_of, video_of
from floc.archive.tables import Damaged, Video

REPAIR = "remove the video and ingest it again"

Row = Mapping[str, Any]


class Holdings:
    """The two tables, read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.videos = Table(f"{path}/videos.lance")
        self.segments = Table(f"{path}/segments.lance")

    def listed(self, where: str | None = None) -> list[Video]:
        """Every row of `videos` that meets a condition."""
        rows = self.videos.read(lambda table: table.to_table(filter=where).to_pylist())
        return [video_of(row, self.videos.uri) for row in rows]

    def stretch(self, video: Video, stretch: Stretch | None) -> list[Row]:
        """The rows of a video that reach into a stretch of it, in order, none missing; None is all of it."""
        numbers = range(len(video.pieces))
        where = None
        if stretch is not None:
            numbers = numbers[slice(*on_screen(np.array(video.starts_s), stretch))]
            # the last slice of a piece is on screen until the next piece begins, which the piece does not know
            where = f"(end_s > {stretch.start_s!r} OR last)"
            if stretch.end_s < np.inf:
                where += f" AND start_s < {stretch.end_s!r}"
        uri = self.segments.uri
        return self.pieces(video, numbers, where, lambda rows: _require_all(uri, rows, video, numbers, stretch))

    def pieces(
        self, video: Video, numbers: Sequence[int], where: str | None, require: Callable[[list[Row]], None]
    ) -> list[Row]:
        """Rows of some pieces of a video that meet a condition, in order, each as it was written.

        Args:
            video: as the table has it.
            numbers: of the pieces.
            where: the condition.
            require: complains of rows that are missing.
        """
        attempts = [video.pieces[number] for number in numbers]
        condition = " AND ".join(each for each in (one_of("attempt", attempts), where) if each)
        fragments = [video.fragments[number] for number in numbers]

        def read(table: Any, parts: list[Any] | None) -> list[Row]:
            rows = self._sealed(table, condition, parts)
            require(rows)
            return rows

        def first_where_they_were(table: Any) -> list[Row]:
            if (parts := _parts(table, fragments)) is not None:
                try:
                    return read(table, parts)
                except Damaged:
                    pass  # found, or found to be damaged, among all
            return read(table, None)

        return self.segments.read(first_where_they_were)

    def places(self, where: str) -> list[Row]:
        """Where rows stand that meet a condition, not what they hold."""
        columns = list(PLACE)
        return self.segments.read(
            lambda table: table.to_table(columns=columns, filter=where, with_row_address=True).to_pylist()
        )

    def _sealed(self, table: Any, where: str, fragments: list[Any] | None = None) -> list[Row]:
        # first the columns of the condition, then of rows that meet it the rest
        scanner = table.scanner(filter=where, fragments=fragments, late_materialization=True)
        rows = scanner.to_table().to_pylist()
        for row in rows:
            if row["sha256"] != seal_of(row):
                raise Damaged(f"{self.segments.uri}: {told(row)} was changed after it was written; {REPAIR}")
        return _in_order(rows)


def by_attempt(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each attempt, in order."""
    ordered = sorted(_in_order(rows), key=lambda row: row["attempt"])
    return {attempt: list(same) for attempt, same in groupby(ordered, key=lambda row: row["attempt"])}


def wrong_with(rows: Sequence[Row], video: str) -> str | None:
    """What is wrong with the rows of one attempt at a piece, if anything."""
    if not rows:
        return "none of its rows are there"
    if not _is_one_piece(rows, video):
        return "it has rows of another piece"
    if rows[0]["row"] != 0 or not rows[-1]["last"] or not _follow(rows):
        return "rows are missing"
    return None


def told(place: Row) -> str:
    """Which row it is, for people."""
    return f"video {place['video']}, {place['start_s']:g} s to {place['end_s']:g} s"


def resolved(videos: Iterable[Video]) -> list[Video]:
    """One for each id: done before failed; of several done the first, of several failed the last.

    A file that failed and was looked at again later, with another content by then, did not fail.
    """
    found: dict[str, Video] = {}
    for video in videos:
        before = found.get(video.id)
        found[video.id] = video if before is None or _rank(video) < _rank(before) else before
    failed = {video.uri for video in found.values() if video.status != "done"}  # few, and only they matter
    later: dict[tuple[str, ...], float] = {}  # when each file was last looked at
    for video in found.values():
        if video.uri in failed:
            later[_file(video)] = max(video.written_s, later.get(_file(video), 0.0))
    return [video for video in found.values() if video.status == "done" or video.written_s >= later[_file(video)]]


def _file(video: Video) -> tuple[str, ...]:
    """A file, and what was to be done with it."""
    return video.uri, video.encoder, json.dumps(dict(video.options), sort_keys=True)


def _rank(video: Video) -> tuple[bool, float, tuple[str, ...]]:
    failed = video.status != "done"
    return failed, -video.written_s if failed else video.written_s, video.pieces[:1]


def _in_order(rows: Iterable[Row]) -> list[Row]:
    """By piece, and each once: what is committed twice is the same."""
    ordered = sorted(rows, key=_key)
    return [next(same) for _, same in groupby(ordered, key=_key)]


def _key(row: Row) -> tuple[int, str, int]:
    return row["piece"], row["attempt"], row["row"]


def _is_one_piece(rows: Sequence[Row], video: str) -> bool:
    """Whether rows are of one piece of a video. Its number may be any: a film with gaps has numbers without a piece."""
    return all((row["video"], row["piece"]) == (video, rows[0]["piece"]) for row in rows)


def _follow(rows: Sequence[Row]) -> bool:
    """Whether rows of a piece come one after another."""
    return all(
        (before["row"] + 1, before["first"] + before["slices"]) == (after["row"], after["first"])
        for before, after in pairwise(rows)
    )


def _require_all(uri: str, rows: Sequence[Row], video: Video, numbers: Sequence[int], stretch: Stretch | None) -> None:
    """Complain where rows of a stretch are missing; what they say of themselves is to be trusted by now."""
    attempts = by_attempt(rows)
    for number in numbers:
        part = attempts.get(video.pieces[number], [])
        begins = bool(part) and (part[0]["row"] == 0 or (stretch is not None and part[0]["start_s"] <= stretch.start_s))
        ends = bool(part) and (part[-1]["last"] or (stretch is not None and part[-1]["end_s"] >= stretch.end_s))
        if not (begins and ends and _is_one_piece(part, video.id) and _follow(part)):
            raise Damaged(f"{uri}: video {video.id} ({video.uri}), piece {number}: rows are missing; {REPAIR}")


def _parts(table: Any, fragments: Sequence[int]) -> list[Any] | None:
    """The fragments that rows were written in, as long as they are there."""
    parts = [table.get_fragment(number) for number in sorted(set(fragments))]
    return None if None in parts else parts
