"""Video files to measure on: those in `$FLOC_DATA/videos`, or the demo's film."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.quality import NamedTokens
from benchmarks.synthetic import Shape, VideoKind
from floc import encoders

SIZE = (256, 160)  # pixels, 40 tokens a frame: small enough to select from the whole video as one set
ENCODER = "mobilenet"


def get_video_folder() -> Path:
    """Return the folder of real videos. `$FLOC_DATA` defaults to `../shared/data` beside the checkout."""
    return Path(os.environ.get("FLOC_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / "videos"


def find_videos() -> list[Path]:
    """Return the real videos, vtest.avi first."""
    return sorted(get_video_folder().glob("*"), key=lambda path: path.name != "vtest.avi")


@contextmanager
def open_videos(small: bool) -> Iterator[list[Path]]:
    """Yield the real videos; the demo's film if there are none, or if `small`."""
    found = find_videos()
    if found and not small:
        yield found
        return
    from examples.demo.film import render

    with tempfile.TemporaryDirectory() as folder:
        yield [render(Path(folder) / "keys.mp4", seconds=5 if small else 120).path]


def load_footage(
    rates: Mapping[str, float], kinds: Sequence[VideoKind], frames: int
) -> tuple[list[NamedTokens], str | None]:
    """Encode real videos, or make synthetic ones if one of them is missing.

    Args:
        rates: Frames per second of each video, by file name.
        kinds: Kinds of the synthetic videos.
        frames: Length of the synthetic videos.

    Returns:
        The videos, and the name of the encoder; None for synthetic tokens.
    """
    from floc.video import read

    paths = {path.name: path for path in find_videos()}
    if not {*rates} <= {*paths}:
        shape = Shape(frames, 5, 8, 384)
        return [NamedTokens(f"synthetic: {kind.name}", kind.make_tokens(shape)) for kind in kinds], None
    network = encoders.get(ENCODER)
    videos = []
    for name, fps in rates.items():
        video = read(paths[name], fps=fps, size=lambda width, height: SIZE)
        tokens = np.asarray(encoders.encode(video, network, planned=video.planned).tokens)
        videos.append(NamedTokens(f"{name}, {fps:g} fps", tokens))
    return videos, ENCODER


def describe_tokens(encoder: str | None) -> str:
    """Return a sentence that says what made the tokens of `load_footage`."""
    return f"Tokens by {encoder}." if encoder else "Synthetic tokens."


def repeat_video(source: Path, target: Path, seconds: float) -> None:
    """Write a video of `seconds` that repeats `source`. Packets are copied, nothing is decoded."""
    import av

    with av.open(str(target), "w") as out:
        copy = None
        offset = 0
        while True:
            last = 0
            with av.open(str(source)) as container:
                stream = container.streams.video[0]
                if copy is None:
                    copy = out.add_stream_from_template(stream)
                base = stream.time_base
                assert base is not None, "a video stream has a time base"
                first = None
                for packet in container.demux(stream):
                    if packet.dts is None:
                        continue
                    first = packet.dts if first is None else first
                    shift = offset - first
                    last = max(last, packet.dts + shift + (packet.duration or 1))
                    if (packet.dts + shift) * base >= seconds:
                        return
                    packet.dts += shift
                    packet.pts = None if packet.pts is None else packet.pts + shift
                    packet.stream = copy
                    packet.time_base = base
                    out.mux(packet)
            offset = last
