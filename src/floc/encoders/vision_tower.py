"""The vision tower and projector of a transformers model: the tokens are those its language model would see.

A family is a line in `FAMILIES`: which of the model's own functions makes the features, and how frames go in. Models
of the Qwen kind take frames of any size in whole patches and join them in pairs; the others take square frames.

The language model is built with no layers, so the weights of its layers stay in their files, and what there is of it is
dropped after loading. Frames are brought to the size that the model's preprocessor file asks for when the film is read,
with the reader's resampling, so that pixels differ a little from those of the model's processor; the rest of the
preprocessing is here, because those processors need torchvision.

A limit: where a model bounds the pixels of a whole film, as Qwen3-VL and GLM-V do, that bound cannot be known before
the film is read, so every frame has what a single frame may have. What Qwen3-VL adds in deeper layers is not in the
tokens, but beside them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from floc._arrays import to_tensor
from floc.encoders.base import default_device

STEP = 16  # frames at a time: bounds the tower's memory, and is even, so pairs stay together
FRAME_TOKENS = 768  # the most for a frame in Qwen's own tools, where the file bounds only the whole film
WHOLE_FILM = ("qwen3_vl", "qwen3_vl_moe", "glm4v", "glm4v_moe")  # models whose file does
VIDEO_LLAMA_3_MERGE = 2  # patches on a side of a token; its config does not say
PREPROCESSOR_FILES = ("video_preprocessor_config.json", "processor_config.json", "preprocessor_config.json")


class Visual(NamedTuple):
    """What a vision tower makes of a few frames."""

    tokens: torch.Tensor  # [T, H, W, D]
    deep: tuple[torch.Tensor, ...] = ()  # [T, H, W, D] each, what Qwen3-VL adds to the tokens in its first layers


@dataclass(frozen=True)
class Patches:
    """Frames of any size in whole patches, some joined into one token in time and space: `video_grid_thw`."""

    patch: int  # pixels
    merge: int  # patches on a side of a token
    frames_per_token: int
    least: int  # pixels of a frame
    most: int
    takes_merge: bool = False  # whether the model is told how many patches make a token

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

    def features(self, model: Any, images: torch.Tensor) -> Visual:
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
        return of_patches(model, patches, (t, h, w), self.merge, takes_merge=self.takes_merge)


def of_patches(
    model: Any, patches: torch.Tensor, shape: tuple[int, int, int], merge: int, *, takes_merge: bool
) -> Visual:
    """[P, values] patches of T x H x W tokens -> tokens, for models that take `video_grid_thw`."""
    t, h, w = shape
    grid = torch.tensor([[t, h * merge, w * merge]], device=patches.device)
    more = (torch.tensor([merge], device=patches.device),) if takes_merge else ()
    found = model.get_video_features(patches, grid, *more, return_dict=True)
    deep = getattr(found, "deepstack_features", None) or ()
    return Visual(_joined(found.pooler_output).view(*shape, -1), tuple(_joined(each).view(*shape, -1) for each in deep))


def of_frames(kind: str, model: Any, images: torch.Tensor) -> Visual:
    """[F, 3, side, side] -> tokens, for models that take square frames."""
    if kind in ("internvl", "smolvlm"):
        given = images if kind == "internvl" else images[None]
        found = model.get_image_features(given, return_dict=True)
    else:
        found = model.get_video_features(images[None], return_dict=True)
    flat = _joined(found.pooler_output)
    rows = math.isqrt(len(flat) // len(images))
    # what follows is no token of a frame: LLaVA-OneVision ends a film with a newline
    return Visual(flat[: len(images) * rows * rows].view(len(images), rows, rows, -1))


def _joined(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """Rows of features in one tensor, however a release hands them out."""
    if isinstance(parts, torch.Tensor):
        return parts.reshape(-1, parts.shape[-1])
    return torch.cat([each.reshape(-1, each.shape[-1]) for each in parts])


@dataclass(frozen=True)
class Squares:
    """Frames of one square size, each a square of tokens of its own."""

    side: int  # pixels
    resized: int | None  # the shorter side before the middle is cut out; None where frames are squeezed to the square
    kind: str  # the model's type
    frames_per_token: int = 1

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        """The square, or what the square is cut out of."""
        if self.resized is None:
            return self.side, self.side
        scale = self.resized / min(width, height)
        short, long = self.resized, int(max(width, height) * scale)
        return (long, short) if width >= height else (short, long)

    def features(self, model: Any, images: torch.Tensor) -> Visual:
        """[F, 3, height, width] normalised -> [F, H, W, D]."""
        height, width = images.shape[-2:]
        wanted = self.side if self.resized is None else self.resized
        if min(height, width) != wanted or (self.resized is None and height != width):
            raise ValueError(
                f"this model takes frames of {wanted} pixels, got {width} x {height}; "
                "frame_size(width, height) of the encoder names the size for a film"
            )
        down, across = self._middle(height, width)
        return of_frames(self.kind, model, images[..., down, across].contiguous())

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
    merge = getattr(vision, "spatial_merge_size", None) or values.get("merge_size", VIDEO_LLAMA_3_MERGE)
    if config.model_type in WHOLE_FILM:
        most = min(most, FRAME_TOKENS * (vision.patch_size * merge) ** 2)
    return Patches(
        vision.patch_size,
        merge,
        getattr(vision, "temporal_patch_size", 1),
        least,
        most,
        takes_merge=config.model_type == "video_llama_3",
    )


_PIXELS = (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))


def _squares(config: Any, values: Mapping[str, Any]) -> Squares:
    size = values.get("max_image_size") or values.get("size") or {}
    crop = values.get("crop_size") if values.get("do_center_crop") else None
    if crop and "shortest_edge" in size:
        return Squares(_square(crop), size["shortest_edge"], config.model_type)
    return Squares(_square(size), None, config.model_type)


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
    "glm4v": _patches,
    "glm4v_moe": _patches,
    "video_llama_3": _patches,
    "llava_onevision": _squares,
    "llava_next_video": _squares,
    "internvl": _squares,
    "smolvlm": _squares,
}


@dataclass(frozen=True, eq=False)
class VisionTower:
    """Frames to the tokens that a model's language model would see."""

    name: str
    model: Any  # the multimodal model, with or without its language model
    layout: Layout
    mean: torch.Tensor  # [3] in units of pixel values
    std: torch.Tensor  # [3]
    is_half: bool = True  # whether tokens come in a 16-bit format, whatever the model's

    @property
    def frames_per_token(self) -> int:
        return self.layout.frames_per_token

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        return self.layout.frame_size(width, height)

    def seen(self, pixels: np.ndarray) -> np.ndarray:
        return self.layout.seen(pixels)

    def __call__(self, pixels: np.ndarray) -> torch.Tensor:
        return self.look(pixels).tokens

    @torch.no_grad()
    def look(self, pixels: np.ndarray) -> Visual:
        """[B, height, width, 3] uint8 -> tokens, and what goes with them, on the model's device."""
        if len(pixels) % self.frames_per_token:
            raise ValueError(
                f"{self.name} joins {self.frames_per_token} frames into one, so it needs a multiple of them, "
                f"got {len(pixels)}; floc.encoders.encode takes care of that"
            )
        parts = []
        for start in range(0, len(pixels), STEP):
            few = to_tensor(pixels[start : start + STEP]).to(self.mean.device)
            images = ((few - self.mean) / self.std).permute(0, 3, 1, 2).contiguous()
            tokens, deep = self.layout.features(self.model, images.to(self.model.dtype))
            parts.append(Visual(tokens.half() if self.is_half and tokens.element_size() > 2 else tokens, deep))
        layers = zip(*(each.deep for each in parts), strict=True)
        return Visual(torch.cat([each.tokens for each in parts]), tuple(torch.cat(layer) for layer in layers))


