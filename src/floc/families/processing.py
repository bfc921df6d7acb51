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
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from floc.families.preparation import Preparation
from floc.families.pretrained import hide_progress, load_part
from floc.families.processor_control import (
    FIND,
    PIXELS,
    SKIP,
    Resizing,
    SizeFound,
    TimeDrawing,
    answer_with,
    control_resize,
    extrapolate,
)
from floc.families.sampling import describe_video, sample_frames
from floc.families.table import find_family
from floc.video.choice import FrameChoice, VideoFacts

Rate: TypeAlias = float | Literal["all"] | None  # frames per second; None: the processor's
Turns: TypeAlias = Sequence[tuple[str, str]]  # questions about a video with their answers, oldest first
Limit: TypeAlias = int | Literal["all"] | None  # the most frames; None: the processor's

MANY_FRAMES = 4096  # beyond the limits of processors on a whole video
DEFAULT_FPS = 2.0  # of Qwen's own tools and of vLLM, for processors that would take every frame
# first words of the settings of a video processor that shape pixels and grids, and those of them that do not
_SHAPING = (
    *("size", "crop", "resample", "rescale", "image", "min", "max", "patch", "temporal", "merge", "do"),
    *("pooling", "scale", "cap", "draw"),
)
_SAMPLING = ("min_frames", "max_frames", "max_fps", "do_sample_frames")


@dataclass(frozen=True, eq=False)
class VideoPlan:
    """How a processor reads a video."""

    facts: VideoFacts
    indices: np.ndarray  # [F] int64, the frames it takes
    size: Any  # SizeDict that its frames are resized to; None if the number of frames does not matter
    outputs: Mapping[str, Any]  # what it returns for the whole video, without pixels
    pixels: tuple[str, tuple[int, ...]]  # name and shape of the pixels of the whole video
    resizing: Resizing | None = None  # how it resizes a frame; None if that cannot be done on its own
    fps: float | None = None  # the rate that it was asked for; None if its own
    drawing: TimeDrawing | None = None  # how it draws times into frames, if it does
    taken: int | None = None  # as in `Preparation`

    @property
    def frame_size(self) -> tuple[int, int]:
        """Width and height of the frames that `VideoPreparer.prepare` takes."""
        return (self.facts.width, self.facts.height) if self.resizing is None else self.resizing.frame_size

    def choose_frames(self) -> FrameChoice:
        """Return the frames to read, for `floc.video.read`."""
        return FrameChoice(self.indices, *self.frame_size, self.resizing, self.drawing)

    def describe(self) -> Any:
        """Return the plan as `VideoMetadata` of transformers."""
        # processors compute the rate of the frames they took from this
        share = 1 if self.taken is None else len(self.indices) / self.taken
        return describe_video(self.facts, self.facts.frames * share, self.indices.tolist())


