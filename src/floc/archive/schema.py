"""Arrow schemas of the two tables, conversion between rows and records, and the hash of each row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import pyarrow as pa

from floc.archive.records import DamagedStoreError, StoredVideo, hash_json
from floc.captured.identity import Identity

FORMAT = b"1"
_METADATA = {b"floc.format": FORMAT}

_MODEL = pa.struct(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("revision", pa.string()),
        ("config", pa.string()),
        ("hidden_size", pa.int64()),
        ("weights", pa.list_(pa.float64())),
    ]
)
# the type of a column by the annotation of its field; mappings are stored as JSON
_COLUMN_TYPES = {
    "str": pa.string(),
    "VideoStatus": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "float | None": pa.float64(),
    "bool": pa.bool_(),
    "Identity": _MODEL,
    "Shape": pa.list_(pa.int64()),
    "tuple[int, ...]": pa.list_(pa.int64()),
    "tuple[float, ...]": pa.list_(pa.float64()),
    "tuple[str, ...]": pa.list_(pa.string()),
    "Mapping[str, Any]": pa.string(),
    "Mapping[str, float]": pa.string(),
}
_VIDEO_COLUMNS = [(column.name, _COLUMN_TYPES[str(column.type)]) for column in fields(StoredVideo)]
VIDEOS = pa.schema([*_VIDEO_COLUMNS, ("sha256", pa.string())], metadata=_METADATA)
_LIST_COLUMNS = ("shape", "pieces", "starts_s", "fragments")
_JSON_COLUMNS = ("options", "made", "seconds")

# small columns that say which part of a video a row holds
_LOCATION = [
    ("video", pa.string()),
    ("piece", pa.int64()),
    ("attempt", pa.string()),
    ("row", pa.int64()),
    ("start_s", pa.float64()),
    ("end_s", pa.float64()),
    ("first", pa.int64()),  # first slice of the row, counted in the piece
    ("slices", pa.int64()),
    ("last", pa.bool_()),  # whether this is the last row of its piece
    ("kept", pa.int64()),
    ("bytes", pa.int64()),  # size of the features
    ("shape", pa.list_(pa.int64())),  # of the piece: slices, rows and columns of tokens
    ("frames", pa.int64()),  # of the piece
    ("coverage", pa.float64()),  # of the piece
    ("written_s", pa.float64()),
]
_CONTENT = [
    ("dtype", pa.string()),
    ("positions", pa.list_(pa.int64())),  # flat index in the piece, t*H*W + y*W + x, ascending
    ("order", pa.list_(pa.int64())),  # rank of each token in the piece, 0 is the most important
    ("gains", pa.list_(pa.float64())),  # marginal gain of each token
    ("features", pa.large_binary()),  # [kept, D] in dtype
    ("deep", pa.list_(pa.large_binary())),  # the same for each deepstack layer
    ("times_s", pa.list_(pa.float64())),  # time of the first frame of each slice
    ("last_s", pa.list_(pa.float64())),  # time of the last frame of each slice; empty if unknown
]
SEGMENTS = pa.schema([*_LOCATION, *_CONTENT, ("sha256", pa.string())], metadata=_METADATA)
LOCATION_COLUMNS = [name for name, _ in _LOCATION]
_HASHED_COLUMNS = [name for name, _ in (*_LOCATION, *_CONTENT) if name not in ("features", "deep")]


def encode_video(video: StoredVideo) -> dict[str, Any]:
    """Convert a video to a row of `videos`, with its hash."""
    row: dict[str, Any] = {column.name: getattr(video, column.name) for column in fields(StoredVideo)}
    row |= {name: json.dumps(dict(row[name])) for name in _JSON_COLUMNS}
    row |= {name: list(row[name]) for name in _LIST_COLUMNS}
    row["model"] = asdict(video.model)
    # hash the values as Arrow returns them
    stored = pa.Table.from_pylist([row], schema=pa.schema(_VIDEO_COLUMNS)).to_pylist()[0]
    return {**stored, "sha256": hash_json(stored)}


def decode_video(row: Mapping[str, Any], uri: str) -> StoredVideo:
    """Convert a row of `videos` to a video. Raises DamagedStoreError if the hash of the row does not match."""
    values = dict(row)
    if values.pop("sha256") != hash_json(values):
        raise DamagedStoreError(
            f"{uri}: the row of video {values['id']!r} was changed after it was written; restore the file"
        )
    values |= {name: json.loads(values[name]) for name in _JSON_COLUMNS}
    values |= {name: tuple(values[name]) for name in _LIST_COLUMNS}
    values["model"] = Identity(**values["model"])
    return StoredVideo(**values)


def hash_segment(row: Mapping[str, Any]) -> str:
    """Return the sha256 of a row of `segments`, over all of its other columns."""
    digest = hashlib.sha256(repr([row[name] for name in _HASHED_COLUMNS]).encode())
    for data in (row["features"], *row["deep"]):
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
