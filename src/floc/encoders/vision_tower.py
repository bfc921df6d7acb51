"""The vision encoder and projector of a transformers model: tokens as its language model would see them.

The language model is built without layers, so their weights are not read, and the rest of it is dropped after loading.
The processors need torchvision, so frames are prepared here: the video reader resizes them, hence pixels differ a
little, and a limit on the pixels of a whole video (Qwen3-VL, GLM-V) is replaced by one on the pixels of a frame.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from floc._arrays import to_tensor
from floc.encoders.base import FrameTokens, default_device, require_multiples
from floc.families import FAMILIES, ModelFamily, find_family
from floc.families.pretrained import hide_progress, load_part, read_json

STEP = 16  # frames encoded at a time: bounds the memory; even, so that pairs stay together
PREPROCESSOR_FILES = ("video_preprocessor_config.json", "processor_config.json", "preprocessor_config.json")
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
        require_multiples(pixels, self.patch * self.merge)
        return pixels

    def encode(self, model: Any, images: torch.Tensor) -> FrameTokens:
        """Encode [F, 3, height, width] normalised frames as [F / frames_per_token, H, W, D] tokens."""
        frames, channels, height, width = images.shape
        side, per_slice = self.patch * self.merge, self.frames_per_token
        t, h, w = frames // per_slice, height // side, width // side
        patches = images.view(t, per_slice, channels, h, self.merge, self.patch, w, self.merge, self.patch)
        # the patches of a token are adjacent; values of a patch are ordered by channel, frame, row, column
        patches = patches.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w * self.merge**2, -1)
        return encode_patches(model, patches, (t, h, w), self.merge)


@dataclass(frozen=True)
class SquareLayout:
    """Frames of one square size; every frame is a square of tokens."""

    side: int  # pixels
    resized: int | None  # shorter side before the centre is cropped; None if frames are squeezed into the square
    frames_per_token: int = 1

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        if self.resized is None:
            return self.side, self.side
        short, long = self.resized, int(max(width, height) * (self.resized / min(width, height)))
        return (long, short) if width >= height else (short, long)

    def crop(self, pixels: np.ndarray) -> np.ndarray:
        height, width = pixels.shape[1:3]
        short = self.side if self.resized is None else self.resized
        if min(height, width) != short or (self.resized is None and height != width):
            problem = f"this model takes frames of {short} pixels, got {width} x {height}"
            raise ValueError(f"{problem}; use encoder.frame_size")
        top, left = (height - self.side) // 2, (width - self.side) // 2
        return pixels[:, top : top + self.side, left : left + self.side]

    def encode(self, model: Any, images: torch.Tensor) -> FrameTokens:
        """Encode [F, 3, side, side] normalised frames as [F, H, W, D] tokens."""
        return encode_squares(model, images)


def encode_patches(model: Any, patches: torch.Tensor, shape: tuple[int, int, int], merge: int) -> FrameTokens:
    """Encode patches [P, values] as T x H x W tokens, with a model that takes `video_grid_thw`."""
    t, h, w = shape
    grid = torch.tensor([[t, h * merge, w * merge]], device=patches.device)
    sizes = [torch.tensor([merge], device=patches.device)] if find_family(model.config).takes_merge_sizes else []
    output = model.get_video_features(patches, grid, *sizes, return_dict=True)
    deep = getattr(output, "deepstack_features", None) or ()
    tokens, *layers = (_flatten(features).view(*shape, -1) for features in (output.pooler_output, *deep))
    return FrameTokens(tokens, tuple(layers))


def encode_squares(model: Any, images: torch.Tensor) -> FrameTokens:
    """Encode frames [F, 3, side, side] as tokens, with a model that takes square frames."""
    family = find_family(model.config)
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


@dataclass(frozen=True, eq=False)
class VisionTower:
    """Encodes frames with the vision encoder of a model."""

    name: str
    model: Any  # the multimodal model, with or without its language model
    layout: PatchLayout | SquareLayout
    mean: torch.Tensor  # [3] in units of pixel values
    std: torch.Tensor  # [3]
    is_half: bool = True  # convert tokens to 16 bits, whatever the model's dtype

    @property
    def frames_per_token(self) -> int:
        return self.layout.frames_per_token

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        return self.layout.frame_size(width, height)

    def crop(self, pixels: np.ndarray) -> np.ndarray:
        return self.layout.crop(pixels)

    def __call__(self, pixels: np.ndarray) -> torch.Tensor:
        return self.encode(pixels).tokens

    @torch.no_grad()
    def encode(self, pixels: np.ndarray) -> FrameTokens:
        """Encode [B, height, width, 3] uint8 frames as tokens and deep features, on the model's device."""
        if len(pixels) % (count := self.frames_per_token):
            raise ValueError(f"{self.name} joins {count} frames, got {len(pixels)}; use floc.encoders.encode to pad")
        pixels, parts = self.crop(pixels), []
        for start in range(0, len(pixels), STEP):
            batch = to_tensor(pixels[start : start + STEP]).to(self.mean.device)
            images = ((batch - self.mean) / self.std).permute(0, 3, 1, 2).contiguous()
            tokens, deep = self.layout.encode(self.model, images.to(self.model.dtype))
            parts.append(FrameTokens(tokens.half() if self.is_half and tokens.element_size() > 2 else tokens, deep))
        tokens, *layers = (torch.cat(layer) for layer in zip(*(part.all for part in parts), strict=True))
        return FrameTokens(tokens, tuple(layers))


