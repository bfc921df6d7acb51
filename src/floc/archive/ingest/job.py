"""The job of an ingest, and the events that its workers report. All are small and can be sent between processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from floc import encoders
from floc.archive.ingest.sources import VideoFile
from floc.archive.schema import StoredPiece
from floc.captured.identity import Identity
from floc.captured.recipe import Recipe
from floc.encoders.base import DEFAULT_FPS
from floc.encoders.slice_choice import ALL_SLICES, SliceOptions
from floc.families.processing import Limit, Rate
from floc.video.read import check_sampling

PIECE_BYTES = 128 << 20  # of pixels: a suitable block to send to an encoder, about 60,000 tokens of the usual models
PIECE_STEP, PIECE_LIMIT = 32, 512  # frames: a piece has a multiple of the step, and at most the limit
SPAN_S = 3600  # approximate length of a span: with longer ones, a long video keeps other workers idle


@dataclass(frozen=True)
class IngestOptions:
    """How every video is compressed."""

    encoder: str
    ratio: str | None = None  # exactly one of ratio and coverage
    coverage: float | None = None
    method: str = "floc"
    method_options: Mapping[str, Any] = field(default_factory=dict)
    fps: Rate = None  # as in `floc.encoders.base.open_video`
    max_frames: Limit = None  # the same; all frames for encoders without a processor
    device: str | None = None  # for the encoder
    slices: SliceOptions = ALL_SLICES  # within each piece
    fast_vision: bool = True  # of the encoder; the tokens are the same

    def __post_init__(self) -> None:
        check_sampling(None if self.fps == "all" else self.fps, None if self.max_frames == "all" else self.max_frames)
        self.recipe()  # raises if the options are invalid
        object.__setattr__(self, "encoder", encoders.resolve_name(self.encoder))
        self.slices.require_model(self.encoder)
        if not self.encoder.startswith("hf:"):
            object.__setattr__(self, "fps", DEFAULT_FPS if self.fps is None else self.fps)
            object.__setattr__(self, "max_frames", "all" if self.max_frames is None else self.max_frames)

    def recipe(self) -> Recipe:
        return Recipe(self.ratio, None, self.coverage, self.method, self.method_options)

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the video and the model that the tokens depend on; JSON-serialisable."""
        # stores made before the processor sampled have no rate for all frames
        is_all = self.fps == "all" and not self.encoder.startswith("hf:")
        rate = None if is_all or self.fps is None else self.fps if self.fps == "all" else float(self.fps)
        return {
            "method": self.method,
            "ratio": None if self.ratio is None else str(Fraction(self.ratio).limit_denominator(1_000_000)),
            "coverage": None if self.coverage is None else float(self.coverage),  # 2 and 2.0 give the same video id
            "fps": rate,
            **({} if self.max_frames == "all" else {"max_frames": self.max_frames}),
            **self.slices.describe(),
            "piece": [PIECE_BYTES, PIECE_STEP, PIECE_LIMIT, SPAN_S],
            **self.method_options,
        }


@dataclass(frozen=True)
class IngestJob:
    """Everything that a worker needs to know."""

    options: IngestOptions
    store: str  # path or URI
    model: Identity  # of the encoder


@dataclass(frozen=True)
class VideoSpan:
    """Consecutive frames of a video, which one worker decodes."""

    file: VideoFile
    video: str  # id in the store
    fps: float  # sampled frames per second
    duration_s: float  # of the whole video
    number: int
    first_piece: int
    piece_frames: int
    preparation: Mapping[str, Any] | None = None  # by the processor of the encoder's model
    first: int = 0  # number of its first frame
    stop: int | None = None  # number behind its last frame; None for all that follow


@dataclass(frozen=True)
class VideoPlan:
    """A video is to be ingested."""

    file: VideoFile
    video: str
    content: str  # sha256
    spans: tuple[VideoSpan, ...]
    duration_s: float
    fps: float
    frames_per_slice: int
    pieces: Mapping[int, StoredPiece]  # committed by an earlier ingest


@dataclass(frozen=True)
class VideoSkipped:
    """A video is in the store already."""

    file: VideoFile


@dataclass(frozen=True)
class VideoFailed:
    """A video cannot be ingested."""

    file: VideoFile
    reason: str
    content: str = ""


@dataclass(frozen=True)
class PieceWritten:
    """A piece of a video was written but not committed."""

    piece: StoredPiece
    nested: bool
    made: Mapping[str, Any]  # as in `Captured`
    seconds: Mapping[str, float]  # by stage


@dataclass(frozen=True)
class SpanFinished:
    """A span was decoded to its end."""

    span: VideoSpan
    pieces: int
    decode_s: float
    warnings: tuple[str, ...] = ()


IngestEvent = VideoPlan | VideoSkipped | VideoFailed | PieceWritten | SpanFinished