def layout(name: str) -> Layout:
    """How frames must be for "hf:" and a folder or hub id."""
    source = name.removeprefix("hf:")
    return _prepared(name, source, _encoding_config(name, source))[0]


def _encoding_config(name: str, source: str) -> Any:
    config = config_of(source, f"the encoder {name!r}")
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"{name}: a model of type {config.model_type!r} cannot be an encoder here; there are: {', '.join(FAMILIES)}"
        )
    return config


def load(name: str, device: str | None = None) -> VisionTower:
    """The encoder for "hf:" and a folder or hub id."""
    source = name.removeprefix("hf:")
    config = _encoding_config(name, source)
    frames, mean, std = _prepared(name, source, config)
    place = torch.device(device or default_device())
    model = _without_language(name, source, config).to(place)
    return VisionTower(name, model, frames, mean.to(place), std.to(place))


def config_of(source: str, wanted_by: str) -> Any:
    """The config of a model in a folder or on the hub."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"{wanted_by} needs transformers: pip install 'floc-video[hf]'") from error
    try:
        return transformers.AutoConfig.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{source}: neither a folder with a model that transformers {transformers.__version__} knows, nor one of "
            f"the hub's ({str(error).strip().splitlines()[0]})"
        ) from error


def around(model: Any, source: str) -> VisionTower:
    """The vision tower of a model that is loaded already, with the preprocessing of its folder or hub id."""
    if model.config.model_type not in FAMILIES:
        raise ValueError(
            f"how to prepare frames for a model of type {model.config.model_type!r} is not known here; give what its "
            f"own processor makes of the video (known are: {', '.join(FAMILIES)})"
        )
    frames, mean, std = _prepared(source, source, model.config)
    return VisionTower(source, model.base_model, frames, mean.to(model.device), std.to(model.device), is_half=False)


def _prepared(name: str, source: str, config: Any) -> tuple[Layout, torch.Tensor, torch.Tensor]:
    values = _preprocessing(name, source)
    try:
        return FAMILIES[config.model_type](config, values), *_normalisation(values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


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
