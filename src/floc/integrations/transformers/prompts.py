"""A model's prompt about a video, as its processor would write it, without the processor: those need torchvision.

The chat template writes one marker for a video, and what takes its place is the family's own: a row of placeholders, or
frames with their times between them. A family is a line in `FAMILIES`. The texts are those of transformers since 5.10,
5.17.0 and 5.22.2 among them; before, Qwen3-VL's frames took the place of the start and end around the marker as well.

VideoLLaMA3's processor leaves out tokens of frames that are like the frame before, unless it is told not to; here all
are in the prompt, and what is left out is for a method to say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floc._checks import check_choice

VIDEO_LLAMA_3_MERGE = 2  # patches on a side of a token in videos; its config does not say, its video processor does
VIDEO = 2  # what processors call a video's tokens in mm_token_type_ids


@dataclass(frozen=True, eq=False)
class Film:
    """What a prompt needs to know of a video."""

    shape: tuple[int, int, int]  # slices, rows, columns of tokens, as the language model sees them
    times_s: np.ndarray  # [slices] when the first frame of each slice is shown
    frames_per_slice: int  # 2 where the model joins frames in pairs, else 1
    fps: float  # frames a second that were sampled
    duration_s: float  # of the whole video
    last_s: np.ndarray | None = None  # [slices] when the last frame of each is shown; by `fps` where it is not given

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise ValueError(f"shape must be the slices, rows and columns of tokens there are, got {self.shape}")
        for name, times in (("times_s", self.times_s), ("last_s", self.last_s)):
            if times is not None and np.shape(times) != self.shape[:1]:
                raise ValueError(f"{name} must have one time for each of {self.shape[0]} slices, got {np.shape(times)}")
        if self.frames_per_slice < 1 or not self.fps > 0:
            raise ValueError(f"a slice has frames, and fps is above 0; got {self.frames_per_slice} and {self.fps}")

    @property
    def tokens_per_slice(self) -> int:
        """Rows times columns."""
        return self.shape[1] * self.shape[2]

    @property
    def middles_s(self) -> np.ndarray:
        """[slices] halfway between the first and the last frame of each."""
        last_s = self.times_s + (self.frames_per_slice - 1) / self.fps if self.last_s is None else self.last_s
        return (self.times_s + last_s) / 2


def tokenizer(source: str) -> Any:
    """The tokenizer of a model, with the chat template that the model's processor would use.

    Args:
        source: a folder or hub id.
    """
    try:
        import transformers
    except ImportError as error:
        raise ImportError("asking a model needs transformers: pip install 'floc-video[hf]'") from error
    try:
        found = transformers.AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{source}: neither a folder with a tokenizer that transformers {transformers.__version__} knows, nor one "
            f"of the hub's ({str(error).strip().splitlines()[0]})"
        ) from error
    # a tokenizer reads chat_template.jinja itself; its own template may be that of a language model, without videos
    found.chat_template = _template_of_processor(source) or found.chat_template
    if not found.chat_template:
        raise ValueError(
            f"{source}: has no chat template; put the model's chat_template.jinja beside its tokenizer, "
            "or take a model that is tuned to answer questions"
        )
    return found


def _template_of_processor(source: str) -> Any:
    """What the processor's older files hold, in the order in which it takes them."""
    from transformers.utils import cached_file

    for file in ("processor_config.json", "chat_template.json"):
        path = cached_file(
            source,
            file,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,  # offline, a file that was never there cannot be told apart
        )
        template = json.loads(Path(path).read_text(encoding="utf-8")).get("chat_template") if path else None
        if template:
            return template
    return None


