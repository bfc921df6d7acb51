"""What the plugin works with, and what it says of anything else."""

from __future__ import annotations

from collections.abc import Iterable

VERSIONS = ("0.28", "0.32")  # of vLLM, those that the engine tests were run with
# architectures, as a model's config.json names them -> the classes that stand in for vLLM's
MODELS = {
    "Qwen2VLForConditionalGeneration": "floc.integrations.vllm.models:Qwen2VL",
    "Qwen2_5_VLForConditionalGeneration": "floc.integrations.vllm.models:Qwen2_5_VL",
    "Qwen3VLForConditionalGeneration": "floc.integrations.vllm.models:Qwen3VL",
    "Qwen3VLMoeForConditionalGeneration": "floc.integrations.vllm.models:Qwen3VLMoe",
}


def require_version(version: str) -> None:
    """Complain of a vLLM that was never tried.

    >>> require_version("0.32.1")
    """
    if ".".join(version.split(".")[:2]) not in VERSIONS:
        raise RuntimeError(
            f"floc's plugin was tested with vLLM {_listed(VERSIONS)}, and this is {version}: install one of those, "
            "or unset FLOC_VLLM and leave floc out of --additional-config to run without it"
        )


def require_model(architecture: str) -> None:
    """Complain of a model that the plugin has no class for."""
    if architecture not in MODELS:
        raise ValueError(
            f"floc cannot choose the video tokens of {architecture} in vLLM; it can for {_listed(MODELS)}. "
            "For other models use floc.attach with transformers, or serve without a pruning rate"
        )


def _listed(names: Iterable[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))
