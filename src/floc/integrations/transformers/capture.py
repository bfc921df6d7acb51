"""Capture a video once: encode it a part at a time, and keep the selected tokens for later questions."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from floc._system import available_bytes
from floc.budget import Budget
from floc.captured.captured import Captured
from floc.captured.identity import Identity
from floc.captured.pieces import (
    FrameLog,
    PieceSelector,
    StageTimer,
    StreamSelector,
    create_selector,
    estimate_rate,
    join_pieces,
)
from floc.captured.recipe import Recipe
from floc.encoders.base import FrameTokens, group_frames, open_video
from floc.encoders.chunks import STEP, count_patches, limit_patches, run_ahead, runs_ahead
from floc.encoders.slice_choice import GROUP, SliceOptions
from floc.encoders.vision_features import encode_prepared, split_prepared
from floc.encoders.vision_tower import VisionTower, wrap_model
from floc.families import find_family
from floc.families.parts import find_device, unwrap_model
from floc.families.processing import Limit, Rate
from floc.integrations.transformers.slice_choice import create_patch_rule, encode_some_patches
from floc.planning import ModelCosts, check_plan, describe_plan, plan_more_frames
from floc.planning.planner import ContextWarning, check_context
from floc.tokens import Frames
from floc.video import Video, read_facts
from floc.video.choice import VideoFacts


def capture(
    model: Any,
    inputs: Mapping[str, Any] | str | Path | Iterable[Frames],
    *,
    processor: Any = None,
    ratio: float | str | None = None,
    budget: int | None = None,
    coverage: float | None = None,
    method: str = "floc",
    fps: Rate = None,
    max_frames: Limit = None,
    frame_tokens: int | None = None,
    more_frames: bool = False,
    reuse: float | None = None,
    encode: float | str | None = None,
    fast_vision: bool = True,
    progress: Callable[[float], None] | None = None,
    **options: object,
) -> Captured:
    """Encode a video once, a part at a time, and keep the tokens that best represent it, for `floc.replay`.

        video = floc.capture(model, "talk.mp4", processor=processor, ratio=1/8)

    At most one piece of the video's tokens is in memory; of a long video with a budget or horizon, twice what is kept.
    A GPU encodes as many frames at a time as half of its free memory holds, while the next are decoded and prepared.

    Args:
        inputs: a video file; or frames from `floc.video.read`; or the inputs that the model's processor returns for
            one video.
        processor: of the model, from `AutoProcessor`; it prepares files and frames.
        ratio, budget, coverage, method: as in `floc.compress`.
        fps: frames per second of a video file, or "all". Default: as the processor samples.
        max_frames: limit on the frames of a file, or "all". Default: that of the processor.
        frame_tokens: most tokens of a frame of a file. Default: as many as the processor makes.
        more_frames: take as many frames of a file as fit the machine, and keep as many tokens as the processor would
            make without options. Leave out all other options for frames and budget.
        reuse: a slice takes the tokens of the last encoded one, instead of being encoded, if in every patch their
            pixels differ by at most so many levels of 255 (root mean square). Default: encode every slice.
        encode: share of the slices to encode, such as 1/2, instead of `reuse`: of every 32 slices those that represent
            them best. Every other takes the tokens of the encoded one that looks most like it. Default: all.
        fast_vision: compute the attention of vision encoders with windows faster, with the same results.
        progress: called with the share of the frames that is done.
        **options: of the method.
    """
    started = time.perf_counter()
    slices = SliceOptions(reuse, encode)
    model = unwrap_model(model)
    identity = Identity.from_model(model)  # raises if the model is not supported
    timer, frames = StageTimer(find_device(model)), FrameLog(1)
    path = Path(inputs) if isinstance(inputs, (str, Path)) else None
    _check_inputs(inputs, processor, more_frames or (frame_tokens, fps, max_frames) != (None, None, None))
    if path is not None:
        tower = replace(wrap_model(model, processor), frame_tokens=frame_tokens, slices=slices, fast_vision=fast_vision)
        if more_frames:
            given = (ratio, budget, coverage, fps, max_frames, frame_tokens)
            if given != (None,) * len(given):
                raise ValueError("more_frames chooses the frames and the budget; leave out other options for them")
            tower, budget = _take_more_frames(model, tower, path)
        recipe = Recipe(ratio, budget, coverage, method, options)
        video, tower = open_video(path, tower, fps=fps, max_frames=max_frames, batch=STEP)
        _warn(model, tower, recipe)
        planned, encoded = _encode_file(tower, video, timer, frames)
    else:
        recipe = Recipe(ratio, budget, coverage, method, options)
        if isinstance(inputs, Mapping):
            planned, encoded = _encode_prepared(model, inputs, timer, options=slices, fast_vision=fast_vision)
        else:
            given_frames = cast("Iterable[Frames]", inputs)
            tower = replace(wrap_model(model, processor), slices=slices, fast_vision=fast_vision)
            planned, encoded = _encode_frames(tower, given_frames, timer, frames)
    _require_length(recipe, planned)
    report = None if progress is None else lambda done: progress(min(1.0, done / max(1, planned)))
    with closing(cast("Any", encoded)):  # ends the thread that prepares frames, also after an error
        pieces = _select_pieces(encoded, lambda first: create_selector(recipe, identity, first, planned), timer, report)
    frames.about |= slices.describe()
    total_s = time.perf_counter() - started
    rest_s = total_s - sum(timer.seconds.values())
    return join_pieces(pieces, frames, {**timer.seconds, "other": rest_s, "total": total_s})


def _check_inputs(inputs: object, processor: Any, has_options: bool) -> None:
    """Raise ValueError if a processor is missing, or options are for a video file only."""
    if has_options and not isinstance(inputs, (str, Path)):
        raise ValueError("fps, max_frames, frame_tokens and more_frames are for a video file")
    if not isinstance(inputs, Mapping) and processor is None:
        raise ValueError("the model's processor prepares a video; pass processor=AutoProcessor.from_pretrained(...)")


def _require_length(recipe: Recipe, planned: int) -> None:
    """Raise ValueError if the method shares out a budget and the number of slices is unknown."""
    if recipe.budget is not None and not planned and recipe.get_stream_options() is None:
        problem = f"method {recipe.method!r} needs the length of the video for a budget"
        raise ValueError(f"{problem}; pass a file or a list, not an iterator")


def _select_pieces(
    encoded: Iterable[FrameTokens],
    create: Callable[[FrameTokens], StreamSelector | PieceSelector],
    timer: StageTimer,
    report: Callable[[int], None] | None,
) -> list[Captured]:
    """Select from tokens while they are encoded; `report` is called with the slices that are done."""
    pieces: list[Captured] = []
    selector = None
    done = 0
    for batch in encoded:
        selector = selector or create(batch)
        with timer.measure("select"):
            pieces += selector.add(batch)
        done += len(batch.tokens)
        if report is not None:
            report(done)
    if selector is None:
        raise ValueError("no frames to capture: the video is empty")
    with timer.measure("select"):
        return pieces + selector.finish()


def _take_more_frames(model: Any, tower: VisionTower, path: Path) -> tuple[VisionTower, int]:
    """Plan as many frames as fit the machine; return the encoder for them, and the budget."""
    free_bytes = available_bytes(find_device(model))
    more = plan_more_frames(tower.preparer, read_facts(path), ModelCosts.from_model(model), free_bytes)
    return replace(tower, plan=more.plan), more.budget


def _warn(model: Any, tower: VisionTower, recipe: Recipe) -> None:
    """Warn if the prompt will exceed the model's context, or the work the memory of the machine."""
    if (recipe.ratio, recipe.budget, recipe.coverage) == (None, None, None):  # the method decides
        return
    assert tower.plan is not None
    budget = Budget.parse(recipe.ratio, recipe.budget, recipe.coverage)
    plan = describe_plan(tower.preparer, tower.plan, ModelCosts.from_model(model), budget, find_device(model))
    beyond = check_context(plan)
    for text in check_plan(plan):
        warnings.warn(text, ContextWarning if text in beyond else UserWarning, stacklevel=3)


