"""Search: the moments of a store that look most like a picture, or like some tokens.

A moment is a row of `segments`, some ten seconds. Its score is the mean, over the tokens asked for, of the best cosine
to a token that was kept in it. Without an index all rows of fitting videos are read, a few at a time. `index` writes
their tokens once more, normalised, to a table for each model, with a vector index of Lance's over them: it then names
the rows to look at, which are scored exactly. What came since the index was made is read as before.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from floc._checks import check_choice, is_positive_int
from floc.archive.cutting import tokens_of
from floc.archive.holdings import Holdings, Row
from floc.archive.lances import Table, one_of, writing
from floc.archive.rows import pa
from floc.archive.tables import Video

SCANNED = 16  # rows in memory at a time
SCAN_BYTES = 1 << 26  # that Lance may read ahead
FEW_VIDEOS = 200  # up to which a scan names them
CANDIDATES = 8  # rows that the index is asked for, for each moment wanted
FEWEST = 40  # and at least
PROBES = 32  # parts of the index that are looked into
FLAT = 1 << 16  # vectors up to which an index holds them whole; above, a byte for each value
TRAINED = 256  # vectors that an index needs to be made of


@dataclass(frozen=True)
class Moment:
    """A few seconds of a video, and what in them is most like what was asked for."""

    video: str  # its id
    uri: str
    start_s: float
    end_s: float
    time_s: float  # of the best token
    position: tuple[int, int]  # of the best token: row and column in the grid
    similarity: float  # mean of the best cosines


class Search:
    """Search in one store; remembers what its indices look like."""

    def __init__(self, held: Holdings) -> None:
        self._held = held
        self._vectors: dict[str, _Vectors] = {}

    def moments(self, videos: Sequence[Video], query: Any, k: int, encoder: str | None) -> list[Moment]:
        """The best `k` moments of some videos, best first."""
        if not is_positive_int(k):
            raise ValueError(f"k must be a whole number, at least 1; got {k!r}")
        asked, fitting = _asked(query, videos, encoder)
        if not fitting:
            return []
        whose = {attempt: video for video in fitting for attempt in video.pieces}
        vectors = self._vectors_of(fitting[0])
        indexed = vectors.attempts() & whose.keys()
        fresh = whose.keys() - indexed
        found = _scan(self._held, asked, fresh, fitting, k) if fresh else []
        if indexed:
            near = vectors.near(asked, k, fitting if len(fitting) <= FEW_VIDEOS else None)
            found += [place for place in near if place[1] in indexed]  # what was removed is there until `index`
        return _best(self._held, asked, found, whose, k)

    def index(self, videos: Sequence[Video]) -> dict[str, int]:
        """Bring the vector index of every model up to date: how many vectors there are for each encoder."""
        groups: dict[str, list[Video]] = defaultdict(list)
        for video in videos:
            groups[_key(video)].append(video)
        counts: dict[str, int] = defaultdict(int)
        with writing(self._held.path):
            for group in groups.values():
                counts[group[0].encoder] += self._vectors_of(group[0]).update(group)
        return dict(counts)

    def _vectors_of(self, like: Video) -> _Vectors:
        return self._vectors.setdefault(_key(like), _Vectors(self._held, like))


def vector_tables(held: Holdings) -> list[Table]:
    """Those that `index` made."""
    kinds = {_key(video) for video in held.listed("status = 'done'")}
    tables = [_table(held, kind) for kind in sorted(kinds)]
    return [table for table in tables if table.exists()]


def _table(held: Holdings, kind: str) -> Table:
    return Table(f"{held.path}/vectors-{kind}.lance")


Place = tuple[str, str, int]  # video, attempt and row


def _asked(query: Any, videos: Sequence[Video], encoder: str | None) -> tuple[torch.Tensor, list[Video]]:
    """[Q, D] float32 of length 1 each, and the videos whose tokens are of the same kind."""
    if encoder is not None:
        check_choice("encoder of videos in this store", encoder, sorted({video.encoder for video in videos}))
        videos = [video for video in videos if video.encoder == encoder]
    if isinstance(query, str | Path) or _is_picture(query):
        _require_one_kind(videos)
        tokens = _encoded(query, videos[0].encoder) if videos else torch.empty(0, 0)
    else:
        tokens = torch.atleast_2d(torch.as_tensor(query)).float()
        _require_tokens(tokens)
        width = tokens.shape[1]
        there = {video.model.hidden_size for video in videos}
        videos = [video for video in videos if video.model.hidden_size == width]
        if there and not videos:
            raise ValueError(f"tokens of {width} values were given, those of the videos have {sorted(there)}")
        _require_one_kind(videos)
    return F.normalize(tokens, dim=-1), list(videos)


def _is_picture(query: Any) -> bool:
    return isinstance(query, np.ndarray) and query.dtype == np.uint8


def _require_tokens(tokens: torch.Tensor) -> None:
    if tokens.ndim != 2 or not tokens.numel():
        raise ValueError(
            f"query must be [D] or [Q, D] tokens, a picture's file, or [h, w, 3] uint8; got {tuple(tokens.shape)}"
        )
    if not bool(torch.isfinite(tokens).all()):
        raise ValueError("query has values that are not finite")


def _require_one_kind(videos: Sequence[Video]) -> None:
    kinds = {_key(video): video for video in videos}
    if len(kinds) > 1:
        several = ", ".join(sorted({f"{video.encoder} ({video.model})" for video in kinds.values()}))
        raise ValueError(
            f"the store has videos of several encoders: name one by encoder=, or a video; there are {several}"
        )


def _encoded(picture: str | Path | np.ndarray, name: str) -> torch.Tensor:
    """[Q, D] a picture's tokens, as an encoder would make them of a frame."""
    from floc.encoders.base import get
    from floc.video.picture import read_picture

    encoder = get(name)
    pixels = read_picture(picture, encoder.frame_size)
    tokens = torch.as_tensor(encoder(np.stack([pixels] * encoder.frames_per_token)))  # [1, H, W, D]
    return tokens.flatten(0, 2).float().cpu()


