"""The table of model families: one entry says all that FLoC must know about a family.

`floc.attach` and captures of prepared inputs need only where the tokens are. `write_video` enables prompts, `frames`
captures of video files. The tests run over this table; docs/reference/models.md shows how to add an entry.
"""

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
    has_grid_positions: bool = False  # positions are (t, y, x), and the model needs mm_token_type_ids

    @property
    def takes_images(self) -> bool:
        return self.pixels == "pixel_values"

    def carries_pixels(self, arguments: Arguments) -> bool:
        """Whether a call has pixels of videos, or vision encoder outputs made from them."""
        if arguments.get(self.pixels) is not None:
            return True
        encoded = arguments.get("mm_encoder_outputs")
        if not isinstance(encoded, Mapping):
            return encoded is not None
        return encoded.get("image" if self.takes_images else "video") is not None

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


def find_family(config: Any) -> ModelFamily:
    """Return the family of a model, by its config."""
    model_type = getattr(config, "model_type", None)
    if model_type not in FAMILIES:
        supported = f"{', '.join(sorted(FAMILIES))} (docs/reference/models.md shows how to add one)"
        raise ValueError(f"floc does not support video models of type {model_type!r}; it supports: {supported}")
    return FAMILIES[model_type]


_GRID = ModelFamily(locate.read_grids)
_QWEN = replace(_GRID, has_grid_positions=True)
_GLM = replace(_QWEN, placeholder="image_token_id", find_tokens=locate.find_marked_videos)
_LABELLED = ModelFamily(
    locate.read_labelled_grids,
    pixels="pixel_values",
    placeholder="image_token_id",
    find_tokens=locate.find_labelled_frames,
)
_QWEN_TYPES = (
    "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe qwen4_exp cosmos3_omni cohere_compass "
    "ernie4_5_vl_moe qwen2_5_omni_thinker qwen3_omni_moe_thinker"
)
_GRID_TYPES = "exaone4_5 hyperclovax_vision_v2 minimax_m3_vl muse_glimmer muse_spark video_llama_3"

FAMILIES: dict[str, ModelFamily] = {
    **dict.fromkeys(_QWEN_TYPES.split(), _QWEN),
    "cosmos3_edge": replace(_QWEN, asks_token_types=True),
    **dict.fromkeys(["glm4v", "glm4v_moe", "glm46v", "glmga", "glm_ocr"], _GLM),
    "glm5_next": replace(_GLM, has_grid_positions=False),
    **dict.fromkeys(_GRID_TYPES.split(), _GRID),
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
