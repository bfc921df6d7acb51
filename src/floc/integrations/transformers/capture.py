"""Capture a video once: the vision tower runs over it a few frames at a time, and what is kept can be asked about."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floc.blocks import interleave
from floc.captured.captured import Captured
from floc.captured.identity import Identity
from floc.captured.recipe import Part, Recipe, Taker, create_taker
from floc.encoders.base import group_frames
from floc.encoders.vision_tower import STEP, Visual, around, of_frames, of_patches
from floc.integrations.transformers.families import Shape, family_of
from floc.integrations.transformers.stages import Stages
from floc.representatives import AssignedRepresentation, NearestRepresentation
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
    """Run a model's vision tower over a video once, a few frames at a time, and keep the tokens that stand for all.

    No more than a segment of the video's tokens is in memory, or of a long video with a budget about twice the budget,
    and of its pixels a few frames, where it is read from a file. `floc.replay` then asks any number of questions
    without the vision tower.

    Args:
        model: a video model of transformers.
        inputs: a video file; or frames as `floc.video.read` gives them, of the size the model takes; or what the
            model's processor made of one video, with `pixel_values_videos` (for models that take frames as pictures,
            `pixel_values`), where all pixels are in memory already.
        ratio, budget, coverage, method: as in `floc.compress`.
        fps, max_frames: how a video file is sampled, None takes every frame; of frames their times tell.
        source: the folder or hub id with the model's preprocessor file, for files and frames; where the model was
            loaded from, if not given.
        progress: called with the share of the frames that is done.
        **options: the method's own.
    """
    recipe = Recipe(ratio, budget, coverage, method, options)
    started = time.perf_counter()
    identity = Identity.of(model)  # complains of models that are not known
    stages = Stages(model.device)
    if isinstance(inputs, Mapping):
        reel = _prepared(model, inputs, stages)
    else:
        reel = _filmed(model, inputs, stages, fps=fps, max_frames=max_frames, source=source)
    if budget is not None and not reel.planned and recipe.streaming() is None:
        raise ValueError(
            f"method {method!r} shares a budget out over a whole video: give a file or a list of frames, not a stream"
        )
    parts: list[KeptPart] = []
    taking: Taker | None = None
    done = 0
    for seen in reel.seen:
        taking = taking or create_taker(recipe, seen, reel.planned)
        parts += map(KeptPart.of, stages.each("select", taking.add(seen)))
        done += len(seen.tokens)
        if progress is not None:
            progress(min(1.0, done / max(1, reel.planned)))
    if taking is None:
        raise ValueError("no frames to capture: the video gave none")
    parts += map(KeptPart.of, stages.each("select", taking.finish()))
    return join(parts, identity, reel, {**stages.seconds, "total": time.perf_counter() - started})


@dataclass(eq=False)
class Reel:
    """A video as a model sees it, on its way."""

    seen: Iterator[Visual]
    planned: int  # slices, as far as is known
    frames_per_slice: int
    times_s: list[np.ndarray] = field(default_factory=list)  # of the frames that were seen
    fps: float | None = None
    duration_s: float | None = None
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class KeptPart:
    """Of a segment what goes into a file; what it was chosen from can go."""

    features: torch.Tensor
    indices: torch.Tensor
    order: torch.Tensor
    gains: torch.Tensor
    deep: tuple[torch.Tensor, ...]
    shape: Shape
    nested: bool
    coverage: float | None
    made: dict[str, Any]

    @classmethod
    def of(cls, part: Part) -> KeptPart:
        kept = part.kept
        arrays = (torch.as_tensor(each) for each in (kept.features, kept.indices, kept.order, kept.gains))
        features, indices, order, gains = arrays
        # computing the coverage of these would cost more than the selection did
        known = not isinstance(kept.representation, AssignedRepresentation | NearestRepresentation)
        return cls(
            features,
            indices,
            order,
            gains,
            part.deep,
            kept.shape,
            kept.nested,
            kept.coverage if known else None,
            {"method": kept.method, "settings": dict(kept.settings)},
        )


def join(parts: Sequence[KeptPart], model: Identity, reel: Reel, seconds: dict[str, float]) -> Captured:
    """One video of the parts that were kept of it."""
    sizes = [math.prod(part.shape) for part in parts]
    starts = np.cumsum([0, *(len(part.indices) for part in parts)])
    segment = np.concatenate([np.full(len(part.indices), i) for i, part in enumerate(parts)])
    rank = np.concatenate([np.arange(len(part.indices)) for part in parts])
    alike = torch.from_numpy(interleave(sizes, rank, segment))  # a prefix has its share of every segment
    offsets = np.cumsum([0, *sizes])
    slices, (_, rows, columns) = sum(part.shape[0] for part in parts), parts[0].shape
    coverages = [part.coverage for part in parts]
    coverage = None if None in coverages else float(np.average(coverages, weights=sizes))  # type: ignore[arg-type]
    times = np.concatenate(reel.times_s) if reel.times_s else None
    per_slice = reel.frames_per_slice
    if times is not None and reel.fps is None:
        reel.fps = (len(times) - 1) / float(times[-1] - times[0]) if len(times) > 1 else 1.0
        reel.duration_s = float(times[-1]) + 1 / reel.fps
    return Captured(
        torch.cat([part.features for part in parts]),
        torch.cat([part.indices.cpu() + int(start) for part, start in zip(parts, offsets, strict=False)]),
        torch.cat([part.order.cpu() + int(start) for part, start in zip(parts, starts, strict=False)])[alike],
        torch.cat([part.gains.cpu() for part in parts])[alike],
        tuple(torch.cat(layer) for layer in zip(*(part.deep for part in parts), strict=True)),
        (slices, rows, columns),
        model,
        {**parts[0].made, "coverage": coverage, "seconds": seconds, **reel.about},
        all(part.nested for part in parts),
        None if times is None else times[::per_slice],
        None if times is None else times[np.minimum(np.arange(slices) * per_slice + per_slice - 1, len(times) - 1)],
        per_slice,
        reel.fps,
        reel.duration_s,
    )


def _filmed(
    model: Any,
    frames: str | Path | Iterable[Frames],
    stages: Stages,
    *,
    fps: float | None,
    max_frames: int | None,
    source: str | None,
) -> Reel:
    """A film that is decoded while it is looked at."""
    source = source or model.name_or_path
    if not source:
        raise ValueError(
            "the model does not say where it was loaded from; pass source=, the folder with its preprocessor"
        )
    tower = around(model, source)
    joined = tower.frames_per_token
    reel = Reel(iter(()), 0, joined)
    given: Iterable[Frames]
    if isinstance(frames, (str, Path)):
        from floc.video import check_file, read

        path = Path(frames)
        check_file(path)
        given = video = read(path, fps=fps, max_frames=max_frames, size=tower.frame_size, batch=STEP)
        reel.planned, reel.duration_s = -(-video.planned // joined), float(video.duration_s)
        reel.fps = video.sampled_fps
        reel.about = {"source": path.name, "preprocessing": {"size": [video.width, video.height]}}
    else:
        given = frames
        if isinstance(given, Sequence):
            reel.planned = -(-sum(len(each.times_s) for each in given) // joined)

    def look() -> Iterator[Visual]:
        for batch in stages.each("decode", group_frames(given, joined)):
            reel.times_s.append(batch.times_s)
            with stages.stage("vision"):
                seen = tower.look(batch.pixels)
            yield seen
        reel.about["warnings"] = list(getattr(given, "warnings", ()))

    reel.seen = look()
    return reel


def _prepared(model: Any, inputs: Mapping[str, Any], stages: Stages) -> Reel:
    """What a processor prepared, all in memory, in steps of a few frames."""
    family = family_of(model.config)
    if inputs.get(family.carrier) is None:
        raise ValueError(
            f"inputs for a model of type {family.kind} must have {family.carrier}, got {', '.join(inputs)}"
        )
    if family.placeholders is not None and inputs.get("input_ids") is None:
        raise ValueError(f"the frames of a {family.kind} video are found by input_ids; give them too")
    shapes = family.shapes(model.config, inputs)
    if len(shapes) != 1:
        raise ValueError(
            f"capture takes one video at a time, the inputs have {len(shapes)}; capture each by itself and give "
            "floc.replay the list"
        )
    ((slices, rows, columns),) = shapes
    base, pixels = model.base_model, inputs[family.carrier]
    if family.placeholders is not None and family.carrier == "pixel_values":
        frames = pixels.shape[:-3].numel()
        if frames != slices:
            raise ValueError(
                f"the inputs have {frames} pictures, of which {slices} are frames of the video; prepare the video alone"
            )
    reel = Reel(iter(()), slices, 1)

    @torch.no_grad()
    def seen(start: int, few: int) -> Visual:
        if inputs.get("video_grid_thw") is None:
            return of_frames(family.kind, base, pixels.flatten(0, -4)[start : start + few])
        per_slice = len(pixels) // slices
        patches = pixels[start * per_slice : (start + few) * per_slice]
        merge = math.isqrt(per_slice // (rows * columns))
        takes_merge = inputs.get("video_merge_sizes") is not None
        return of_patches(base, patches, (few, rows, columns), merge, takes_merge=takes_merge)

    def look() -> Iterator[Visual]:
        for start in range(0, slices, STEP):
            with stages.stage("vision"):
                few = seen(start, min(STEP, slices - start))
            yield few

    reel.seen = look()
    return reel
