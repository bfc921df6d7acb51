"""A store: a folder, or a URI of object storage, with Lance tables that many processes can write at once.

    videos.lance      one row per video that was ingested or failed, with the reason
    segments.lance    the kept tokens, in token rows of about ten seconds
    vectors-*.lance   the same tokens once more for each model, normalised, if `index` was called

A video is written in pieces, by any process in any order. `write_piece` writes files that are not visible yet; `commit`
adds the token rows in one step and the video to `videos` in the next. Each step is a new version of a table, and
complete or absent, so a process may be killed at any moment. Lance runs its own threads: start processes with spawn,
not fork.
"""

import difflib
import hashlib
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from floc._checks import is_number, require, shorten
from floc._text import redact_source
from floc._version import __version__
from floc.archive import schema
from floc.archive.lance_tables import explain_errors, is_local, match_any
from floc.archive.locks import FolderLock
from floc.archive.maintenance import CompactionResult, StoreProblem, check_store, compact_store
from floc.archive.schema import StoredPiece, StoredVideo, StoreError, encode_video, escape_surrogates, video_id
from floc.archive.search import SearchResult, StoreSearch
from floc.archive.store_tables import StoreTables, find_piece_problem, group_by_attempt, resolve_duplicates
from floc.archive.token_rows import TimeRange, get_coverage, join_rows, split_rows
from floc.budget import Budget
from floc.captured.captured import Captured
from floc.captured.floc_file import load

MAX_SUGGESTIONS = 5


