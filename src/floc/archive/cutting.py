"""A piece of a video in rows of about ten seconds, and rows put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from floc.archive.rows import seal_of
from floc.archive.tables import Video
from floc.blocks import interleave
from floc.captured.captured import Captured, require_consistent

ROW_S = 10.0  # of film in a row: a minute's edges then cost at most a sixth more
DTYPES = {
    str(each).removeprefix("torch."): each for each in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


@dataclass(frozen=True)
class Stretch:
    """From when to when of a film."""

    start_s: float
    end_s: float  # infinite where it goes to the end


def cut(captured: Captured, video: str, piece: int, attempt: str, written_s: float) -> list[dict[str, Any]]:
    """The rows of a piece.

    Args:
        captured: the piece, with the film's own times.
        video: the id of the video.
        piece: the number of the piece.
        attempt: names this writing of it.
        written_s: when that is.
    """
    _require_piece(captured)
    k, (slices, height, width) = len(captured), captured.shape
    times = np.asarray(captured.times_s, np.float64)
    last = None if captured.last_s is None else np.asarray(captured.last_s, np.float64)
    indices = captured.indices.cpu().numpy()
    order = captured.order.cpu().numpy()
    ranks, gains = np.empty(k, np.int64), np.empty(k)
    ranks[order] = np.arange(k)
    gains[order] = captured.gains.double().cpu().numpy()
    layers = [_bytes_of(each) for each in (captured.features, *captured.deep)]  # each [K, bytes of a token]
    whole: dict[str, Any] = {
        "video": video,
        "piece": piece,
        "attempt": attempt,
        "shape": [slices, height, width],
        "frames": _frames(captured),
        "coverage": None if (coverage := captured.made.get("coverage")) is None else float(coverage),
        "written_s": written_s,
        "dtype": str(captured.features.dtype).removeprefix("torch."),
    }
    firsts = [0, *(np.flatnonzero(np.diff(times // ROW_S)) + 1).tolist()]
    ends = [*firsts[1:], slices]
    end_times = [*times[firsts[1:]].tolist(), _end_s(captured)]
    rows = []
    for number, (first, end, end_s) in enumerate(zip(firsts, ends, end_times, strict=True)):
        here = slice(*np.searchsorted(indices, [first * height * width, end * height * width]).tolist())
        features, *deep = (each[here].tobytes() for each in layers)
        row = whole | {
            "row": number,
            "start_s": float(times[first]),
            "end_s": end_s,
            "first": first,
            "slices": end - first,
            "last": end == slices,
            "kept": here.stop - here.start,
            "bytes": len(features),
            "positions": indices[here].tolist(),
            "order": ranks[here].tolist(),
            "gains": gains[here].tolist(),
            "features": features,
            "deep": deep,
            "times_s": times[first:end].tolist(),
            "last_s": [] if last is None else last[first:end].tolist(),
        }
        rows.append(row | {"sha256": seal_of(row)})
    return rows


def joined(rows: Sequence[Mapping[str, Any]], video: Video, stretch: Stretch | None) -> Captured:
    """What was kept in a stretch of a video, as if it had been captured by itself.

    Args:
        rows: those that reach into the stretch, in order.
        video: that they are of.
        stretch: what of them is wanted: slices on screen in it; None is all.
    """
    times = np.concatenate([row["times_s"] for row in rows])
    low, high = (0, len(times)) if stretch is None else on_screen(times, stretch)
    starts = np.cumsum([0, *(row["slices"] for row in rows)])
    _, height, width = rows[0]["shape"]
    cells = height * width

    def of_tokens(name: str, dtype: type) -> np.ndarray:
        return np.concatenate([np.array(row[name], dtype) for row in rows])

    counts = [len(row["positions"]) for row in rows]
    shift = np.repeat([(start - row["first"] - low) * cells for start, row in zip(starts, rows, strict=False)], counts)
    indices = of_tokens("positions", np.int64) + shift
    here = (indices >= 0) & (indices < (high - low) * cells)
    if not here.any():
        assert stretch is not None, "a piece without tokens is not written"
        until_s = min(stretch.end_s, video.duration_s)
        raise ValueError(
            f"video {video.id}: nothing was kept between {stretch.start_s:g} s and {until_s:g} s; widen the range"
        )
    pieces = np.unique([row["piece"] for row in rows], return_inverse=True)[1]
    of_slice = np.repeat(pieces, np.diff(starts))[low:high]
    sizes = np.bincount(of_slice, minlength=pieces[-1] + 1) * cells
    order = _order(sizes, np.repeat(pieces, counts)[here], of_tokens("order", np.int64)[here])
    last = np.concatenate([row["last_s"] for row in rows])
    places = torch.from_numpy(np.flatnonzero(here))
    captured = Captured(
        _tensor([row["features"] for row in rows], rows[0]["dtype"], sum(counts))[places],
        torch.from_numpy(indices[here]),
        torch.from_numpy(order),
        torch.from_numpy(of_tokens("gains", np.float64)[here][order]),
        tuple(
            _tensor(layer, rows[0]["dtype"], sum(counts))[places]
            for layer in zip(*(row["deep"] for row in rows), strict=True)
        ),
        (high - low, height, width),
        video.model,
        {**video.made, "source": video.uri, **_covered(video, stretch)},
        video.nested,
        times[low:high],
        last[low:high] if len(last) else None,
        video.frames_per_slice,
        video.fps,
        video.duration_s if stretch is None else min(stretch.end_s, video.duration_s) - stretch.start_s,
    )
    require_consistent(captured)
    return captured


def on_screen(times_s: np.ndarray, stretch: Stretch) -> tuple[int, int]:
    """First and end of the slices that are on screen at some time of a stretch: each is until the next.

    >>> on_screen(np.array([0.0, 1.0, 2.0, 3.0]), Stretch(1.5, 3.0))
    (1, 3)
    """
    first = max(0, int(np.searchsorted(times_s, stretch.start_s, side="right")) - 1)
    return first, int(np.searchsorted(times_s, stretch.end_s, side="left"))


def tokens_of(row: Mapping[str, Any]) -> torch.Tensor:
    """[kept, D] what a row holds, or [0] where that is nothing."""
    return _tensor([row["features"]], row["dtype"], row["kept"])


def _order(sizes: np.ndarray, piece: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Places of tokens, most important first, such that a prefix has its share of every piece."""
    by_rank = np.lexsort((rank, piece))
    piece = piece[by_rank]
    firsts = np.searchsorted(piece, piece)  # where the tokens of each one's piece begin
    return by_rank[interleave(sizes, np.arange(len(piece)) - firsts, piece)]


