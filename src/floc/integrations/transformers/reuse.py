"""Reuse the tokens of slices that look the same, for videos that a processor has prepared as patches."""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch

from floc.captured.pieces import StageTimer
from floc.encoders.base import FrameTokens
from floc.encoders.reuse import SliceMemory, require_reuse
from floc.encoders.vision_features import encode_prepared
from floc.families import find_family
from floc.families.locate import Shape, read_grids

PIXELS, GRIDS = "pixel_values_videos", "video_grid_thw"


def remember_patches(config: Any, reuse: float) -> SliceMemory:
    """Create a memory for slices of normalised patches [patches, values]; raise ValueError if the model has none."""
    require_reuse(config, reuse)
    if find_family(config).read_grids is not read_grids:
        problem = f"reuse of prepared frames needs patches with {GRIDS}, which {config.model_type} does not take"
        raise ValueError(f"{problem}; pass a file or frames to floc.capture")
    levels = _find_levels(config)
    return SliceMemory(float(reuse), lambda slices, last: levels * _measure_patches(slices, last))


def _measure_patches(slices: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Return the differences of slices [n, patches, values] to one: root mean square of the worst patch."""
    return (slices.float() - last.float()).square_().mean(-1).amax(-1).sqrt()


def _find_levels(config: Any) -> float:
    """Return the levels of a pixel in one unit of normalised pixels: those of the family's video processor.

    Of three colours with different scales the largest counts, so that a difference is at least as large as it was.
    """
    from transformers.models.auto import video_processing_auto as auto

    kind = config.model_type.removesuffix("_thinker")
    known = auto.VIDEO_PROCESSOR_MAPPING_NAMES.get(kind)
    names = [known] if isinstance(known, str) else [*(known or {}).values()]
    made = auto.video_processor_class_from_name(names[0]) if names else None
    if made is None:
        problem = f"how processors of {kind} normalise pixels is unknown, so a number of levels means nothing"
        raise ValueError(f"{problem}; pass a file to floc.capture, or leave reuse out")
    deviation = max(made.image_std) if made.do_normalize else 1.0
    return deviation / made.rescale_factor if made.do_rescale else deviation


def encode_changed_patches(
    model: Any, parts: Iterable[Mapping[str, Any]], memory: SliceMemory, timer: StageTimer, *, fast_vision: bool
) -> Iterator[FrameTokens]:
    """Encode consecutive parts of one prepared video, without the slices that look like the last encoded one."""
    for part in parts:
        with timer.measure("compare"):
            cut = cut_videos(model.config, part, lambda: memory)
            (video,) = cut.videos
        encoded: Sequence[torch.Tensor] = ()
        if any(video.is_new):
            with timer.measure("vision"):
                encoded = encode_prepared(model.base_model, {**part, **cut.changed}, fast_vision=fast_vision).all
        tokens, *deep = memory.expand(video.slices, video.is_new, encoded)
        yield FrameTokens(tokens, tuple(deep))


class CutVideo(NamedTuple):
    """A prepared video, and which of its slices must be encoded."""

    shape: Shape  # slices, rows and columns of tokens
    slices: torch.Tensor  # [slices, patches, values]
    is_new: list[bool]
    memory: SliceMemory

    @property
    def sizes(self) -> tuple[int, int]:
        """New slices, and tokens of a slice."""
        return sum(self.is_new), math.prod(self.shape[1:])


class CutVideos(NamedTuple):
    """Prepared videos without the slices that take the tokens of others."""

    videos: list[CutVideo]
    changed: dict[str, torch.Tensor]  # arguments of the vision encoder


def cut_videos(config: Any, prepared: Mapping[str, Any], create: Callable[[], SliceMemory]) -> CutVideos:
    """Cut prepared videos; `create` returns the memory for each."""
    pixels, grids = prepared[PIXELS], prepared[GRIDS]
    starts = accumulate((math.prod(grid) for grid in grids.tolist()), initial=0)
    videos, shortened = [], grids.clone()
    for number, (shape, (start, stop)) in enumerate(zip(read_grids(config, prepared), pairwise(starts), strict=True)):
        memory, slices = create(), pixels[start:stop].unflatten(0, (shape[0], -1))
        video = CutVideo(shape, slices, memory.find_new(slices), memory)
        videos.append(video)
        shortened[number, 0] = int(grids[number, 0]) // shape[0] * sum(video.is_new)
    if all(all(video.is_new) for video in videos):
        return CutVideos(videos, {PIXELS: pixels, GRIDS: grids})
    marks = [torch.tensor(video.is_new, device=pixels.device) for video in videos]
    kept = [video.slices[mark].flatten(0, 1) for video, mark in zip(videos, marks, strict=True)]
    return CutVideos(videos, {PIXELS: torch.cat(kept), GRIDS: shortened})


def reuse_slices(encode: Callable[..., Any], config: Any, reuse: float) -> Callable[..., Any]:
    """Wrap `get_video_features` of a model: slices that look like the last encoded one of their video are left out."""
    signature = inspect.signature(encode)
    remember_patches(config, reuse)

    @torch.compiler.disable
    @functools.wraps(encode)
    def encode_videos(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        given |= given.pop("kwargs", {})
        if precomputed := [name for name in given if name.startswith("video_cu_") or name.endswith("position_ids")]:
            problem = f"{precomputed[0]} was computed for all slices, but reuse leaves some out"
            raise ValueError(f"{problem}; leave out {precomputed[0]} or reuse")
        cut = cut_videos(config, given, lambda: remember_patches(config, reuse))
        if all(all(video.is_new) for video in cut.videos):
            return encode(*args, **kwargs)
        output = encode(**{**given, **cut.changed, "return_dict": True})
        output.pooler_output = _expand(output.pooler_output, cut.videos)
        if getattr(output, "deepstack_features", None):
            layers = output.deepstack_features
            output.deepstack_features = type(layers)(_expand(layer, cut.videos) for layer in layers)
        return output if kwargs.get("return_dict", True) else output.to_tuple()

    return encode_videos


def _expand(features: Any, videos: Sequence[CutVideo]) -> Any:
    """Return the features [n, D] of all slices, as one tensor or one for each video, as they were given."""
    is_tensor = isinstance(features, torch.Tensor)
    rows = features if is_tensor else torch.cat([*features])
    parts = rows.split([math.prod(video.sizes) for video in videos])
    expanded = []
    for video, part in zip(videos, parts, strict=True):
        (layer,) = video.memory.expand(video.slices, video.is_new, [part.unflatten(0, video.sizes)])
        expanded.append(layer.flatten(0, 1))
    return torch.cat(expanded) if is_tensor else tuple(expanded)
