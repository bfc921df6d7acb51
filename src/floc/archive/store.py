"""A store: a folder, or an object store's URI, with two Lance tables that many processes write at once.

    videos.lance      one row for each video that was taken in, or could not be, and why
    segments.lance    what was kept, in rows of about ten seconds
    vectors-*.lance   the same tokens once more for each model, normalised, where `index` was called

A video is written in pieces, by any process in any order: `write_piece` writes files that nobody sees, `commit` makes
them part of `segments` in one step and the video part of `videos` in the next. Every step is a new version of a table,
there or not, so a process may die at any moment. Lance has threads of its own: start processes by
spawning, not forking.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floc.archive import upkeep
from floc.archive.cutting import Stretch, cut, joined
from floc.archive.holdings import Holdings, by_attempt, resolved, wrong_with
from floc.archive.lances import is_local, one_of, quoted
from floc.archive.rows import FORMAT, SEGMENTS, VIDEOS, pa, row_of
from floc.archive.search import Search
from floc.archive.tables import Damaged, Piece, Status, StoreError, Video, video_id
from floc.budget import Budget
from floc.captured.captured import Captured, load

if TYPE_CHECKING:
    from floc.archive.search import Moment
    from floc.archive.upkeep import Compacted, Fault

NEAR = 5  # names to suggest


class Store:
    """Videos that were compressed once, to be opened, searched and asked about."""

    def __init__(self, path: str | Path, *, create: bool = False) -> None:
        """Open one.

        Args:
            path: its folder, or a URI that Lance takes, such as s3://bucket/name.
            create: make it where there is none.
        """
        self.path = os.path.abspath(path) if is_local(str(path)) else str(path).rstrip("/")
        self._held = Holdings(self.path)
        self._search = Search(self._held)
        if create:
            self._create()
        elif not self._held.videos.exists():
            raise FileNotFoundError(
                f"{self.path}: there is no store here; make one by `floc ingest`, or by floc.Store(path, create=True)"
            )
        self._require_format()

    def __repr__(self) -> str:
        return f"Store({self.path!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.path,)

    def videos(self, status: Status | None = None) -> list[Video]:
        """What is in the store, each video once.

        Args:
            status: "done" or "failed"; both where not given.
        """
        return [video for video in resolved(self._held.listed()) if status in (None, video.status)]

    def has(self, video_id: str) -> bool:
        """Whether a video is there, whole."""
        return any(video.status == "done" for video in self._held.listed(f"id = {quoted(video_id)}"))

    def find(self, video: str) -> Video:
        """One video, or an error that lists the likely ones.

        Args:
            video: its id, the first digits of that, its URI, or its file name.
        """
        exact = resolved(self._held.listed(f"id = {quoted(video)}"))
        if exact:
            return exact[0]
        videos = self.videos()
        for is_meant in (
            lambda each: each.uri == video,
            lambda each: _name(each) == video,
            lambda each: bool(video) and each.id.startswith(video),
        ):
            meant = list(filter(is_meant, videos))
            if len(meant) == 1:
                return meant[0]
            if meant:
                several = ", ".join(map(_told, meant[:NEAR]))
                raise ValueError(f"{self.path}: {video!r} is {len(meant)} videos; give the id of one: {several}")
        raise ValueError(f"{self.path}: no video {video!r}{_hint(video, videos)}")

    def open(
        self,
        video: str | Video,
        *,
        start_s: float | None = None,
        end_s: float | None = None,
        ratio: float | str | None = None,
        budget: int | None = None,
    ) -> Captured:
        """What was kept of a video, or of a stretch of it, as `floc.load` would give it. Nothing else is read.

        Args:
            video: as in `find`.
            start_s, end_s: the stretch, in seconds of the film: the slices on screen in it. All where not given.
            ratio, budget: at most one, for fewer tokens; of the stretch. No more come than were kept in it.
        """
        entry = self.find(video if isinstance(video, str) else video.id)
        if entry.status != "done":
            raise ValueError(f"video {entry.id} ({entry.uri}) could not be taken in: {entry.error}; ingest it again")
        stretch = _stretch(entry, start_s, end_s)
        dial = None if ratio is None and budget is None else Budget.parse(ratio, budget, None)
        captured = joined(self._held.stretch(entry, stretch), entry, stretch)
        if dial is None:
            return captured
        if dial.ratio is not None and dial.ratio * entry.tokens <= entry.kept:
            # a quiet stretch may have less than its share
            return captured.at(budget=min(dial.count(captured.n), len(captured)))
        return captured.at(ratio=ratio, budget=budget)

    def search(self, query: Any, k: int = 10, *, video: str | None = None, encoder: str | None = None) -> list[Moment]:
        """The moments most like a picture or some tokens, best first.

        Args:
            query: [D] or [Q, D] tokens; or a picture, as a file or as [h, w, 3] uint8, which is encoded as videos were.
            k: how many.
            video: look in one only, as in `find`.
            encoder: look in videos of this encoder only; needed where there are several that fit.
        """
        videos = self.videos("done") if video is None else [self.find(video)]
        return self._search.moments(videos, query, k, encoder)

    def index(self) -> dict[str, int]:
        """Make search fast, by a vector index for each encoder: how many tokens each has. Again for what came since."""
        return self._search.index(self.videos("done"))

    def check(self, progress: Callable[[float], None] | None = None) -> list[Fault]:
        """Compare every row with its hash, and every video with its rows: what is wrong, and what to do."""
        return upkeep.check(self._held, progress)

    def compact(self, older_than_s: float = 86400) -> Compacted:
        """Merge small files, bring indices up to date, and drop what nobody needs.

        Args:
            older_than_s: how long versions, files and pieces without a video are kept: longer than any reading takes,
                and any ingest of a video.
        """
        return upkeep.compact(self._held, older_than_s)

    def remove(self, video: str) -> Video:
        """Take a video out, all that was written of it; `compact` gives its room back."""
        entry = self.find(video)
        upkeep.remove(self._held, entry.id)
        return entry

    def add(self, video: str | Path | Captured, *, uri: str | None = None) -> Video:
        """Take in what was captured elsewhere; a second time nothing is written.

        Args:
            video: a .floc file, or what `floc.capture` gave.
            uri: what to call it; the file's path where not given.
        """
        captured = video if isinstance(video, Captured) else load(video)
        if uri is None and isinstance(video, Captured):
            uri = str(captured.made.get("source") or "")
        uri = uri or (str(video) if not isinstance(video, Captured) else "captured")
        entry = _imported(captured, uri, None if isinstance(video, Captured) else Path(video))
        known = resolved(self._held.listed(f"id = {quoted(entry.id)} AND status = 'done'"))
        if known:
            return known[0]
        piece = self.write_piece(entry.id, 0, captured)
        entry = replace(entry, pieces=(piece.attempt,), frames=piece.frames, written_s=time.time())
        self.commit([piece], [entry])
        return self.find(entry.id)

    def export(self, video: str, path: str | Path) -> None:
        """Write a video as a .floc file, which `floc.load` reads."""
        self.open(video).save(path)

    def write_piece(self, video_id: str, piece: int, captured: Captured) -> Piece:
        """Write a piece of a video to files that nobody sees before they are committed. Any process may.

        Args:
            video_id: from `floc.archive.video_id`.
            piece: its number, from 0.
            captured: what was kept of it, with the film's own times.
        """
        attempt, written_s = uuid.uuid4().hex, time.time()
        rows = cut(captured, video_id, piece, attempt, written_s)
        return _piece(rows, self._held.segments.write(pa.Table.from_pylist(rows, schema=SEGMENTS)))

    def commit(self, pieces: Sequence[Piece], videos: Sequence[Video] = ()) -> None:
        """Make pieces part of the store, and then videos whose pieces are all there.

        Args:
            pieces: from `write_piece`.
            videos: with all of their pieces among these, or committed before.
        """
        numbers = self._held.segments.append([fragment for piece in pieces for fragment in piece.fragments])
        if not videos:
            return
        where = {piece.attempt: (piece.start_s, numbers[piece.fragments[0]]) for piece in pieces if piece.fragments}
        rows = [row_of(video) for video in self._placed(videos, where)]
        self._held.videos.append(self._held.videos.write(pa.Table.from_pylist(rows, schema=VIDEOS)))

    def pieces(self, video_id: str) -> dict[int, Piece]:
        """The pieces of a video that are committed and whole, whether or not the video is done: the newest of each."""
        places = self._held.places(f"video = {quoted(video_id)}")
        whole = [_piece(rows) for rows in by_attempt(places).values() if wrong_with(rows, video_id) is None]
        return {each.piece: each for each in sorted(whole, key=lambda each: (each.piece, each.written_s))}

    def _create(self) -> None:
        self._held.segments.create(SEGMENTS)  # first: where there are videos, there is all
        self._held.videos.create(VIDEOS)

    def _require_format(self) -> None:
        for table, expected in ((self._held.videos, VIDEOS), (self._held.segments, SEGMENTS)):
            schema = table.read(lambda each: each.schema)
            found = (schema.metadata or {}).get(b"floc.format")
            if found != FORMAT:
                raise ValueError(
                    f"{table.uri}: format {(found or b'none').decode(errors='replace')}, this version of floc reads "
                    f"{FORMAT.decode()}; open it with the version that wrote it"
                )
            if not schema.equals(expected):
                raise Damaged(f"{table.uri}: its columns are not those of format {FORMAT.decode()}; put its files back")

    def _placed(self, videos: Sequence[Video], where: dict[str, tuple[float, int]]) -> Iterator[Video]:
        """Videos, told when their pieces begin and where those are; all must be there by now.

        Args:
            videos: to be committed.
            where: for each attempt that was committed with them, its beginning and its fragment.
        """
        earlier = [each for video in videos for each in video.pieces if each not in where]
        if earlier:
            places = self._held.places(f"row = 0 AND {one_of('attempt', earlier)}")
            where = where | {each["attempt"]: (each["start_s"], each["_rowaddr"] >> 32) for each in places}
        for video in videos:
            if video.status == "done" and not video.pieces:
                raise ValueError(f"video {video.id} ({video.uri}) is done, so it must have pieces")
            if not where.keys() >= set(video.pieces):
                raise StoreError(
                    f"{self.path}: video {video.id} ({video.uri}) cannot be committed before its pieces, and some are "
                    "not there: they were never committed, or compacted away since; ingest it again"
                )
            starts = tuple(where[each][0] for each in video.pieces)
            if any(before >= after for before, after in pairwise(starts)):
                raise ValueError(f"video {video.id} ({video.uri}): its pieces are not in order of time: {starts}")
            yield replace(video, starts_s=starts, fragments=tuple(where[each][1] for each in video.pieces))


def _piece(rows: Sequence[Any], fragments: tuple[str, ...] = ()) -> Piece:
    """What its rows say of a piece."""
    first = rows[0]
    slices, height, width = first["shape"]
    return Piece(
        **{name: first[name] for name in ("video", "piece", "attempt", "frames", "coverage", "start_s", "written_s")},
        fragments=fragments,
        kept=sum(row["kept"] for row in rows),
        tokens=slices * height * width,
        bytes=sum(row["bytes"] for row in rows),
        shape=(slices, height, width),
        end_s=rows[-1]["end_s"],
    )


def _stretch(video: Video, start_s: float | None, end_s: float | None) -> Stretch | None:
    """What of a film is asked for, within it; None for all of it."""
    if start_s is None and end_s is None:
        return None
    start = 0.0 if start_s is None else start_s
    end = video.duration_s if end_s is None else end_s
    asked = f"{start:g} s to {end:g} s of video {video.id}"
    if not (math.isfinite(start) and not math.isnan(end)):
        raise ValueError(f"start_s and end_s must be numbers of seconds; got {asked}")
    if not start < end:
        raise ValueError(f"start_s must be before end_s; got {asked}, which lasts {video.duration_s:g} s")
    if start < 0 or start >= video.duration_s:
        raise ValueError(f"{asked} is outside of it: it goes from 0 s to {video.duration_s:g} s")
    return Stretch(
        float(start), math.inf if end >= video.duration_s else float(end)
    )  # a film's length may be off a little


def _imported(captured: Captured, uri: str, file: Path | None) -> Video:
    """The row for a video that was captured elsewhere, but for its pieces."""
    from floc._version import __version__

    content = hashlib.sha256(file.read_bytes()).hexdigest() if file else _digest(captured)
    options = {name: captured.made[name] for name in ("method", "settings") if name in captured.made}
    model = captured.model
    times, rate = captured.times_s, captured.fps or 1.0
    return Video(
        id=video_id(content, model, options),
        uri=uri,
        content=content,
        size=file.stat().st_size if file else 0,
        modified_s=file.stat().st_mtime if file else time.time(),
        status="done",
        duration_s=captured.duration_s or (0.0 if times is None else float(times[-1]) + 1 / rate),
        fps=captured.fps,
        frames_per_slice=captured.frames_per_slice,
        shape=captured.shape,
        tokens=captured.n,
        kept=len(captured),
        coverage=captured.made.get("coverage"),
        encoder=f"hf:{model.name}",
        model=model,
        options=options,
        nested=captured.nested,
        made=captured.made,
        version=__version__,
    )


def _digest(captured: Captured) -> str:
    """The hash of what was kept, where there is no file to hash."""
    rows = cut(captured, "", 0, "", 0.0)
    return hashlib.sha256("".join(row["sha256"] for row in rows).encode()).hexdigest()


def _name(video: Video) -> str:
    return video.uri.rstrip("/").rsplit("/", 1)[-1]


def _told(video: Video) -> str:
    """All in which videos of one name may differ."""
    when = datetime.fromtimestamp(video.written_s).strftime("%Y-%m-%d %H:%M:%S")
    return f"{video.id} ({video.uri}, {video.status} {when}, {video.encoder}, {dict(video.options)})"


def _hint(video: str, videos: Sequence[Video]) -> str:
    if not videos:
        return ": there is none yet; `floc ingest` takes videos in"
    names = {name: each for each in videos for name in (each.id, each.uri, _name(each))}
    near = dict.fromkeys(names[name].id for name in difflib.get_close_matches(video, names, NEAR, 0.5))
    if not near:
        return f"; there are {len(videos)}, floc.Store(path).videos() lists them"
    uris = {each.id: each.uri for each in videos}
    return "; did you mean " + ", ".join(f"{each} ({uris[each]})" for each in near) + "?"
