"""The vision features of prepared frames: tokens as the language model would see them at a video's placeholders.

Every video model of transformers has `get_video_features`, or `get_image_features` if its videos are images. Both take
what the model's processor returns, so one call serves all families; only the grid of the tokens is read per family.
"""

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from floc.encoders.base import FrameTokens
from floc.encoders.fast_attention import FastVision
from floc.families import FAMILIES, ModelFamily, find_family
from floc.families.locate import Shape, fold_frames
from floc.families.parts import find_device

# Types whose vision encoder attends across all frames of a video: the features of a few frames differ from those that
# the same frames have within the whole video. In all other types a slice does not depend on its neighbours.
NEEDS_WHOLE_VIDEO = frozenset({"minimax_m3_vl"})
# Types whose features are added to the embedding of the placeholder; in others they replace it
ADDS_TO_PLACEHOLDER = frozenset({"molmo2"})


PATCH = 14  # pixels on a side, for vision encoders that do not name their patches


def can_encode_in_chunks(config: Any) -> bool:
    """Return whether any whole number of slices can be encoded alone, with the features of the whole video."""
    return config.model_type not in NEEDS_WHOLE_VIDEO


def require_chunks(config: Any) -> None:
    """Raise ValueError if a video of this model cannot be encoded a few frames at a time."""
    if not can_encode_in_chunks(config):
        problem = f"the vision encoder of {config.model_type} attends across all frames of a video"
        fix = "use floc.capture, which encodes a video in one call, or floc.attach"
        raise ValueError(f"{problem}, so that it cannot encode a few frames at a time; {fix}")


def require_separate_slices(config: Any, option: str) -> None:
    """Raise ValueError unless the vision encoder of a model can leave out slices, as an option of a caller asks."""
    config = getattr(config, "thinker_config", config)
    if config.model_type not in FAMILIES:
        reason = f"floc does not know whether the vision encoder of {config.model_type} attends across slices"
    elif not can_encode_in_chunks(config):
        reason = f"the vision encoder of {config.model_type} attends across all frames of a video"
    else:
        return
    raise ValueError(f"{option} needs slices that are encoded independently of each other, but {reason}; leave it out")


def find_patch(config: Any) -> int:
    """Return the side of a patch of a model's vision encoder, in pixels."""
    given = getattr(getattr(config, "vision_config", None), "patch_size", None)
    given = min(given) if isinstance(given, list | tuple) else given
    return given if isinstance(given, int) else PATCH


def split_prepared(config: Any, prepared: Mapping[str, Any], slices: int, step: int) -> Iterator[Mapping[str, Any]]:
    """Split the prepared frames of one video into parts of at most `step` of its `slices`.

    Returns the inputs unsplit if the vision encoder needs the whole video, or if the pixels of single frames are
    unknown.
    """
    grids, name = prepared.get("video_grid_thw"), find_family(config).pixels
    pixels = prepared[name]
    axis = pixels.ndim - 4 if grids is None else 0  # of frames, or of patches
    can_split = pixels.shape[axis] == slices if grids is None else len(grids) == 1
    if axis not in (0, 1) or not can_split or not can_encode_in_chunks(config):
        yield prepared
        return
    rows = pixels.shape[axis] // slices
    lead = pixels.shape[: axis + 1]  # shared by the masks of pixels
    parts = {
        key: value for key, value in prepared.items() if key.startswith("pixel") and value.shape[: axis + 1] == lead
    }
    for start in range(0, slices, step):
        count = min(step, slices - start)
        part = {key: value.narrow(axis, start * rows, count * rows) for key, value in parts.items()}
        if grids is not None:
            per_slice = int(grids[0, 0]) // slices
            part["video_grid_thw"] = grids.new_tensor([[per_slice * count, *grids[0, 1:].tolist()]])
        yield {**prepared, **part}


@torch.no_grad()
def encode_prepared(base: Any, prepared: Mapping[str, Any], *, fast_vision: bool = True) -> FrameTokens:
    """Encode the prepared frames of one video as tokens [T, H, W, D] and deep features.

    Args:
        base: the multimodal model without its head (`model.base_model`), on any device.
        prepared: what the model's processor returns for the frames, as from `VideoPreparer.prepare`: the pixels and all
            that the vision encoder takes beside them. Other entries are ignored.
        fast_vision: use fast attention in the vision encoder, where it has windows.
    """
    family = find_family(base.config)
    arguments = _select_arguments(base, family, prepared)
    with FastVision(base).use() if fast_vision else nullcontext():
        output = _get_encoder(base)(**arguments, return_dict=True)
    features = _flatten(output.pooler_output)
    shape = _read_shape(base.config, family, prepared, len(features))
    if base.config.model_type in ADDS_TO_PLACEHOLDER:
        placeholder = torch.tensor(getattr(base.config, family.placeholder), device=features.device)
        features = features + base.get_input_embeddings()(placeholder)
    deep = getattr(output, "deepstack_features", None) or ()
    # LLaVA-OneVision's newline follows the tokens of the video; it belongs to no frame
    count = math.prod(shape)
    tokens, *layers = (_flatten(part)[:count].view(*shape, -1) for part in (features, *deep))
    return FrameTokens(tokens, tuple(layers))


def _get_encoder(base: Any) -> Any:
    return getattr(base, "get_video_features", None) or base.get_image_features


def _select_arguments(base: Any, family: ModelFamily, prepared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the model's vision encoder, on its device and in its dtype."""
    pixels = prepared.get(family.pixels)
    if pixels is None and family.takes_images and prepared.get("pixel_values_videos") is not None:
        pixels = prepared["pixel_values_videos"].flatten(0, 1)  # its processor turns videos into lists of images
    if pixels is None:
        given = ", ".join(prepared) or "nothing"
        problem = f"the prepared frames of {base.config.model_type} must have {family.pixels}, got {given}"
        raise ValueError(f"{problem}; prepare them with the model's own processor")
    accepted = inspect.signature(_get_encoder(base)).parameters
    name = next(name for name in ("pixel_values_videos", "pixel_values") if name in accepted)
    arguments = {name: value for name, value in prepared.items() if name in accepted} | {name: pixels}
    device = find_device(base)
    return {
        name: value.to(device, base.dtype if value.is_floating_point() else None)
        for name, value in arguments.items()
        if torch.is_tensor(value)
    }


def _read_shape(config: Any, family: ModelFamily, prepared: Mapping[str, Any], count: int) -> Shape:
    """Return the grid of `count` tokens."""
    if family.takes_images:
        pixels = prepared.get("pixel_values_videos", prepared.get("pixel_values"))
        assert pixels is not None
        frames = pixels.shape[:-3].numel()
        shapes = [fold_frames(frames, count // frames)]
    else:
        shapes = family.read_grids(config, prepared)
    if len(shapes) != 1:
        problem = f"prepared frames must be of one video, got grids of {shapes} slices, rows and columns"
        raise ValueError(f"{problem}; encode each video alone")
    (shape,) = shapes
    extra = count - math.prod(shape)
    if extra != (family.newline is not None and extra > 0):
        problem = f"the vision encoder of {config.model_type} returned {count} tokens for a grid of {shape}"
        raise ValueError(f"{problem}; prepare the frames with the model's own processor")
    return shape


def _flatten(features: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return features as [n, D]; depending on the family they come as a tensor or as several."""
    if isinstance(features, torch.Tensor):
        return features.reshape(-1, features.shape[-1])
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in features])
