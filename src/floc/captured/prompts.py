"""Prompts about a video, as the model's processor would write them.

The processors need torchvision, so prompts are built from the tokenizer and its chat template. The template writes one
marker for a video, which the family's `write_video` replaces by placeholders, or by frames with their times.
"""

import math
from collections.abc import Sequence
from importlib import import_module
from itertools import chain, cycle
from typing import Any, TypeAlias

import torch

from floc._checks import check_choice
from floc.families import FAMILIES
from floc.families.pretrained import load_part, read_json
from floc.families.writers import SampledVideo

Turns: TypeAlias = Sequence[tuple[str, str]]  # questions about a video with their answers, oldest first
MOST_TOKENS = 1 << 24  # in a prompt: ten times an hour of video, and the text of more would fill the memory
VIDEO_LLAMA_3_MERGE = 2  # patches on a side of a video token; only its video processor knows it


def load_tokenizer(source: str) -> Any:
    """Load the tokenizer of a folder or hub id, with the chat template that the model's processor would use."""
    loaded = load_part("tokenizer", source, "asking a model")
    # A tokenizer reads chat_template.jinja itself. Its own template may be for text only, so these files come first.
    configs = (read_json(source, name, ignore_offline=True) for name in ("processor_config.json", "chat_template.json"))
    templates = (config.get("chat_template") for config in configs)
    loaded.chat_template = next(filter(None, templates), loaded.chat_template)
    if not loaded.chat_template:
        raise ValueError(f"{source}: has no chat template; put the model's chat_template.jinja beside its tokenizer")
    return loaded


def build_prompt(
    model_type: str, tokenizer: Any, config: Any, video: SampledVideo, question: str, history: Turns = ()
) -> dict[str, torch.Tensor]:
    """Build the inputs for a question about a video, without pixels.

    Args:
        model_type, config: of the model.
        tokenizer: of the model, from `load_tokenizer`.
        history: earlier questions about the video with their answers, oldest first.

    Returns:
        [1, L] `input_ids` and `attention_mask`, and those of the following that the model takes: [1, L]
        `mm_token_type_ids`, [1, 3] `video_grid_thw` in patches, [1] `second_per_grid_ts`, [1] `video_merge_sizes`.
    """
    check_choice("model type", model_type, [name for name, family in FAMILIES.items() if family.write_video])
    family = FAMILIES[model_type]
    if math.prod(video.shape) > MOST_TOKENS:
        raise ValueError(f"a video in a prompt must have at most {MOST_TOKENS} tokens, got {math.prod(video.shape)}")
    text = _apply_template(model_type, tokenizer, question, history)
    marker = getattr(tokenizer, "video_token", family.marker)
    if text.count(marker) != 1:
        remedy = "remove it from the question" if marker in text else "use the template of the model's processor"
        times = f"once, for the video, but wrote it {text.count(marker)} times"
        raise ValueError(f"the chat template must write {marker} {times}; {remedy}")
    assert family.write_video is not None
    newlines = 0 if family.newline is None else 1
    # if the template wrote the token that opens every text, the tokenizer must not add another
    is_opened = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
    text = text.replace(marker, family.write_video(video, marker, tokenizer) + marker * newlines)
    # if verbose, it would warn about the length, which is before compression
    encoded = tokenizer(text, add_special_tokens=not is_opened, return_tensors="pt", verbose=False)
    ids = encoded["input_ids"]  # [1, L]
    placeholder = getattr(config, family.placeholder)
    is_video = ids == placeholder
    expected = math.prod(video.shape) + newlines
    if is_video.sum() != expected:
        wanted = f"{expected} tokens with id {placeholder}, the config's {family.placeholder}, but has {is_video.sum()}"
        remedy = "use the model's own tokenizer, and a question without such tokens"
        raise ValueError(f"the prompt must have {wanted}; {remedy}")
    inputs = {"input_ids": ids, "attention_mask": encoded["attention_mask"]}
    if family.has_grid_positions:
        inputs["mm_token_type_ids"] = is_video * 2  # 0: text, 1: image
    if family.frames == "patches":
        merge = VIDEO_LLAMA_3_MERGE if family.takes_merge_sizes else config.vision_config.spatial_merge_size
        slices, rows, columns = video.shape
        inputs["video_grid_thw"] = torch.tensor([[slices, rows * merge, columns * merge]])
        if family.takes_merge_sizes:
            inputs["video_merge_sizes"] = torch.tensor([merge])
    if family.takes_slice_seconds:
        inputs["second_per_grid_ts"] = torch.tensor([video.frames_per_slice / video.fps])
    return inputs


def _apply_template(model_type: str, tokenizer: Any, question: str, history: Turns) -> str:
    from jinja2 import TemplateError

    texts = zip(cycle(("user", "assistant")), [*chain(*history), question], strict=False)
    turns = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in texts]
    turns[0]["content"] = [{"type": "video"}, *turns[0]["content"]]
    template = None
    if model_type == "smolvlm":  # the model's own template has no videos, so its processor uses another
        template = import_module("transformers.models.smolvlm.processing_smolvlm").DEFAULT_CHAT_TEMPLATE
    try:
        return tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False, add_generation_prompt=True)
    except (TemplateError, TypeError) as error:
        problem = f"the template does not support videos ({error})"
        raise ValueError(f"{problem}; use that of the model's processor") from error