def _covered(video: Video, stretch: Stretch | None) -> dict[str, Any]:
    """Coverage is known of the whole only."""
    return {"coverage": video.coverage} if stretch is None else {"coverage": None, "bound": None}


def _tensor(parts: Sequence[bytes], dtype: str, count: int) -> torch.Tensor:
    if not count:
        return torch.empty(0, dtype=DTYPES[dtype])
    return torch.frombuffer(bytearray().join(parts), dtype=DTYPES[dtype]).reshape(count, -1)


def _bytes_of(features: torch.Tensor) -> np.ndarray:
    """[K, D] -> [K, bytes of a token]; numpy has no bfloat16."""
    return features.detach().cpu().contiguous().view(torch.uint8).numpy()


def _require_piece(captured: Captured) -> None:
    if captured.times_s is None:
        raise ValueError("this video was captured from prepared inputs, so its times are not known; capture the file")
    require_consistent(captured)
    if str(captured.features.dtype).removeprefix("torch.") not in DTYPES:
        raise ValueError(f"features are kept in {', '.join(DTYPES)}; got {captured.features.dtype}")
    if (np.diff(captured.times_s) <= 0).any():
        raise ValueError("times_s must ascend: each slice is shown after the one before it")


def _end_s(captured: Captured) -> float:
    """When the last slice leaves the screen, as far as its piece can tell."""
    assert captured.times_s is not None
    last = float((captured.times_s if captured.last_s is None else captured.last_s)[-1])
    if captured.fps:
        return last + 1 / captured.fps
    slices = len(captured.times_s)
    steps = np.diff(captured.times_s)
    return last + (float(np.median(steps)) / captured.frames_per_slice if slices > 1 else 1.0)


def _frames(captured: Captured) -> int:
    """How many frames there were: the last slice may be filled up with one that is shown again."""
    joined = captured.frames_per_slice
    filled = captured.last_s is not None and joined > 1 and captured.last_s[-1] == captured.times_s[-1]  # type: ignore[index]
    return (captured.shape[0] - 1) * joined + (1 if filled else joined)
