"""Join the selected tokens of a video's segments into one `Captured`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from floc.blocks import interleave
from floc.captured.captured import Captured
from floc.captured.identity import Identity
from floc.families.locate import Shape
from floc.kept import Kept
from floc.representatives import Representation, SummedRepresentatives


@dataclass(frozen=True, eq=False)
class SegmentTokens:
    """The selected tokens of one segment, without a reference to the tokens they were selected from."""

    features: torch.Tensor
    indices: torch.Tensor
    order: torch.Tensor
    gains: torch.Tensor
    deep: Sequence[torch.Tensor]
    shape: Shape
    nested: bool
    coverage: float | None
    made: dict[str, Any]

    @classmethod
    def from_kept(cls, kept: Kept, deep: Sequence[torch.Tensor] = ()) -> SegmentTokens:
        """Take what a file needs from a `Kept`.

        Args:
            kept: of the segment.
            deep: [K, D] for each of the first layers, if the model adds features there.
        """
        names = ("features", "indices", "order", "gains")
        arrays = {name: torch.as_tensor(getattr(kept, name)) for name in names}
        is_cheap = isinstance(
            kept.standing, Representation | SummedRepresentatives
        )  # else it costs more than selecting
        coverage = kept.coverage if is_cheap else None
        made = {"method": kept.method, "settings": dict(kept.settings)}
        return cls(**arrays, deep=deep, shape=kept.shape, nested=kept.nested, coverage=coverage, made=made)


@dataclass(eq=False)
class FrameLog:
    """What was noted about a video's frames while they were read."""

    frames_per_slice: int
    times_s: list[np.ndarray] = field(default_factory=list)  # of each batch of frames
    fps: float | None = None  # from the times if None
    duration_s: float | None = None
    about: dict[str, Any] = field(default_factory=dict)  # added to `Captured.made`


def join_segments(
    segments: Sequence[SegmentTokens], model: Identity, frames: FrameLog, seconds: dict[str, float]
) -> Captured:
    """Join the segments of a video, in order.

    Args:
        segments: at least one.
        model: the model whose tokens they are.
        frames: times of all frames.
        seconds: time spent on each stage.
    """
    sizes = [math.prod(segment.shape) for segment in segments]
    counts = [len(segment.indices) for segment in segments]
    first_tokens, first_places = np.cumsum([0, *sizes]), np.cumsum([0, *counts])
    segment_of = np.repeat(np.arange(len(segments)), counts)
    rank = np.concatenate([np.arange(count) for count in counts])
    merged = torch.from_numpy(interleave(sizes, rank, segment_of))  # a prefix has its share of every segment
    coverages = [segment.coverage for segment in segments]
    coverage = None if None in coverages else float(np.average(coverages, weights=sizes))  # type: ignore[arg-type]
    slices, per_slice = sum(segment.shape[0] for segment in segments), frames.frames_per_slice
    times = np.concatenate(frames.times_s) if frames.times_s else None
    fps, duration_s = frames.fps, frames.duration_s
    if times is not None and fps is None:
        fps = (len(times) - 1) / float(times[-1] - times[0]) if len(times) > 1 else 1.0
        duration_s = float(times[-1]) + 1 / fps
    last = None if times is None else np.minimum(np.arange(1, slices + 1) * per_slice, len(times)) - 1
    return Captured(
        torch.cat([segment.features for segment in segments]),
        torch.cat([segment.indices.cpu() + int(start) for segment, start in zip(segments, first_tokens, strict=False)]),
        torch.cat([segment.order.cpu() + int(start) for segment, start in zip(segments, first_places, strict=False)])[
            merged
        ],
        torch.cat([segment.gains.cpu() for segment in segments])[merged],
        tuple(torch.cat(layer) for layer in zip(*(segment.deep for segment in segments), strict=True)),
        (slices, *segments[0].shape[1:]),
        model,
        {**segments[0].made, "coverage": coverage, "seconds": seconds, **frames.about},
        all(segment.nested for segment in segments),
        None if times is None else times[::per_slice],
        None if times is None else times[last],
        per_slice,
        fps,
        duration_s,
    )
