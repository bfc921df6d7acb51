"""Read and encode a video for a command, with a progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from floc.cli.options import frame_limit, parse_fps
from floc.cli.output import print_note, print_warning, show_progress

if TYPE_CHECKING:
    from floc.encoders.load import EncodedVideo


def encode_video(
    source: Path,
    fps: str | None,
    max_frames: int | None,
    encoder: str | None,
    device: str | None,
    *,
    with_thumbnails: bool = False,
) -> EncodedVideo:
    """Read and encode a video; print the encoder that "auto" selects, and warnings."""
    from floc.encoders.load import load_tokens

    with show_progress(f"reading {source.name}") as update:
        video = load_tokens(
            source,
            fps=parse_fps(fps),
            max_frames=frame_limit(max_frames),
            encoder=encoder or "auto",
            device=device,
            with_thumbnails=with_thumbnails,
            progress=update,
        )
    if encoder in (None, "auto"):
        print_note(f"encoder: {video.encoder.name}")
    for warning in video.video.warnings:
        print_warning(warning)
    return video
