"""Reuse the tokens of an encoded slice for the slices after it that look the same.

A slice is compared with the last slice that was encoded, whose tokens it would take, and not with the slice before it:
slow changes add up until they exceed the tolerance. Only vision encoders whose slices do not depend on each other can
leave slices out; `can_encode_in_chunks` is that fact, and the tests check it for every family.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from floc._arrays import to_tensor
from floc.encoders.base import FrameTokens, check_reuse
from floc.encoders.vision_features import can_encode_in_chunks, encode_prepared
from floc.families import FAMILIES

if TYPE_CHECKING:
    from floc.encoders.vision_tower import VisionTower

PATCH = 14  # pixels on a side, for vision encoders that do not name their patches
AHEAD_VALUES = 1 << 23  # of pixels that are compared at once
JOINED_BYTES = 64 << 20  # of frames that are compared before their new slices are encoded together

Measure = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # slices [n, ...], slice [...] -> differences [n]


def require_reuse(config: Any, reuse: float) -> None:
    """Raise ValueError unless the vision encoder of a model can leave out slices, and `reuse` is valid."""
    check_reuse(reuse)
    config = getattr(config, "thinker_config", config)
    if config.model_type not in FAMILIES:
        reason = f"floc does not know whether the vision encoder of {config.model_type} attends across slices"
    elif not can_encode_in_chunks(config):
        reason = f"the vision encoder of {config.model_type} attends across all frames of a video"
    else:
        return
    raise ValueError(f"reuse needs slices that are encoded independently of each other, but {reason}; leave it out")


class SliceMemory:
    """The last encoded slice of a video."""

    def __init__(self, tolerance: float, measure: Measure) -> None:
        self.tolerance, self.measure = tolerance, measure
        self.forget()

    def forget(self) -> None:
        """Forget the slice, so that the next one is encoded."""
        self.last: torch.Tensor | None = None  # its pixels
        self.layers: tuple[torch.Tensor, ...] = ()  # its tokens and deep features, [1, ...] each

    def find_new(self, slices: torch.Tensor) -> list[bool]:
        """Return which of the next slices [n, ...] must be encoded; the others look like the last that is."""
        last, is_new, ahead = self.last, list[bool](), 1
        while (start := len(is_new)) < len(slices):
            part = slices[start : start + ahead]
            if last is None or last.shape != part.shape[1:]:
                same = 0
            else:  # a difference that is not a number is a difference
                is_same = (self.measure(part, last) <= self.tolerance).tolist()
                same = is_same.index(False) if False in is_same else len(is_same)
            is_new += [False] * same
            if same < len(part):
                is_new.append(True)
                last, ahead = part[same], 1
            else:  # comparing several at once saves waiting for a GPU
                ahead = max(1, min(2 * ahead, AHEAD_VALUES // part[0].numel()))
        return is_new

    def expand(
        self, slices: torch.Tensor, is_new: list[bool], encoded: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Return the layers of all slices [n, ...], from those [sum(is_new), ...] of the new ones; remember the last.

        Call it with the result of `find_new`, once encoding has succeeded.
        """
        if not any(is_new):
            return tuple(layer.expand(len(is_new), *layer.shape[1:]) for layer in self.layers)
        layers = tuple(encoded)
        if not all(is_new):
            sources = torch.from_numpy(np.cumsum(is_new) - is_new[0])
            if not is_new[0]:
                layers = tuple(map(torch.cat, zip(self.layers, layers, strict=True)))
            layers = tuple(layer[sources.to(layer.device)] for layer in layers)
        newest = len(is_new) - 1 - is_new[::-1].index(True)
        self.last = slices[newest].clone()
        self.layers = tuple(layer[newest : newest + 1].clone() for layer in layers)
        return layers


def remember_frames(config: Any, reuse: float) -> SliceMemory:
    """Create a memory for slices of frames [frames, height, width, 3] uint8."""
    require_reuse(config, reuse)
    given = getattr(getattr(config, "vision_config", None), "patch_size", None)
    given = min(given) if isinstance(given, list | tuple) else given
    patch = given if isinstance(given, int) else PATCH
    return SliceMemory(float(reuse), lambda slices, last: measure_frames(slices, last, patch))


def measure_frames(slices: torch.Tensor, last: torch.Tensor, patch: int) -> torch.Tensor:
    """Return the differences of slices [n, frames, height, width, 3] to one: root mean square of the worst patch."""
    squares = (slices.float() - last.float()).square_().mean((1, 4))
    sides = [min(patch, length) for length in squares.shape[1:]]
    means = F.avg_pool2d(squares[:, None], sides, ceil_mode=True, count_include_pad=False)
    return means.amax((1, 2, 3)).sqrt()


@torch.no_grad()
def encode_changed(tower: "VisionTower", pixels: np.ndarray, timer: Any = None) -> FrameTokens:
    """Encode frames [B, height, width, 3] that follow those of the last call; `timer` is a `StageTimer`."""
    assert tower.memory is not None
    if len(pixels) % (count := tower.frames_per_token):
        raise ValueError(f"{tower.name} joins {count} frames, got {len(pixels)}; use floc.encoders.encode to pad")
    measure: Any = nullcontext if timer is None else timer.measure
    with measure("compare"):
        slices = to_tensor(pixels).unflatten(0, (-1, tower.frames_per_token))
        is_new = tower.memory.find_new(slices)
        new = pixels[np.repeat(is_new, tower.frames_per_token)]
    parts = []
    steps = tower.prepare_steps(new)
    for prepared in steps if timer is None else timer.measure_items("preprocess", steps):
        with measure("vision"):
            parts.append(encode_prepared(tower.model, prepared, fast_vision=tower.fast_vision).all)
    encoded = [torch.cat(layer) for layer in zip(*parts, strict=True)]
    tokens, *deep = tower.memory.expand(slices, is_new, encoded)
    return FrameTokens(tokens, tuple(deep))