def load(name: str, device: str | None = None) -> VisionTower:
    """Load the encoder "hf:" with a folder or hub id."""
    config = load_part("config", name.removeprefix("hf:"), f"the encoder {name!r}")
    layout, mean, std = _load_preprocessing(name, config)
    target = torch.device(device or default_device())
    model = _load_without_language(name, config).to(target)
    return VisionTower(name, model, layout, mean.to(target), std.to(target))


def load_layout(name: str) -> PatchLayout | SquareLayout:
    """Load the frame layout of "hf:" with a folder or hub id."""
    return _load_preprocessing(name, load_part("config", name.removeprefix("hf:"), f"the encoder {name!r}"))[0]


def wrap_model(model: Any, source: str) -> VisionTower:
    """Create an encoder from a loaded model, with the preprocessing of its folder or hub id."""
    layout, mean, std = _load_preprocessing(source, model.config)
    return VisionTower(source, model.base_model, layout, mean.to(model.device), std.to(model.device), is_half=False)


def _load_preprocessing(name: str, config: Any) -> tuple[PatchLayout | SquareLayout, torch.Tensor, torch.Tensor]:
    """Read the layout, mean and std from the video preprocessor file, or from the one for images."""
    supported = [model_type for model_type, family in FAMILIES.items() if family.frames is not None]
    if config.model_type not in supported:
        types = f"{config.model_type!r} (supported types: {', '.join(supported)})"
        fix = "pass the inputs that its processor returns for the video to floc.capture"
        raise ValueError(f"{name}: floc cannot prepare frames for a model of type {types}; {fix}")
    for file in PREPROCESSOR_FILES:
        settings = read_json(name.removeprefix("hf:"), file)
        if file == "processor_config.json":  # has the settings of all parts of a processor
            settings = settings.get("video_processor") or settings.get("image_processor") or {}
        if settings:
            break
    else:
        raise ValueError(f"{name}: has no preprocessor file; it needs one of {', '.join(PREPROCESSOR_FILES)}")
    try:
        return _read_layout(FAMILIES[config.model_type], config, settings), *_read_normalisation(settings)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _read_normalisation(settings: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean [3] and std [3] that normalise pixel values, rescaling included."""
    scale = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
    if not settings.get("do_normalize", True):
        return torch.zeros(3), torch.full((3,), 1 / scale)
    if "image_mean" not in settings or "image_std" not in settings:
        raise ValueError("the preprocessor file must give image_mean and image_std, or set do_normalize to false")
    mean, std = (torch.tensor(settings[name], dtype=torch.float32).expand(3) for name in ("image_mean", "image_std"))
    return mean / scale, std / scale


def _read_layout(family: ModelFamily, config: Any, settings: Mapping[str, Any]) -> PatchLayout | SquareLayout:
    size = settings.get("size") or {}
    if family.frames == "squares":
        size = settings.get("max_image_size") or size
        crop = settings.get("crop_size") if settings.get("do_center_crop") else None
        if crop and "shortest_edge" in size:
            return SquareLayout(_read_side(crop), size["shortest_edge"])
        return SquareLayout(_read_side(size), None)
    vision = config.vision_config
    min_pixels = settings.get("min_pixels") or size.get("shortest_edge")
    max_pixels = settings.get("max_pixels") or size.get("longest_edge")
    if not min_pixels or not max_pixels:
        raise ValueError(f"the preprocessor file must give min_pixels and max_pixels, got size {size}")
    merge = getattr(vision, "spatial_merge_size", None) or settings.get("merge_size", DEFAULT_MERGE)
    if family.limits_whole_video:
        max_pixels = min(max_pixels, FRAME_TOKENS * (vision.patch_size * merge) ** 2)
    per_slice = getattr(vision, "temporal_patch_size", 1)
    return PatchLayout(vision.patch_size, merge, per_slice, min_pixels, max_pixels)


def _read_side(size: Mapping[str, int]) -> int:
    sides = {size[name] for name in ("height", "width", "longest_edge", "shortest_edge") if size.get(name)}
    if len(sides) != 1:
        raise ValueError(f"the preprocessor file must give one square size for frames, got {dict(size)}")
    return sides.pop()


def _load_without_language(name: str, config: Any) -> Any:
    from transformers import AutoModelForImageTextToText

    text = config.text_config
    text.num_hidden_layers = 0
    if getattr(text, "layer_types", None):
        text.layer_types = []
    options = dict(config=config, dtype="auto", output_loading_info=True)
    with hide_progress(hide_warnings=True):  # it would list every weight of the language model as unused
        loaded: Any = AutoModelForImageTextToText.from_pretrained(name.removeprefix("hf:"), **options)
    model, report = loaded[0].model, loaded[1]
    language = "text_model" if hasattr(model, "text_model") else "language_model"
    missing = [weight for weight in report["missing_keys"] if language not in weight and "lm_head" not in weight]
    if missing:
        raise ValueError(f"{name}: {len(missing)} weights of the vision encoder are missing, such as {missing[0]}")
    delattr(model, language)
    return model.eval()