class Store:
    """Videos that were compressed once, to be opened, searched and asked about."""

    def __init__(self, path: str | Path, *, create: bool = False) -> None:
        """Open a store at a folder, or at a URI that Lance supports, such as s3://bucket/name."""
        self.path = os.path.abspath(path) if is_local(str(path)) else str(path).rstrip("/")
        if (escaped := escape_surrogates(self.path)) != self.path:
            raise ValueError(f"{escaped!r}: the name of a store must be valid UTF-8; rename it")
        self._tables = StoreTables(self.path)
        self._uncommitted: set[str] = set()  # attempts at pieces; the lock tells others about them
        self._lock: FolderLock | None = None
        self._search = StoreSearch(self._tables)
        if create:
            self._tables.token_rows.create(schema.TOKEN_ROWS)  # first, so that a store with `videos` is complete
            self._tables.videos.create(schema.VIDEOS)
        elif not self._tables.videos.exists():
            fix = "create one with `floc ingest` or floc.Store(path, create=True)"
            raise FileNotFoundError(f"{self._tables.name}: no store here; {fix}")
        self._require_format()

    def __repr__(self) -> str:
        return f"Store({self._tables.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.path,)

    def videos(self, status: schema.VideoStatus | None = None) -> list[StoredVideo]:
        """List the videos, each once, with the status "done", "failed" or "damaged", or any."""
        return [video for video in resolve_duplicates(self._tables.list_videos()) if status in (None, video.status)]

    def has(self, video_id: str) -> bool:
        """Return whether the store has a complete video with this id."""
        return any(video.status == "done" for video in self._tables.list_videos(match_any("id", [video_id])))

    def find(self, video: str) -> StoredVideo:
        """Return a video by its id, the first digits of its id, its URI, or its file name.

        Raises ValueError with suggestions if there is none, or if there are several.
        """
        video = escape_surrogates(video)
        if exact := resolve_duplicates(self._tables.list_videos(match_any("id", [video]))):
            return exact[0]
        videos = self.videos()
        by_uri = [entry for entry in videos if entry.uri == video]
        by_name = [entry for entry in videos if _file_name(entry) == video]
        if matches := by_uri or by_name or [entry for entry in videos if video and entry.id.startswith(video)]:
            if len(matches) == 1:
                return matches[0]
            several = ", ".join(map(_describe, matches[:MAX_SUGGESTIONS]))
            raise ValueError(f"{self._tables.name}: {video!r} matches {len(matches)} videos; give an id: {several}")
        raise ValueError(f"{self._tables.name}: no video {video!r}{_suggest(video, videos)}")

    def open(
        self,
        video: str | StoredVideo,
        *,
        start_s: float | None = None,
        end_s: float | None = None,
        ratio: float | str | None = None,
        budget: int | None = None,
    ) -> Captured:
        """Load what was kept of a video, or of a time range of it, as `floc.load` returns it. Reads nothing else.

        Args:
            video: as in `find`.
            start_s, end_s: the time range in seconds: all slices visible in it. None for the start or end of the video.
            ratio, budget: at most one of them, for fewer tokens of the range. Returns no more than were kept in it.
        """
        entry = self._find_done(video if isinstance(video, str) else video.id)
        time_range = _parse_range(entry, start_s, end_s)
        target = None if ratio is None and budget is None else Budget.parse(ratio, budget, None)
        captured = join_rows(self._tables.read_range(entry, time_range), entry, time_range)
        if target is None:
            return captured
        if target.ratio is not None and target.ratio * entry.tokens <= entry.kept:
            # a range with little change may have fewer tokens than its share
            return captured.at(budget=min(target.count(captured.n), len(captured)))
        return captured.at(ratio=ratio, budget=budget)

    def search(
        self, query: Any, k: int = 10, *, video: str | None = None, encoder: str | None = None
    ) -> list[SearchResult]:
        """Find the `k` time ranges most similar to an image or to tokens, best first.

        Args:
            query: [D] or [Q, D] tokens; or an image, as a file or a [h, w, 3] uint8 array, encoded as the videos were.
            video: search this video only, as in `find`.
            encoder: search videos of this encoder only; required if videos of several encoders match, and for an image
                if the encoder is a model, since a store from a stranger must not choose which model is loaded.
        """
        videos = self.videos("done") if video is None else [self._find_done(video)]
        return self._search.search(videos, query, k, encoder)

    def index(self) -> dict[str, int]:
        """Build or update a vector index per encoder for fast search; return the number of tokens in each."""
        return self._search.update_indices(self.videos("done"))

    def check(self, progress: Callable[[float], object] = lambda fraction: None) -> list[StoreProblem]:
        """Verify all rows by their hashes, and videos by their rows; `progress` is called with the fraction done."""
        return check_store(self._tables, progress)

    def compact(self, older_than_s: float = 86400) -> CompactionResult:
        """Merge small files, update indices, and drop data that nothing refers to.

        Args:
            older_than_s: keep versions, files and pieces without a video that are younger than this. Must be longer
                than any read, and than the ingest of any video; at least an hour while another process writes.
        """
        return compact_store(self._tables, older_than_s)

    def remove(self, video: str) -> StoredVideo:
        """Remove a video and everything written for it; `compact` frees the space."""
        entry = self.find(video)
        with explain_errors(self._tables.name, writing=True):
            self._tables.videos.delete("id", [entry.id])  # first, so that no reader sees a part of the video
            self._tables.token_rows.delete("video", [entry.id])
        return entry

    def add(self, video: str | Path | Captured, *, uri: str | None = None) -> StoredVideo:
        """Add a video that was captured elsewhere. Does nothing if it is in the store already.

        Args:
            video: a .floc file, or the result of `floc.capture`.
            uri: name of the video; by default the path of the file, or the source of the capture.
        """
        if isinstance(video, Captured):
            captured, file, name = video, None, redact_source(str(video.made.get("source") or "captured"))
        else:
            captured, file, name = load(video), Path(video), str(video)
        try:
            entry = _describe_import(captured, uri or name, file)
            piece = None if self.has(entry.id) else self.write_piece(entry.id, 0, captured)
        except ValueError as error:
            raise ValueError(f"{name}: cannot be stored: {error}") from error
        if piece is not None:
            entry = replace(entry, pieces=(piece.attempt,), frames=piece.frames, written_s=time.time())
            self.commit([piece], [entry])
        return self.find(entry.id)

    def export(self, video: str, path: str | Path) -> None:
        """Write a video as a .floc file, which `floc.load` reads."""
        self.open(video).save(path)

    def write_piece(self, video_id: str, piece: int, captured: Captured) -> StoredPiece:
        """Write a piece of a video, numbered from 0, to files that are not visible until they are committed.

        Any process may call it. The times of `captured` count from the start of the video.
        """
        rows = split_rows(captured, video_id, piece, uuid.uuid4().hex, time.time())
        self._lock = self._lock or FolderLock(self.path)
        self._uncommitted.add(rows[0]["attempt"])
        table = pa.Table.from_pylist(rows, schema=schema.TOKEN_ROWS)
        return _summarise_piece(rows, self._tables.token_rows.write(table))

    def commit(self, pieces: Sequence[StoredPiece], videos: Sequence[StoredVideo] = ()) -> None:
        """Add pieces from `write_piece`, and then videos whose pieces are all in `pieces` or committed before."""
        with self._tables.lock_commits():  # until the end: `compact` may otherwise delete what was checked here
            numbers = self._tables.token_rows.append([fragment for piece in pieces for fragment in piece.fragments])
            parts = [part for part in pieces if part.fragments]
            locations = {part.attempt: (part.start_s, numbers[part.fragments[0]]) for part in parts}
            if rows := [encode_video(video) for video in self._locate_pieces(videos, locations)]:
                self._tables.videos.append(self._tables.videos.write(pa.Table.from_pylist(rows, schema=schema.VIDEOS)))
        self._uncommitted -= {piece.attempt for piece in pieces}
        if not self._uncommitted:
            self._lock = None

    def pieces(self, video_id: str) -> dict[int, StoredPiece]:
        """Return the complete committed pieces of a video, the newest of each number, even if the video is not done."""
        attempts = group_by_attempt(self._tables.read_locations(match_any("video", [video_id])))
        complete = [_summarise_piece(rows) for rows in attempts.values() if find_piece_problem(rows, video_id) is None]
        return {piece.piece: piece for piece in sorted(complete, key=lambda piece: (piece.piece, piece.written_s))}

    def _find_done(self, video: str) -> StoredVideo:
        entry = self.find(video)
        if entry.status == "damaged":
            raise schema.DamagedStoreError(entry.error)
        if entry.status == "failed":
            raise ValueError(f"video {entry.id} ({entry.uri}) failed to ingest: {entry.error}; ingest it again")
        return entry

    def _require_format(self) -> None:
        expected = schema.FORMAT.decode()
        for table, columns in ((self._tables.videos, schema.VIDEOS), (self._tables.token_rows, schema.TOKEN_ROWS)):
            actual = table.read(lambda latest: latest.schema, check=False)
            version = (actual.metadata or {}).get(b"floc.format", b"none").decode(errors="replace")
            if version != expected:
                problem = f"format {version}, but this version of floc reads format {expected}"
                raise ValueError(f"{table.name}: {problem}; open it with the version that wrote it")
            if not actual.equals(columns):
                problem = f"its columns are not those of format {expected}"
                raise schema.DamagedStoreError(f"{table.name}: {problem}; restore its files")

    def _locate_pieces(
        self, videos: Sequence[StoredVideo], locations: dict[str, tuple[float, int]]
    ) -> Iterator[StoredVideo]:
        """Fill in the start and the fragment of each piece; `locations` has those that were committed just now."""
        if earlier := [attempt for video in videos for attempt in video.pieces if attempt not in locations]:
            rows = self._tables.read_locations(f"row = 0 AND {match_any('attempt', earlier)}")
            locations = locations | {row["attempt"]: (row["start_s"], row["_rowaddr"] >> 32) for row in rows}
        for video in videos:
            if not locations.keys() >= set(video.pieces):
                problem = f"video {video.id} ({video.uri}) cannot be committed before its pieces"
                reason = "Some were never committed, or were removed by compact; ingest it again"
                raise StoreError(f"{self._tables.name}: {problem}. {reason}")
            located = [locations[attempt] for attempt in video.pieces]
            yield replace(video, starts_s=tuple(start for start, _ in located), fragments=tuple(n for _, n in located))


