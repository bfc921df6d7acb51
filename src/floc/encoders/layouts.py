"""How a model takes frames: in whole patches of any size, or as squares of one size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from floc.encoders.base import FrameTokens
from floc.families import ModelFamily

FRAME_TOKENS = 768  # limit of a frame in Qwen's own tools, used if the preprocessor file limits only the whole video
DEFAULT_MERGE = 2  # patches on a side of a token, if neither the config nor the preprocessor file says it: VideoLLaMA3


@dataclass(frozen=True)
class PatchLayout:
    """Frames of any size in whole patches, joined in time and space into tokens: `video_grid_thw`."""

    patch: int  # pixels on a side
    merge: int  # patches on a side of a token
    frames_per_token: int
    min_pixels: int  # of a frame
    max_pixels: int
    takes_merge_sizes: bool = False

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the nearest size in whole tokens within the limits, with the same aspect: Qwen's `smart_resize`."""
        if max(width, height) > 200 * min(width, height):
            raise ValueError(f"these models take aspect ratios up to 200, got a video of {width} x {height}")
        side = self.patch * self.merge
        columns, rows = round(width / side), round(height / side)
        if columns * rows * side**2 > self.max_pixels:
            scale = math.sqrt(self.max_pixels / (width * height))
            columns, rows = (max(1, math.floor(length * scale / side)) for length in (width, height))
        elif columns * rows * side**2 < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (width * height))
            columns, rows = (math.ceil(length * scale / side) for length in (width, height))
        return columns * side, rows * side

    def crop(self, pixels: np.ndarray) -> np.ndarray:
        return pixels

    def encode(self, model: Any, images: torch.Tensor) -> FrameTokens:
        """Encode [F, 3, height, width] normalised frames as [F / frames_per_token, H, W, D] tokens."""
        frames, channels, height, width = images.shape
        side, per_slice = self.patch * self.merge, self.frames_per_token
        if height % side or width % side:
            raise ValueError(
                f"the sides of a frame must be multiples of {side} pixels for this model, got {width} x {height}; "
                "use the encoder's frame_size(width, height)"
            )
        t, h, w = frames // per_slice, height // side, width // side
        patches = images.view(t, per_slice, channels, h, self.merge, self.patch, w, self.merge, self.patch)
        # the patches of a token are adjacent; values of a patch are ordered by channel, frame, row, column
        patches = patches.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w * self.merge**2, -1)
        return encode_patches(model, patches, (t, h, w), self.merge, takes_merge_sizes=self.takes_merge_sizes)


@dataclass(frozen=True)
class SquareLayout:
    """Frames of one square size; every frame is a square of tokens."""

    side: int  # pixels
    resized: int | None  # shorter side before the centre is cropped; None if frames are squeezed into the square
    family: ModelFamily
    frames_per_token: int = 1

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the size of the square, or of the frame that it is cropped from."""
        if self.resized is None:
            return self.side, self.side
        scale = self.resized / min(width, height)
        short, long = self.resized, int(max(width, height) * scale)
        return (long, short) if width >= height else (short, long)

    def crop(self, pixels: np.ndarray) -> np.ndarray:
        rows, columns = self._centre(*pixels.shape[1:3])
        return pixels[:, rows, columns]

    def encode(self, model: Any, images: torch.Tensor) -> FrameTokens:
        """Encode [F, 3, height, width] normalised frames as [F, H, W, D] tokens."""
        height, width = images.shape[-2:]
        expected = self.side if self.resized is None else self.resized
        if min(height, width) != expected or (self.resized is None and height != width):
            raise ValueError(
                f"this model takes frames of {expected} pixels, got {width} x {height}; "
                "use the encoder's frame_size(width, height)"
            )
        rows, columns = self._centre(height, width)
        return encode_squares(self.family, model, images[..., rows, columns].contiguous())

    def _centre(self, height: int, width: int) -> tuple[slice, slice]:
        top, left = (height - self.side) // 2, (width - self.side) // 2
        return slice(top, top + self.side), slice(left, left + self.side)


def encode_patches(
    model: Any, patches: torch.Tensor, shape: tuple[int, int, int], merge: int, *, takes_merge_sizes: bool
) -> FrameTokens:
    """Encode patches [P, values] as T x H x W tokens, with a model that takes `video_grid_thw`."""
    t, h, w = shape
    grid = torch.tensor([[t, h * merge, w * merge]], device=patches.device)
    sizes = (torch.tensor([merge], device=patches.device),) if takes_merge_sizes else ()
    output = model.get_video_features(patches, grid, *sizes, return_dict=True)
    deep = getattr(output, "deepstack_features", None) or ()
    tokens, *layers = (_flatten(features).view(*shape, -1) for features in (output.pooler_output, *deep))
    return FrameTokens(tokens, tuple(layers))


def encode_squares(family: ModelFamily, model: Any, images: torch.Tensor) -> FrameTokens:
    """Encode frames [F, 3, side, side] as tokens, with a model that takes square frames."""
    encode = model.get_image_features if family.takes_images else model.get_video_features
    output = encode(images if family.is_unbatched else images[None], return_dict=True)
    features = _flatten(output.pooler_output)
    rows = math.isqrt(len(features) // len(images))
    # some releases append LLaVA-OneVision's newline, which belongs to no frame
    return FrameTokens(features[: len(images) * rows * rows].view(len(images), rows, rows, -1))


def _flatten(features: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return features as [n, D]; depending on the release they come as a tensor or as several."""
    if isinstance(features, torch.Tensor):
        return features.reshape(-1, features.shape[-1])
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in features])


def read_layout(family: ModelFamily, config: Any, settings: Mapping[str, Any]) -> PatchLayout | SquareLayout:
    """Create the layout of a family from a model's config and the settings of its preprocessor file."""
    size = settings.get("size") or {}
    if family.frames == "squares":
        size = settings.get("max_image_size") or size
        crop = settings.get("crop_size") if settings.get("do_center_crop") else None
        if crop and "shortest_edge" in size:
            return SquareLayout(_read_side(crop), size["shortest_edge"], family)
        return SquareLayout(_read_side(size), None, family)
    vision = config.vision_config
    min_pixels = settings.get("min_pixels") or size.get("shortest_edge")
    max_pixels = settings.get("max_pixels") or size.get("longest_edge")
    if not min_pixels or not max_pixels:
        raise ValueError(f"the preprocessor file must give min_pixels and max_pixels, got size {size}")
    merge = getattr(vision, "spatial_merge_size", None) or settings.get("merge_size", DEFAULT_MERGE)
    if family.limits_whole_video:
        max_pixels = min(max_pixels, FRAME_TOKENS * (vision.patch_size * merge) ** 2)
    per_slice = getattr(vision, "temporal_patch_size", 1)
    return PatchLayout(vision.patch_size, merge, per_slice, min_pixels, max_pixels, family.takes_merge_sizes)


def _read_side(size: Mapping[str, int]) -> int:
    sides = {size[name] for name in ("height", "width", "longest_edge", "shortest_edge") if size.get(name)}
    if len(sides) != 1:
        raise ValueError(f"the preprocessor file must give one square size for frames, got {dict(size)}")
    return sides.pop()
