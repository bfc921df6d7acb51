"""The video models of the paper: their weights, and how many tokens they make of a video.

The paper gives the number of frames or of tokens, not always both. `assumed` says what was filled in. The options of
`floc eval` override it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from floc._checks import check_choice

MERGE = 2  # patches along a token, in all models with patches


@dataclass(frozen=True)
class VideoModel:
    """A video model that can be evaluated."""

    name: str
    lmms_model: str  # its name in lmms-eval
    repository: str  # of its weights on Hugging Face
    billions: float  # of parameters
    frames: int  # that the paper reads of a video, at most
    assumed: str  # what the paper does not say
    square_tokens: int = 0  # of a frame, if all frames are resized to one square
    patch: int = 0  # pixels along a patch, if frames keep their shape; "max_pixels" then bounds their size
    frames_per_slice: int = 1
    arguments: Mapping[str, object] = field(default_factory=dict)  # of the lmms-eval model
    is_loadable: bool = True  # transformers loads the repository without conversion

    def count_tokens(self, frames: int, size: tuple[int, int] | None = None) -> int:
        """Count the visual tokens of a video of `size` (width, height), or the maximum over all sizes.

        >>> get("qwen2.5-vl-7b").count_tokens(768), get("qwen2.5-vl-7b").count_tokens(768, (1280, 720))
        (24576, 23040)
        """
        slices = math.ceil(frames / self.frames_per_slice)
        if not self.patch:
            return slices * self.square_tokens
        side, max_pixels = self.patch * MERGE, int(str(self.arguments["max_pixels"]))
        if size is None:
            return slices * (max_pixels // side**2)
        columns, rows = (max(1, round(length / side)) for length in size)
        if columns * rows * side**2 > max_pixels:  # as Qwen's `smart_resize`
            scale = math.sqrt(max_pixels / math.prod(size))
            columns, rows = (max(1, math.floor(length * scale / side)) for length in size)
        return slices * columns * rows


def get(name: str) -> VideoModel:
    """Return the model of a name."""
    check_choice("model", name, MODELS)
    return MODELS[name]


def list_assumptions(names: Iterable[str]) -> list[str]:
    """Return what was assumed for models, one line per assumption."""
    by_text: dict[str, list[str]] = {}
    for name in names:
        by_text.setdefault(get(name).assumed, []).append(name)
    return [f"{' and '.join(names)}: {text}" for text, names in by_text.items()]


def _limit(tokens: int, patch: int = 14) -> dict[str, Any]:
    """Return the fields of a Qwen-VL model with at most `tokens` tokens per slice of two frames."""
    pixels = (patch * MERGE) ** 2
    return dict(patch=patch, frames_per_slice=2, arguments=dict(min_pixels=4 * pixels, max_pixels=tokens * pixels))


_LONG = (
    "at most 64 tokens for two frames, so that 768 frames have 24,576 tokens, which the paper calls the model's best "
    "length; the same for 7,200 frames. The paper's profile has 60 tokens for each of 784 frames, twice as many"
)
_SHORT = "at most 270 tokens for two frames, so that 256 frames have the paper's 34,560 tokens"
_QWEN3 = "not in the paper: 768 frames and 24,576 tokens, like Qwen2.5-VL"
_INTERNVL = "64 frames with one tile of 256 tokens each: the paper does not say how many frames it reads"
_LLAVA = "14 x 14 tokens per frame, as in transformers; the paper has 13 x 13, 21,632 in total"
_MODELS = (
    VideoModel("qwen2.5-vl-7b", "floc_qwen2_5_vl", "Qwen/Qwen2.5-VL-7B-Instruct", 8.3, 768, _LONG, **_limit(64)),
    VideoModel("qwen2.5-vl-32b", "floc_qwen2_5_vl", "Qwen/Qwen2.5-VL-32B-Instruct", 33.5, 768, _LONG, **_limit(64)),
    VideoModel("internvl3-8b", "floc_internvl3", "OpenGVLab/InternVL3-8B-hf", 7.9, 64, _INTERNVL, square_tokens=256),
    VideoModel("qwen2-vl-2b", "floc_qwen2_vl", "Qwen/Qwen2-VL-2B-Instruct", 2.2, 256, _SHORT, **_limit(270)),
    VideoModel("qwen2-vl-7b", "floc_qwen2_vl", "Qwen/Qwen2-VL-7B-Instruct", 8.3, 256, _SHORT, **_limit(270)),
    VideoModel(
        *("llava-video-7b", "floc_llava_video", "lmms-lab/LLaVA-Video-7B-Qwen2", 8.0, 128, _LLAVA),
        square_tokens=196,
        is_loadable=False,
    ),
    VideoModel("qwen3-vl-8b", "floc_qwen3_vl", "Qwen/Qwen3-VL-8B-Instruct", 8.8, 768, _QWEN3, **_limit(64, patch=16)),
)
MODELS = {model.name: model for model in _MODELS}