def _summarise_piece(rows: Sequence[Any], fragments: tuple[str, ...] = ()) -> StoredPiece:
    first = rows[0]
    copied = ("video", "piece", "attempt", "frames", "coverage", "start_s", "written_s")
    values: dict[str, Any] = {name: first[name] for name in copied} | {"end_s": rows[-1]["end_s"]}
    values |= {name: sum(row[name] for row in rows) for name in ("kept", "bytes")}
    return StoredPiece(**values, fragments=fragments, shape=tuple(first["shape"]), tokens=math.prod(first["shape"]))


def _parse_range(video: StoredVideo, start_s: float | None, end_s: float | None) -> TimeRange | None:
    """Validate a time range of a video; None means the whole video."""
    if start_s is None and end_s is None:
        return None
    for seconds in (start_s, end_s):
        if seconds is not None and not (
            is_number(seconds) and (abs(seconds) < 1e15 or (seconds == math.inf and seconds is end_s))
        ):
            raise ValueError(f"start_s and end_s must be numbers of seconds, got {shorten(seconds)}")
    start, end = 0.0 if start_s is None else start_s, video.duration_s if end_s is None else end_s
    given = f"got {start:g} s to {end:g} s of video {video.id}, which lasts {video.duration_s:g} s"
    require(start < end, f"start_s must be before end_s; {given}")
    require(0 <= start < video.duration_s, f"start_s must be within the video; {given}")
    # the last frames may lie beyond the stated duration
    return TimeRange(float(start), math.inf if end >= video.duration_s else float(end))


