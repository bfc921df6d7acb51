"""Synthetic video files, and an archive with one long video of random tokens, for the table "ingest"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

RATIO = "1/32"
CELLS, DIM = 60, 1024  # tokens a slice and features of the long video
PIECE_SLICES = 512


def write_video(path: Path, seconds: float, seed: int, *, rate: int, size: tuple[int, int], group: int = 50) -> Path:
    """Write a noisy drifting picture that changes every ten seconds, with a keyframe every `group` frames.

    An existing file is left as it is.
    """
    import av

    if path.exists():
        return path
    rng = np.random.default_rng(seed)
    width, height = size
    noise = rng.integers(0, 12, (8, height, width, 3), np.uint8)
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=rate, options={"preset": "ultrafast", "g": str(group)})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for i in range(round(seconds * rate)):
            if i % (10 * rate) == 0:
                squares = rng.integers(0, 240, (9, 16, 3), np.uint8).repeat(height // 9, 0).repeat(width // 16, 1)
            pixels = np.roll(squares, i * 20 // rate, 1) + noise[i % 8]
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        output.mux(stream.encode())
    return path


def copy_video(source: Path, path: Path, title: str) -> None:
    """Copy the packets of a video to another file with its own title, so that the files differ."""
    import av

    with av.open(str(source)) as given, av.open(str(path), "w") as output:
        output.metadata["title"] = title
        stream = output.add_stream_from_template(given.streams.video[0])
        for packet in given.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                output.mux(packet)


def write_long_video(path: Path, hours: float) -> tuple[Any, int]:
    """Create an archive with one video of random tokens. Returns the archive and the number of slices."""
    from floc.archive import Store
    from floc.archive.ingest.job import IngestJob, IngestOptions, VideoFile, VideoPlan
    from floc.archive.ingest.ledger import build_stored_video
    from floc.captured.captured import Captured
    from floc.captured.identity import Identity

    model = Identity("none", "synthetic", None, "none", DIM, [])
    job = IngestJob(IngestOptions("pixels", ratio=RATIO), str(path), model)
    store, pieces = Store(path, create=True), []
    slices = round(hours * 3600)
    rng = np.random.default_rng(0)
    for place, first in enumerate(range(0, slices, PIECE_SLICES)):
        count = min(PIECE_SLICES, slices - first)
        k = count * CELLS // 32
        times = first + np.arange(count, dtype=np.float64)
        captured = Captured(
            torch.from_numpy(rng.standard_normal((k, DIM)).astype(np.float16)),
            torch.from_numpy(np.sort(rng.choice(count * CELLS, k, replace=False))),
            torch.from_numpy(rng.permutation(k)),
            torch.from_numpy(np.sort(rng.random(k))[::-1].copy()),
            (),
            (count, 6, CELLS // 6),
            model,
            {"method": "floc", "settings": {}, "coverage": None},
            True,
            times,
            times,
            1,
            1.0,
            float(count),
        )
        pieces.append(store.write_piece("long", place, captured))
    planned = VideoPlan(VideoFile("long.mkv", 0, 0.0), "long", "synthetic", (), float(slices), 1.0, 1, {})
    store.commit(pieces, [build_stored_video(job, planned, pieces, True, {}, {})])
    return store, slices
