"""Find the parts of a model, whatever wraps it and wherever its weights are."""

from typing import Any

import torch

from floc.families.table import is_supported


def unwrap_model(model: Any) -> Any:
    """Return the video model in a wrapper, such as PEFT's, torch.compile's or one for data parallelism.

    It is the outermost module of a supported type; without one, the outermost model of transformers, or `model` itself.
    """
    if not isinstance(model, torch.nn.Module):
        return model
    from transformers import PreTrainedModel

    models = {name: part for name, part in model.named_modules() if isinstance(part, PreTrainedModel)}
    outermost: list[str] = []
    for name, part in models.items():  # a module comes before its parts
        if is_supported(part.config) and not any(not outer or name.startswith(f"{outer}.") for outer in outermost):
            outermost.append(name)
    if len(outermost) > 1:
        raise ValueError(f"the model contains several video models: {', '.join(outermost)}; pass one of them")
    found: Any = models[outermost[0]] if outermost else next(iter(models.values()), model)
    return getattr(found, "thinker", found)  # the part of a model that sees, if it also speaks


def find_decoder(model: Any) -> tuple[Any, Any]:
    """Return the multimodal model without its language head, and the decoder that it calls."""
    base, decoder = model.base_model, model.get_decoder()
    if decoder is base or all(part is not decoder for part in base.modules()):
        problem = f"floc cannot find the language model inside {type(base).__name__}"
        raise ValueError(f"{problem}; its get_decoder() must return a part of it, such as language_model")
    # a compiled module ignores its own hooks: only those of the original run
    return base, getattr(decoder, "_orig_mod", decoder)


def find_device(model: Any) -> torch.device:
    """Return the device of a model's inputs; `model.device` is "meta" if its first part was offloaded."""
    return next((weight.device for weight in model.parameters() if not weight.is_meta), torch.device("cpu"))
