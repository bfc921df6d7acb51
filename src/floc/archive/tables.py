"""What the tables of a store hold: a row of `videos`, and the pieces that `segments` are written in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from floc.captured.captured import Shape
from floc.captured.identity import Identity

Status = Literal["done", "failed"]


class StoreError(OSError):
    """A store cannot be written to: the disk is full, or it is out of reach."""


class Damaged(ValueError):
    """A store cannot be read, or what it holds is not what was written."""


@dataclass(frozen=True, kw_only=True)
class Video:
    """One row of `videos`: a video that is in the store, or one that could not be taken in, and why."""

    id: str  # from `video_id`
    uri: str
    content: str  # sha256 of the file, in hex; "" where it could not be read
    size: int  # bytes
    modified_s: float
    status: Status
    error: str = ""
    duration_s: float = 0.0
    fps: float | None = None  # frames a second that were taken
    frames: int = 0
    frames_per_slice: int = 1
    shape: Shape = (0, 0, 0)  # slices, rows and columns of tokens there were
    tokens: int = 0
    kept: int = 0
    coverage: float | None = None
    encoder: str
    model: Identity
    options: Mapping[str, Any]  # method, ratio, block, fps and more, as JSON takes it
    nested: bool = False  # whether the order holds the answers for smaller budgets
    made: Mapping[str, Any] = field(default_factory=dict)  # as in `Captured`
    pieces: tuple[str, ...] = ()  # the attempt of each piece, in order
    starts_s: tuple[float, ...] = ()  # when each begins; the store fills it in
    fragments: tuple[int, ...] = ()  # where each was written to; the store fills it in
    seconds: Mapping[str, float] = field(default_factory=dict)  # spent on each stage
    written_s: float = 0.0  # seconds since 1970
    version: str = ""  # of floc


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A stretch of a video as one process wrote it: small, and as JSON takes it, by `asdict`."""

    video: str  # its id
    piece: int  # its number, from 0
    attempt: str  # names this writing of it
    fragments: tuple[str, ...]  # what to commit, in Lance's JSON; none once it is committed
    kept: int
    tokens: int
    frames: int
    bytes: int  # of features
    shape: Shape
    coverage: float | None
    start_s: float
    end_s: float
    written_s: float

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Piece:
        """From what `asdict` gave, also by way of JSON."""
        return cls(**{**told, "fragments": tuple(told["fragments"]), "shape": tuple(told["shape"])})


def video_id(content: str, model: Identity, options: Mapping[str, Any]) -> str:
    """16 hex digits for a video, a model and how it is compressed: the same again means there is nothing to do.

    Args:
        content: sha256 of the file; of one that cannot be read whatever names it.
        model: what its tokens are for.
        options: as JSON takes it, in any order.
    """
    whose = {name: each for name, each in asdict(model).items() if name != "weights"}  # rounding changes those
    told = json.dumps([content, whose, dict(options)], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]