class VideoPreparer:
    """Prepares videos and prompts with the processor of a model."""

    def __init__(self, processor: Any) -> None:
        if getattr(processor, "video_processor", None) is None:
            given = f"{type(processor).__name__}, which has no video processor"
            raise ValueError(f"pass the model's processor, AutoProcessor.from_pretrained(...); got {given}")
        self.processor = processor
        self.video_processor = video_processor = processor.video_processor
        merged = processor._merge_kwargs(
            processor.valid_processor_kwargs, tokenizer_init_kwargs=processor.tokenizer.init_kwargs
        )
        accepted = video_processor.valid_kwargs.__annotations__
        self.settings: dict[str, Any] = {
            name: value
            for name, value in merged["videos_kwargs"].items()
            if name in accepted
            and name not in ("return_tensors", "return_metadata", "do_sample_frames", "video_metadata")
        }
        if "cap_pixels_per_frame" in accepted:  # as the model was trained; unset, it warns and does not
            self.settings.setdefault("cap_pixels_per_frame", True)
        if getattr(video_processor, "do_resize", None):  # MiniMax's processor expects frames of the right size
            self.settings["do_resize"] = True
        self.draws_times = self.settings.get("draw_on_frames", getattr(video_processor, "draw_on_frames", False))
        if "use_token_compression" in accepted:  # floc compresses
            self.settings["use_token_compression"] = False

    @property
    def frames_per_slice(self) -> int:
        """Frames that the model joins into one slice of tokens."""
        joined = getattr(self.video_processor, "temporal_patch_size", None)
        return int(joined or getattr(self.processor, "video_temporal_patch_dim", None) or 1)

    def plan(self, facts: VideoFacts, *, fps: Rate = None, max_frames: Limit = None) -> VideoPlan:
        """Decide which frames to take and how large they are, as the processor would.

        Args:
            fps: Frames per second, or "all"; the processor's by default.
            max_frames: The most frames, or "all"; the processor's limit by default.
        """
        rate = facts.fps if fps == "all" else None if fps is None else min(fps, facts.fps)
        if fps is None and all(getattr(self.video_processor, name, None) is None for name in ("fps", "num_frames")):
            rate = DEFAULT_FPS
        try:
            limit = facts.frames if max_frames == "all" else max_frames
            given = self.video_processor, self.settings, facts
            indices = sample_frames(*given, rate, limit, must_follow=fps is not None)
            if not len(indices):
                raise ZeroDivisionError
            plan = self.plan_frames(facts, indices, self._find_size(len(indices), facts), rate)
            if plan.drawing is not None:  # it may miss its font
                replace(plan.drawing)(np.zeros((facts.height, facts.width, 3), np.uint8), 0)
        except (ValueError, ZeroDivisionError, RuntimeError, AttributeError, OSError) as error:
            video = f"{facts.frames} frames of {facts.width} x {facts.height} at {facts.fps:g} per second"
            problem = f"{type(self.processor).__name__} cannot take this video, {video}"
            if isinstance(error, ZeroDivisionError):
                reason = "it takes too few frames of it; give a longer video, or a larger fps or max_frames"
                raise ValueError(f"{problem}: {reason}") from error
            raise ValueError(f"{problem} ({error}); change fps or max_frames, or the video") from error
        self._require_same_size(plan)
        return plan

    def plan_frames(
        self, facts: VideoFacts, indices: np.ndarray, size: Any = None, fps: float | None = None
    ) -> VideoPlan:
        """Plan given frames; `size` and `fps` are those of `VideoPlan`."""
        step = self.frames_per_slice
        shortest = min(len(indices), step + len(indices) % step)  # not all processors fill the last slice
        one, two = (self._describe_frames(count, facts, size) for count in (shortest, shortest + step))
        steps = (len(indices) - shortest) // step
        outputs = {name: extrapolate(one[name], two[name], steps) for name in one if name != "video_metadata"}
        name = next(name for name in PIXELS if name in outputs)
        plan = VideoPlan(facts, indices, size, outputs, (name, tuple(outputs.pop(name).shape)), fps=fps)
        plan = replace(plan, resizing=self._find_resizing(plan))
        if not self.draws_times:
            return plan
        return replace(plan, drawing=TimeDrawing(self.video_processor, plan.describe().timestamps))

    def prepare(self, plan: VideoPlan, pixels: np.ndarray) -> dict[str, torch.Tensor]:
        """Prepare a few frames of a video: the inputs of the vision encoder.

        Args:
            pixels: [F, height, width, 3] uint8, of the video's own size or of `plan.frame_size`; with drawn times, if
                the plan has them, as `floc.video.read` returns them for `plan.choose_frames`.
        """
        if plan.drawing is not None and not plan.drawing.is_used:
            problem = f"{type(self.video_processor).__name__} draws the time into every frame, and these have none"
            raise ValueError(f"{problem}; pass the video file, or set draw_on_frames=False in the processor")
        is_resized = plan.resizing is not None and pixels.shape[2:0:-1] == plan.frame_size
        missing = self.frames_per_slice - len(pixels)
        if missing > 0 and self._fills_slice(plan, len(pixels)):  # some refuse less than a slice
            pixels = np.concatenate([pixels, *[pixels[-1:]] * missing])
        processor = self._control(SKIP if is_resized else plan.size)
        return dict(processor(videos=[pixels], do_sample_frames=False, return_tensors="pt", **self._processing()))

    def record(self, plan: VideoPlan) -> Preparation:
        """Return what is done to a video, for `restore`."""
        size = None if plan.size is None else [int(plan.size["height"]), int(plan.size["width"])]
        return Preparation(*self._describe(), plan.facts, plan.indices, size, plan.fps)

    def restore(self, record: Preparation) -> VideoPlan:
        """Return the plan that was recorded; raise ValueError if this processor would prepare the video differently."""
        from transformers.image_utils import SizeDict

        self.require_same(record)
        size = None if record.size is None else SizeDict(height=record.size[0], width=record.size[1])
        return replace(self.plan_frames(record.facts, record.indices, size, record.fps), taken=record.taken)

    def require_same(self, record: Preparation) -> None:
        """Raise ValueError if this processor would prepare a recorded video differently."""
        record.require_same(*self._describe())

    def write_prompt(
        self, plan: VideoPlan, question: str, history: Turns = (), *, asks_token_types: bool = False
    ) -> Any:
        """Write the prompt for a question about a video, without pixels, as the processor would.

        Args:
            history: Earlier questions about the video with their answers, oldest first.
            asks_token_types: As in `ModelFamily`.
        """
        said = [*chain(*history), question]
        marker = getattr(self.processor, "video_token", None)
        if marker and any(marker in text for text in said):
            raise ValueError(f"{marker} stands for a video in a prompt; remove it from the question")
        check_processor(self.processor)
        texts = zip(cycle(("user", "assistant")), said, strict=False)
        turns = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in texts]
        # any array will do: the processor below returns what it knows already
        turns[0]["content"] = [{"type": "video", "video": np.zeros((1, 1, 1, 3), np.uint8)}, *turns[0]["content"]]
        options: dict[str, Any] = {} if plan.fps is None else {"fps": plan.fps}  # some write it into their outputs
        options |= {"return_mm_token_type_ids": True} if asks_token_types else {}
        inputs = self._apply_template(turns, options, plan)
        return type(inputs)(
            {name: inputs[name] for name in inputs if name not in PIXELS and torch.is_tensor(inputs[name])}
        )

    def _apply_template(self, turns: list[Any], options: dict[str, Any], plan: VideoPlan) -> Any:
        """Let the processor write a prompt, with pixels that take no memory."""
        from jinja2 import TemplateError

        settings: dict[str, Any] = dict(add_generation_prompt=True, tokenize=True, return_dict=True)
        processor = copy.copy(self.processor)

        def write(device: str) -> Any:
            given = plan.outputs, plan.pixels, plan.describe()
            processor.video_processor = answer_with(self.video_processor, *given, device)
            return processor.apply_chat_template(turns, **settings, return_tensors="pt", processor_kwargs=options)

        try:
            return write("meta")
        except (NotImplementedError, TypeError, RuntimeError):  # it turns pixels into an array, to read their shape
            return write("cpu")
        except TemplateError as error:
            raise ValueError(f"the processor's chat template does not support videos ({error})") from error

    def depends_on_count(self, width: int, height: int) -> bool:
        """Return whether long videos have smaller frames."""
        return self._find_size(MANY_FRAMES, VideoFacts(MANY_FRAMES, 1.0, width, height)) is not None

    def _find_size(self, frames: int, facts: VideoFacts) -> Any:
        """Return the size of a frame if it depends on the number of frames, else None."""
        sizes: list[Any] = []
        for count in (frames, min(frames, self.frames_per_slice)):
            try:
                self._describe_frames(count, facts, FIND, torch.device("meta"))
                sizes.append(None)
            except SizeFound as found:
                sizes.append(found.args[0])
            except (NotImplementedError, RuntimeError):  # it computes with pixels before it resizes
                return None
        return sizes[0] if sizes[0] != sizes[1] else None  # more frames never make larger frames

    def _require_same_size(self, plan: VideoPlan) -> None:
        """Raise ValueError if the processor makes frames of another size, which happens if it resizes on its own."""
        try:
            whole = self._describe_frames(len(plan.indices), plan.facts, None, torch.device("meta"))
        except (NotImplementedError, RuntimeError):  # it computes with pixels
            return
        name, shape = plan.pixels
        if tuple(whole[name].shape) != shape:
            problem = f"{type(self.video_processor).__name__} makes frames smaller the more there are"
            fix = "take fewer frames with max_frames=, or pass the inputs that the processor returns"
            raise ValueError(f"{problem}, in a way that floc cannot follow for {len(plan.indices)} frames; {fix}")

    def _find_resizing(self, plan: VideoPlan) -> Resizing | None:
        """Return how the processor resizes a frame, if it does so once, before all else; checked with noise."""
        facts = plan.facts
        shape = (self.frames_per_slice, facts.height, facts.width, 3)
        noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        processor = self._control(plan.size)
        expected = dict(processor(videos=[noise], do_sample_frames=False, return_tensors="pt", **self._processing()))
        if len(processor.calls) != 1:
            return None
        ((image, size, args, kwargs, resized),) = processor.calls
        if image.dtype != torch.uint8 or resized.dtype != torch.uint8 or image.shape[-2:] != shape[1:3]:
            return None
        processor.calls = []
        resizing = Resizing(processor, size, args, kwargs, (resized.shape[-1], resized.shape[-2]))
        found = self.prepare(replace(plan, resizing=resizing), np.stack([resizing(frame) for frame in noise]))
        is_equal = all(torch.equal(value, found[name]) for name, value in expected.items() if torch.is_tensor(value))
        return resizing if is_equal else None

    def _fills_slice(self, plan: VideoPlan, frames: int) -> bool:
        """Return whether the processor repeats the last frame to fill the last slice."""
        name, step = plan.pixels[0], self.frames_per_slice
        short, full = (self._describe_frames(count, plan.facts, plan.size) for count in (step + frames, 2 * step))
        return short[name].shape == full[name].shape

    def _describe_frames(
        self, frames: int, facts: VideoFacts, size: Any, device: torch.device | None = None
    ) -> dict[str, Any]:
        """Return what the processor returns for so many empty frames; on the device "meta" they take no memory."""
        empty = torch.zeros(1, 1, 1, 1, dtype=torch.uint8, device=device)
        empty = empty.expand(frames, 3, facts.height, facts.width)
        given = dict(self._processing(), do_convert_rgb=False, do_sample_frames=False, return_tensors="pt")
        with hide_progress(hide_warnings=device is not None):  # of what it cannot do on "meta"
            return dict(self._control(size)(videos=[empty], **given))

    def _control(self, size: Any) -> Any:
        """Return the video processor with frames resized to `size`, or as usual if it is None."""
        changed = copy.copy(self.video_processor)
        changed.__class__ = control_resize(self.video_processor.__class__)
        changed.fixed_size, changed.calls = size, []
        return changed

    def _describe(self) -> tuple[str, dict[str, Any]]:
        """Return the class of the video processor, and the settings that shape pixels and grids."""
        settings = {**self.video_processor.to_dict(), **self.settings}
        shaping = [name for name in settings if name.split("_")[0] in _SHAPING and name not in _SAMPLING]
        found = {name: settings[name] for name in shaping}
        return type(self.video_processor).__name__, json.loads(json.dumps(found, default=dict))

    def _processing(self) -> dict[str, Any]:
        drawn = {"draw_on_frames": False} if self.draws_times else {}  # before, by the plan
        return {name: value for name, value in self.settings.items() if name not in ("fps", "num_frames")} | drawn


