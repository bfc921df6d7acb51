"""The vision tower and projector of a transformers model: the tokens are those its language model would see.

A family is a line in `FAMILIES`: which of the model's own functions makes the features, and how frames go in. Models
of the Qwen kind take frames of any size in whole patches and join them in pairs; the others take square frames.

The language model is built with no layers, so the weights of its layers stay in their files, and what there is of it is
dropped after loading. Frames are brought to the size that the model's preprocessor file asks for when the film is read,
with the reader's resampling, so that pixels differ a little from those of the model's processor; the rest of the
preprocessing is here, because those processors need torchvision.

Two limits, both of Qwen3-VL: its bound on the pixels of a whole film cannot be known before the film is read, so every
frame has what a single frame may have; and features that it adds in deeper layers (deepstack) are not in the tokens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from ..arrays import tensor_of
from . import default_device

STEP = 16  # frames at a time: bounds the tower's memory, and is even, so pairs stay together
QWEN3_FRAME_TOKENS = 768  # the most for a frame in Qwen's own tools, where the file bounds only the whole film
PREPROCESSOR_FILES = ("video_preprocessor_config.json", "processor_config.json", "preprocessor_config.json")


@dataclass(frozen=True)
class Patches:
    """Frames of any size in whole patches, some joined into one token in time and space: `video_grid_thw`."""

    patch: int  # pixels
    merge: int  # patches on a side of a token
    frames_per_token: int
    least: int  # pixels of a frame
    most: int

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        """The nearest size in whole tokens, the aspect kept, that has a permitted number of pixels: Qwen's rule."""
        if max(width, height) > 200 * min(width, height):
            raise ValueError(f"these models take films up to 200 times as long as wide, got {width} x {height}")
        side = self.patch * self.merge
        columns, rows = round(width / side), round(height / side)
        if columns * rows * side**2 > self.most:
            scale = math.sqrt(self.most / (width * height))
            columns, rows = (max(1, math.floor(each * scale / side)) for each in (width, height))
        elif columns * rows * side**2 < self.least:
            scale = math.sqrt(self.least / (width * height))
            columns, rows = (math.ceil(each * scale / side) for each in (width, height))
        return columns * side, rows * side

    def seen(self, pixels: np.ndarray) -> np.ndarray:
        """[F, height, width, 3] -> the part of it that tokens are made of: all."""
        return pixels

    def features(self, model: Any, images: torch.Tensor) -> torch.Tensor:
        """[F, 3, height, width] normalised -> [F / frames_per_token, H, W, D]."""
        frames, channels, height, width = images.shape
        side = self.patch * self.merge
        if height % side or width % side:
            raise ValueError(
                f"the sides of a frame must be multiples of {side} pixels for this model, got {width} x {height}; "
                "frame_size(width, height) of the encoder names the size for a film"
            )
        joined = self.frames_per_token
        t, h, w = frames // joined, height // side, width // side
        patches = images.view(t, joined, channels, h, self.merge, self.patch, w, self.merge, self.patch)
        # patches of one token follow one another; inside a patch channel, frame, row, column
        patches = patches.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w * self.merge**2, -1)
        grid = torch.tensor([[t, h * self.merge, w * self.merge]], device=images.device)
        (tokens,) = model.get_video_features(patches, grid).pooler_output
        return tokens.view(t, h, w, -1)


