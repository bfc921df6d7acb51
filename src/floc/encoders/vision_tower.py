"""The vision encoder and projector of a transformers model: tokens as its language model would see them.

The model's own processor prepares the frames. The language model is built without layers, so their weights are not
read, and the rest of it is dropped after loading.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from floc._arrays import to_tensor
from floc.encoders.base import FrameTokens, choose_device, require_rgb
from floc.encoders.chunks import (
    JOINED_BYTES,
    MOST_PIXEL_BYTES,
    STEP,
    count_patches,
    cut_frames,
    join_frames,
    limit_patches,
)
from floc.encoders.slice_choice import (
    ALL_SLICES,
    GROUP,
    SliceOptions,
    SliceRule,
    find_new,
    measure_frames,
    shrink_frames,
)
from floc.encoders.vision_features import (
    ADDS_TO_PLACEHOLDER,
    can_encode_in_chunks,
    encode_prepared,
    find_patch,
    require_chunks,
    require_separate_slices,
)
from floc.families import find_family
from floc.families.frame_size import limit_frame_tokens
from floc.families.pretrained import hide_progress, load_part
from floc.families.processing import Limit, Rate, VideoPlan, VideoPreparer, check_match
from floc.tokens import Frames
from floc.video.choice import FrameChoice, VideoFacts

LOADED_WHOLE = (*ADDS_TO_PLACEHOLDER, "gemma4")  # their embeddings depend on the number of layers, or are needed


@dataclass(frozen=True, eq=False)
class VisionLayout:
    """The frames that the vision encoder of a model takes."""

    name: str
    preparer: VideoPreparer
    plan: VideoPlan | None = None  # of the video that is encoded; None: one for each call
    frame_tokens: int | None = None  # the most of a frame; None: as many as the processor makes
    _plans: dict[tuple[int, ...], VideoPlan] = field(default_factory=dict, repr=False)  # by shape of the frames

    @property
    def frames_per_token(self) -> int:
        return self.preparer.frames_per_slice

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the same size: the processor resizes frames."""
        return width, height

    def crop(self, pixels: np.ndarray) -> np.ndarray:
        """Crop frames [B, height, width, 3] to the centre, if the processor does."""
        processor = self.preparer.video_processor
        crop = getattr(processor, "crop_size", None) if getattr(processor, "do_center_crop", False) else None
        if not crop:
            return pixels
        height, width = pixels.shape[1:3]
        scale = min(height / crop["height"], width / crop["width"])
        rows, columns = (max(1, int(crop[side] * scale)) for side in ("height", "width"))
        top, left = (height - rows) // 2, (width - columns) // 2
        return pixels[:, top : top + rows, left : left + columns]

    def plan_video(self, facts: VideoFacts, fps: Rate = None, max_frames: Limit = None) -> Self:
        """Return the layout for one video; the same if it has a plan."""
        if self.plan is not None:
            return self
        plan = self.preparer.plan(facts, fps=fps, max_frames=max_frames)
        if self.frame_tokens is not None:
            plan = limit_frame_tokens(self.preparer, plan, self.frame_tokens)
        return replace(self, plan=plan)

    def choose_frames(self) -> FrameChoice:
        """Return the frames to read of the planned video."""
        assert self.plan is not None
        return self.plan.choose_frames()

    def prepare(self, pixels: np.ndarray) -> Mapping[str, torch.Tensor]:
        """Prepare [B, height, width, 3] uint8 frames: of the planned video, else of a video of its own."""
        require_rgb(pixels)
        plan = self.plan
        if plan is None:
            count, height, width = pixels.shape[:3]
            if pixels.shape not in self._plans:
                facts = VideoFacts(count, float(self.frames_per_token), width, height)
                self._plans[pixels.shape] = self.preparer.plan_frames(facts, np.arange(count))
            plan = self._plans[pixels.shape]
        return self.preparer.prepare(plan, pixels)


