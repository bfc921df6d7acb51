"""Read a video file and encode it, with small pictures for a report if wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floc._text import format_time
from floc.encoders import base
from floc.encoders.base import Encoder, VideoTokens
from floc.families.processing import Limit, Rate

if TYPE_CHECKING:
    from floc.video import Video
    from floc.video.thumbnails import Thumbnails

BATCH = 16


@dataclass(frozen=True)
class EncodedVideo(VideoTokens):
    """The tokens of a video file, and how they were made."""

    video: Video
    encoder: Encoder
    thumbnails: Thumbnails | None  # small pictures, if wanted

    def describe(self) -> dict[str, Any]:
        """Describe how the tokens were made; JSON-serialisable."""
        return {"video": self.video.describe(), "encoder": self.encoder.name}

    def facts(self) -> list[tuple[str, str]]:
        """Describe the video and its tokens for a report, as labels and values."""
        t, h, w, d = self.tokens.shape
        video = self.video
        spacing_s = float(self.times_s[-1] - self.times_s[0]) / max(1, t - 1)
        every = f", one every {spacing_s / self.encoder.frames_per_token:.3g} s" if t > 1 else ""
        return [
            ("video", f"{format_time(video.duration_s)}, {video.source_width} x {video.source_height}, {video.codec}"),
            ("frames", f"{video.frames or 0:,}{every}"),
            ("tokens", f"{t * h * w:,}: {t:,} x {h} x {w}, {d} features each"),
            ("encoder", self.encoder.name),
        ]


def load_tokens(
    path: Path,
    *,
    fps: Rate = None,
    max_frames: Limit = None,
    encoder: str | Encoder = "auto",
    device: str | None = None,
    fast_vision: bool = True,
    with_thumbnails: bool = False,
    progress: Callable[[float], None] | None = None,
) -> EncodedVideo:
    """Read a video and encode it, with one batch of frames in memory at a time.

    Args:
        fps, max_frames: as in `floc.encoders.base.open_video`.
        encoder: an encoder, or its name for `floc.encoders.get`.
        device, fast_vision: of the named encoder, as in `floc.encoders.get`.
        with_thumbnails: keep small pictures, for a report.
        progress: called with the share of the frames that is done.
    """
    from floc.video import check_file

    check_file(path)  # before loading a network
    network = base.get(encoder, device=device, fast_vision=fast_vision) if isinstance(encoder, str) else encoder
    video, network = base.open_video(path, network, fps=fps, max_frames=max_frames, batch=BATCH)
    thumbnails = None
    if with_thumbnails:
        from floc.video.thumbnails import Thumbnails

        thumbnails = Thumbnails(video.planned, every=network.frames_per_token, crop=network.crop)
    frames = video if thumbnails is None else thumbnails.watch(video)
    report = None if progress is None else lambda done: progress(min(1.0, done / max(1, video.planned)))
    encoded = base.encode(frames, network, planned=video.planned, progress=report)
    return EncodedVideo(encoded.tokens, encoded.times_s, video, network, thumbnails)
