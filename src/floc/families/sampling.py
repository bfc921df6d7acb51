"""Choose the frames of a video as the processor of a model does."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from floc.video.choice import VideoFacts

# video processors whose `num_frames` is the most frames, beside a rate
FRAMES_ARE_A_LIMIT = ("SmolVLMVideoProcessor", "MuseGlimmerVideoProcessor")
# arguments of a video processor that do not concern sampling
_NOT_SAMPLING = ("input_data_format", "do_convert_rgb", "do_sample_frames", "device", "video_metadata")


def sample_frames(
    video_processor: Any,
    settings: Mapping[str, Any],
    facts: VideoFacts,
    fps: float | None,
    max_frames: int | None,
    *,
    must_follow: bool,
) -> np.ndarray:
    """Return the numbers of the frames to take, [F] int64.

    Args:
        settings: In place of the video processor's own.
        fps, max_frames: Rate and limit; None: the processor's.
        must_follow: The rate counts even for a processor that ignores it.
    """
    sampler = copy.copy(video_processor)
    accepted = sampler.valid_kwargs.__annotations__
    for name, value in settings.items():
        setattr(sampler, name, value)
    limits = type(sampler).__name__ in FRAMES_ARE_A_LIMIT
    if fps is not None:
        sampler.fps = fps
        sampler.num_frames = sampler.num_frames if limits else None
    if max_frames is not None:
        for name in ("max_frames", "max_num_frames"):
            if name in accepted:
                setattr(sampler, name, max_frames)
        if getattr(sampler, "num_frames", None) is not None:
            sampler.num_frames = max_frames if limits else min(max_frames, facts.frames)
    # the processor would pass its own values, too; most refuse a rate and a number together
    given = {name: getattr(sampler, name, None) for name in accepted if name not in _NOT_SAMPLING}
    if given.get("fps") is not None and not limits:
        given["num_frames"] = None
    metadata = describe_video(facts, facts.frames)
    indices = np.asarray(sampler.sample_frames(metadata=metadata, **given), np.int64)
    if must_follow and _ignores_rate(sampler, given):
        from transformers.video_processing_utils import BaseVideoProcessor

        indices = BaseVideoProcessor.sample_frames(sampler, metadata, fps=fps)
    if max_frames is not None and len(indices) > max_frames:
        indices = indices[np.arange(max_frames) * len(indices) // max_frames]
    return indices


def describe_video(facts: VideoFacts, frames: float, indices: Sequence[int] = ()) -> Any:
    """Return a video as `VideoMetadata` of transformers; `frames` is its length, `indices` are those taken."""
    from transformers.video_utils import VideoMetadata

    return VideoMetadata(
        total_num_frames=cast("int", frames),
        fps=facts.fps,
        width=facts.width,
        height=facts.height,
        duration=facts.duration_s,
        video_backend="pyav",
        frames_indices=list(indices),
    )


def _ignores_rate(sampler: Any, given: Mapping[str, Any]) -> bool:
    """Return whether a video processor samples the same frames at any rate."""
    video = describe_video(VideoFacts(2400, 24.0, 64, 64), 2400)  # between the limits of all processors
    slow, fast = (sampler.sample_frames(metadata=video, **{**given, "fps": fps}) for fps in (0.25, 0.5))
    return len(slow) == len(fast)
