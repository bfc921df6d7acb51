"""Fit the hooks to compiled models and flash attention, and raise an error where a video would stay whole unnoticed."""

import sys
from collections.abc import Mapping
from typing import Any

import torch

from floc.families import ModelFamily
from floc.families.locate import Arguments

HAS_VIDEO = "floc_has_video"  # attribute of a cache that was filled from a prompt with a video
GUESSED_TOKENS = 64  # prompt lookup and assistant models guess fewer at a time; videos have more


def discard_compiled_code() -> None:
    """Discard all that torch.compile compiled: compiled code does not notice that hooks were added or removed."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def may_be_guess(tokens: int, cache: Any) -> bool:
    """Return whether placeholders may repeat a video that the cache has: in an answer or a guess."""
    return tokens <= GUESSED_TOKENS and getattr(cache, HAS_VIDEO, False) and int(cache.get_seq_length()) > 0


def check_visible(family: ModelFamily, config: Any, arguments: Arguments) -> None:
    """Raise ValueError if a call without pixels may have a video, which FLoC could not shorten."""
    embeds = arguments.get("inputs_embeds") if arguments.get("input_ids") is None else None
    if embeds is not None and embeds.shape[1] > 1:
        problem = "floc cannot see whether inputs_embeds contain a video, so it cannot shorten it"
        raise ValueError(f"{problem}; pass input_ids and pixels instead, or detach floc for this call")
    count = family.count_tokens(config, arguments)
    if count and not may_be_guess(count, arguments.get("past_key_values")):
        problem = f"the prompt has {count} video tokens, but neither {family.pixels} nor encoded videos"
        remedy = "pass all that the processor returned, and no prefill_chunk_size, which drops pixels"
        raise ValueError(f"{problem}; {remedy}; or detach floc for this call")


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


def join_sequence(config: Any, kwargs: dict[str, Any]) -> None:
    """Let flash attention read a shortened call on a filled cache as one sequence, in place.

    Without a mask, transformers takes positions with gaps for several packed sequences, and loses what the cache holds.
    """
    cache, positions, embeds = kwargs.get("past_key_values"), kwargs["position_ids"], kwargs["inputs_embeds"]
    held = 0 if cache is None else int(cache.get_seq_length())
    text = config.get_text_config()
    if not held or len(embeds) > 1 or "flash" not in str(text._attn_implementation):
        return
    if positions.ndim == 3:  # of text, time, row and column: only those of text are searched for gaps
        kwargs["position_ids"] = positions[-3:]
        return
    kinds = set(getattr(text, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        problem = f"floc cannot add a video to a filled cache with flash attention in layers of {', '.join(kinds)}"
        raise ValueError(f"{problem}; load the model with attn_implementation='sdpa', or ask with a new cache")
    for name, length in (("q", embeds.shape[1]), ("k", held + embeds.shape[1])):
        kwargs[f"cu_seq_lens_{name}"] = torch.tensor([0, length], dtype=torch.int32, device=embeds.device)
        kwargs[f"max_length_{name}"] = length
