"""Build videos for a store: pieces of random tokens, and the records around them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from floc import Captured
from floc.archive import Store, StoredPiece, StoredVideo, video_id
from floc.captured.identity import Identity

MODEL = Identity("tiny", "somewhere/tiny", None, "0123456789abcdef", 8, [0.5, 0.25])


def make_piece(
    slices: int = 25,
    start_s: float = 0.0,
    *,
    seed: int = 0,
    kept: int | None = None,
    grid: tuple[int, int] = (2, 3),
    dtype: torch.dtype = torch.float16,
    layers: int = 0,
    step_s: float = 1.0,
    frames_per_slice: int = 1,
    model: Identity = MODEL,
) -> Captured:
    """Build a captured piece: random tokens, in random order."""
    rng = np.random.default_rng(seed)
    n = slices * grid[0] * grid[1]
    k = max(1, n // 4) if kept is None else kept
    times = start_s + np.arange(slices) * step_s
    features = [torch.from_numpy(rng.standard_normal((k, model.hidden_size))).to(dtype) for _ in range(layers + 1)]
    return Captured(
        features[0],
        torch.from_numpy(np.sort(rng.choice(n, k, replace=False))),
        torch.from_numpy(rng.permutation(k)),
        torch.from_numpy(rng.random(k)),
        tuple(features[1:]),
        (slices, *grid),
        model,
        {"method": "floc", "settings": {"block": 32}, "coverage": 0.75},
        True,
        times,
        times + step_s * (frames_per_slice - 1) / frames_per_slice,
        frames_per_slice,
        frames_per_slice / step_s,
        slices * step_s,
    )


def make_pieces(count: int = 3, slices: int = 25, **kwargs: object) -> list[Captured]:
    """Build consecutive pieces."""
    return [make_piece(slices, number * slices, seed=number, **kwargs) for number in range(count)]  # type: ignore[arg-type]


def make_video(
    pieces: Sequence[Captured], written: Sequence[StoredPiece], uri: str = "/films/talk.mp4", content: str = "c0"
) -> StoredVideo:
    """Build the row of a video with these pieces."""
    first = pieces[0]
    tokens = [piece.n for piece in pieces]
    return StoredVideo(
        id=video_id(content, first.model, {"ratio": "1/4"}),
        uri=uri,
        content=content,
        size=1000,
        modified_s=1.5,
        status="done",
        duration_s=float(pieces[-1].times_s[0]) + float(pieces[-1].duration_s or 0),  # type: ignore[index]
        fps=first.fps,
        frames=sum(piece.frames for piece in written),
        frames_per_slice=first.frames_per_slice,
        shape=(sum(piece.shape[0] for piece in pieces), *first.shape[1:]),
        tokens=sum(tokens),
        kept=sum(len(piece) for piece in pieces),
        coverage=float(np.average([piece.made["coverage"] for piece in pieces], weights=tokens)),
        encoder="tiny",
        model=first.model,
        options={"ratio": "1/4"},
        nested=True,
        made={"method": "floc", "settings": {"block": 32}, "seconds": {"total": 1.0}},
        pieces=tuple(piece.attempt for piece in written),
        written_s=time.time(),
        version="0",
    )


def add_video(
    store: Store, pieces: Sequence[Captured], uri: str = "/films/talk.mp4", content: str | None = None
) -> StoredVideo:
    """Write and commit a video at once."""
    name = make_video(pieces, (), uri, content or uri).id
    written = [store.write_piece(name, number, piece) for number, piece in enumerate(pieces)]
    store.commit(written, [make_video(pieces, written, uri, content or uri)])
    return store.find(name)
