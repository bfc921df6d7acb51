"""Fit the hooks to compiled models and flash attention, and raise an error where a video would stay whole unnoticed."""

import sys
from collections.abc import Mapping
from typing import Any

import torch

from floc.families import ModelFamily
from floc.families.locate import Arguments


def discard_compiled_code() -> None:
    """Discard all that torch.compile compiled: compiled code does not notice that hooks were added or removed."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def check_visible(family: ModelFamily, config: Any, arguments: Arguments) -> None:
    """Raise ValueError if a call without pixels may have a video that FLoC cannot see."""
    ids, embeds, cache = (arguments.get(name) for name in ("input_ids", "inputs_embeds", "past_key_values"))
    if ids is None:
        if embeds is not None and embeds.shape[1] > 1:
            problem = "floc cannot see whether inputs_embeds contain a video, so it cannot shorten it"
            raise ValueError(f"{problem}; pass input_ids and pixels instead, or detach floc for this call")
    elif ids.shape[1] > 1 and (cache is None or not int(cache.get_seq_length())):
        # tokens after the prompt may repeat placeholders: those of an answer, or guesses of an assistant model
        count = int(family.mask_tokens(config, ids).sum())
        if count:
            problem = f"the prompt has {count} video tokens, but neither {family.pixels} nor encoded videos"
            raise ValueError(f"{problem}; pass all that the processor returned, or detach floc for this call")


def check_direct_call(family: ModelFamily, config: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise ValueError if the decoder was called outside the multimodal model, with what may be a video."""
    ids, embeds = kwargs.get("input_ids"), kwargs.get("inputs_embeds")
    has_video = embeds is not None and embeds.shape[1] > 1
    if ids is not None:
        has_video = ids.shape[1] > 1 and bool(family.mask_tokens(config, ids).any())
    if has_video:
        problem = (
            "the decoder was called directly, not by the model that floc is attached to, so floc cannot see videos"
        )
        raise ValueError(f"{problem}; call the model with input_ids and pixels, or detach floc for this call")