@dataclass(frozen=True, eq=False)
class VisionTower(VisionLayout):
    """Encodes frames with the vision encoder of a model."""

    model: Any = None  # the multimodal model, with or without its language model
    is_half: bool = True  # convert tokens to 16 bits, whatever the model's dtype
    fast_vision: bool = True  # use fast attention, with the same results
    slices: SliceOptions = ALL_SLICES
    rule: SliceRule | None = field(default=None, init=False, repr=False)  # for the video that is encoded

    def __post_init__(self) -> None:
        if self.slices:  # a copy for another video has a rule of its own
            require_separate_slices(self.model.config, self.slices.name)
            patch = find_patch(self.model.config)
            rule = self.slices.create_rule(partial(measure_frames, patch=patch), partial(shrink_frames, patch=patch))
            object.__setattr__(self, "rule", rule)

    @property
    def call_frames(self) -> int:
        """Frames that a call needs at least: with `encode`, those that are compared."""
        return self.frames_per_token * (GROUP if self.slices.encode else 1)

    @property
    def chunk_frames(self) -> int:
        """Frames of the planned video to encode at a time: on a GPU as many as its free memory holds."""
        most = None if self.plan is None else limit_patches(self.model)
        if most is None or self.plan is None:
            return STEP
        patches = count_patches(self.model.config, self.plan.pixels[1]) / len(self.plan.indices)  # of a frame
        return max(self.frames_per_token, int(most / patches) // self.frames_per_token * self.frames_per_token)

    def join(self, batches: Iterable[Frames]) -> Iterator[Frames]:
        """Join batches of frames into the parts to encode at a time."""
        if not can_encode_in_chunks(self.model.config):
            return join_frames(batches, None, None)
        if self.slices.encode:
            return join_frames(cut_frames(batches, self.call_frames), self.call_frames, None)
        if self.slices:  # most slices of a part may be known, and a few alone are slow to encode
            return join_frames(batches, None, JOINED_BYTES)
        return join_frames(batches, self.chunk_frames, MOST_PIXEL_BYTES)

    def __call__(self, pixels: np.ndarray) -> torch.Tensor:
        return self.encode(pixels).tokens

    def prepare_steps(self, pixels: np.ndarray) -> Iterator[Mapping[str, torch.Tensor]]:
        """Prepare as many frames at a time as are encoded at a time, in the dtype of the model."""
        step = self.chunk_frames if can_encode_in_chunks(self.model.config) else len(pixels)
        for start in range(0, len(pixels), step):
            prepared = self.prepare(pixels[start : start + step])
            yield {
                name: value.to(self.model.dtype) if torch.is_tensor(value) and value.is_floating_point() else value
                for name, value in prepared.items()
            }

    @torch.no_grad()
    def encode(self, pixels: np.ndarray, timer: Any = None) -> FrameTokens:
        """Encode [B, height, width, 3] uint8 frames as tokens and deep features, on the model's device.

        With `reuse` or `encode`, frames follow those of the last call. `timer` is a `StageTimer`.
        """
        require_rgb(pixels)
        if len(pixels) % (count := self.frames_per_token):
            raise ValueError(f"{self.name} joins {count} frames, got {len(pixels)}; use floc.encoders.encode to pad")
        measure: Any = nullcontext if timer is None else timer.measure
        if self.rule is not None:
            with measure("compare"):
                slices = to_tensor(pixels).unflatten(0, (-1, count))
                sources = self.rule.find_sources(slices)
                pixels = pixels[find_new(sources).repeat(count)]
        parts = []
        steps = self.prepare_steps(pixels)
        for prepared in steps if timer is None else timer.measure_items("preprocess", steps):
            with measure("vision"):
                tokens, deep = encode_prepared(self.model, prepared, fast_vision=self.fast_vision)
                parts.append((self._convert(tokens), *deep))
        layers = tuple(torch.cat(layer) for layer in zip(*parts, strict=True))
        if self.rule is not None:
            layers = self.rule.expand(slices, sources, layers)
        return FrameTokens(layers[0], layers[1:])

    def forget(self) -> None:
        """Forget the video, before another."""
        if self.rule is not None:
            self.rule.forget()

    def _convert(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.half() if self.is_half and tokens.element_size() > 2 else tokens


def load(
    name: str, device: str | None = None, *, slices: SliceOptions = ALL_SLICES, fast_vision: bool = True
) -> VisionTower:
    """Load the encoder "hf:" with a folder or hub id; options are as in `floc.encoders.get`."""
    target, layout = choose_device(device), load_layout(name)
    config = load_part("config", name.removeprefix("hf:"), f"the encoder {name!r}")
    if slices:
        require_separate_slices(config, slices.name)
    model = _load_without_language(name, config).to(target)
    return VisionTower(name, layout.preparer, model=model, slices=slices, fast_vision=fast_vision)


def load_layout(name: str) -> VisionLayout:
    """Load the frame layout of "hf:" with a folder or hub id."""
    source, purpose = name.removeprefix("hf:"), f"the encoder {name!r}"
    config = load_part("config", source, purpose)
    find_family(config)
    try:
        require_chunks(config)
        return VisionLayout(name, VideoPreparer(load_part("processor", source, purpose)))
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(source) else f"{name}: {error}") from error


def wrap_model(model: Any, processor: Any) -> VisionTower:
    """Create an encoder from a loaded model and its processor."""
    check_match(processor, model.config)
    name = str(getattr(model, "name_or_path", "") or type(model).__name__)
    return VisionTower(name, VideoPreparer(processor), model=model.base_model, is_half=False)


def _load_without_language(name: str, config: Any) -> Any:
    """Load the multimodal model of a folder or hub id, without its language model."""
    from transformers import AutoModelForImageTextToText

    text = config.get_text_config()
    if config.model_type not in LOADED_WHOLE:
        text.num_hidden_layers = 0
        if getattr(text, "layer_types", None):
            text.layer_types = []
    options = dict(config=config, dtype="auto", output_loading_info=True)
    with hide_progress(hide_warnings=True):  # it would list every weight of the language model as unused
        loaded: Any = AutoModelForImageTextToText.from_pretrained(name.removeprefix("hf:"), **options)
    model, report = loaded
    base, decoder = model.base_model, model.get_decoder()
    parent, _, child = next(path for path, module in base.named_modules() if module is decoder).rpartition(".")
    missing = [key for key in report["missing_keys"] if f".{child}." not in f".{key}" and "lm_head" not in key]
    if missing:
        raise ValueError(f"{name}: {len(missing)} weights of the vision encoder are missing, such as {missing[0]}")
    if config.model_type not in ADDS_TO_PLACEHOLDER:
        delattr(base.get_submodule(parent), child)
    return base.eval()
