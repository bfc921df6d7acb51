"""Invariants of results: each function raises Invalid if a result that was accepted cannot be right."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from tests.fuzz.outcomes import require


def check_kept(kept: Any) -> None:
    """Check a `Kept`."""
    shape, k = kept.shape, len(kept)
    require(isinstance(shape, tuple) and len(shape) == 3, f"shape {shape!r:.80}")
    require(all(type(side) is int and side > 0 for side in shape), f"shape {shape!r:.80}")
    n = math.prod(shape)
    require(0 < k <= n, f"{k} kept of {n}")
    features = _check_array(kept.features, "features", (k, None), "f")
    require(features.shape[1] > 0, "features are empty")
    indices = _check_array(kept.indices, "indices", (k,), "i")
    require((np.diff(indices) > 0).all(), "indices are not ascending")
    require(indices[0] >= 0 and indices[-1] < n, "indices are out of range")
    positions = _check_array(kept.positions, "positions", (k, 3), "i")
    require((positions == np.stack(np.unravel_index(indices, shape), 1)).all(), "positions differ from indices")
    order = _check_array(kept.order, "order", (k,), "i")
    require((np.sort(order) == np.arange(k)).all(), "order is not a permutation")
    _check_array(kept.gains, "gains", (k,), "fi")
    require(_is_number(kept.coverage) and -1.01 <= kept.coverage <= 1.01, f"coverage {kept.coverage!r:.80}")
    bound = kept.bound
    require(bound is None or (_is_number(bound) and 0 <= bound <= 1.01), f"bound {bound!r:.80}")
    if kept.representation.represents is not None:
        represents = _check_array(kept.represents, "represents", (n,), "i")
        require(represents.min() >= 0 and represents.max() < k, "represents is out of range")
    if kept.times_s is not None:
        times = _check_array(kept.times_s, "times_s", (k,), "f")
        require((np.diff(times) >= 0).all(), "times_s are not ascending")
    if kept.span_s is not None:
        require(len(kept.span_s) == 2 and all(map(_is_number, kept.span_s)), f"span_s {kept.span_s!r:.80}")
        require(kept.span_s[0] <= kept.span_s[1], f"span_s {kept.span_s!r:.80}")
    require(isinstance(kept.method, str), "method is not text")
    require(isinstance(kept.settings, dict), "settings is not a mapping")
    require(_is_number(kept.seconds) and kept.seconds >= 0, f"seconds {kept.seconds!r:.80}")
    require(len(repr(kept)) > 0, "no text")


def check_coverage(kept: Any, tokens: Any) -> None:
    """Compare the coverage of a `Kept` with the mean cosine of all tokens and their representatives, in float64."""
    cosines = (_normalize(tokens) * _normalize(kept.features)[np.asarray(kept.represents)]).sum(1)
    if (ranking := kept.representation.ranking) is not None:
        group = np.repeat(np.arange(len(ranking.group_sizes)), ranking.group_sizes)
        cosines[~np.isin(group, group[np.asarray(kept.indices)])] = 0  # blocks without kept tokens count 0
    if (horizon := kept.settings.get("horizon")) is not None:  # so do tokens without a similar one within the horizon
        frames = np.arange(len(cosines)) // (kept.shape[1] * kept.shape[2])
        represents = np.asarray(kept.indices)[np.asarray(kept.represents)]
        cosines[abs(frames - frames[represents]) > int(horizon)] = 0
        cosines = np.maximum(cosines, 0)
    expected = cosines.mean()
    require(abs(expected - kept.coverage) < 5e-3, f"coverage {kept.coverage:.4f}, but it is {expected:.4f}")


def _normalize(tokens: Any) -> np.ndarray:
    """Scale tokens of any magnitude to unit length: [n, D] float64; zero tokens stay zero."""
    values = (
        tokens.detach().double().resolve_neg().cpu().numpy()
        if isinstance(tokens, torch.Tensor)
        else tokens.astype(np.float64)
    )
    rows = values.reshape(-1, values.shape[-1])
    for scale in (lambda rows: np.abs(rows).max(1), lambda rows: np.linalg.norm(rows, axis=1)):
        lengths = scale(rows)
        rows = rows / np.where(lengths > 0, lengths, 1)[:, None]
    return rows


def check_captured(captured: Any) -> None:
    """Check a `Captured`."""
    shape, k = captured.shape, len(captured)
    require(isinstance(shape, tuple) and len(shape) == 3, f"shape {shape!r:.80}")
    require(all(type(side) is int and side > 0 for side in shape), f"shape {shape!r:.80}")
    n = math.prod(shape)
    require(0 < k <= n, f"{k} kept of {n}")
    features = _check_array(captured.features, "features", (k, None), "f")
    require(features.shape[1] == captured.model.hidden_size, "features do not fit the model")
    for layer in captured.deep:
        _check_array(layer, "deep", features.shape, "f")
    indices = _check_array(captured.indices, "indices", (k,), "i")
    require((np.diff(indices) > 0).all(), "indices are not ascending")
    require(indices[0] >= 0 and indices[-1] < n, "indices are out of range")
    require(captured.positions.shape == (k, 3), "positions")
    order = _check_array(captured.order, "order", (k,), "i")
    require((np.sort(order) == np.arange(k)).all(), "order is not a permutation")
    _check_array(captured.gains, "gains", (k,), "f")
    for name in ("times_s", "last_s"):
        times = getattr(captured, name)
        if times is not None:
            _check_array(times, name, (shape[0],), "f")
            require((np.diff(times) >= 0).all(), f"{name} are not ascending")
    if captured.times_s is not None and captured.last_s is not None:
        require((captured.last_s >= captured.times_s).all(), "last_s is before times_s")
    for name in ("fps", "duration_s"):
        value = getattr(captured, name)
        require(value is None or (_is_number(value) and 0 <= value < 1e15), f"{name} {value!r:.80}")
    if captured.fps:
        require(math.isfinite(1 / captured.fps) and 1 / captured.fps < 1e12, f"fps {captured.fps!r:.80}")
    require(type(captured.frames_per_slice) is int and captured.frames_per_slice > 0, "frames_per_slice")
    require(type(captured.nested) is bool, "nested")
    require(isinstance(captured.made, dict), "made is not a mapping")
    for name in ("kind", "name", "config"):
        require(isinstance(getattr(captured.model, name), str), f"model.{name} is not text")
    require(captured.model.revision is None or isinstance(captured.model.revision, str), "model.revision is not text")
    require(isinstance(captured.model.weights, list) and all(map(_is_number, captured.model.weights)), "model.weights")
    require(len(repr(captured)) > 0, "no text")


def check_frames(batches: Iterable[Any], width: int, height: int, most: int | None, least: int = 0) -> int:
    """Check the batches of a video while they are read; return the number of frames, which is `least` or more."""
    last, count = -math.inf, 0
    for batch in batches:
        require(batch.pixels.dtype == np.uint8, f"frames of {batch.pixels.dtype}")
        require(batch.pixels.shape[1:] == (height, width, 3), f"frames of shape {batch.pixels.shape}")
        require(batch.times_s.shape == (len(batch.pixels),), "times and frames differ in number")
        for time_s in batch.times_s.tolist():
            require(math.isfinite(time_s), f"time {time_s}")
            require(time_s > last, f"time {time_s} after {last}")
            last = time_s
        count += len(batch.pixels)
        require(most is None or count <= most, f"more than {most} frames")
    require(count >= least, f"{count} frames, fewer than {least}")
    return count


def _check_array(array: Any, name: str, shape: tuple[int | None, ...], kinds: str) -> np.ndarray:
    """Check shape, kind and values of an array; return it as numpy."""
    values = array.detach().cpu() if isinstance(array, torch.Tensor) else array
    if isinstance(values, torch.Tensor):
        values = (values.double() if values.is_floating_point() else values).numpy()
    require(values.ndim == len(shape), f"{name} has shape {values.shape}")
    fits = all(size in (None, length) for size, length in zip(shape, values.shape, strict=True))
    require(fits, f"{name} has shape {values.shape}, not {shape}")
    require(values.dtype.kind in kinds, f"{name} has dtype {array.dtype}")
    require(values.dtype.kind != "f" or np.isfinite(values).all(), f"{name} has values that are not finite")
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
