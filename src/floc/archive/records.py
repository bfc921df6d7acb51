"""The records of a store: a video, a piece of a video, and the errors that name them.

A long video is written in pieces of a few minutes. The tokens of a piece are selected together and written by one
process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from floc.captured.captured import Shape
from floc.captured.identity import Identity

VideoStatus = Literal["done", "failed"]


class StoreError(OSError):
    """The store cannot be written to, because the disk is full or the store cannot be reached."""


class DamagedStoreError(ValueError):
    """The store cannot be read, or a row differs from what was written."""


@dataclass(frozen=True, kw_only=True)
class StoredVideo:
    """A row of `videos`: a video in the store, or one that could not be ingested and the reason."""

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


def video_id(content: str, model: Identity, options: Mapping[str, Any]) -> str:
    """Return 16 hex digits that identify a video, a model and the compression options.

    Args:
        content: sha256 of the file, or any unique name for a file that cannot be read.
        model: the model that the tokens are for.
        options: JSON-serialisable; their order does not matter.
    """
    return hash_json([content, identity_fields(model), dict(options)])[:16]


def identity_fields(model: Identity) -> dict[str, Any]:
    """Return what identifies a model, without its sampled weights, which vary with the rounding of a dtype."""
    return {name: value for name, value in asdict(model).items() if name != "weights"}


def hash_json(value: object) -> str:
    """Return the sha256 of a value's JSON, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