def load_processor(source: str, purpose: str) -> tuple[Any, Any]:
    """Load config and processor of a folder or hub id; raise ValueError unless the model reads videos with it."""
    config = load_part("config", source, purpose)
    config = getattr(config, "thinker_config", config)
    find_family(config)
    processor = load_part("processor", source, purpose)
    try:
        check_processor(processor)
        check_match(processor, config)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return config, processor


def check_match(processor: Any, config: Any) -> None:
    """Raise ValueError if a processor belongs to another model than a config."""
    from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES

    video_processor, vision = VideoPreparer(processor).video_processor, getattr(config, "vision_config", None)
    kind = config.model_type.removesuffix("_thinker")
    name, known = type(video_processor).__name__, VIDEO_PROCESSOR_MAPPING_NAMES.get(kind) or ()
    expected = [known] if isinstance(known, str) else list(known.values() if isinstance(known, dict) else known)
    problem = None
    if any(expected) and name not in expected:
        problem = f"it has a {name}, but {kind} takes a {' or '.join(filter(None, expected))}"
    for theirs, ours in (("patch_size",) * 2, ("temporal_patch_size",) * 2, ("merge_size", "spatial_merge_size")):
        sizes = getattr(video_processor, theirs, None), getattr(vision, ours, None)
        if problem is None and all(isinstance(size, int) for size in sizes) and sizes[0] != sizes[1]:
            problem = f"its {theirs} is {sizes[0]}, but that of the model is {sizes[1]}"
    if problem is not None:
        raise ValueError(f"the processor is not that of the model: {problem}; load both from the same place")


def check_processor(processor: Any) -> None:
    """Raise ValueError unless a processor takes videos and can write prompts."""
    VideoPreparer(processor)
    if not getattr(processor, "chat_template", None):
        raise ValueError("the processor has no chat template; put the model's chat_template.jinja beside its files")
