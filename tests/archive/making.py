"""Videos to put into a store: random tokens, and the rows and objects around them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from floc import Captured
from floc.archive import Piece, Store, Video, video_id
from floc.captured.identity import Identity

MODEL = Identity("tiny", "somewhere/tiny", None, "0123456789abcdef", 8, [0.5, 0.25])


def piece(
    slices: int = 25,
    start_s: float = 0.0,
    *,
    seed: int = 0,
    kept: int | None = None,
    grid: tuple[int, int] = (2, 3),
    dtype: torch.dtype = torch.float16,
    layers: int = 0,
    step_s: float = 1.0,
    joined: int = 1,
    model: Identity = MODEL,
) -> Captured:
    """What was kept of a stretch of film: some of its tokens, in some order."""
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
        times + step_s * (joined - 1) / joined,
        joined,
        joined / step_s,
        slices * step_s,
    )


def film(pieces: int = 3, slices: int = 25, **kwargs: object) -> list[Captured]:
    """Pieces that follow one another."""
    return [piece(slices, number * slices, seed=number, **kwargs) for number in range(pieces)]  # type: ignore[arg-type]


def row(
    parts: Sequence[Captured], written: Sequence[Piece], uri: str = "/films/talk.mp4", content: str = "c0"
) -> Video:
    """The row of a video with these pieces."""
    first = parts[0]
    tokens = [part.n for part in parts]
    return Video(
        id=video_id(content, first.model, {"ratio": "1/4"}),
        uri=uri,
        content=content,
        size=1000,
        modified_s=1.5,
        status="done",
        duration_s=float(parts[-1].times_s[0]) + float(parts[-1].duration_s or 0),  # type: ignore[index]
        fps=first.fps,
        frames=sum(each.frames for each in written),
        frames_per_slice=first.frames_per_slice,
        shape=(sum(part.shape[0] for part in parts), *first.shape[1:]),
        tokens=sum(tokens),
        kept=sum(len(part) for part in parts),
        coverage=float(np.average([part.made["coverage"] for part in parts], weights=tokens)),
        encoder="tiny",
        model=first.model,
        options={"ratio": "1/4"},
        nested=True,
        made={"method": "floc", "settings": {"block": 32}, "seconds": {"total": 1.0}},
        pieces=tuple(each.attempt for each in written),
        written_s=time.time(),
        version="0",
    )


def put(store: Store, parts: Sequence[Captured], uri: str = "/films/talk.mp4", content: str | None = None) -> Video:
    """Take a video in, all at once."""
    entry = row(parts, (), uri, content or uri)
    written = [store.write_piece(entry.id, number, part) for number, part in enumerate(parts)]
    store.commit(written, [replace(row(parts, written, uri, content or uri))])
    return store.find(entry.id)
