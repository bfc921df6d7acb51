"""Which frames of a film a model takes: `max_frames` and `fps` mean the same for every family.

The models of lmms-eval have other names for them, know one or the other, or fail on films that are shorter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from floc.video.read import check_sampling

ALL_FRAMES = 1 << 20  # more than a film is ever sampled to


@dataclass(frozen=True)
class Sampling:
    """How many frames to take, evenly spread; None where the model decides."""

    max_frames: int | None = None
    fps: float | None = None

    def __post_init__(self) -> None:
        check_sampling(self.fps, self.max_frames)

    @property
    def is_given(self) -> bool:
        """Whether there is anything to tell the model."""
        return (self.max_frames, self.fps) != (None, None)

    def count(self, frames: int, rate: float) -> int:
        """How many to take of so many frames, at so many a second.

        >>> Sampling(fps=1).count(300, rate=25), Sampling(8, fps=1).count(300, rate=25), Sampling(8).count(5, rate=25)
        (12, 8, 5)
        """
        most = frames if self.max_frames is None else min(frames, self.max_frames)
        return most if self.fps is None else max(1, min(most, math.floor(frames / rate * self.fps)))


@contextmanager
def of_qwen(model: Any, sampling: Sampling) -> Iterator[None]:
    """Qwen-VL: all its readers of films ask one function how many frames to take."""
    from qwen_vl_utils import vision_process

    def smart_nframes(ele: dict[str, Any], total_frames: int, video_fps: float) -> int:
        return max(2, sampling.count(total_frames, video_fps) // 2 * 2)  # two frames make a slice

    # the models for simple tasks thin out what was read
    with changed(vision_process, "smart_nframes", smart_nframes), changed(model, "max_num_frames", ALL_FRAMES):
        yield


@contextmanager
def of_internvl(model: Any, sampling: Sampling) -> Iterator[None]:
    """InternVL: its processor places as many frames as it is told to."""
    films = model.processor.video_processor
    place = films.sample_frames

    def sample_frames(metadata: Any, num_frames: int | None = None, fps: float | None = None, **more: Any) -> Any:
        return place(metadata, num_frames=sampling.count(metadata.total_num_frames, metadata.fps), **more)

    with changed(films, "sample_frames", sample_frames):
        yield


@contextmanager
def of_llava(model: Any, sampling: Sampling) -> Iterator[None]:
    """LLaVA: the model reads films itself, as many frames as it is told to."""
    load = model.load_video

    def load_video(video_path: str | list[str], max_frames_num: int) -> Any:
        from floc.video import read

        film = read(video_path if isinstance(video_path, str) else video_path[0], fps=None, max_frames=None)
        return load(video_path, sampling.count(film.planned, film.native_fps))

    with changed(model, "load_video", load_video):
        yield


@contextmanager
def changed(thing: Any, name: str, value: object) -> Iterator[None]:
    """Give an attribute another value for a while.

    >>> from types import SimpleNamespace
    >>> thing = SimpleNamespace(frames=8)
    >>> with changed(thing, "frames", 4):
    ...     thing.frames
    4
    >>> thing.frames
    8
    """
    was_its_own = name in vars(thing)
    before = getattr(thing, name)
    setattr(thing, name, value)
    try:
        yield
    finally:
        if was_its_own:
            setattr(thing, name, before)
        else:
            delattr(thing, name)