def _key(video: Video) -> str:
    """Names a kind of tokens: those of one mean nothing to another."""
    whose = {name: each for name, each in asdict(video.model).items() if name != "weights"}
    return hashlib.sha256(json.dumps([video.encoder, whose], sort_keys=True).encode()).hexdigest()[:12]


def _scores(asked: torch.Tensor, features: torch.Tensor, counts: Sequence[int]) -> np.ndarray:
    """[R] the score of each of some rows, whose tokens come one row after another, none empty."""
    cosines = (asked @ F.normalize(features.float(), dim=-1).T).nan_to_num(-1.0).numpy()  # [Q, N]
    starts = np.cumsum([0, *counts[:-1]])
    return np.maximum.reduceat(cosines, starts, axis=1).mean(0)


def _scan(held: Holdings, asked: torch.Tensor, attempts: Iterable[str], videos: Sequence[Video], k: int) -> list[Place]:
    """The best rows of some attempts, of all that there are."""
    wanted = set(attempts)
    ids = sorted({video.id for video in videos if wanted.intersection(video.pieces)})

    def best(table: Any) -> list[Place]:
        scored: list[tuple[float, Place]] = []
        for rows in _batches(table, ids):
            rows = [row for row in rows if row["attempt"] in wanted and row["kept"]]
            if not rows:
                continue
            features = torch.cat([tokens_of(row) for row in rows])
            scores = _scores(asked, features, [row["kept"] for row in rows])
            places = [(row["video"], row["attempt"], row["row"]) for row in rows]
            scored = heapq.nlargest(k, [*scored, *zip(scores.tolist(), places, strict=True)])
        return [place for _, place in scored]

    return held.segments.read(best)


def _batches(table: Any, ids: Sequence[str]) -> Iterator[list[Row]]:
    scanner = table.scanner(
        columns=["video", "attempt", "row", "kept", "dtype", "features"],
        filter=one_of("video", ids) if len(ids) <= FEW_VIDEOS else None,
        batch_size=SCANNED,
        batch_readahead=2,
        fragment_readahead=1,
        io_buffer_size=SCAN_BYTES,
    )
    for batch in scanner.to_batches():
        yield batch.to_pylist()


def _best(held: Holdings, asked: torch.Tensor, found: Iterable[Place], whose: dict[str, Video], k: int) -> list[Moment]:
    """The best of some rows, each read whole, found to be what was written, and scored exactly."""
    numbers: dict[str, list[str]] = defaultdict(list)
    for _, attempt, row in found:
        numbers[attempt].append(str(row))
    scored = []
    for attempt, wanted in numbers.items():
        video = whose[attempt]
        rows = held.pieces(video, [video.pieces.index(attempt)], f"row IN ({', '.join(wanted)})", lambda rows: None)
        scored += [_moment(video, asked, row) for row in rows]
    return sorted(scored, key=lambda each: (-each.similarity, each.video, each.start_s))[:k]


