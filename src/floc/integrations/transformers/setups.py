"""Work in the setups that people have: wrapped and compiled models, flash attention; and never skip a video silently."""

import sys
from collections.abc import Mapping
from typing import Any

import torch

from floc.families import ModelFamily, find_family
from floc.families.locate import Arguments


def unwrap_model(model: Any) -> Any:
    """Return the video model in a wrapper, such as PEFT's, torch.compile's or one for data parallelism.

    It is the outermost module of a supported type; without one, the outermost model of transformers, or `model` itself.
    """
    if not isinstance(model, torch.nn.Module):
        return model
    from transformers import PreTrainedModel

    models = [(name, part) for name, part in model.named_modules() if isinstance(part, PreTrainedModel)]
    supported = [(name, part) for name, part in models if _is_supported(part)]
    outermost: list[tuple[str, Any]] = []
    for name, part in supported:
        if not any(name.startswith(f"{outer}.") or not outer for outer, _ in outermost):
            outermost.append((name, part))
    if len(outermost) > 1:
        names = ", ".join(name for name, _ in outermost)
        raise ValueError(f"the model contains several video models: {names}; pass one of them")
    found = outermost or models[:1]
    return found[0][1] if found else model


def _is_supported(model: Any) -> bool:
    try:
        find_family(model.config)
    except ValueError:
        return False
    return True


def find_decoder(model: Any) -> tuple[Any, Any]:
    """Return the multimodal model without its language head, and the decoder that it calls."""
    base, decoder = model.base_model, model.get_decoder()
    if decoder is base or all(part is not decoder for part in base.modules()):
        problem = f"floc cannot find the language model inside {type(base).__name__}"
        raise ValueError(f"{problem}; its get_decoder() must return a part of it, such as language_model")
    # a compiled module ignores its own hooks: only those of the original run
    return base, getattr(decoder, "_orig_mod", decoder)


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
        problem = "the decoder was called directly, not by the model that floc is attached to, so floc cannot see videos"
        raise ValueError(f"{problem}; call the model with input_ids and pixels, or detach floc for this call")
