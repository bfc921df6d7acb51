"""The table of model families: one entry says where the tokens of a video are in the prompts of a family.

Most families follow one protocol and share one entry; a type that is not in the table needs none if it follows the
protocol, too. The tests run over this table; docs/reference/models.md shows how to add an entry.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from floc.families import locate
from floc.families.locate import Arguments, PromptVideo, Shape


@dataclass(frozen=True)
class ModelFamily:
    """How the models of one family take videos."""

    read_grids: Callable[[Any, Arguments], list[Shape]]  # config, arguments of a call -> grid of each video, in order
    pixels: str = "pixel_values_videos"  # argument of the model that holds the pixels of a video
    placeholder: str = "video_token_id"  # config attribute with the id of a visual token
    # config, [B, L] ids -> [B, L] bool, True at tokens of videos; None if images have another placeholder
    find_tokens: Callable[[Any, torch.Tensor], torch.Tensor] | None = None
    newline: str | None = None  # model parameter at the extra placeholder after each video, if there is one
    asks_token_types: bool = False  # mm_token_type_ids are needed, but its processor returns them only on request

    @property
    def takes_images(self) -> bool:
        return self.pixels == "pixel_values"

    def carries_pixels(self, arguments: Arguments) -> bool:
        """Whether a call has pixels of videos, or vision encoder outputs made from them."""
        return _carries(arguments, self.pixels, "image" if self.takes_images else "video")

    def count_tokens(self, config: Any, arguments: Arguments) -> int:
        """Return the most video tokens of a row, for a call without pixels of videos."""
        ids = arguments.get("input_ids")
        if ids is None or ids.shape[1] == 1:  # an answer may contain placeholder tokens
            return 0
        is_shared = getattr(config, self.placeholder) == getattr(config, "image_token_id", None)
        if is_shared and self.find_tokens is None and _carries(arguments, "pixel_values", "image"):
            return 0  # models with one placeholder for both take images or a video in a call
        return int(self.mask_tokens(config, ids, has_images=False).sum(1).max())

    def mask_tokens(self, config: Any, ids: torch.Tensor, *, has_images: bool = True) -> torch.Tensor:
        """Return [B, L] bool, True at the tokens of videos; `has_images` is False if all images are frames."""
        if self.find_tokens is None or (self.takes_images and not has_images):
            return ids == getattr(config, self.placeholder)
        return self.find_tokens(config, ids)

    def find_videos(
        self, config: Any, arguments: Arguments, shapes: Sequence[Shape] | None = None
    ) -> list[PromptVideo]:
        """Find the videos of a prompt, in order; `shapes` are their grids if the call has no pixels."""
        ids = arguments.get("input_ids")
        if ids is None:
            raise ValueError("floc needs input_ids to find the tokens of a video; pass them instead of inputs_embeds")
        mask = self.mask_tokens(config, ids, has_images=shapes is None)
        grids = self.read_grids(config, arguments) if shapes is None else shapes
        extra = int(self.newline is not None)
        counts = mask.sum(1).tolist()
        sizes = [math.prod(shape) + extra for shape in grids]
        rows = locate.assign_videos(counts, sizes)
        if rows is None:
            videos_given = f"the videos, {list(grids)} in slices, rows and columns, have {sizes}"
            problem = f"the rows of the prompt have {counts} video tokens, but {videos_given}"
            raise ValueError(f"{problem}; prepare prompt and videos with the model's processor")
        videos = []
        for row, indices in enumerate(rows):
            columns = mask[row].nonzero()[:, 0]
            for index in indices:
                lengths = [sizes[index] - extra, extra, len(columns) - sizes[index]]
                tokens, newline, columns = columns.split(lengths)
                videos.append(PromptVideo(row, tokens, newline, grids[index], index))
        return videos


def _carries(arguments: Arguments, pixels: str, modality: str) -> bool:
    encoded = arguments.get("mm_encoder_outputs")
    encoded = encoded.get(modality) if isinstance(encoded, Mapping) else encoded
    return arguments.get(pixels) is not None or encoded is not None


def find_family(config: Any) -> ModelFamily:
    """Return the family of a model, by its config; of a model that also speaks, of the part that thinks."""
    config = getattr(config, "thinker_config", config)
    model_type = getattr(config, "model_type", None)
    if is_supported(config):
        return FAMILIES.get(str(model_type), _GRID)
    supported = f"{', '.join(sorted(FAMILIES))} (docs/reference/models.md shows how to add one)"
    reason = "is not in its table, and its model has no get_video_features with video_grid_thw"
    raise ValueError(
        f"floc does not support video models of type {model_type!r}: it {reason}; it supports: {supported}"
    )


def is_supported(config: Any) -> bool:
    """Return whether a model is in the table, or takes `video_grid_thw` and has a token id for videos.

    If the number of tokens does not fit the grid, `find_videos` raises an error before anything is cut.
    """
    config = getattr(config, "thinker_config", config)
    if getattr(config, "model_type", None) in FAMILIES:
        return True
    if getattr(config, "video_token_id", None) is None or getattr(config, "vision_config", None) is None:
        return False
    from transformers import MODEL_MAPPING

    encode = getattr(MODEL_MAPPING.get(type(config), None), "get_video_features", None)
    return encode is not None and "video_grid_thw" in inspect.signature(encode).parameters


_GRID = ModelFamily(locate.read_grids)
_GLM = replace(_GRID, placeholder="image_token_id", find_tokens=locate.find_marked_videos)
_LABELLED = ModelFamily(
    locate.read_labelled_grids,
    pixels="pixel_values",
    placeholder="image_token_id",
    find_tokens=locate.find_labelled_frames,
)
# types that follow the protocol, and that the tests cover
_GRID_TYPES = (
    "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe qwen4_exp qwen2_5_omni_thinker "
    "qwen3_omni_moe_thinker cohere_compass cosmos3_omni ernie4_5_vl_moe exaone4_5 hyperclovax_vision_v2 "
    "minimax_m3_vl muse_glimmer muse_spark video_llama_3"
)

FAMILIES: dict[str, ModelFamily] = {
    **dict.fromkeys(_GRID_TYPES.split(), _GRID),
    "cosmos3_edge": replace(_GRID, asks_token_types=True),
    **dict.fromkeys(["glm4v", "glm4v_moe", "glm46v", "glmga", "glm_ocr", "glm5_next"], _GLM),
    "gemma4": ModelFamily(locate.read_gemma4_grids),
    "gemma4_unified": ModelFamily(locate.read_gemma4_unified_grids),
    "kimi_k25": ModelFamily(locate.read_kimi_grids),
    **dict.fromkeys(["minicpmv4_6", "minicpmv4_7", "minicpm_ocr"], ModelFamily(locate.read_minicpm_grids)),
    "molmo2": ModelFamily(locate.read_molmo2_grids),
    "nemotron_h_omni": ModelFamily(locate.read_nemotron_grids, placeholder="image_token_id"),
    "perception_lm": ModelFamily(locate.read_perception_lm_grids),
    "video_llava": ModelFamily(locate.read_video_llava_grids),
    "llava_next_video": ModelFamily(locate.read_llava_next_grids),
    "llava_onevision": ModelFamily(locate.read_llava_onevision_grids, newline="image_newline"),
    "internvl": _LABELLED,
    "smolvlm": _LABELLED,
}
