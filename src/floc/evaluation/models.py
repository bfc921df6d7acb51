"""The models of the paper: where their weights are, and how many tokens they make of a video.

The paper tells how many frames are read and how many tokens there are, but not always both; `assumed` says what was
filled in. All of it can be overruled by the options of `floc eval`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from floc._checks import check_choice
from floc.encoders.layouts import PatchLayout

WIDE = (1280, 720)  # a common film


@dataclass(frozen=True)
class Squares:
    """A frame of any shape is one square of so many tokens on a side."""

    side: int
    frames_per_token: int = 1

    def most(self) -> int:
        """The most tokens of a slice."""
        return self.side**2

    def of_film(self, width: int, height: int) -> int:
        """The tokens of a slice of a film."""
        return self.side**2


@dataclass(frozen=True)
class Pixels:
    """A frame has its own shape, in whole tokens, within a number of pixels; some frames make one slice of tokens."""

    patch: int  # pixels
    merge: int  # patches on a side of a token
    most_pixels: int  # of a frame
    frames_per_token: int = 2

    def most(self) -> int:
        """The most tokens of a slice."""
        return self.most_pixels // (self.patch * self.merge) ** 2

    def of_film(self, width: int, height: int) -> int:
        """The tokens of a slice of a film.

        >>> Pixels(14, 2, 64 * 28**2).of_film(1280, 720)
        60
        """
        side = self.patch * self.merge
        rule = PatchLayout(self.patch, self.merge, self.frames_per_token, side**2, self.most_pixels)
        wide, high = rule.frame_size(width, height)
        return (wide // side) * (high // side)


@dataclass(frozen=True)
class Model:
    """A video model that can be evaluated."""

    name: str
    runs_as: str  # the model of lmms-eval
    repository: str  # of its weights
    billions: float  # of parameters, two bytes each
    frames: int  # the paper reads at most so many of a video
    slices: Squares | Pixels
    assumed: str = ""  # what the paper does not tell
    arguments: Mapping[str, object] = field(default_factory=dict)  # for lmms-eval
    is_loadable: bool = True  # the repository, by transformers, as it is

    @property
    def size_bytes(self) -> float:
        """Of the weights, about."""
        return 2e9 * self.billions

    def told(self, more: Mapping[str, str]) -> Model:
        """The same with further arguments, which may be for more or fewer pixels.

        >>> get("qwen2.5-vl-7b").told({"max_pixels": str(128 * 28**2)}).most_tokens(768)
        49152
        """
        slices = self.slices
        if isinstance(slices, Pixels) and "max_pixels" in more:
            slices = replace(slices, most_pixels=int(more["max_pixels"]))
        return replace(self, slices=slices, arguments={**self.arguments, **more})

    def most_tokens(self, frames: int) -> int:
        """The most visual tokens of a video with so many frames.

        >>> get("qwen2.5-vl-7b").most_tokens(768)
        24576
        """
        return math.ceil(frames / self.slices.frames_per_token) * self.slices.most()

    def film_tokens(self, frames: int, width: int, height: int) -> int:
        """The visual tokens of a film of that size with so many frames."""
        return math.ceil(frames / self.slices.frames_per_token) * self.slices.of_film(width, height)


def get(name: str) -> Model:
    """The model behind a name."""
    check_choice("model", name, MODELS)
    return MODELS[name]


def assumptions(names: Iterable[str]) -> list[str]:
    """What was filled in for models, each said once."""
    told: dict[str, list[str]] = {}
    for name in names:
        told.setdefault(get(name).assumed, []).append(name)
    return [f"{' and '.join(who)}: {what}" for what, who in told.items() if what]


def _qwen(
    name: str, runs_as: str, repository: str, billions: float, patch: int, frames: int, tokens: int, assumed: str
):
    """A model of the Qwen kind, with so many tokens at most for two frames."""
    side = patch * 2
    pixels = {"min_pixels": 4 * side**2, "max_pixels": tokens * side**2}
    return Model(name, runs_as, repository, billions, frames, Pixels(patch, 2, tokens * side**2), assumed, pixels)


_LONG = (
    "64 tokens at most for two frames, so that 768 frames have the 24,576 tokens that the paper calls the model's best "
    "length, and the same for 7,200 frames; its profile has 60 tokens for each of 784 frames, twice as many"
)
_SHORT = "270 tokens at most for two frames, so that 256 frames have the 34,560 tokens of the paper"
_MODELS = (
    _qwen("qwen2.5-vl-7b", "floc_qwen2_5_vl", "Qwen/Qwen2.5-VL-7B-Instruct", 8.3, 14, 768, 64, _LONG),
    _qwen("qwen2.5-vl-32b", "floc_qwen2_5_vl", "Qwen/Qwen2.5-VL-32B-Instruct", 33.5, 14, 768, 64, _LONG),
    Model(
        "internvl3-8b",
        "floc_internvl3",
        "OpenGVLab/InternVL3-8B-hf",
        7.9,
        64,
        Squares(16),
        "64 frames, one tile of 256 tokens each: the paper does not tell how many were read",
    ),
    _qwen("qwen2-vl-2b", "floc_qwen2_vl", "Qwen/Qwen2-VL-2B-Instruct", 2.2, 14, 256, 270, _SHORT),
    _qwen("qwen2-vl-7b", "floc_qwen2_vl", "Qwen/Qwen2-VL-7B-Instruct", 8.3, 14, 256, 270, _SHORT),
    Model(
        "llava-video-7b",
        "floc_llava_video",
        "lmms-lab/LLaVA-Video-7B-Qwen2",
        8.0,
        128,
        Squares(14),
        "14 x 14 tokens a frame, as transformers makes them; the paper has 13 x 13, 21,632 in all",
        is_loadable=False,
    ),
    _qwen(
        "qwen3-vl-8b",
        "floc_qwen3_vl",
        "Qwen/Qwen3-VL-8B-Instruct",
        8.8,
        16,
        768,
        64,
        "not in the paper: 768 frames and 24,576 tokens, as Qwen2.5-VL has",
    ),
)
MODELS = {each.name: each for each in _MODELS}
