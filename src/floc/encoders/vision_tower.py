"""The vision encoder and projector of a transformers model: tokens as its language model would see them.

The language model is built without layers, so their weights are not read, and the rest of it is dropped after loading.
The processors need torchvision, so frames are prepared here: the video reader resizes them, hence pixels differ a
little, and a limit on the pixels of a whole video (Qwen3-VL, GLM-V) is replaced by one on the pixels of a frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from floc._arrays import to_tensor
from floc.encoders.base import FrameTokens, default_device
from floc.encoders.layouts import PatchLayout, SquareLayout, read_layout
from floc.families import FAMILIES
from floc.families.pretrained import hide_progress, load_part, read_json

STEP = 16  # frames encoded at a time: bounds the memory; even, so that pairs stay together
PREPROCESSOR_FILES = ("video_preprocessor_config.json", "processor_config.json", "preprocessor_config.json")


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
        if len(pixels) % self.frames_per_token:
            raise ValueError(
                f"{self.name} joins {self.frames_per_token} frames, so it needs a multiple of "
                f"{self.frames_per_token}, got {len(pixels)}; use floc.encoders.encode, which fills up the last group"
            )
        parts = []
        for start in range(0, len(pixels), STEP):
            batch = to_tensor(pixels[start : start + STEP]).to(self.mean.device)
            images = ((batch - self.mean) / self.std).permute(0, 3, 1, 2).contiguous()
            tokens, deep = self.layout.encode(self.model, images.to(self.model.dtype))
            parts.append(FrameTokens(tokens.half() if self.is_half and tokens.element_size() > 2 else tokens, deep))
        tokens, *layers = (torch.cat(layer) for layer in zip(*(part.all for part in parts), strict=True))
        return FrameTokens(tokens, tuple(layers))


def load(name: str, device: str | None = None) -> VisionTower:
    """Load the encoder "hf:" with a folder or hub id."""
    config = _load_config(name)
    layout, mean, std = _load_preprocessing(name, config)
    target = torch.device(device or default_device())
    model = _load_without_language(name, config).to(target)
    return VisionTower(name, model, layout, mean.to(target), std.to(target))


def load_layout(name: str) -> PatchLayout | SquareLayout:
    """Load the frame layout of "hf:" with a folder or hub id."""
    return _load_preprocessing(name, _load_config(name))[0]


def wrap_model(model: Any, source: str) -> VisionTower:
    """Create an encoder from a loaded model, with the preprocessing of its folder or hub id."""
    if model.config.model_type not in _list_supported():
        raise ValueError(
            f"floc cannot prepare frames for a model of type {model.config.model_type!r}; pass the inputs that its "
            f"processor returns for the video (supported types: {', '.join(_list_supported())})"
        )
    layout, mean, std = _load_preprocessing(source, model.config)
    return VisionTower(source, model.base_model, layout, mean.to(model.device), std.to(model.device), is_half=False)


def _list_supported() -> list[str]:
    return [model_type for model_type, family in FAMILIES.items() if family.frames is not None]


def _load_config(name: str) -> Any:
    config = load_part("config", name.removeprefix("hf:"), f"the encoder {name!r}")
    if config.model_type not in _list_supported():
        raise ValueError(
            f"{name}: a model of type {config.model_type!r} is not supported as an encoder; "
            f"supported types: {', '.join(_list_supported())}"
        )
    return config


def _load_preprocessing(name: str, config: Any) -> tuple[PatchLayout | SquareLayout, torch.Tensor, torch.Tensor]:
    """Read the layout, mean and std from the video preprocessor file, or from the one for images."""
    for file in PREPROCESSOR_FILES:
        settings = read_json(name.removeprefix("hf:"), file)
        if file == "processor_config.json":  # has the settings of all parts of a processor
            settings = settings.get("video_processor") or settings.get("image_processor") or {}
        if settings:
            break
    else:
        raise ValueError(f"{name}: has no preprocessor file; it needs one of {', '.join(PREPROCESSOR_FILES)}")
    try:
        return read_layout(FAMILIES[config.model_type], config, settings), *_read_normalisation(settings)
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


def _load_without_language(name: str, config: Any) -> Any:
    """Load the multimodal model without its language model."""
    from transformers import AutoModelForImageTextToText

    text = config.text_config
    text.num_hidden_layers = 0
    if getattr(text, "layer_types", None):
        text.layer_types = []
    with hide_progress(hide_warnings=True):  # it would list every weight of the language model as unused
        loaded: Any = AutoModelForImageTextToText.from_pretrained(
            name.removeprefix("hf:"), config=config, dtype="auto", output_loading_info=True
        )
    full, report = loaded
    model = full.model
    language = "text_model" if hasattr(model, "text_model") else "language_model"
    missing = [weight for weight in report["missing_keys"] if language not in weight and "lm_head" not in weight]
    if missing:
        raise ValueError(f"{name}: {len(missing)} weights of the vision encoder are missing, such as {missing[0]}")
    delattr(model, language)
    return model.eval()
