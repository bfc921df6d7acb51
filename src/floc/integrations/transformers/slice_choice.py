"""Leave slices out of the vision encoder, of videos that a processor has prepared as patches."""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from floc.captured.pieces import StageTimer
from floc.encoders.base import FrameTokens
from floc.encoders.slice_choice import SliceOptions, SliceRule, average_cells, find_new
from floc.encoders.vision_features import encode_prepared, find_patch, require_separate_slices, split_prepared
from floc.families import find_family
from floc.families.locate import Shape, read_grids

PIXELS, GRIDS = "pixel_values_videos", "video_grid_thw"


def create_patch_rule(config: Any, options: SliceOptions) -> SliceRule:
    """Create a rule for slices of normalised patches [patches, values]; raise ValueError if the model has none."""
    require_separate_slices(config, options.name)
    if find_family(config).read_grids is not read_grids:
        problem = f"{options.name} with prepared frames needs {GRIDS}, which {config.model_type} does not take"
        raise ValueError(f"{problem}; pass a file or frames to floc.capture")
    levels = 1.0 if options.reuse is None else _find_levels(config)
    shrink = partial(_shrink_patches, side=find_patch(config))
    return options.create_rule(lambda slices, last: levels * _measure_patches(slices, last), shrink)


def _shrink_patches(slice_: torch.Tensor, side: int) -> torch.Tensor:
    """Return the means of a slice [patches, values] over quarters of a patch, [cells, values]."""
    means = average_cells(slice_.float().unflatten(1, (-1, side, side)), -(-side // 2))
    return means.permute(0, 2, 3, 1).flatten(0, 2)


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


def encode_some_patches(
    model: Any,
    parts: Iterable[Mapping[str, Any]],
    rule: SliceRule,
    timer: StageTimer,
    *,
    step: int,
    fast_vision: bool,
) -> Iterator[FrameTokens]:
    """Encode consecutive parts of one prepared video, without the slices that a rule leaves out.

    The vision encoder takes at most `step` slices at a time.
    """
    for part in parts:
        with timer.measure("compare"):
            cut = cut_videos(model.config, part, lambda: rule)
            (video,) = cut.videos
        count, _ = video.sizes
        changed = {**part, **cut.changed}
        with timer.measure("vision"):
            steps = split_prepared(model.config, changed, count, step) if count else ()
            encoded = [encode_prepared(model.base_model, one, fast_vision=fast_vision).all for one in steps]
        tokens, *deep = rule.expand(video.slices, video.sources, [*map(torch.cat, zip(*encoded, strict=True))])
        yield FrameTokens(tokens, tuple(deep))


class CutVideo(NamedTuple):
    """A prepared video, and which of its slices must be encoded."""

    shape: Shape  # slices, rows and columns of tokens
    slices: torch.Tensor  # [slices, patches, values]
    sources: np.ndarray  # as `SliceRule.find_sources` returns them
    rule: SliceRule

    @property
    def is_new(self) -> np.ndarray:
        return find_new(self.sources)

    @property
    def sizes(self) -> tuple[int, int]:
        """New slices, and tokens of a slice."""
        return int(self.is_new.sum()), math.prod(self.shape[1:])


class CutVideos(NamedTuple):
    """Prepared videos without the slices that take the tokens of others."""

    videos: list[CutVideo]
    changed: dict[str, torch.Tensor]  # arguments of the vision encoder


def cut_videos(config: Any, prepared: Mapping[str, Any], create: Callable[[], SliceRule]) -> CutVideos:
    """Cut prepared videos; `create` returns the rule for each."""
    pixels, grids = prepared[PIXELS], prepared[GRIDS]
    starts = accumulate((math.prod(grid) for grid in grids.tolist()), initial=0)
    videos, shortened = [], grids.clone()
    for number, (shape, (start, stop)) in enumerate(zip(read_grids(config, prepared), pairwise(starts), strict=True)):
        rule, slices = create(), pixels[start:stop].unflatten(0, (shape[0], -1))
        video = CutVideo(shape, slices, rule.find_sources(slices), rule)
        videos.append(video)
        shortened[number, 0] = int(grids[number, 0]) // shape[0] * video.sizes[0]
    if all(video.is_new.all() for video in videos):
        return CutVideos(videos, {PIXELS: pixels, GRIDS: grids})
    marks = [torch.from_numpy(video.is_new).to(pixels.device) for video in videos]
    kept = [video.slices[mark].flatten(0, 1) for video, mark in zip(videos, marks, strict=True)]
    return CutVideos(videos, {PIXELS: torch.cat(kept), GRIDS: shortened})


def leave_out_slices(encode: Callable[..., Any], config: Any, options: SliceOptions) -> Callable[..., Any]:
    """Wrap `get_video_features` of a model, so that it encodes some slices of each video."""
    signature = inspect.signature(encode)

    @torch.compiler.disable
    @functools.wraps(encode)
    def encode_videos(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        given |= given.pop("kwargs", {})
        if precomputed := [name for name in given if name.startswith("video_cu_") or name.endswith("position_ids")]:
            problem = f"{precomputed[0]} was computed for all slices, but {options.name} leaves some out"
            raise ValueError(f"{problem}; leave out {precomputed[0]} or {options.name}")
        cut = cut_videos(config, given, lambda: create_patch_rule(config, options))
        if all(video.is_new.all() for video in cut.videos):
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
        (layer,) = video.rule.expand(video.slices, video.sources, [part.unflatten(0, video.sizes)])
        expanded.append(layer.flatten(0, 1))
    return torch.cat(expanded) if is_tensor else tuple(expanded)