def prompt(
    kind: str, tokenizer: Any, config: Any, film: Film, question: str, history: Sequence[tuple[str, str]] = ()
) -> dict[str, torch.Tensor]:
    """A question about a video, ready for the model but for the pixels.

    Args:
        kind: the `model_type` of the model.
        tokenizer: of the model, from `tokenizer`.
        config: of the model.
        film: the video.
        question: what to ask.
        history: earlier questions about the video with their answers, first to last.

    Returns:
        [1, L] `input_ids` and `attention_mask`, and of these what the model takes: [1, L] `mm_token_type_ids`, [1, 3]
        `video_grid_thw` in patches, [1] `second_per_grid_ts` and [1] `video_merge_sizes`.
    """
    check_choice("kind of model", kind, FAMILIES)
    family = FAMILIES[kind]
    text = _chat(kind, tokenizer, _conversation(question, history))
    marker = getattr(tokenizer, "video_token", family.marker)
    if text.count(marker) != 1:
        raise ValueError(
            f"the chat template must write {marker} once for the video, and wrote it {text.count(marker)} times: "
            + ("take the template of the model's processor" if marker not in text else "leave it out of the question")
        )
    video = family.write(film, marker, tokenizer)
    # where the template wrote the token that opens every text, the tokenizer must not add another
    opened = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
    encoded = tokenizer(
        text.replace(marker, video),
        add_special_tokens=not opened,
        return_tensors="pt",
        verbose=False,  # no word on its length: that is before it is compressed
    )
    ids = encoded["input_ids"]  # [1, L]
    placeholder = getattr(config, family.placeholder)
    places = ids == placeholder
    expected = math.prod(film.shape) + family.beyond
    if places.sum() != expected:
        raise ValueError(
            f"the prompt should have {expected} tokens of id {placeholder}, the config's {family.placeholder}, and has "
            f"{places.sum()}: the tokenizer must be the model's own, and the question must not name such tokens"
        )
    inputs = {"input_ids": ids, "attention_mask": encoded["attention_mask"]}
    if family.typed:
        inputs["mm_token_type_ids"] = places * VIDEO
    return inputs | family.where(film, config)


