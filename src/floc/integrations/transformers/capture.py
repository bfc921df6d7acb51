"""Capture a video once: encode it a few frames at a time, and keep the selected tokens for later questions."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from floc.captured.captured import Captured
from floc.captured.identity import Identity
from floc.captured.pieces import FrameLog, StageTimer, create_selector, join_pieces
from floc.captured.recipe import Recipe
from floc.encoders.base import FrameTokens, group_frames
from floc.encoders.vision_tower import STEP, encode_patches, encode_squares, wrap_model
from floc.families import find_family
from floc.families.parts import find_device, unwrap_model
from floc.tokens import Frames


def capture(
    model: Any,
    inputs: Mapping[str, Any] | str | Path | Iterable[Frames],
    *,
    ratio: float | str | None = None,
    budget: int | None = None,
    coverage: float | None = None,
    method: str = "floc",
    fps: float | None = 1.0,
    max_frames: int | None = 7200,
    source: str | None = None,
    progress: Callable[[float], None] | None = None,
    **options: object,
) -> Captured:
    """Encode a video once, a few frames at a time, and keep the tokens that best represent it, for `floc.replay`.

    At most one piece of the video's tokens is in memory; for a long video with a budget, about twice the budget.

    Args:
        inputs: a video file; or frames from `floc.video.read`, of the size that the model takes; or the inputs that
            the model's processor returns for one video.
        ratio, budget, coverage, method: as in `floc.compress`.
        fps, max_frames: sampling of a video file; None takes every frame.
        source: folder or hub id of the preprocessor file, for files and frames. Default: that of the model.
        progress: called with the share of the frames that is done.
        **options: of the method.
    """
    recipe = Recipe(ratio, budget, coverage, method, options)
    started = time.perf_counter()
    model = unwrap_model(model)
    identity = Identity.from_model(model)  # raises if the model is not supported
    timer = StageTimer(find_device(model))
    frames = FrameLog(1)
    if isinstance(inputs, Mapping):
        planned, encoded = _encode_prepared(model, inputs, timer)
    else:
        source = source or model.name_or_path
        if not source:
            raise ValueError("the model does not say where it was loaded from; pass source=, its folder or hub id")
        sampling = {"fps": fps, "max_frames": max_frames}
        planned, encoded = _encode_frames(model, inputs, sampling, source, timer, frames)
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


def _encode_frames(
    model: Any,
    inputs: str | Path | Iterable[Frames],
    sampling: dict[str, Any],
    source: str,
    timer: StageTimer,
    log: FrameLog,
) -> tuple[int, Iterator[FrameTokens]]:
    """Encode a file or frames, and fill in the log; return the number of slices, 0 if unknown, and their tokens."""
    tower = wrap_model(model, source)
    per_slice = log.frames_per_slice = tower.frames_per_token
    frames: Iterable[Frames]
    if isinstance(inputs, (str, Path)):
        from floc.video import check_file, read

        path = Path(inputs)
        check_file(path)
        frames = video = read(path, **sampling, size=tower.frame_size, batch=STEP)
        planned = video.planned
        log.fps, log.duration_s = video.sampled_fps, float(video.duration_s)
        log.about = {"source": path.name, "preprocessing": {"size": [video.width, video.height]}}
    else:
        frames = inputs
        planned = sum(len(batch.times_s) for batch in frames) if isinstance(frames, Sequence) else 0

    def encode() -> Iterator[FrameTokens]:
        for batch in timer.measure_items("decode", group_frames(frames, per_slice)):
            log.times_s.append(batch.times_s)
            with timer.measure("vision"):
                encoded = tower.encode(batch.pixels)
            yield encoded
        log.about["warnings"] = list(getattr(frames, "warnings", ()))

    return -(-planned // per_slice), encode()


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
    ((slices, rows, columns),) = shapes
    images = pixels.shape[:-3].numel()
    if family.takes_images and images != slices:
        raise ValueError(f"the inputs have {images} images for {slices} frames; prepare the video alone")

    def encode() -> Iterator[FrameTokens]:
        base, per_slice = model.base_model, len(pixels) // slices  # of patches
        for start in range(0, slices, STEP):
            stop = min(slices, start + STEP)
            with timer.measure("vision"), torch.no_grad():
                if inputs.get("video_grid_thw") is None:
                    encoded = encode_squares(base, pixels.flatten(0, -4)[start:stop])
                else:
                    patches = pixels[start * per_slice : stop * per_slice]
                    merge = math.isqrt(per_slice // (rows * columns))
                    encoded = encode_patches(base, patches, (stop - start, rows, columns), merge)
            yield encoded

    return slices, encode()
