"""Prepare videos and prompts with a model's own processor, a few frames at a time.

A processor of transformers samples, resizes, normalises and writes the prompt for a whole video in one call, in memory
for all its frames. `VideoPreparer` calls the same processor for a few frames at a time. The result is the same:

* The size of a frame may depend on the number of frames. It is found once, from the processor's own `resize`, before
  any frame is decoded.
* All else that a processor returns (grids, counts) is linear in the number of frames: two short videos tell it.
* A prompt is written by the processor itself, from what it would return for the whole video, without pixels.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, cycle
from typing import Any

import numpy as np
import torch

DEFAULT_FPS = 2.0  # of Qwen's own tools and of vLLM, for processors that would take every frame
# video processors whose `num_frames` is the most frames, beside a rate
FRAMES_ARE_A_LIMIT = ("SmolVLMVideoProcessor", "MuseGlimmerVideoProcessor")
PIXELS = ("pixel_values_videos", "pixel_values")
# arguments of a video processor that do not concern sampling
_NOT_SAMPLING = ("input_data_format", "do_convert_rgb", "do_sample_frames", "device", "video_metadata")


@dataclass(frozen=True)
class VideoFacts:
    """What must be known of a video before it is decoded."""

    frames: int
    fps: float
    width: int
    height: int


@dataclass(frozen=True)
class VideoPlan:
    """How a processor reads a video."""

    facts: VideoFacts
    indices: np.ndarray  # [F] int64, the frames it takes
    size: Any  # SizeDict that its frames are resized to; None if the number of frames does not matter
    outputs: Mapping[str, Any]  # what it returns for the whole video, without pixels
    pixels: tuple[str, tuple[int, ...]]  # name and shape of the pixels of the whole video

    @property
    def times_s(self) -> np.ndarray:
        """[F] float64, when each frame is shown."""
        return self.indices / self.facts.fps

    def describe(self) -> Any:
        """Return the plan as `VideoMetadata` of transformers."""
        from transformers.video_utils import VideoMetadata

        facts = self.facts
        return VideoMetadata(
            total_num_frames=facts.frames,
            fps=facts.fps,
            width=facts.width,
            height=facts.height,
            duration=facts.frames / facts.fps,
            video_backend="pyav",
            frames_indices=self.indices.tolist(),
        )


class _SizeFound(Exception):
    """Carries the size of a frame out of a processor."""


_FIND = object()  # stands for a size that is not known yet


@cache
def _fix_size(processor_class: type) -> type:
    """Return a subclass of a video processor that resizes all frames to `fixed_size`, or raises the size to find it.

    The new base sits right behind the processor's class: it takes the place of the `resize` that the class inherits.
    """
    from transformers.video_processing_utils import BaseVideoProcessor

    class FixedSize(BaseVideoProcessor):
        """Resizes to a size that was found before."""

        fixed_size: Any = None

        def resize(self, image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
            if self.fixed_size is _FIND:
                raise _SizeFound(size)
            return super().resize(image, self.fixed_size, *args, **kwargs)

    return type(processor_class.__name__, (processor_class, FixedSize), {})


class VideoPreparer:
    """Prepares videos and prompts with the processor of a model."""

    def __init__(self, processor: Any, **settings: Any) -> None:
        """Args:
        processor: of the model, from `AutoProcessor`.
        **settings: Arguments of the video processor that replace its own, such as `size`.
        """
        self.processor = processor
        video_processor = getattr(processor, "video_processor", None)
        if video_processor is None:
            raise ValueError(f"{type(processor).__name__} has no video processor; this model takes images only")
        self.video_processor = video_processor
        merged = processor._merge_kwargs(
            processor.valid_processor_kwargs, tokenizer_init_kwargs=processor.tokenizer.init_kwargs, **settings
        )
        accepted = video_processor.valid_kwargs.__annotations__
        self.settings: dict[str, Any] = {
            name: value
            for name, value in merged["videos_kwargs"].items()
            if name in accepted and name not in ("return_tensors", "return_metadata", "do_sample_frames", "video_metadata")
        }
        if "cap_pixels_per_frame" in accepted:  # as the model was trained; unset, it warns and does not
            self.settings.setdefault("cap_pixels_per_frame", True)
        if "use_token_compression" in accepted:  # floc compresses
            self.settings["use_token_compression"] = False

    @property
    def frames_per_slice(self) -> int:
        """Frames that the model joins into one slice of tokens."""
        joined = getattr(self.processor, "video_temporal_patch_dim", None)  # of Nemotron
        return int(joined or getattr(self.video_processor, "temporal_patch_size", None) or 1)

    def plan(self, facts: VideoFacts, *, fps: float | None = None, max_frames: int | None = None) -> VideoPlan:
        """Decide which frames to take and how large they are, as the processor would.

        Args:
            fps: Frames per second; the processor's by default.
            max_frames: The most frames; the processor's limit by default.
        """
        indices = self._sample(facts, fps, max_frames)
        size = self._find_size(len(indices), facts)
        step = self.frames_per_slice
        short = [self._describe_frames(count, facts, size) for count in (step, 2 * step)]
        slices = math.ceil(len(indices) / step)
        outputs = {name: _extrapolate(short[0][name], short[1][name], slices) for name in short[0] if name != "video_metadata"}
        name = next(name for name in PIXELS if name in outputs)
        return VideoPlan(facts, indices, size, outputs, (name, tuple(outputs.pop(name).shape)))

    def prepare(self, plan: VideoPlan, pixels: np.ndarray) -> dict[str, torch.Tensor]:
        """Prepare a few frames [F, height, width, 3] uint8 of a video: the inputs of the vision encoder."""
        resizing = self._with_size(plan.size)
        return dict(resizing(videos=[pixels], do_sample_frames=False, return_tensors="pt", **self._processing()))

    def write_prompt(
        self, plan: VideoPlan, question: str, history: Sequence[tuple[str, str]] = ()
    ) -> dict[str, torch.Tensor]:
        """Write the prompt for a question about a video, without pixels, as the processor would.

        Args:
            history: Earlier questions about the video with their answers, oldest first.
        """
        texts = zip(cycle(("user", "assistant")), [*chain(*history), question], strict=False)
        turns = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in texts]
        # any array will do: the processor below returns what it knows already
        turns[0]["content"] = [{"type": "video", "video": np.zeros((1, 1, 1, 3), np.uint8)}, *turns[0]["content"]]
        processor = copy.copy(self.processor)
        processor.video_processor = _answer_with(self.video_processor, plan)
        inputs = processor.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
        return {name: value for name, value in inputs.items() if name not in PIXELS and torch.is_tensor(value)}

    def _sample(self, facts: VideoFacts, fps: float | None, max_frames: int | None) -> np.ndarray:
        sampler = copy.copy(self.video_processor)
        accepted = sampler.valid_kwargs.__annotations__
        for name, value in self.settings.items():
            setattr(sampler, name, value)
        limits = type(sampler).__name__ in FRAMES_ARE_A_LIMIT
        if fps is not None or (getattr(sampler, "fps", None) is None and getattr(sampler, "num_frames", None) is None):
            sampler.fps = fps or DEFAULT_FPS
            sampler.num_frames = sampler.num_frames if limits else None
        if max_frames is not None:
            for name in ("max_frames", "max_num_frames", *(["num_frames"] if limits else [])):
                if name in accepted:
                    setattr(sampler, name, max_frames)
        # the processor would pass its own values, too; most refuse a rate and a number together
        given = {name: getattr(sampler, name, None) for name in accepted if name not in _NOT_SAMPLING}
        if given.get("fps") is not None and not limits:
            given["num_frames"] = None
        empty = VideoPlan(facts, np.zeros(0, np.int64), None, {}, ("", ()))
        indices = np.asarray(sampler.sample_frames(metadata=empty.describe(), **given), np.int64)
        if max_frames is not None and len(indices) > max_frames:
            indices = indices[np.arange(max_frames) * len(indices) // max_frames]
        return indices

    def _find_size(self, frames: int, facts: VideoFacts) -> Any:
        """Return the size of a frame if it depends on the number of frames, else None."""
        sizes = []
        for count in (frames, min(frames, self.frames_per_slice)):
            try:
                self._describe_frames(count, facts, _FIND)
                sizes.append(None)
            except _SizeFound as found:
                sizes.append(found.args[0])
        return sizes[0] if sizes[0] != sizes[1] else None  # more frames never make larger frames

    def _describe_frames(self, frames: int, facts: VideoFacts, size: Any) -> dict[str, Any]:
        """Return what the processor returns for so many empty frames, which take no memory before they are resized."""
        empty = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(frames, 3, facts.height, facts.width)
        return dict(
            self._with_size(size)(
                videos=[empty], do_sample_frames=False, return_tensors="pt", **self._processing(), do_convert_rgb=False
            )
        )

    def _with_size(self, size: Any) -> Any:
        if size is None:
            return self.video_processor
        changed = copy.copy(self.video_processor)
        changed.__class__ = _fix_size(type(self.video_processor))
        changed.fixed_size = size
        return changed

    def _processing(self) -> dict[str, Any]:
        return {name: value for name, value in self.settings.items() if name not in ("fps", "num_frames")}


def _answer_with(video_processor: Any, plan: VideoPlan) -> Any:
    """Return a video processor that returns a plan's outputs, whatever it is given."""
    from transformers import BatchFeature

    name, shape = plan.pixels
    pixels = torch.zeros(1).expand(shape)  # no memory; some processors read its shape

    class Answering(type(video_processor)):  # type: ignore[misc]
        """Returns what is known already."""

        def preprocess(self, videos: Any, **kwargs: Any) -> Any:
            return BatchFeature({**plan.outputs, name: pixels, "video_metadata": [plan.describe()]})

        __call__ = preprocess

    changed = copy.copy(video_processor)
    changed.__class__ = Answering
    return changed


def _extrapolate(one: Any, two: Any, slices: int) -> Any:
    """Return a processor's output for a video of so many slices, from its outputs for one and two slices.

    >>> _extrapolate(torch.tensor([[1, 4, 6]]), torch.tensor([[2, 4, 6]]), 5)
    tensor([[5, 4, 6]])
    >>> _extrapolate(torch.zeros(2, 3), torch.zeros(4, 3), 5).shape
    torch.Size([10, 3])
    """
    if isinstance(one, list | tuple):
        one, two = np.asarray(one), np.asarray(two)
        return _extrapolate(torch.from_numpy(one), torch.from_numpy(two), slices).numpy()
    if not torch.is_tensor(one):
        return one
    if one.is_floating_point() or one.dtype == torch.bool:
        shape = [a + (b - a) * (slices - 1) for a, b in zip(one.shape, two.shape, strict=True)]
        return one[(slice(0, 1),) * one.ndim].expand(shape) if one.numel() else one
    if one.shape == two.shape:
        return one + (two - one) * (slices - 1)
    axis = next(i for i, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if a != b)
    step = two.narrow(axis, one.shape[axis], one.shape[axis]) - one
    return torch.cat([one + step * i for i in range(slices)], axis)