@dataclass(frozen=True)
class Squares:
    """Frames of one square size, each a square of tokens of its own."""

    side: int  # pixels
    resized: int | None  # the shorter side before the middle is cut out; None where frames are squeezed to the square
    call: Callable[[Any, torch.Tensor], Iterable[torch.Tensor]]  # the model and [F, 3, side, side] -> F * H * W tokens
    frames_per_token: int = 1

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        """The square, or what the square is cut out of."""
        if self.resized is None:
            return self.side, self.side
        scale = self.resized / min(width, height)
        short, long = self.resized, int(max(width, height) * scale)
        return (long, short) if width >= height else (short, long)

    def features(self, model: Any, images: torch.Tensor) -> torch.Tensor:
        """[F, 3, height, width] normalised -> [F, H, W, D]."""
        height, width = images.shape[-2:]
        wanted = self.side if self.resized is None else self.resized
        if min(height, width) != wanted or (self.resized is None and height != width):
            raise ValueError(
                f"this model takes frames of {wanted} pixels, got {width} x {height}; "
                "frame_size(width, height) of the encoder names the size for a film"
            )
        down, across = self._middle(height, width)
        tokens = self.call(model, images[..., down, across].contiguous())
        flat = torch.cat([each.reshape(-1, each.shape[-1]) for each in tokens])
        rows = math.isqrt(len(flat) // len(images))
        # what follows is no token of a frame: LLaVA-OneVision ends a film with a newline
        return flat[: len(images) * rows * rows].view(len(images), rows, rows, -1)

    def seen(self, pixels: np.ndarray) -> np.ndarray:
        """[F, height, width, 3] -> the part of it that tokens are made of."""
        down, across = self._middle(*pixels.shape[1:3])
        return pixels[:, down, across]

    def _middle(self, height: int, width: int) -> tuple[slice, slice]:
        top, left = (height - self.side) // 2, (width - self.side) // 2
        return slice(top, top + self.side), slice(left, left + self.side)


Layout: TypeAlias = Patches | Squares


def _patches(config: Any, values: Mapping[str, Any]) -> Patches:
    vision = config.vision_config
    size = values.get("size") or {}
    least, most = (values.get(a) or size.get(b) for a, b in _PIXELS)
    if not least or not most:
        raise ValueError(f"the preprocessor file must give min_pixels and max_pixels, got size {size}")
    if config.model_type.startswith("qwen3"):
        most = min(most, QWEN3_FRAME_TOKENS * (vision.patch_size * vision.spatial_merge_size) ** 2)
    return Patches(vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size, least, most)


_PIXELS = (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))


Call: TypeAlias = Callable[[Any, torch.Tensor], Iterable[torch.Tensor]]


def _squares(call: Call) -> Callable[[Any, Mapping[str, Any]], Squares]:
    def layout(config: Any, values: Mapping[str, Any]) -> Squares:
        size = values.get("max_image_size") or values.get("size") or {}
        crop = values.get("crop_size") if values.get("do_center_crop") else None
        if crop and "shortest_edge" in size:
            return Squares(_square(crop), size["shortest_edge"], call)
        return Squares(_square(size), None, call)

    return layout


def _square(size: Mapping[str, int]) -> int:
    sides = {size[each] for each in ("height", "width", "longest_edge", "shortest_edge") if size.get(each)}
    if len(sides) != 1:
        raise ValueError(f"the preprocessor file must give one square size for frames, got {dict(size)}")
    return sides.pop()


FAMILIES: dict[str, Callable[[Any, Mapping[str, Any]], Layout]] = {
    "qwen2_vl": _patches,
    "qwen2_5_vl": _patches,
    "qwen3_vl": _patches,
    "qwen3_vl_moe": _patches,
    "llava_onevision": _squares(lambda model, images: model.get_video_features(images[None]).pooler_output),
    "llava_next_video": _squares(lambda model, images: model.get_video_features(images[None]).pooler_output),
    "internvl": _squares(lambda model, images: model.get_image_features(images).pooler_output),
    "smolvlm": _squares(lambda model, images: model.get_image_features(images[None]).pooler_output),
}


