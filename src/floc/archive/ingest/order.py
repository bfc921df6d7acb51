"""What an ingest is asked for, and what its workers tell: all small, and made to be sent from process to process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from floc import encoders
from floc.captured.recipe import Recipe

if TYPE_CHECKING:
    from floc.archive.tables import Piece
    from floc.captured.identity import Identity

# A piece is a stretch of film whose tokens are chosen from together. By the pixels of its frames: what a block on its
# way from a decoder to an encoder should take, and some 60,000 tokens of the usual models.
PIECE_BYTES = 128 << 20
PIECE_STEP, PIECE_LIMIT = 32, 512  # frames: pieces are multiples of the one and no longer than the other
SPAN_S = 3600  # of film that one worker decodes in a go, about: more, and a long film keeps others waiting


@dataclass(frozen=True)
class Order:
    """What is done with every video."""

    encoder: str
    ratio: str | None = None  # exactly one of ratio and coverage
    coverage: float | None = None
    method: str = "floc"
    method_options: Mapping[str, Any] = field(default_factory=dict)
    fps: float | None = 1.0  # None takes every frame
    device: str | None = None  # where the encoder runs

    def __post_init__(self) -> None:
        from floc.video.read import check_sampling

        check_sampling(self.fps)
        self.recipe()  # complains of what there is not
        object.__setattr__(self, "encoder", encoders.resolve_name(self.encoder))

    def recipe(self) -> Recipe:
        """How a piece is compressed."""
        return Recipe(self.ratio, None, self.coverage, self.method, self.method_options)

    def options(self) -> dict[str, Any]:
        """All that the tokens depend on beside the video and the model, as JSON takes it."""
        return {
            "method": self.method,
            "ratio": None if self.ratio is None else str(Fraction(self.ratio).limit_denominator(1_000_000)),
            # 2 and 2.0 are one and the same
            "coverage": None if self.coverage is None else float(self.coverage),
            "fps": None if self.fps is None else float(self.fps),
            "piece": [PIECE_BYTES, PIECE_STEP, PIECE_LIMIT, SPAN_S],
            **self.method_options,
        }


@dataclass(frozen=True)
class Brief:
    """All that a worker must know."""

    order: Order
    store: str  # its path
    model: Identity  # what the encoder is


@dataclass(frozen=True)
class Source:
    """A video file, somewhere."""

    uri: str  # a path, or an address of an object store
    size: int  # bytes
    modified_s: float


@dataclass(frozen=True)
class Span:
    """A stretch of film for one worker."""

    source: Source
    video: str  # its id in the store
    number: int
    first_piece: int
    piece_frames: int
    start_s: float = 0.0
    end_s: float | None = None  # None: from start to end, every frame of it that is wanted


@dataclass(frozen=True)
class Planned:
    """A video that is to be taken in."""

    source: Source
    video: str
    content: str  # its hash
    spans: tuple[Span, ...]
    duration_s: float
    fps: float
    frames_per_slice: int
    pieces: Mapping[int, Piece]  # that an earlier ingest made


@dataclass(frozen=True)
class Skipped:
    """A video that is in the store."""

    source: Source


@dataclass(frozen=True)
class Failed:
    """A video that cannot be taken in."""

    source: Source
    reason: str
    content: str = ""


@dataclass(frozen=True)
class Kept:
    """A piece of a video, written but not yet to be seen."""

    piece: Piece
    nested: bool
    made: Mapping[str, Any]  # how, as in `Captured`
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Ended:
    """A stretch of film is done."""

    span: Span
    pieces: int
    decode_s: float
    warnings: tuple[str, ...] = ()


Event = Planned | Skipped | Failed | Kept | Ended
