"""The models there are: a line for each, with what lmms-eval has for the family."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from floc.integrations.lmms_eval import sampling
from floc.integrations.lmms_eval.sampling import Sampling


@dataclass(frozen=True)
class Family:
    """A model of lmms-eval, and how it is told which frames to take."""

    wraps: str  # its name in lmms-eval
    sampled: Callable[[Any, Sampling], AbstractContextManager[None]]
    is_chat: bool = True  # whether lmms-eval has it for tasks that write messages
    is_simple: bool = True  # the same for tasks that write a text and visuals beside it


FAMILIES = {
    "floc_qwen2_5_vl": Family("qwen2_5_vl", sampling.of_qwen),
    "floc_qwen2_vl": Family("qwen2_vl", sampling.of_qwen, is_chat=False),
    "floc_qwen3_vl": Family("qwen3_vl", sampling.of_qwen),
    # internvl3 there runs the program that comes with its weights, and this one the class of transformers
    "floc_internvl3": Family("internvl_hf", sampling.of_internvl, is_simple=False),
    # llava_vid there needs a package that is not on PyPI; llava_hf for chat takes all frames, and wants pictures
    "floc_llava_video": Family("llava_hf", sampling.of_llava, is_chat=False),
}


def manifests() -> list[Any]:
    """What the entry point `lmms_eval.models` gives to lmms-eval."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return [
        ModelManifest(
            name,
            simple_class_path=_class_path(name, "simple") if family.is_simple else None,
            chat_class_path=_class_path(name, "chat") if family.is_chat else None,
        )
        for name, family in FAMILIES.items()
    ]


def _class_path(name: str, kind: str) -> str:
    return f"{__package__}.models.{name}_{kind}"
