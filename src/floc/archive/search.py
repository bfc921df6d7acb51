"""Search a store for the rows that look most like an image or some tokens.

A search result is a token row, about ten seconds. Its score is the mean, over the query tokens, of the best
cosine to a token that was kept in the row. Without an index, all rows of matching videos are read, a few at a time.
`index` writes their tokens once more, normalized, to one table per model with a Lance vector index. The index then
names candidate rows, which are scored exactly. Rows that were added after the index was built are read as before.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from floc._checks import check_choice, check_count, require
from floc.archive.lance_tables import LanceTable, explain_errors, match_any
from floc.archive.locks import FolderLock
from floc.archive.schema import StoredVideo, hash_json, identity_fields
from floc.archive.store_tables import ROWS_PER_BATCH, Row, StoreTables
from floc.archive.token_rows import read_features
from floc.representatives import normalize

READAHEAD_BYTES = 1 << 26
MAX_FILTERED_VIDEOS = 200  # with more videos, a scan reads all rows instead of filtering by id
CANDIDATES_PER_RESULT = 8  # rows requested from the index for each result
MIN_CANDIDATES = 40
PROBES = 32  # partitions of the index that are searched
MAX_EXACT_VECTORS = 1 << 16  # up to here an index stores vectors as they are; above, one byte per value
MIN_INDEXED_VECTORS = 256  # fewer are not enough to train an index

RowKey = tuple[str, str, int]  # video, attempt and row


@dataclass(frozen=True)
class SearchResult:
    """A few seconds of a video that match a query, and the token in them that matches best."""

    video: str  # id of the video
    uri: str
    start_s: float
    end_s: float
    time_s: float  # of the best token
    position: tuple[int, int]  # row and column of the best token in the grid
    similarity: float  # mean of the best cosines


class StoreSearch:
    """Searches one store, and caches what its indices hold."""

    def __init__(self, tables: StoreTables) -> None:
        self._tables = tables
        self._indices: dict[str, _VectorIndex] = {}

    def search(self, videos: list[StoredVideo], query: Any, k: int, encoder: str | None) -> list[SearchResult]:
        """Return the best `k` results in some videos, best first."""
        check_count("k", k, "results")
        tokens, videos = _parse_query(query, videos, encoder)
        if not videos:
            return []
        owners = {attempt: video for video in videos for attempt in video.pieces}
        index = self._get_index(videos[0])
        indexed = index.list_attempts() & owners.keys()
        unindexed = owners.keys() - indexed
        candidates = _scan_rows(self._tables, tokens, {key: owners[key] for key in unindexed}, k) if unindexed else []
        if indexed:
            nearest = index.find_nearest(tokens, k, videos if len(videos) <= MAX_FILTERED_VIDEOS else None)
            # the index holds removed videos until it is updated
            candidates += [key for key in nearest if key[1] in indexed]
        rows: dict[str, list[str]] = defaultdict(list)
        for _, attempt, row in candidates:
            rows[attempt].append(str(row))
        results = []
        for attempt, numbers in rows.items():
            video, where = owners[attempt], [f"row IN ({', '.join(numbers)})"]
            scored = self._tables.read_pieces(video, [video.pieces.index(attempt)], where)
            results += [_score_row(video, tokens, row) for row in scored if row["kept"]]
        return sorted(results, key=lambda result: (-result.similarity, result.video, result.start_s))[:k]

    def update_indices(self, videos: Sequence[StoredVideo]) -> dict[str, int]:
        """Update the vector index of every model; return the number of vectors for each encoder."""
        groups: dict[str, list[StoredVideo]] = defaultdict(list)
        for video in videos:
            groups[_hash_model(video)].append(video)
        counts: dict[str, int] = defaultdict(int)
        with FolderLock(self._tables.path), explain_errors(self._tables.name, writing=True):
            for group in groups.values():
                counts[group[0].encoder] += self._get_index(group[0]).update(group)
        return dict(counts)

    def _get_index(self, video: StoredVideo) -> "_VectorIndex":
        return self._indices.setdefault(_hash_model(video), _VectorIndex(self._tables, video))


def list_vector_tables(tables: StoreTables) -> list[LanceTable]:
    """Return the tables that `index` created."""
    models = {_hash_model(video) for video in tables.list_videos("status = 'done'")}
    return [table for model in sorted(models) if (table := _open_vector_table(tables, model)).is_complete()]


def _open_vector_table(tables: StoreTables, model: str) -> LanceTable:
    return LanceTable(f"{tables.path}/vectors-{model}.lance")


def _hash_model(video: StoredVideo) -> str:
    """Identify the encoder and model of a video. Tokens of different models cannot be compared."""
    return hash_json([video.encoder, identity_fields(video.model)])[:12]


def _parse_query(query: Any, videos: list[StoredVideo], encoder: str | None) -> tuple[torch.Tensor, list[StoredVideo]]:
    """Return the query as [Q, D] float32 unit vectors, and the videos with tokens of the same model."""
    if encoder is not None:
        check_choice("encoder of videos in this store", encoder, sorted({video.encoder for video in videos}))
        videos = [video for video in videos if video.encoder == encoder]
    is_image = isinstance(query, str | Path) or (isinstance(query, np.ndarray) and query.dtype == np.uint8)
    if not is_image:
        allowed = "[D] or [Q, D] tokens, an image file, or a [h, w, 3] uint8 array"
        try:  # torch does not take negative strides
            query = torch.as_tensor(np.ascontiguousarray(query) if isinstance(query, np.ndarray) else query)
            query = torch.atleast_2d(query.detach().cpu().float())
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"query must be {allowed}; got {type(query).__name__} ({error})") from None
        require(query.ndim == 2 and query.numel(), f"query must be {allowed}; got {tuple(query.shape)}")
        require(torch.isfinite(query).all(), "query has values that are not finite")
        width, widths = query.shape[1], {video.model.hidden_size for video in videos}
        problem = f"query has tokens of {width} values, but those of the videos have {sorted(widths)}"
        require(not widths or width in widths, problem)
        videos = [video for video in videos if video.model.hidden_size == width]
    models = {_hash_model(video): video for video in videos}
    if len(models) > 1:
        names = ", ".join(sorted({f"{video.encoder} ({video.model})" for video in models.values()}))
        fix = "select one with encoder=, or a video with video="
        raise ValueError(f"the store has videos of several encoders, {names}; {fix}")
    if is_image:
        name = videos[0].encoder if videos else "pixels"
        if name.startswith("hf:") and encoder is None:
            problem = f"the image must be encoded by the model that made the tokens of these videos, {name[3:]!r}"
            raise ValueError(f"{problem}. A model is code: if you trust it, name it with encoder={name!r}")
        query = _encode_image(query, name)
        if videos and query.shape[1] != (width := videos[0].model.hidden_size):
            problem = f"{name} makes tokens of {query.shape[1]} values, but those of the videos have {width}"
            raise ValueError(f"{problem}; search videos of another encoder, or one video with video=")
    return normalize(query), videos


def _encode_image(image: str | Path | np.ndarray, name: str) -> torch.Tensor:
    """Encode an image as the encoder encodes a frame; return [Q, D] tokens."""
    from floc.encoders.base import get
    from floc.video.picture import read_picture

    encoder = get(name)
    pixels = read_picture(image, encoder.frame_size)
    tokens = torch.as_tensor(encoder(np.stack([pixels] * encoder.frames_per_token)))  # [1, H, W, D]
    return tokens.flatten(0, 2).float().cpu()


def _scan_rows(tables: StoreTables, query: torch.Tensor, owners: Mapping[str, StoredVideo], k: int) -> list[RowKey]:
    """Score every row of some attempts, each with its video, and return the best `k`."""
    ids = sorted({video.id for video in owners.values()})

    def scan(table: Any) -> list[RowKey]:
        columns = ["video", "attempt", "row", "kept", "dtype", "features"]
        where = match_any("video", ids) if len(ids) <= MAX_FILTERED_VIDEOS else None
        limits = dict(batch_readahead=2, fragment_readahead=1, io_buffer_size=READAHEAD_BYTES)
        best: list[tuple[float, RowKey]] = []
        for batch in table.scanner(columns, where, batch_size=ROWS_PER_BATCH, **limits).to_batches():
            rows = [row for row in batch.to_pylist() if row["attempt"] in owners and row["kept"]]
            if not rows:
                continue
            features = torch.cat([read_features(row, owners[row["attempt"]]) for row in rows])
            cosines = (query @ normalize(features).T).nan_to_num(-1.0).numpy()  # [Q, N]
            starts = np.cumsum([0, *(row["kept"] for row in rows[:-1])])
            scores = np.maximum.reduceat(cosines, starts, axis=1).mean(0)  # one per row
            keys = [(row["video"], row["attempt"], row["row"]) for row in rows]
            best = heapq.nlargest(k, [*best, *zip(scores.tolist(), keys, strict=True)])
        return [key for _, key in best]

    return tables.token_rows.read(scan)


def _score_row(video: StoredVideo, query: torch.Tensor, row: Row) -> SearchResult:
    cosines = query @ normalize(read_features(row, video)).T  # [Q, K]
    best = row["positions"][int(cosines.max(0).values.argmax())]
    _, height, width = row["shape"]
    slice_, cell = divmod(best, height * width)
    time_s, similarity = row["times_s"][slice_ - row["first"]], float(cosines.max(1).values.mean())
    return SearchResult(video.id, video.uri, row["start_s"], row["end_s"], time_s, divmod(cell, width), similarity)


class _VectorIndex:
    """The table of normalized tokens of one model, and the vector index over it."""

    def __init__(self, tables: StoreTables, video: StoredVideo) -> None:
        self._tables = tables
        self._table = _open_vector_table(tables, _hash_model(video))
        self._cached: tuple[int, set[str]] | None = None  # a version of the table and its attempts
        vector = pa.list_(pa.float16(), video.model.hidden_size)
        self._schema = pa.schema({"video": pa.string(), "attempt": pa.string(), "row": pa.int64(), "vector": vector})

    def list_attempts(self) -> set[str]:
        """Return the attempts whose tokens are in the table."""
        if not self._table.is_complete():
            return set()
        version = self._table.latest().version
        if self._cached is None or self._cached[0] != version:
            column = self._table.read(lambda table: table.to_table(columns=["attempt"])["attempt"])
            self._cached = version, set(column.unique().to_pylist())
        return self._cached[1]

    def find_nearest(self, query: torch.Tensor, k: int, videos: Sequence[StoredVideo] | None) -> list[RowKey]:
        """Return candidate rows with tokens near the query's, the most likely first."""
        count = min(max(MIN_CANDIDATES, CANDIDATES_PER_RESULT * k), self._table.latest().count_rows())
        where = None if videos is None else match_any("video", [video.id for video in videos])

        def find(table: Any) -> list[RowKey]:
            totals: dict[RowKey, float] = defaultdict(float)
            for token in query.numpy():
                nearest = dict(column="vector", q=token.astype(np.float16), k=count, metric="cosine", nprobes=PROBES)
                columns = ["video", "attempt", "row", "_distance"]
                hits = table.to_table(columns=columns, nearest=nearest, filter=where, prefilter=where is not None)
                best: dict[RowKey, float] = defaultdict(lambda: -math.inf)
                for hit in hits.to_pylist():
                    key = hit["video"], hit["attempt"], hit["row"]
                    best[key] = max(best[key], 1 - hit["_distance"])
                for key, cosine in best.items():
                    totals[key] += cosine
            return heapq.nlargest(count, totals, key=lambda key: (totals[key], key))

        return self._table.read(find)

    def update(self, videos: Sequence[StoredVideo]) -> int:
        """Add new pieces, delete removed ones, and update the index; return the number of vectors."""
        self._table.create(self._schema)
        owners = {attempt: video for video in videos for attempt in video.pieces}
        present = self.list_attempts()
        self._table.delete("attempt", sorted(present - owners.keys()))
        for attempt in sorted(owners.keys() - present):
            self._add_piece(owners[attempt], attempt)
        count = self._table.latest().count_rows()
        if count >= MIN_INDEXED_VECTORS:
            self._table.change(lambda table: _build_index(table, count))
        return count

    def _add_piece(self, video: StoredVideo, attempt: str) -> None:
        """Append the tokens of a piece in one commit, so that an attempt in the table is always complete."""
        rows = [row for row in self._tables.read_pieces(video, [video.pieces.index(attempt)], []) if row["kept"]]
        if not rows:
            return
        vectors = normalize(torch.cat([read_features(row, video) for row in rows])).half()
        numbers = np.repeat([row["row"] for row in rows], [row["kept"] for row in rows])
        values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.numpy().ravel()), vectors.shape[1])
        columns = [[video.id] * len(vectors), [attempt] * len(vectors), numbers, values]
        self._table.append(self._table.write(pa.table(columns, schema=self._schema)))


def _build_index(table: Any, count: int) -> None:
    if any(index.field_names == ["vector"] for index in table.describe_indices()):
        table.optimize.optimize_indices()
        return
    # PQ codes are smaller, but take three to ten times as long to build and miss more
    kind = "IVF_FLAT" if count <= MAX_EXACT_VECTORS else "IVF_SQ"
    table.create_index("vector", kind, metric="cosine", num_partitions=max(1, round(math.sqrt(count) / 4)))
