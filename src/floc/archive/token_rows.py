"""Split a piece of a video into token rows of about ten seconds, check them, and join them into a `Captured`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from floc._checked_file import COVERAGE, MAX_S, MAX_SIDE, Fields, is_finite
from floc._checks import require
from floc.archive import schema
from floc.archive.schema import DamagedStoreError, StoredVideo
from floc.blocks import interleave
from floc.captured.captured import Captured
from floc.captured.floc_file import require_consistent

ROW_S = 10.0  # seconds of video in a row: opening one minute then reads at most a sixth more than needed
DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}


@dataclass(frozen=True)
class TimeRange:
    """A time range of a video, in seconds."""

    start_s: float
    end_s: float  # infinity: to the end of the video

    def visible_slices(self, times_s: np.ndarray) -> tuple[int, int]:
        """Return the first and end index of the slices shown in this range; each is shown until the next one starts.

        >>> TimeRange(1.5, 3.0).visible_slices(np.array([0.0, 1.0, 2.0, 3.0]))
        (1, 3)
        """
        first = max(0, int(np.searchsorted(times_s, self.start_s, side="right")) - 1)
        return first, int(np.searchsorted(times_s, self.end_s, side="left"))


def split_rows(captured: Captured, video: str, piece: int, attempt: str, written_s: float) -> list[dict[str, Any]]:
    """Split a piece, with times counted from the start of the video, into token rows.

    `attempt` is the unique id of this write, and `written_s` its Unix time.
    """
    reason = "because it was captured from prepared inputs"
    require(captured.times_s is not None, f"the times of this video are not known, {reason}; capture the file")
    require_consistent(captured)
    times = np.asarray(captured.times_s, np.float64)
    require((np.diff(times) > 0).all(), "times_s must be strictly ascending in a store: two slices have the same time")
    end_s = _end_time(captured)
    require(times[-1] < end_s <= MAX_S, f"times_s must end before {MAX_S:g} s in a store, got {times[-1]:g} s")
    dtype = str(captured.features.dtype).removeprefix("torch.")
    require(dtype in DTYPES, f"features must be in {', '.join(DTYPES)}; got {captured.features.dtype}")
    slices, height, width = captured.shape
    last = None if captured.last_s is None else np.asarray(captured.last_s, np.float64)
    indices = captured.indices.cpu().numpy()
    ranks = np.argsort(captured.order.cpu().numpy())
    gains = captured.gains.double().cpu().numpy()[ranks]
    tensors = (captured.features, *captured.deep)
    # as bytes, [K, bytes of a token]: numpy has no bfloat16
    layers = [tensor.detach().cpu().contiguous().view(torch.uint8).numpy() for tensor in tensors]
    shared = {"video": video, "piece": piece, "attempt": attempt, "written_s": written_s, "dtype": dtype}
    shared |= {"shape": [slices, height, width], "frames": _count_frames(captured), "coverage": get_coverage(captured)}
    firsts = [0, *(np.flatnonzero(np.diff(times // ROW_S)) + 1).tolist()]
    ends = [*firsts[1:], slices]
    end_times = [*times[firsts[1:]].tolist(), end_s]
    rows = []
    for number, (first, end, end_s) in enumerate(zip(firsts, ends, end_times, strict=True)):
        tokens = slice(*np.searchsorted(indices, [first * height * width, end * height * width]).tolist())
        features, *deep = (layer[tokens].tobytes() for layer in layers)
        row = shared | {"row": number, "start_s": float(times[first]), "end_s": end_s, "bytes": len(features)}
        row |= {"first": first, "slices": end - first, "last": end == slices, "kept": tokens.stop - tokens.start}
        row |= {"positions": indices[tokens].tolist(), "order": ranks[tokens].tolist(), "gains": gains[tokens].tolist()}
        row |= {"features": features, "deep": deep, "times_s": times[first:end].tolist()}
        row |= {"last_s": [] if last is None else last[first:end].tolist()}
        check_values(row)
        rows.append(row | {"sha256": schema.hash_token_row(row)})
    return rows


def get_coverage(captured: Captured) -> float | None:
    """Return the coverage that is recorded in a captured video, which may come from a stranger."""
    made = Fields(dict(captured.made), "made")
    return made.number("coverage", *COVERAGE) if made.has("coverage") else None


def check_location(row: Mapping[str, Any]) -> None:
    """Raise ValueError that names the field if a location column of a token row is invalid."""
    values = Fields(row)
    values.text("video")
    values.text("attempt")
    for name in ("piece", "row", "frames", "bytes"):
        values.integer(name)
    slices, height, width = values.shape("shape", 1, MAX_SIDE)
    first = values.integer("first", 0, slices - 1)
    values.integer("kept", 0, values.integer("slices", 1, slices - first) * height * width)
    values.number("end_s", values.number("start_s", -MAX_S, MAX_S), MAX_S)
    values.number("written_s")
    values.flag("last")
    if values.has("coverage"):
        values.number("coverage", *COVERAGE)


def check_values(row: Mapping[str, Any]) -> None:
    """Raise ValueError that names the field if the values of a token row are invalid or do not fit together."""
    check_location(row)
    (slices, height, width), first, count, kept = (row[name] for name in ("shape", "first", "slices", "kept"))
    lengths = {"positions": kept, "order": kept, "gains": kept, "times_s": count, "last_s": count}
    arrays = {}
    for name, length in lengths.items():
        values = row[name]
        fits = values is not None and (len(values) == length or (name == "last_s" and not values))
        require(fits, f"{name} must have {length} values, got {len(values or ())}")
        arrays[name] = np.array(values, np.int64 if name in ("positions", "order") else np.float64)
        require(np.isfinite(arrays[name]).all(), f"{name} has values that are not finite")
    cells = height * width
    for name, least, end in (("positions", first * cells, (first + count) * cells), ("order", 0, slices * cells)):
        fits = not kept or (least <= arrays[name].min() and arrays[name].max() < end)
        require(fits, f"{name} must be from {least} to {end - 1}")
    times = arrays["times_s"]
    fits = (np.diff(times) > 0).all() and row["start_s"] == times[0] <= times[-1] <= row["end_s"]
    require(fits, "times_s must be strictly ascending from start_s to end_s")
    last = arrays["last_s"] if len(arrays["last_s"]) else times
    require((last >= times).all() and (np.diff(last) >= 0).all(), "last_s must be ascending, and not before times_s")
    fits = (np.diff(arrays["positions"]) > 0).all() and len(set(row["order"])) == kept
    require(fits, "positions must be ascending, and order must have no value twice")
    dtype, size, layers = row["dtype"], row["bytes"], (row["features"], *row["deep"])
    require(dtype in DTYPES, f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    require(all(len(layer or b"") == size for layer in layers), f"features and deep must have {size} bytes")
    fits = size % DTYPES[dtype].itemsize == 0 and bool(kept) == bool(size)
    require(fits, f"bytes must be of {kept} tokens in {dtype}, got {size}")
    fits = not kept or all(is_finite(_to_tensor([layer], dtype, 1)) for layer in layers)
    require(fits, "features or deep has values that are not finite")


def check_fit(row: Mapping[str, Any], video: StoredVideo, other: Mapping[str, Any]) -> None:
    """Raise ValueError if a valid token row does not fit its video, or another row of it."""
    shape = row["shape"]
    require(tuple(shape[1:]) == video.shape[1:], f"shape must be that of the video, {video.shape}, got {shape}")
    fits = row["dtype"] == other["dtype"] and len(row["deep"]) == len(other["deep"])
    require(fits, "dtype and the number of layers in deep must be the same in all rows")
    require(bool(row["last_s"]) == bool(other["last_s"]), "last_s must be empty in all rows or in none")
    size = row["kept"] * video.model.hidden_size * DTYPES[row["dtype"]].itemsize
    require(row["bytes"] == size, f"features must have {size} bytes, got {row['bytes']}")


def check_totals(rows: Sequence[Mapping[str, Any]], video: StoredVideo) -> None:
    """Raise ValueError if all rows of a video, or their location columns, have other totals than the video."""
    slices, kept = (sum(row[name] for row in rows) for name in ("slices", "kept"))
    expected = f"{video.shape[0]} slices and {video.kept} tokens"
    fits = (slices, kept) == (video.shape[0], video.kept)
    require(fits, f"it should have {expected}, but its rows have {slices} and {kept}")


def join_rows(rows: Sequence[Mapping[str, Any]], video: StoredVideo, time_range: TimeRange | None) -> Captured:
    """Build a `Captured` from the rows that overlap a time range, as if it had been captured on its own."""
    if time_range is not None and video.starts_s and time_range.end_s <= video.starts_s[0]:
        first = f"the first frame of video {video.id} ({video.uri}) is shown at {video.starts_s[0]:g} s"
        raise ValueError(f"{first}; give an end_s after it, not {time_range.end_s:g} s")
    if not rows:
        raise _report_damage(video, "starts_s must be the times at which its token rows start, but no row is found")
    times = np.concatenate([row["times_s"] for row in rows])
    if (np.diff(times) <= 0).any():
        raise _report_damage(video, "times_s must be ascending from row to row")
    low, high = (0, len(times)) if time_range is None else time_range.visible_slices(times)
    starts = np.cumsum([0, *(row["slices"] for row in rows)])
    _, height, width = rows[0]["shape"]
    cells = height * width
    counts = [len(row["positions"]) for row in rows]

    def gather(name: str, dtype: type) -> np.ndarray:
        return np.concatenate([np.array(row[name], dtype) for row in rows])

    shift = np.repeat([(start - row["first"] - low) * cells for start, row in zip(starts, rows, strict=False)], counts)
    indices = gather("positions", np.int64) + shift
    inside = (indices >= 0) & (indices < (high - low) * cells)
    if not inside.any():
        assert time_range is not None, "a piece without tokens is never written"
        end_s = min(time_range.end_s, video.duration_s)
        between = f"between {time_range.start_s:g} s and {end_s:g} s"
        raise ValueError(f"video {video.id}: no tokens were kept {between}; widen the range")
    tokens = torch.from_numpy(np.flatnonzero(inside))
    pieces = np.unique([row["piece"] for row in rows], return_inverse=True)[1]
    slice_pieces = np.repeat(pieces, np.diff(starts))[low:high]
    sizes = np.bincount(slice_pieces, minlength=pieces[-1] + 1) * cells  # tokens of each piece before compression
    # order tokens by importance, so that every prefix has its share of each piece
    token_pieces = np.repeat(pieces, counts)[inside]
    by_rank = np.lexsort((gather("order", np.int64)[inside], token_pieces))
    token_pieces = token_pieces[by_rank]
    firsts = np.searchsorted(token_pieces, token_pieces)  # index of the first token of each token's piece
    order = by_rank[interleave(sizes, np.arange(len(firsts)) - firsts, token_pieces)]
    arrays = (indices[inside], order, gather("gains", np.float64)[inside][order])
    kept, ranking, gains = map(torch.from_numpy, arrays)
    layers = zip(*((row["features"], *row["deep"]) for row in rows), strict=True)
    features, *deep = (_to_tensor(parts, rows[0]["dtype"], sum(counts))[tokens] for parts in layers)
    made = {**video.made, "source": video.uri, "encoder": video.encoder, "coverage": video.coverage}
    if made.get("preparation") is not None:
        frames = slice(low * video.frames_per_slice, high * video.frames_per_slice)
        whole = made["preparation"]["indices"]
        taken = {"taken": len(whole)} if len(whole[frames]) < len(whole) else {}
        made["preparation"] = taken | made["preparation"] | {"indices": whole[frames]}
    duration_s = video.duration_s
    if time_range is not None:
        made |= {"coverage": None, "bound": None}  # only known for the whole video
        duration_s = min(time_range.end_s, duration_s) - time_range.start_s
    last = np.concatenate([row["last_s"] for row in rows])
    timing = times[low:high], last[low:high] if len(last) else None, video.frames_per_slice, video.fps, duration_s
    shape = high - low, height, width
    captured = Captured(features, kept, ranking, gains, tuple(deep), shape, video.model, made, video.nested, *timing)
    try:
        require_consistent(captured)
    except ValueError as error:
        raise _report_damage(video, str(error)) from None
    return captured


def _report_damage(video: StoredVideo, problem: str) -> DamagedStoreError:
    return DamagedStoreError(f"video {video.id} ({video.uri}): {problem}; {schema.CHECK}")


def read_features(row: Mapping[str, Any], video: StoredVideo) -> torch.Tensor:
    """Return the features of a row with tokens, [kept, D]. Raises DamagedStoreError if they are invalid."""
    dtype, kept, data = DTYPES.get(row["dtype"]), row["kept"], row["features"] or b""
    if dtype is not None and len(data) == kept * video.model.hidden_size * dtype.itemsize:
        features = _to_tensor([data], row["dtype"], kept)
        if is_finite(features):
            return features
    expected = f"{kept} x {video.model.hidden_size} finite numbers in {row['dtype']}"
    raise _report_damage(video, f"features must be {expected}, got {len(data)} bytes")


def _to_tensor(parts: Sequence[bytes], dtype: str, count: int) -> torch.Tensor:
    if not count:
        return torch.empty(0, dtype=DTYPES[dtype])
    return torch.frombuffer(bytearray().join(parts), dtype=DTYPES[dtype]).reshape(count, -1)


def _end_time(captured: Captured) -> float:
    """Return when the last slice ends, estimated from the frame rate."""
    assert captured.times_s is not None
    last = float((captured.times_s if captured.last_s is None else captured.last_s)[-1])
    if captured.fps:
        return last + 1 / captured.fps
    steps = np.diff(captured.times_s)
    return last + (float(np.median(steps)) / captured.frames_per_slice if len(steps) else 1.0)


def _count_frames(captured: Captured) -> int:
    """Return the number of frames. An incomplete last slice repeats its only frame."""
    per_slice = captured.frames_per_slice
    padded = captured.last_s is not None and per_slice > 1 and captured.last_s[-1] == captured.times_s[-1]  # type: ignore[index]
    return (captured.shape[0] - 1) * per_slice + (1 if padded else per_slice)
