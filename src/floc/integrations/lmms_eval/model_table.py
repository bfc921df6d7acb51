"""The table of models: one line per model, with the lmms-eval model that it wraps."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from floc.integrations.lmms_eval import sampling


@dataclass(frozen=True)
class LmmsModel:
    """A model of lmms-eval that can be wrapped."""

    wraps: str  # its name in lmms-eval
    override_sampling: Callable[[Any, sampling.FrameSampling], AbstractContextManager[None]]
    is_chat: bool = True  # lmms-eval has a version for chat tasks, whose prompts are messages
    is_simple: bool = True  # lmms-eval has a version for simple tasks, whose prompts are a text and visuals


LMMS_MODELS = {
    "floc_qwen2_5_vl": LmmsModel("qwen2_5_vl", sampling.override_qwen),
    "floc_qwen2_vl": LmmsModel("qwen2_vl", sampling.override_qwen, is_chat=False),
    "floc_qwen3_vl": LmmsModel("qwen3_vl", sampling.override_qwen),
    "floc_qwen3_5": LmmsModel("qwen3_5", sampling.override_qwen),
    # its version for simple tasks mixes the audio of a video into its frames
    "floc_qwen3_omni": LmmsModel("qwen3_omni", sampling.override_qwen_omni, is_simple=False),
    # lmms-eval's internvl3 runs the code in the checkpoint; internvl_hf runs the transformers class
    "floc_internvl3": LmmsModel("internvl_hf", sampling.override_internvl, is_simple=False),
    # lmms-eval's llava_vid needs a package that is not on PyPI; its chat llava_hf ignores frame limits
    "floc_llava_video": LmmsModel("llava_hf", sampling.override_llava, is_chat=False),
}


def manifests() -> list[Any]:
    """Return the manifests of all models: the entry point `lmms_eval.models`."""
    from lmms_eval.models.registry_v2 import ModelManifest

    path = f"{__package__}.models."
    return [
        ModelManifest(
            name,
            simple_class_path=f"{path}{name}_simple" if model.is_simple else None,
            chat_class_path=f"{path}{name}_chat" if model.is_chat else None,
        )
        for name, model in LMMS_MODELS.items()
    ]
