"""Frame sampling: `max_frames` and `fps` mean the same for every model.

The models of lmms-eval have other names for them, support only one of them, or fail on videos with fewer frames.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from floc.video.read import check_sampling

ALL_FRAMES = 1 << 20  # more than any video is sampled to


@dataclass(frozen=True)
class FrameSampling:
    """How many evenly spaced frames to read. None leaves it to the model."""

    max_frames: int | None = None
    fps: float | None = None

    def __post_init__(self) -> None:
        check_sampling(self.fps, self.max_frames)

    @property
    def is_given(self) -> bool:
        """Whether the model's own sampling is overridden."""
        return (self.max_frames, self.fps) != (None, None)

    def count(self, frames: int, rate: float) -> int:
        """Return how many frames to read of a video with `frames` frames at `rate` frames per second.

        >>> sampling = FrameSampling(max_frames=8, fps=1)
        >>> sampling.count(300, rate=25), sampling.count(100, rate=25), FrameSampling(8).count(5, rate=25)
        (8, 4, 5)
        """
        most = frames if self.max_frames is None else min(frames, self.max_frames)
        return most if self.fps is None else max(1, min(most, math.floor(frames / rate * self.fps)))


def override_qwen(model: Any, sampling: FrameSampling) -> AbstractContextManager[None]:
    """Override the number of frames in qwen_vl_utils."""
    from qwen_vl_utils import vision_process

    return _override_smart_nframes(vision_process, model, sampling)


def override_qwen_omni(model: Any, sampling: FrameSampling) -> AbstractContextManager[None]:
    """Override the number of frames in qwen_omni_utils."""
    from qwen_omni_utils.v2_5 import vision_process

    return _override_smart_nframes(vision_process, model, sampling)


@contextmanager
def _override_smart_nframes(utilities: Any, model: Any, sampling: FrameSampling) -> Iterator[None]:
    """Override `smart_nframes`, which all video readers of Qwen's utilities call."""

    def smart_nframes(ele: dict[str, Any], total_frames: int, video_fps: float) -> int:
        return max(2, sampling.count(total_frames, video_fps) // 2 * 2)  # a slice is two frames

    # models for simple tasks drop frames beyond max_num_frames after reading
    with (
        override_attribute(utilities, "smart_nframes", smart_nframes),
        override_attribute(model, "max_num_frames", ALL_FRAMES),
    ):
        yield


def override_internvl(model: Any, sampling: FrameSampling) -> AbstractContextManager[None]:
    """Override `sample_frames` of InternVL's video processor."""
    processor = model.processor.video_processor
    original = processor.sample_frames

    def sample_frames(metadata: Any, num_frames: int | None = None, fps: float | None = None, **more: Any) -> Any:
        return original(metadata, num_frames=sampling.count(metadata.total_num_frames, metadata.fps), **more)

    return override_attribute(processor, "sample_frames", sample_frames)


def override_llava(model: Any, sampling: FrameSampling) -> AbstractContextManager[None]:
    """Override `load_video` of lmms-eval's LLaVA."""
    original = model.load_video

    def load_video(video_path: str | list[str], max_frames_num: int) -> Any:
        from floc.video import read

        video = read(video_path if isinstance(video_path, str) else video_path[0], fps=None, max_frames=None)
        return original(video_path, sampling.count(video.planned, video.native_fps))

    return override_attribute(model, "load_video", load_video)


@contextmanager
def override_attribute(owner: Any, name: str, value: object) -> Iterator[None]:
    """Set an attribute, and restore it on exit."""
    is_own = name in vars(owner)
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