@dataclass(frozen=True, eq=False)
class VisionTower:
    """Frames to the tokens that a model's language model would see."""

    name: str
    model: Any  # without its language model
    layout: Layout
    mean: torch.Tensor  # [3] in units of pixel values
    std: torch.Tensor  # [3]

    @property
    def frames_per_token(self) -> int:
        return self.layout.frames_per_token

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        return self.layout.frame_size(width, height)

    def seen(self, pixels: np.ndarray) -> np.ndarray:
        return self.layout.seen(pixels)

    @torch.inference_mode()
    def __call__(self, pixels: np.ndarray) -> torch.Tensor:
        if len(pixels) % self.frames_per_token:
            raise ValueError(
                f"{self.name} joins {self.frames_per_token} frames into one, so it needs a multiple of them, "
                f"got {len(pixels)}; floc.encoders.encode takes care of that"
            )
        parts = []
        for start in range(0, len(pixels), STEP):
            few = tensor_of(pixels[start : start + STEP]).to(self.mean.device)
            images = ((few - self.mean) / self.std).permute(0, 3, 1, 2).contiguous()
            tokens = self.layout.features(self.model, images.to(self.model.dtype))
            parts.append(tokens if tokens.element_size() == 2 else tokens.half())
        return torch.cat(parts)


def load(name: str, device: str | None = None) -> VisionTower:
    """The encoder for "hf:" and a folder or hub id."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"the encoder {name!r} needs transformers: pip install 'floc[hf]'") from error
    source = name.removeprefix("hf:")
    try:
        config = transformers.AutoConfig.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{name}: neither a folder with a model that transformers {transformers.__version__} knows, nor one of the "
            f"hub's ({str(error).strip().splitlines()[0]})"
        ) from error
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"{name}: a model of type {config.model_type!r} cannot be an encoder here; there are: {', '.join(FAMILIES)}"
        )
    values = _preprocessing(name, source)
    try:
        layout = FAMILIES[config.model_type](config, values)
        mean, std = _normalisation(values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    place = torch.device(device or default_device())
    model = _without_language(name, source, config).to(place)
    return VisionTower(name, model, layout, mean.to(place), std.to(place))


def _preprocessing(name: str, source: str) -> dict[str, Any]:
    """What the model's video preprocessor is set to, or the one for images where there is none for video."""
    from transformers.utils import cached_file

    for file in PREPROCESSOR_FILES:
        path = cached_file(source, file, _raise_exceptions_for_missing_entries=False)
        if path is None:
            continue
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        if file == "processor_config.json":  # one file for all of a processor's parts
            values = values.get("video_processor") or values.get("image_processor") or {}
        if values:
            return values
    raise ValueError(f"{name}: has none of the files that say how to prepare frames: {', '.join(PREPROCESSOR_FILES)}")


def _normalisation(values: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """[3] mean and [3] standard deviation to take pixel values by, rescaling included."""
    scale = values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0
    if not values.get("do_normalize", True):
        return torch.zeros(3), torch.full((3,), 1 / scale)
    if "image_mean" not in values or "image_std" not in values:
        raise ValueError("the preprocessor file must give image_mean and image_std, or set do_normalize to false")
    mean, std = (torch.tensor(values[each], dtype=torch.float32).expand(3) for each in ("image_mean", "image_std"))
    return mean / scale, std / scale


def _without_language(name: str, source: str, config: Any) -> Any:
    """The multimodal model, ready to run, with what makes visual features and nothing more."""
    from transformers import AutoModelForImageTextToText

    text = config.text_config
    text.num_hidden_layers = 0
    if getattr(text, "layer_types", None):
        text.layer_types = []
    with _quiet():  # it would list every weight of the language model as left over
        loaded: Any = AutoModelForImageTextToText.from_pretrained(
            source, config=config, dtype="auto", output_loading_info=True
        )
    full, report = loaded
    model = full.model
    language = "text_model" if hasattr(model, "text_model") else "language_model"
    missing = [each for each in report["missing_keys"] if language not in each and "lm_head" not in each]
    if missing:
        raise ValueError(f"{name}: {len(missing)} weights of the vision tower are missing, such as {missing[0]}")
    delattr(model, language)
    return model.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    before = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
