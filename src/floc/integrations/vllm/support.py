"""The vLLM releases and models that the plugin supports."""

from __future__ import annotations

from collections.abc import Iterable

VLLM_VERSIONS = ("0.28", "0.32")  # releases that pass the engine tests
# architecture in a model's config.json -> class that replaces vLLM's
VLLM_MODELS = {
    "Qwen2VLForConditionalGeneration": "floc.integrations.vllm.models:Qwen2VL",
    "Qwen2_5_VLForConditionalGeneration": "floc.integrations.vllm.models:Qwen2_5_VL",
    "Qwen3VLForConditionalGeneration": "floc.integrations.vllm.models:Qwen3VL",
    "Qwen3VLMoeForConditionalGeneration": "floc.integrations.vllm.models:Qwen3VLMoe",
}


def check_version(version: str) -> None:
    """Raise RuntimeError unless `version` of vLLM is supported."""
    if ".".join(version.split(".")[:2]) not in VLLM_VERSIONS:
        raise RuntimeError(
            f"the floc plugin supports vLLM {_join(VLLM_VERSIONS)}, but {version} is installed: install a supported "
            "release, or unset FLOC_VLLM and remove floc from --additional-config to run without the plugin"
        )


def check_model(architecture: str) -> None:
    """Raise ValueError unless the plugin has a class for `architecture`."""
    if architecture not in VLLM_MODELS:
        raise ValueError(
            f"floc does not support {architecture} in vLLM; it supports {_join(VLLM_MODELS)}. "
            "For other models use floc.attach with transformers, or serve without a pruning rate"
        )


def _join(names: Iterable[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))