def _encode_file(
    tower: VisionTower, video: Video, timer: StageTimer, log: FrameLog
) -> tuple[int, Iterator[FrameTokens]]:
    """Encode a file, and fill in the log; return the number of slices and their tokens."""
    assert tower.plan is not None
    record = tower.preparer.record(tower.plan).as_dict()
    log.fps, log.duration_s = video.sampled_fps, float(video.duration_s)
    log.about = {"source": video.path.name, "preparation": record}

    def encode() -> Iterator[FrameTokens]:
        yield from _encode(tower, video, timer, log)
        count = sum(map(len, log.times_s))
        record["indices"] = record["indices"][:count]  # the end of a damaged file may be missing
        log.about["warnings"] = list(video.warnings)

    return -(-video.planned // tower.frames_per_token), encode()


def _encode_frames(
    tower: VisionTower, frames: Iterable[Frames], timer: StageTimer, log: FrameLog
) -> tuple[int, Iterator[FrameTokens]]:
    """Encode frames, and fill in the log; return the number of slices, 0 if unknown, and their tokens."""
    counted = sum(len(batch.times_s) for batch in frames) if isinstance(frames, Sequence) else 0
    planned: int = getattr(frames, "planned", counted)  # of a `Video`

    def encode() -> Iterator[FrameTokens]:
        batches = iter(frames)
        first = next(batches, None)
        if first is None:
            return
        height, width = first.pixels.shape[1:3]
        count, rate = max(planned, len(first.times_s)), estimate_rate(first.times_s)
        if not planned and tower.preparer.depends_on_count(width, height):
            problem = "the size of this model's frames depends on how many there are"
            raise ValueError(f"{problem}; pass a file or a list of frames, not an iterator")
        planned_tower = tower.plan_video(VideoFacts(count, rate, width, height), "all", "all")
        assert planned_tower.plan is not None
        is_safe = isinstance(frames, Sequence | Video)  # other iterators may belong to the thread that made them
        yield from _encode(planned_tower, chain([first], batches), timer, log, may_run_ahead=is_safe)
        times_s = np.concatenate(log.times_s)
        facts = VideoFacts(len(times_s), estimate_rate(times_s), width, height)
        plan = replace(planned_tower.plan, facts=facts, indices=np.arange(len(times_s)))
        log.about = {
            "preparation": tower.preparer.record(plan).as_dict(),
            "warnings": list(getattr(frames, "warnings", ())),
        }

    return -(-planned // tower.frames_per_token), encode()


def _encode(
    tower: VisionTower, frames: Iterable[Frames], timer: StageTimer, log: FrameLog, *, may_run_ahead: bool = True
) -> Iterator[FrameTokens]:
    """Encode frames a chunk at a time. On a GPU, a thread decodes and prepares the next chunk meanwhile."""
    log.frames_per_slice = tower.frames_per_token
    batches: Iterable[Frames] = group_frames(frames, tower.frames_per_token)
    batches = tower.join(batches)
    if tower.slices:  # which slices are encoded depends on those before
        for batch in timer.measure_items("decode", batches):
            log.times_s.append(batch.times_s)
            yield tower.encode(batch.pixels, timer)
        return
    work = StageTimer(torch.device("cpu"))  # of the thread

    def prepare() -> Iterator[Mapping[str, Any]]:
        for batch in work.measure_items("decode", batches):
            log.times_s.append(batch.times_s)
            yield from work.measure_items("preprocess", tower.prepare_steps(batch.pixels))

    is_ahead = may_run_ahead and runs_ahead(timer.device)
    prepared: Iterator[Mapping[str, Any]] = run_ahead(prepare()) if is_ahead else prepare()
    try:
        for part in timer.measure_items("wait", prepared):
            with timer.measure("vision"):
                encoded = encode_prepared(tower.model, part, fast_vision=tower.fast_vision)
            yield encoded
    finally:
        close = getattr(prepared, "close", None)
        if close is not None:  # ends the thread
            close()
        timer.split("wait", work.seconds)


def _encode_prepared(
    model: Any, inputs: Mapping[str, Any], timer: StageTimer, *, options: SliceOptions, fast_vision: bool
) -> tuple[int, Iterator[FrameTokens]]:
    """Encode the inputs of a processor; return the number of slices and their tokens, a part at a time."""
    family, model_type = find_family(model.config), model.config.model_type
    pixels = inputs.get(family.pixels)
    if pixels is None:
        raise ValueError(f"inputs of {model_type} must have {family.pixels}, got {', '.join(inputs) or 'nothing'}")
    if family.takes_images and inputs.get("input_ids") is None:
        raise ValueError(f"input_ids are needed to find the frames of a {model_type} video; pass them too")
    shapes = family.read_grids(model.config, inputs)
    if len(shapes) != 1:
        problem = f"capture takes one video at a time, but the inputs have {len(shapes)}"
        raise ValueError(f"{problem}; capture each, and replay all")
    ((slices, _, _),) = shapes
    images = pixels.shape[:-3].numel()
    if family.takes_images and images != slices:
        raise ValueError(f"the inputs have {images} images for {slices} frames; prepare the video alone")

    rule = create_patch_rule(model.config, options) if options else None

    def encode() -> Iterator[FrameTokens]:
        most = limit_patches(model.base_model)
        step = STEP if most is None else max(1, most * slices // count_patches(model.config, pixels.shape))
        parts = split_prepared(model.config, inputs, slices, GROUP if options.encode else step)
        if rule is not None:
            yield from encode_some_patches(model, parts, rule, timer, step=step, fast_vision=fast_vision)
            return
        for part in parts:
            with timer.measure("vision"):
                encoded = encode_prepared(model.base_model, part, fast_vision=fast_vision)
            yield encoded

    return slices, encode()
