"""Change what the video processor of a model does, without changing it: its size of frames, or all of its answer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

PIXELS = ("pixel_values_videos", "pixel_values")


class SizeFound(Exception):
    """Carries the size of a frame out of a processor."""


@dataclass
class Resizing:
    """The only call of a processor's `resize` for a video: the processor without it, and what the call is given."""

    processor: Any
    size: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    frame_size: tuple[int, int]  # width and height of the result

    def __call__(self, frame: np.ndarray) -> np.ndarray:
        """Resize a frame [height, width, 3] uint8."""
        image = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)[None]
        resized = self.processor.resize_freely(image, self.size, *self.args, **self.kwargs)
        return resized[0].permute(1, 2, 0).numpy()


@dataclass
class TimeDrawing:
    """Draws the time into frames of a video, as a processor does that draws it into all of them."""

    processor: Any  # the video processor
    times_s: list[float]  # of the frames that are taken
    is_used: bool = False

    def __call__(self, frame: np.ndarray, place: int) -> np.ndarray:
        """Draw the time of the frame at a place into a frame [height, width, 3] uint8."""
        self.is_used = True
        image = torch.from_numpy(frame).permute(2, 0, 1)
        text = self.processor._convert_timestamp(self.times_s[place])
        return self.processor._render_image_with_timestamp(image, text).permute(1, 2, 0).numpy()


FIND, SKIP = object(), object()  # in place of a size: raise the size; leave frames as they are


@cache
def control_resize(processor_class: type) -> type:
    """Return a subclass of a video processor whose resizing can be watched, fixed and skipped.

    The new base sits right behind the processor's class: it takes the place of the `resize` that the class inherits.
    """
    from transformers.video_processing_utils import BaseVideoProcessor

    class ControlledResize(BaseVideoProcessor):
        """Resizes to a size that was found before."""

        fixed_size: Any = None
        calls: list[tuple[Any, ...]]

        def resize(self, image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
            if self.fixed_size is FIND:
                raise SizeFound(size)
            if self.fixed_size is SKIP:
                return image
            size = size if self.fixed_size is None else self.fixed_size
            resized = self.resize_freely(image, size, *args, **kwargs)
            self.calls.append((image, size, args, kwargs, resized))
            return resized

        def resize_freely(self, *args: Any, **kwargs: Any) -> Any:
            return super().resize(*args, **kwargs)

    return type(processor_class.__name__, (processor_class, ControlledResize), {})


def answer_with(
    video_processor: Any, outputs: Mapping[str, Any], pixels: tuple[str, tuple[int, ...]], metadata: Any, device: str
) -> Any:
    """Return a video processor that returns `outputs`, whatever it is given.

    Args:
        pixels: name and shape of the pixels to return.
        metadata: of the video.
        device: of the pixels, which take no memory; on "meta" neither do copies of them.
    """
    from transformers import BatchFeature

    name, shape = pixels
    empty = torch.zeros(1, device=device).expand(shape)

    class Answering(type(video_processor)):  # type: ignore[misc]
        """Returns what is known already."""

        def preprocess(self, videos: Any, **kwargs: Any) -> Any:
            return BatchFeature({**outputs, name: empty, "video_metadata": [metadata]})

        __call__ = preprocess

    changed = copy.copy(video_processor)
    changed.__class__ = Answering
    return changed


def extrapolate(one: Any, two: Any, steps: int) -> Any:
    """Return a processor's output for a longer video, from its outputs for two short ones.

    Args:
        one: for the first video.
        two: for a video that is one step longer.
        steps: how many steps longer than the first video the long video is.

    >>> extrapolate(torch.tensor([[1, 4, 6]]), torch.tensor([[2, 4, 6]]), 4)
    tensor([[5, 4, 6]])
    >>> extrapolate(torch.tensor([0, 1]), torch.tensor([0, 1, 2, 3]), 2)
    tensor([0, 1, 2, 3, 4, 5])
    >>> extrapolate(torch.zeros(2, 3), torch.zeros(4, 3), 4).shape
    torch.Size([10, 3])
    """
    if isinstance(one, list | tuple):
        one, two = np.asarray(one), np.asarray(two)
        return extrapolate(torch.from_numpy(one), torch.from_numpy(two), steps).numpy()
    if steps == 0 or not torch.is_tensor(one):
        return one
    if one.is_floating_point() or one.dtype == torch.bool:
        shape = [a + (b - a) * steps for a, b in zip(one.shape, two.shape, strict=True)]
        return one[(slice(0, 1),) * one.ndim].expand(shape) if one.numel() else one
    if one.shape == two.shape:
        return one + (two - one) * steps
    axis = next(i for i, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if a != b)
    added = two.shape[axis] - one.shape[axis]
    first, second, rest = two.split([added, added, two.shape[axis] - 2 * added], axis)
    growth = second - first
    rest = rest + growth.narrow(axis, 0, rest.shape[axis]) * (steps - 1)
    return torch.cat([*(first + growth * i for i in range(steps + 1)), rest], axis)
