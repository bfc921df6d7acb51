"""The rows of a store, their Arrow schemas, hashes and checks, and the errors about them.

A video is written in pieces of a few minutes, whose tokens are selected together and written by one process. A piece is
stored in token rows of about ten seconds. A store may come from a stranger, so a matching hash proves nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from floc._checked_file import LARGEST, Fields
from floc._checks import require
from floc.captured.captured import Shape
from floc.captured.identity import Identity

VideoStatus = Literal["done", "failed", "damaged"]
CHECK = "`floc store check` lists all damage"
MAX_TEXT, MAX_JSON = 10_000, 1 << 22  # characters
MAX_SIDE = 1 << 24  # slices, rows or columns
MAX_S = 1e12  # seconds
FPS = (1e-9, 1e9)  # least and most
COVERAGE = (-2.0, 2.0)


class StoreError(OSError):
    """The store cannot be written to, because the disk is full or the store cannot be reached."""


class DamagedStoreError(ValueError):
    """The store cannot be read, or a row differs from what was written."""


@dataclass(frozen=True, kw_only=True)
class StoredVideo:
    """A row of `videos`: a video in the store, or one that could not be ingested or read, and the reason."""

    id: str  # from `video_id`
    uri: str
    content: str  # sha256 of the file in hex; "" if the file could not be read
    size: int  # bytes
    modified_s: float
    status: VideoStatus
    error: str = ""
    duration_s: float = 0.0
    fps: float | None = None  # sampled frames per second
    frames: int = 0
    frames_per_slice: int = 1
    shape: Shape = (0, 0, 0)  # slices, rows and columns of tokens before compression
    tokens: int = 0
    kept: int = 0
    coverage: float | None = None
    encoder: str
    model: Identity
    options: Mapping[str, Any]  # method, ratio, block, fps and others; JSON-serialisable
    nested: bool = False  # whether a prefix of the order is the selection for a smaller budget
    made: Mapping[str, Any] = field(default_factory=dict)  # as in `Captured`
    pieces: tuple[str, ...] = ()  # the attempt id of each piece, in time order
    starts_s: tuple[float, ...] = ()  # start of each piece; set by the store
    fragments: tuple[int, ...] = ()  # Lance fragment each piece was written to; set by the store
    seconds: Mapping[str, float] = field(default_factory=dict)  # time spent in each stage
    written_s: float = 0.0  # Unix time
    version: str = ""  # of floc


@dataclass(frozen=True, kw_only=True)
class StoredPiece:
    """A piece of a video as one process wrote it. Small, and JSON-serialisable with `asdict`."""

    video: str  # id of the video
    piece: int  # number of the piece, from 0
    attempt: str  # unique id of this write
    fragments: tuple[str, ...]  # Lance's JSON of the files to commit; empty once committed
    kept: int
    tokens: int
    frames: int
    bytes: int  # size of the features
    shape: Shape
    coverage: float | None
    start_s: float
    end_s: float
    written_s: float


FORMAT = b"1"
# the type of a column by the annotation of its field; all others are text, and mappings are stored as JSON
_TYPES = {"int": pa.int64(), "float": pa.float64(), "float | None": pa.float64(), "bool": pa.bool_()}
_TYPES |= dict.fromkeys(("Shape", "tuple[int, ...]"), pa.list_(pa.int64()))
_TYPES |= dict.fromkeys(("list[float]", "tuple[float, ...]"), pa.list_(pa.float64()))
_TYPES |= {"tuple[str, ...]": pa.list_(pa.string())}


def _list_columns(record: type) -> list[tuple[str, pa.DataType]]:
    """Return the column of each field, by the text of its annotation. All others are text; mappings are JSON."""
    return [(column.name, _TYPES.get(str(column.type), pa.string())) for column in fields(record)]


_TYPES["Identity"] = pa.struct(_list_columns(Identity))
_VIDEO_COLUMNS = _list_columns(StoredVideo)
VIDEOS = pa.schema([*_VIDEO_COLUMNS, ("sha256", pa.string())], metadata={b"floc.format": FORMAT})
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
TOKEN_ROWS = pa.schema([*_LOCATION, *_CONTENT, ("sha256", pa.string())], metadata={b"floc.format": FORMAT})
LOCATION_COLUMNS = [name for name, _ in _LOCATION]
_HASHED_COLUMNS = [name for name, _ in (*_LOCATION, *_CONTENT) if name not in ("features", "deep")]


def video_id(content: str, model: Identity, options: Mapping[str, Any]) -> str:
    """Return 16 hex digits that identify a video, a model and the compression options, in any order.

    `content` is the sha256 of the file, or any unique name for a file that cannot be read.
    """
    return hash_json([content, identity_fields(model), dict(options)])[:16]


def identity_fields(model: Identity) -> dict[str, Any]:
    """Return what identifies a model, without its sampled weights, which vary with the rounding of a dtype."""
    return {name: value for name, value in asdict(model).items() if name != "weights"}


def hash_json(value: object) -> str:
    """Return the sha256 of a value's JSON, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def hash_file(path: Path) -> str:
    """Return the sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def encode_video(video: StoredVideo) -> dict[str, Any]:
    """Convert a video to a row of `videos`, with its hash. Raises ValueError if a value is invalid."""
    row = {**vars(video), "model": asdict(video.model)}
    row |= {name: json.dumps(dict(row[name])) for name in _JSON_COLUMNS}
    row |= {name: escape_surrogates(row[name]) for name in ("uri", "error")}
    # hash the values as Arrow returns them
    stored = pa.Table.from_pylist([row], schema=pa.schema(_VIDEO_COLUMNS)).to_pylist()[0]
    try:
        _parse_video(stored)
    except ValueError as error:
        raise ValueError(f"video {video.id} ({video.uri}) cannot be stored: {error}") from None
    return {**stored, "sha256": hash_json(stored)}


def check_video(video: StoredVideo) -> None:
    """Raise ValueError if a video cannot be stored; its pieces are not located yet."""
    count = len(video.pieces)
    encode_video(replace(video, starts_s=tuple(map(float, range(count))), fragments=(0,) * count))


def decode_video(row: Mapping[str, Any], store: str) -> StoredVideo:
    """Convert a row of `videos` to a video; a row that is damaged has this status, and the reason as its error."""
    values = dict(row)
    try:
        require(values.pop("sha256") == hash_json(values), "its row was changed after it was written")
        return _parse_video(values)
    except (ValueError, TypeError) as error:
        name, uri = (str(row[name] or "")[:MAX_TEXT] for name in ("id", "uri"))
        problem = f"{store}: video {name!r} ({uri}): {error}; {CHECK}. Remove the video and ingest it again"
        unknown: dict[str, Any] = {"content": "", "size": 0, "modified_s": 0.0, "encoder": "", "options": {}}
        unknown["model"] = Identity("", "", None, "", 0, [])
        return StoredVideo(id=name, uri=uri, status="damaged", error=problem, **unknown)


def _parse_video(row: Mapping[str, Any]) -> StoredVideo:
    """Convert and check a row; a matching hash proves nothing. Raises ValueError that names an invalid field."""
    values = Fields({**row})
    require(row["status"] in ("done", "failed"), f"status must be 'done' or 'failed', got {row['status']!r}")
    is_done = row["status"] == "done"
    for name in ("id", "uri", "content", "error", "encoder", "version"):
        values.text(name)
    for name in ("size", "frames", "tokens"):
        values.integer(name)
    values.integer("kept", int(is_done), row["tokens"])
    values.integer("frames_per_slice", 1, 1 << 16)
    values.number("modified_s")
    values.number("duration_s", 0, MAX_S)
    values.number("written_s", 0, 1e11)  # in a year with four digits
    values.flag("nested")
    for name, least, most in (("fps", *FPS), ("coverage", *COVERAGE)):
        if values.has(name):
            values.number(name, least, most)
    tokens = math.prod(values.integers("shape", 3, int(is_done), MAX_SIDE))
    require(tokens <= LARGEST, f"shape must be of at most {LARGEST} tokens, got {row['shape']}")
    pieces = Fields({str(i): attempt for i, attempt in enumerate(row["pieces"] or ())}, "pieces")
    count = len([pieces.text(number) for number in pieces.values])
    starts_s = values.numbers("starts_s", count, -MAX_S, MAX_S)
    values.integers("fragments", count, 0, 1 << 32)
    is_ordered = is_done == bool(count) and all(before < after for before, after in pairwise(starts_s))
    require(is_ordered, f"a video must have pieces in time order if it is done, got {count} that start at {starts_s}")
    try:
        parsed = {name: Fields(json.loads(values.text(name, MAX_JSON)), name).values for name in _JSON_COLUMNS}
    except RecursionError:
        raise ValueError(f"{' or '.join(_JSON_COLUMNS)} is nested too deeply") from None
    seconds = Fields(parsed["seconds"], "seconds")
    for name in seconds.values:
        seconds.number(name, 0, MAX_S)
    model = Fields(row["model"], "model")
    for name in ("kind", "name", "config", *(["revision"] if model.has("revision") else [])):
        model.text(name)
    model.integer("hidden_size", 1, MAX_SIDE)
    model.numbers("weights", len(row["model"]["weights"] or ()), -1e38, 1e38)
    lists = {name: tuple(row[name]) for name in _LIST_COLUMNS}
    return StoredVideo(**{**row, **parsed, **lists, "model": Identity(**row["model"])})


def escape_surrogates(text: str) -> str:
    r"""Escape what Arrow cannot encode: file names need not be valid text.

    >>> escape_surrogates("caf\udce9.mp4") == r"caf\udce9.mp4"
    True
    """
    return text.encode(errors="backslashreplace").decode()


def hash_token_row(row: Mapping[str, Any]) -> str:
    """Return the sha256 of a token row, over all of its other columns."""
    digest = hashlib.sha256(repr([row[name] for name in _HASHED_COLUMNS]).encode())
    for data in (row["features"], *(row["deep"] or ())):
        digest.update(len(data or b"").to_bytes(8, "little"))
        digest.update(data or b"")
    return digest.hexdigest()
