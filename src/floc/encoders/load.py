"""From a video file to tokens: read, encode, and keep small pictures of it where a report is to follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floc._format import format_time
from floc.encoders import base
from floc.encoders.base import Encoder, VideoTokens
from floc.tokens import Frames

if TYPE_CHECKING:
    from floc.video import Video
    from floc.video.thumbnails import Thumbnails

FPS = 1.0
MAX_FRAMES = 7200  # two hours at a frame a second, the most the FLoC paper takes
BATCH = 16


@dataclass(frozen=True)
class EncodedVideo:
    """A video that was read."""

    video: Video
    encoder: Encoder
    footage: VideoTokens
    strip: Thumbnails | None  # its pictures, where they were asked for

    def about(self) -> dict[str, Any]:
        """How the tokens were made, as JSON takes it."""
        return {"video": self.video.describe(), "encoder": self.encoder.name}

    def facts(self) -> list[tuple[str, str]]:
        """The same for people: label and value."""
        t, h, w, d = self.footage.tokens.shape
        video = self.video
        spacing_s = float(self.footage.times_s[-1] - self.footage.times_s[0]) / max(1, t - 1)
        every = f", one every {spacing_s / self.encoder.frames_per_token:.3g} s" if t > 1 else ""
        return [
            ("film", f"{format_time(video.duration_s)}, {video.source_width} x {video.source_height}, {video.codec}"),
            ("frames", f"{video.frames or 0:,}{every}"),
            ("tokens", f"{t * h * w:,}: {t:,} x {h} x {w}, {d} features each"),
            ("encoder", self.encoder.name),
        ]


def load_tokens(
    path: Path,
    *,
    fps: float | None = FPS,
    max_frames: int | None = MAX_FRAMES,
    encoder: str | Encoder = "auto",
    device: str | None = None,
    with_strip: bool = False,
    progress: Callable[[float], None] | None = None,
) -> EncodedVideo:
    """Read a video and encode it, a batch of frames in memory at a time.

    Args:
        path: the video.
        fps: frames to take of each second; None takes all.
        max_frames: at most so many, spread evenly over the film; None: no limit.
        encoder: one, or its name: see `floc.encoders.get`.
        device: where an encoder that is named runs.
        with_strip: keep small pictures, for a report.
        progress: called with the share of the frames that is done.
    """
    from floc.video import check_file, read

    check_file(path)  # before a network is loaded for nothing
    network = base.get(encoder, device=device) if isinstance(encoder, str) else encoder
    video = read(path, fps=fps, max_frames=max_frames, size=network.frame_size, batch=BATCH)
    frames: Iterable[Frames] = video
    strip = None
    if with_strip:
        from floc.video.thumbnails import Thumbnails

        strip = Thumbnails(video.planned, every=network.frames_per_token, crop=network.seen)
        frames = strip.watch(video)
    footage = base.encode(
        frames,
        network,
        planned=video.planned,
        progress=None if progress is None else lambda done: progress(min(1.0, done / max(1, video.planned))),
    )
    return EncodedVideo(video, network, footage, strip)
