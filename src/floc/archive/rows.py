"""Rows of the two tables, as Lance holds them: their columns, and their hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

try:
    import pyarrow as pa
except ImportError as error:
    raise ImportError("a store needs Lance: pip install 'floc-video[store]'") from error

from floc.archive.tables import Damaged, Video
from floc.captured.identity import Identity

FORMAT = b"1"

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
VIDEOS = pa.schema(
    [
        ("id", pa.string()),
        ("uri", pa.string()),
        ("content", pa.string()),
        ("size", pa.int64()),
        ("modified_s", pa.float64()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("duration_s", pa.float64()),
        ("fps", pa.float64()),
        ("frames", pa.int64()),
        ("frames_per_slice", pa.int64()),
        ("shape", pa.list_(pa.int64())),
        ("tokens", pa.int64()),
        ("kept", pa.int64()),
        ("coverage", pa.float64()),
        ("encoder", pa.string()),
        ("model", _MODEL),
        ("options", pa.string()),
        ("nested", pa.bool_()),
        ("made", pa.string()),
        ("pieces", pa.list_(pa.string())),
        ("starts_s", pa.list_(pa.float64())),
        ("fragments", pa.list_(pa.int64())),
        ("seconds", pa.string()),
        ("written_s", pa.float64()),
        ("version", pa.string()),
        ("sha256", pa.string()),
    ],
    metadata={b"floc.format": FORMAT},
)
_LISTS = ("shape", "pieces", "starts_s", "fragments")
_JSON = ("options", "made", "seconds")

# where a row stands: small, and enough to tell which rows a stretch of film is in
PLACE = (
    "video",
    "piece",
    "attempt",
    "row",
    "start_s",
    "end_s",
    "first",
    "slices",
    "last",
    "kept",
    "bytes",
    "shape",
    "frames",
    "coverage",
    "written_s",
)
# what it holds
HELD = ("dtype", "positions", "order", "gains", "features", "deep", "times_s", "last_s")
_RAW = ("features", "deep")
SEGMENTS = pa.schema(
    [
        ("video", pa.string()),
        ("piece", pa.int64()),
        ("attempt", pa.string()),
        ("row", pa.int64()),
        ("start_s", pa.float64()),
        ("end_s", pa.float64()),
        ("first", pa.int64()),  # its first slice, from the start of the piece
        ("slices", pa.int64()),
        ("last", pa.bool_()),  # whether it is the last of its piece
        ("kept", pa.int64()),
        ("bytes", pa.int64()),  # of features
        ("shape", pa.list_(pa.int64())),  # of the piece: slices, rows and columns of tokens
        ("frames", pa.int64()),  # of the piece
        ("coverage", pa.float64()),  # of the piece
        ("written_s", pa.float64()),
        ("dtype", pa.string()),
        ("positions", pa.list_(pa.int64())),  # flat index in the piece, t*H*W + y*W + x, ascending
        ("order", pa.list_(pa.int64())),  # rank of each in the piece, 0 the most important
        ("gains", pa.list_(pa.float64())),  # what each added
        ("features", pa.large_binary()),  # [kept, D] in dtype
        ("deep", pa.list_(pa.large_binary())),  # the same for each layer that has such
        ("times_s", pa.list_(pa.float64())),  # when the first frame of each slice is shown
        ("last_s", pa.list_(pa.float64())),  # and the last one; empty where that is not known
        ("sha256", pa.string()),  # hash of all above
    ],
    metadata={b"floc.format": FORMAT},
)


def row_of(video: Video) -> dict[str, Any]:
    """A video, as a row."""
    row: dict[str, Any] = {each.name: getattr(video, each.name) for each in fields(Video)}
    row |= {name: json.dumps(dict(row[name])) for name in _JSON}
    row |= {name: list(row[name]) for name in _LISTS}
    row["model"] = asdict(video.model)
    stored = pa.Table.from_pylist([row], schema=_without_hash(VIDEOS)).to_pylist()[0]  # as it will be read
    return {**stored, "sha256": _hash_of(stored)}


def video_of(row: Mapping[str, Any], uri: str) -> Video:
    """The video in a row, where it is what was written."""
    told = dict(row)
    if told.pop("sha256") != _hash_of(told):
        raise Damaged(f"{uri}: the row of video {told['id']!r} was changed after it was written; put the file back")
    told |= {name: json.loads(told[name]) for name in _JSON}
    told |= {name: tuple(told[name]) for name in _LISTS}
    told["model"] = Identity(**told["model"])
    return Video(**told)


def seal_of(row: Mapping[str, Any]) -> str:
    """Hash of a row: of where it stands, and of all that it holds."""
    plain = [row[name] for name in (*PLACE, *HELD) if name not in _RAW]
    told = hashlib.sha256(repr(plain).encode())
    for part in (row["features"], *row["deep"]):
        told.update(len(part).to_bytes(8, "little"))
        told.update(part)
    return told.hexdigest()


def _hash_of(row: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def _without_hash(schema: pa.Schema) -> pa.Schema:
    return schema.remove(schema.get_field_index("sha256"))
