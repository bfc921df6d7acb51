"""Write the text that takes the place of a video's marker in a prompt, as the family's processor does.

The texts are those of transformers since 5.10, for VideoLLaMA3 with `use_token_compression=False`.
"""

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class SampledVideo:
    """The grid of a video and the times of its frames: what a prompt needs."""

    shape: tuple[int, int, int]  # slices, rows, columns of tokens, as the language model sees them
    times_s: np.ndarray  # [slices] time of the first frame of each slice
    frames_per_slice: int  # 2 if the model joins frames in pairs, else 1
    fps: float  # sampled frames per second
    duration_s: float  # of the whole video
    last_s: np.ndarray | None = None  # [slices] time of the last frame of each slice; from `fps` if not given

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise ValueError(f"shape must be slices, rows and columns, each at least 1; got {self.shape}")
        for name, times in (("times_s", self.times_s), ("last_s", self.last_s)):
            if times is not None and np.shape(times) != self.shape[:1]:
                raise ValueError(f"{name} must have one time for each of {self.shape[0]} slices, got {np.shape(times)}")
        if self.frames_per_slice < 1 or not self.fps > 0:
            given = f"{self.frames_per_slice} and {self.fps}"
            raise ValueError(f"frames_per_slice must be at least 1 and fps above 0, got {given}")

    @property
    def tokens_per_slice(self) -> int:
        return self.shape[1] * self.shape[2]

    @property
    def middles_s(self) -> np.ndarray:
        """[slices] time halfway between the first and the last frame of each slice."""
        last_s = self.times_s + (self.frames_per_slice - 1) / self.fps if self.last_s is None else self.last_s
        return (self.times_s + last_s) / 2


# Each writer takes the marker, and the tokenizer, which may name the other special tokens differently.


def write_tokens(video: SampledVideo, marker: str, tokenizer: Any) -> str:
    """All tokens in one row."""
    return marker * math.prod(video.shape)


def write_qwen3_vl(video: SampledVideo, marker: str, tokenizer: Any) -> str:
    """Each slice after its time."""
    start = getattr(tokenizer, "vision_start_token", "<|vision_start|>")
    frame = start + marker * video.tokens_per_slice + getattr(tokenizer, "vision_end_token", "<|vision_end|>")
    return "".join(f"<{time_s:.1f} seconds>{frame}" for time_s in video.middles_s)


def write_glm4v(video: SampledVideo, marker: str, tokenizer: Any) -> str:
    """Each slice before its time."""
    tokens = getattr(tokenizer, "image_token", "<|image|>") * video.tokens_per_slice
    return "".join(f"<|begin_of_image|>{tokens}<|end_of_image|>{int(time_s)}" for time_s in video.times_s)


def write_video_llama_3(video: SampledVideo, marker: str, tokenizer: Any) -> str:
    """Each frame after its time, separated by commas."""
    tokens = marker * video.tokens_per_slice
    return ",".join(f"Time {time_s:.1f}s:{tokens}" for time_s in video.times_s)


def write_internvl(video: SampledVideo, marker: str, tokenizer: Any) -> str:
    """Each frame after its number."""
    start = getattr(tokenizer, "start_image_token", "<img>")
    end = getattr(tokenizer, "end_image_token", "</img>")
    tokens = getattr(tokenizer, "context_image_token", "<IMG_CONTEXT>") * video.tokens_per_slice
    return "\n".join(f"Frame{i + 1}: {start}{tokens}{end}" for i in range(video.shape[0]))


def write_smolvlm(video: SampledVideo, marker: str, tokenizer: Any) -> str:
    """A sentence about the video, then each frame after its time."""
    fake = getattr(tokenizer, "fake_image_token", "<fake_token_around_image>")
    image = getattr(tokenizer, "global_image_token", "<global-img>")
    tokens = getattr(tokenizer, "image_token", "<image>") * video.tokens_per_slice
    count, duration = spell_number(video.shape[0]), timedelta(seconds=int(video.duration_s))
    opening = f"You are provided the following series of {count} frames from a {duration} [H:MM:SS] video.\n"
    frame = f"{fake}{image}{tokens}{fake}"
    frames = (f"\nFrame from {int(time_s // 60):02}:{int(time_s % 60):02}:{frame}" for time_s in video.times_s)
    return opening + "".join(frames) + "\n\n"


_UNITS = (
    "zero one two three four five six seven eight nine "
    "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


def spell_number(n: int) -> str:
    """Spell a number below a million as the package num2words does.

    >>> spell_number(64), spell_number(1234)
    ('sixty-four', 'one thousand, two hundred and thirty-four')
    """
    if n < 20:
        return _UNITS.split()[n]
    if n < 100:
        return _TENS.split()[n // 10 - 2] + (f"-{spell_number(n % 10)}" if n % 10 else "")
    size, name = (100, "hundred") if n < 1000 else (1000, "thousand")
    count, rest = divmod(n, size)
    joint = " and " if rest < 100 else ", "
    return f"{spell_number(count)} {name}" + (f"{joint}{spell_number(rest)}" if rest else "")