def _conversation(question: str, history: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """The turns, with the video before the first question."""
    said = [*(each for turn in history for each in turn), question]
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": [{"type": "text", "text": each}]} for i, each in enumerate(said)]
    turns[0]["content"] = [{"type": "video"}, *turns[0]["content"]]
    return turns


def _chat(kind: str, tokenizer: Any, conversation: list[dict[str, Any]]) -> str:
    from jinja2 import TemplateError

    template = _smolvlm_template() if kind == "smolvlm" else None
    try:
        return tokenizer.apply_chat_template(
            conversation, chat_template=template, tokenize=False, add_generation_prompt=True
        )
    except (TemplateError, TypeError) as error:
        raise ValueError(
            f"the chat template takes no videos ({error}); take the template of the model's processor"
        ) from error


def _smolvlm_template() -> str:
    """What SmolVLM's processor takes for videos in place of the model's own template, which knows none."""
    from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE

    return DEFAULT_CHAT_TEMPLATE


# What takes the marker's place: `video` is the marker, `tokenizer` may have its own names for the other special tokens


def _row(film: Film, video: str, tokenizer: Any) -> str:
    return video * math.prod(film.shape)


def _row_and_newline(film: Film, video: str, tokenizer: Any) -> str:
    return video * (math.prod(film.shape) + 1)


def _qwen3_vl(film: Film, video: str, tokenizer: Any) -> str:
    start = getattr(tokenizer, "vision_start_token", "<|vision_start|>")
    end = getattr(tokenizer, "vision_end_token", "<|vision_end|>")
    frame = start + video * film.tokens_per_slice + end
    return "".join(f"<{time_s:.1f} seconds>{frame}" for time_s in film.middles_s)


def _glm4v(film: Film, video: str, tokenizer: Any) -> str:
    tokens = getattr(tokenizer, "image_token", "<|image|>") * film.tokens_per_slice
    return "".join(f"<|begin_of_image|>{tokens}<|end_of_image|>{int(time_s)}" for time_s in film.times_s)


def _video_llama_3(film: Film, video: str, tokenizer: Any) -> str:
    tokens = video * film.tokens_per_slice
    return ",".join(f"Time {time_s:.1f}s:{tokens}" for time_s in film.times_s)


def _internvl(film: Film, video: str, tokenizer: Any) -> str:
    start = getattr(tokenizer, "start_image_token", "<img>")
    end = getattr(tokenizer, "end_image_token", "</img>")
    tokens = getattr(tokenizer, "context_image_token", "<IMG_CONTEXT>") * film.tokens_per_slice
    return "\n".join(f"Frame{i + 1}: {start}{tokens}{end}" for i in range(film.shape[0]))


def _smolvlm(film: Film, video: str, tokenizer: Any) -> str:
    around = getattr(tokenizer, "fake_image_token", "<fake_token_around_image>")
    whole = getattr(tokenizer, "global_image_token", "<global-img>")
    tokens = getattr(tokenizer, "image_token", "<image>") * film.tokens_per_slice
    opening = (
        f"You are provided the following series of {spelled(film.shape[0])} frames "
        f"from a {timedelta(seconds=int(film.duration_s))} [H:MM:SS] video.\n"
    )
    frames = (
        f"\nFrame from {int(time_s // 60):02}:{int(time_s % 60):02}:{around}{whole}{tokens}{around}"
        for time_s in film.times_s
    )
    return opening + "".join(frames) + "\n\n"


_UNITS = (
    "zero one two three four five six seven eight nine "
    "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


def spelled(n: int) -> str:
    """A number below a million as the package num2words writes it.

    >>> spelled(64), spelled(1234)
    ('sixty-four', 'one thousand, two hundred and thirty-four')
    """
    if n < 20:
        return _UNITS.split()[n]
    if n < 100:
        return _TENS.split()[n // 10 - 2] + (f"-{spelled(n % 10)}" if n % 10 else "")
    if n < 1000:
        return f"{spelled(n // 100)} hundred" + (f" and {spelled(n % 100)}" if n % 100 else "")
    rest = n % 1000
    joint = " and " if rest < 100 else ", "
    return f"{spelled(n // 1000)} thousand" + (f"{joint}{spelled(rest)}" if rest else "")


# What the model needs to place the tokens


def _nothing(film: Film, config: Any) -> dict[str, torch.Tensor]:
    return {}


def _grid(film: Film, config: Any) -> dict[str, torch.Tensor]:
    return _patches(film, config.vision_config.spatial_merge_size)


def _timed_grid(film: Film, config: Any) -> dict[str, torch.Tensor]:
    return _grid(film, config) | {"second_per_grid_ts": torch.tensor([film.frames_per_slice / film.fps])}


def _merged_grid(film: Film, config: Any) -> dict[str, torch.Tensor]:
    return _patches(film, VIDEO_LLAMA_3_MERGE) | {"video_merge_sizes": torch.tensor([VIDEO_LLAMA_3_MERGE])}


def _patches(film: Film, merge: int) -> dict[str, torch.Tensor]:
    slices, rows, columns = film.shape
    return {"video_grid_thw": torch.tensor([[slices, rows * merge, columns * merge]])}


@dataclass(frozen=True)
class Family:
    """How models of one kind take a video."""

    marker: str  # what the chat template writes for it, unless the tokenizer names another
    write: Callable[[Film, str, Any], str]  # the film, the marker and the tokenizer -> what takes the marker's place
    placeholder: str = "video_token_id"  # the config's name for the id of the token that stands for a visual one
    where: Callable[[Film, Any], dict[str, torch.Tensor]] = _nothing  # the film and the config -> inputs of the model
    typed: bool = False  # whether the model places tokens by mm_token_type_ids
    beyond: int = 0  # placeholders that are no tokens of a frame


FAMILIES = {
    "qwen2_vl": Family("<|video_pad|>", _row, where=_grid, typed=True),
    "qwen2_5_vl": Family("<|video_pad|>", _row, where=_timed_grid, typed=True),
    "qwen3_vl": Family("<|video_pad|>", _qwen3_vl, where=_grid, typed=True),
    "qwen3_vl_moe": Family("<|video_pad|>", _qwen3_vl, where=_grid, typed=True),
    "glm4v": Family("<|video|>", _glm4v, "image_token_id", where=_grid, typed=True),
    "glm4v_moe": Family("<|video|>", _glm4v, "image_token_id", where=_grid, typed=True),
    "video_llama_3": Family("<|video_pad|>", _video_llama_3, where=_merged_grid),
    "llava_next_video": Family("<video>", _row),
    "llava_onevision": Family("<video>", _row_and_newline, beyond=1),
    "internvl": Family("<video>", _internvl, "image_token_id"),
    "smolvlm": Family("<video>", _smolvlm, "image_token_id"),
}