def _describe_import(captured: Captured, uri: str, file: Path | None) -> StoredVideo:
    """Build the row of a video that was captured elsewhere, without its pieces."""
    hashes = [row["sha256"] for row in split_rows(captured, "", 0, "", 0.0)] if file is None else []
    content = schema.hash_file(file) if file else hashlib.sha256("".join(hashes).encode()).hexdigest()
    options = {name: captured.made[name] for name in ("method", "settings") if name in captured.made}
    model = captured.model
    # a file may say that an encoder of floc made it, but never which model to load: `search` asks the user for that
    made_by = captured.made.get("encoder", model.kind)
    encoder = made_by if made_by in ("pixels", "mobilenet") and made_by == model.kind else f"hf:{model.name}"
    times, rate = captured.times_s, captured.fps or 1.0
    copied = ("fps", "frames_per_slice", "shape", "model", "nested", "made")
    values: dict[str, Any] = {"id": video_id(content, model, options), "uri": uri, "content": content, "status": "done"}
    values |= {name: getattr(captured, name) for name in copied} | {"encoder": encoder, "options": options}
    values |= {"size": file.stat().st_size if file else 0, "modified_s": file.stat().st_mtime if file else time.time()}
    values |= {"tokens": captured.n, "kept": len(captured), "coverage": get_coverage(captured), "version": __version__}
    duration_s, last_s = captured.duration_s or 0.0, 0.0 if times is None else float(times[-1])
    # a part of a video states its own duration, but its times count from the start of the video
    return StoredVideo(**values, duration_s=duration_s if last_s < duration_s else last_s + 1 / rate)


def _file_name(video: StoredVideo) -> str:
    return video.uri.rstrip("/").rsplit("/", 1)[-1]


def _describe(video: StoredVideo) -> str:
    when = datetime.fromtimestamp(video.written_s).strftime("%Y-%m-%d %H:%M:%S")
    return f"{video.id} ({video.uri}, {video.status} {when}, {video.encoder}, {dict(video.options)})"


def _suggest(video: str, videos: Sequence[StoredVideo]) -> str:
    if not videos:
        return ": the store is empty; add videos with `floc ingest`"
    names = {name: f"{entry.id} ({entry.uri})" for entry in videos for name in (entry.id, entry.uri, _file_name(entry))}
    if near := dict.fromkeys(names[name] for name in difflib.get_close_matches(video, names, MAX_SUGGESTIONS, 0.5)):
        return f"; did you mean {', '.join(near)}?"
    return f"; the store has {len(videos)}, floc.Store(path).videos() lists them"
