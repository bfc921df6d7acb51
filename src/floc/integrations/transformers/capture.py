"""Capture a video once: encode it a few frames at a time, and keep the selected tokens for later questions."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from floc.captured.captured import Captured
from floc.captured.identity import Identity
from floc.captured.pieces import FrameLog, StageTimer, create_selector, estimate_rate, join_pieces
from floc.captured.recipe import Recipe
from floc.encoders.base import FrameTokens, group_frames, open_video
from floc.encoders.vision_features import can_encode_in_chunks, encode_prepared
from floc.encoders.vision_tower import STEP, VisionTower, wrap_model
from floc.families import find_family
from floc.families.processing import Limit, Rate
from floc.tokens import Frames
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
    progress: Callable[[float], None] | None = None,
    **options: object,
) -> Captured:
    """Encode a video once, a few frames at a time, and keep the tokens that best represent it, for `floc.replay`.

        video = floc.capture(model, "talk.mp4", processor=processor, ratio=1/8)

    At most one piece of the video's tokens is in memory; for a long video with a budget, about twice the budget.

    Args:
        inputs: a video file; or frames from `floc.video.read`; or the inputs that the model's processor returns for
            one video.
        processor: of the model, from `AutoProcessor`; it prepares files and frames.
        ratio, budget, coverage, method: as in `floc.compress`.
        fps: frames per second of a video file, or "all". Default: as the processor samples.
        max_frames: limit on the frames of a file, or "all". Default: that of the processor.
        progress: called with the share of the frames that is done.
        **options: of the method.
    """
    recipe = Recipe(ratio, budget, coverage, method, options)
    started = time.perf_counter()
    identity = Identity.from_model(model)  # raises if the model is not supported
    timer = StageTimer(model.device)
    frames = FrameLog(1)
    if isinstance(inputs, Mapping):
        planned, encoded = _encode_prepared(model, inputs, timer)
    else:
        if processor is None:
            raise ValueError("a video is prepared by the model's processor; pass processor=AutoProcessor...")
        tower = wrap_model(model, processor)
        if isinstance(inputs, (str, Path)):
            planned, encoded = _encode_file(tower, Path(inputs), fps, max_frames, timer, frames)
        else:
            planned, encoded = _encode_frames(tower, inputs, timer, frames)
    if budget is not None and not planned and recipe.get_stream_options() is None:
        problem = f"method {method!r} needs the length of the video for a budget"
        raise ValueError(f"{problem}; pass a file or a list, not an iterator")
    pieces: list[Captured] = []
    selector = None
    done = 0
    for batch in encoded:
        selector = selector or create_selector(recipe, identity, batch, planned)
        with timer.measure("select"):
            pieces += selector.add(batch)
        done += len(batch.tokens)
        if progress is not None:
            progress(min(1.0, done / max(1, planned)))
    if selector is None:
        raise ValueError("no frames to capture: the video is empty")
    with timer.measure("select"):
        pieces += selector.finish()
    return join_pieces(pieces, frames, {**timer.seconds, "total": time.perf_counter() - started})


def _encode_file(
    tower: VisionTower, path: Path, fps: Rate, max_frames: Limit, timer: StageTimer, log: FrameLog
) -> tuple[int, Iterator[FrameTokens]]:
    """Encode a file, and fill in the log; return the number of slices and their tokens."""
    from floc.video import check_file

    check_file(path)
    video, tower = open_video(path, tower, fps=fps, max_frames=max_frames, batch=STEP)
    assert tower.plan is not None
    record = tower.preparer.record(tower.plan).as_dict()
    log.fps, log.duration_s = video.sampled_fps, float(video.duration_s)
    log.about = {"source": path.name, "preparation": record}

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
    planned = sum(len(batch.times_s) for batch in frames) if isinstance(frames, Sequence) else 0

    def encode() -> Iterator[FrameTokens]:
        batches = iter(frames)
        first = next(batches, None)
        if first is None:
            return
        height, width = first.pixels.shape[1:3]
        count, rate = max(planned, len(first.times_s)), estimate_rate(first.times_s)
        planned_tower = tower.plan_video(VideoFacts(count, rate, width, height), "all", "all")
        assert planned_tower.plan is not None
        yield from _encode(planned_tower, chain([first], batches), timer, log)
        times_s = np.concatenate(log.times_s)
        facts = VideoFacts(len(times_s), estimate_rate(times_s), width, height)
        plan = replace(planned_tower.plan, facts=facts, indices=np.arange(len(times_s)))
        log.about = {
            "preparation": tower.preparer.record(plan).as_dict(),
            "warnings": list(getattr(frames, "warnings", ())),
        }

    return -(-planned // tower.frames_per_token), encode()


def _encode(tower: VisionTower, frames: Iterable[Frames], timer: StageTimer, log: FrameLog) -> Iterator[FrameTokens]:
    log.frames_per_slice = tower.frames_per_token
    batches: Iterable[Frames] = group_frames(frames, tower.frames_per_token)
    if not can_encode_in_chunks(tower.model.config):
        pixels, times_s = zip(*((batch.pixels, batch.times_s) for batch in batches), strict=True)
        batches = [Frames(np.concatenate(pixels), np.concatenate(times_s))]
    for batch in timer.measure_items("decode", batches):
        log.times_s.append(batch.times_s)
        with timer.measure("vision"):
            encoded = tower.encode(batch.pixels)
        yield encoded


def _encode_prepared(model: Any, inputs: Mapping[str, Any], timer: StageTimer) -> tuple[int, Iterator[FrameTokens]]:
    """Encode the inputs of a processor; return the number of slices and their tokens, a few at a time."""
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

    step = STEP if can_encode_in_chunks(model.config) else slices

    def encode() -> Iterator[FrameTokens]:
        for part, count in _split_prepared(inputs, family.pixels, slices, step):
            with timer.measure("vision"):
                encoded = encode_prepared(model.base_model, part).fold(count)
            yield encoded

    return slices, encode()


def _split_prepared(
    inputs: Mapping[str, Any], name: str, slices: int, step: int
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Split the inputs of a processor for one video into parts of `step` slices, if slices can be told apart."""
    pixels, grids = inputs[name], inputs.get("video_grid_thw")
    if grids is None:
        axis = pixels.ndim - 4
        if axis not in (0, 1) or pixels.shape[axis] != slices:
            yield inputs, slices
            return
    for start in range(0, slices, step):
        stop = min(slices, start + step)
        if grids is None:
            yield {**inputs, name: pixels.narrow(axis, start, stop - start)}, stop - start
        else:
            rows = len(pixels) // slices
            grid = grids.new_tensor([[int(grids[0, 0]) // slices * (stop - start), *grids[0, 1:].tolist()]])
            yield {**inputs, name: pixels[start * rows : stop * rows], "video_grid_thw": grid}, stop - start