def _moment(video: Video, asked: torch.Tensor, row: Row) -> Moment:
    cosines = asked @ F.normalize(tokens_of(row).float(), dim=-1).T  # [Q, K]
    best = row["positions"][int(cosines.max(0).values.argmax())]
    _, height, width = row["shape"]
    slice_, cell = divmod(best, height * width)
    return Moment(
        video.id,
        video.uri,
        row["start_s"],
        row["end_s"],
        row["times_s"][slice_ - row["first"]],
        divmod(cell, width),
        float(cosines.max(1).values.mean()),
    )


class _Vectors:
    """The tokens of one model once more, and the index over them."""

    def __init__(self, held: Holdings, like: Video) -> None:
        self._held, self._width = held, like.model.hidden_size
        self._table = _table(held, _key(like))
        self._known: tuple[int, set[str]] | None = None  # a version, and whose tokens it has

    def attempts(self) -> set[str]:
        """Whose tokens are there."""
        if not self._table.exists():
            return set()
        version = self._table.latest().version
        if self._known is None or self._known[0] != version:
            column = self._table.read(lambda table: table.to_table(columns=["attempt"])["attempt"])
            self._known = version, set(column.unique().to_pylist())
        return self._known[1]

    def near(self, asked: torch.Tensor, k: int, videos: Sequence[Video] | None) -> list[Place]:
        """Rows that have tokens near those asked for, the likely best first."""
        rows = max(FEWEST, CANDIDATES * k)
        where = None if videos is None else one_of("video", [video.id for video in videos])

        def nearest(table: Any) -> list[Place]:
            likely: dict[Place, float] = defaultdict(float)
            for token in asked.numpy():
                best: dict[Place, float] = {}
                for each in self._nearest(table, token, rows, where):
                    place = each["video"], each["attempt"], each["row"]
                    best[place] = max(best.get(place, -math.inf), 1 - each["_distance"])
                for place, cosine in best.items():
                    likely[place] += cosine
            return heapq.nlargest(rows, likely, key=lambda place: (likely[place], place))

        return self._table.read(nearest)

    def _nearest(self, table: Any, token: np.ndarray, count: int, where: str | None) -> list[Row]:
        nearest = {"column": "vector", "q": token.astype(np.float16), "k": count, "metric": "cosine", "nprobes": PROBES}
        return table.to_table(
            columns=["video", "attempt", "row", "_distance"], nearest=nearest, filter=where, prefilter=where is not None
        ).to_pylist()

    def update(self, videos: Sequence[Video]) -> int:
        """Take in what is new, let go of what is gone, and bring the index up to date: how many vectors there are."""
        if not self._table.exists():
            self._table.create(self._schema())
        wanted = {attempt: video for video in videos for attempt in video.pieces}
        there = self.attempts()
        if gone := sorted(there - wanted.keys()):
            self._table.change(lambda table: table.delete(one_of("attempt", gone)))
        for video in {wanted[attempt].id: wanted[attempt] for attempt in sorted(wanted.keys() - there)}.values():
            self._add(video, there)
        count = self._table.latest().count_rows()
        if count >= TRAINED:
            self._table.change(lambda table: _build(table, count))
        return count

    def _add(self, video: Video, there: set[str]) -> None:
        """A piece at a time, whole: a piece that is there is all there."""
        for attempt in video.pieces:
            if attempt in there:
                continue
            rows = self._held.pieces(video, [video.pieces.index(attempt)], "kept > 0", lambda rows: None)
            vectors = F.normalize(torch.cat([tokens_of(row) for row in rows]).float(), dim=-1).half()
            counts = [row["kept"] for row in rows]
            columns = {
                "video": pa.array([video.id] * len(vectors)),
                "attempt": pa.array([attempt] * len(vectors)),
                "row": pa.array(np.repeat([row["row"] for row in rows], counts)),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.numpy().ravel()), self._width),
            }
            self._table.append(self._table.write(pa.table(columns, schema=self._schema())))

    def _schema(self) -> pa.Schema:
        vector = pa.list_(pa.float16(), self._width)
        return pa.schema([("video", pa.string()), ("attempt", pa.string()), ("row", pa.int64()), ("vector", vector)])


def _build(table: Any, count: int) -> None:
    if any(each.field_names == ["vector"] for each in table.describe_indices()):
        table.optimize.optimize_indices()
        return
    parts = max(1, round(math.sqrt(count) / 4))
    # PQ has smaller codes, takes three to ten times as long to build, and misses more
    table.create_index("vector", "IVF_FLAT" if count <= FLAT else "IVF_SQ", metric="cosine", num_partitions=parts)
