"""Tiny models for vLLM, whose attention on CPUs needs heads of at least 32 channels."""

from __future__ import annotations

import json
import re
from pathlib import Path

import safetensors.torch

from tests.integrations.lmms_eval import tiny
from tests.integrations.transformers.zoo import MROPE

FRAMES = 64
LINEAR_ATTENTION = ("qwen3_5", "qwen3_5_moe")
STAMPED = ("qwen3_vl", "qwen3_vl_moe", *LINEAR_ATTENTION)  # these write a timestamp before every frame
COMPACT = ("llava_onevision", "internvl")  # these have plain positions
ROPE = dict(MROPE, mrope_section=[4, 6, 6])
LINEAR = dict(linear_key_head_dim=128, linear_value_head_dim=128)  # of vLLM's kernels for CPUs
TEXT = dict(num_attention_heads=2, num_key_value_heads=1, head_dim=32)


def write(kind: str, folder: Path) -> Path:
    """Save a model with its tokenizer and processor into a new folder."""
    folder.mkdir()
    rope = dict(ROPE, mrope_interleaved=True, partial_rotary_factor=1.0) if kind in STAMPED else ROPE
    linear = LINEAR if kind in LINEAR_ATTENTION else {}
    experts = dict(norm_topk_prob=True) if kind == "qwen3_vl_moe" else {}  # as checkpoints have it
    if kind in COMPACT:
        tiny.write(kind, folder, **TEXT)
        if kind == "llava_onevision":
            _rename_vision(folder / "model.safetensors")
        return folder
    tiny.write(kind, folder, **TEXT, **experts, **linear, rope_parameters=rope)
    if experts:
        _transpose_experts(folder / "model.safetensors")
    if kind in STAMPED:  # their size limit is per video, not per frame
        path = folder / "processor_config.json"
        config = json.loads(path.read_text())
        config["video_processor"]["size"]["longest_edge"] *= FRAMES
        path.write_text(json.dumps(config))
    return folder


def _transpose_experts(path: Path) -> None:
    """Transpose expert weights: checkpoints store them transposed to what transformers saves."""
    weights = safetensors.torch.load_file(path)
    weights = {name: value.mT.contiguous() if ".experts." in name else value for name, value in weights.items()}
    safetensors.torch.save_file(weights, path, metadata={"format": "pt"})


def _rename_vision(path: Path) -> None:
    """Name the weights of the vision encoder as published checkpoints of LLaVA-OneVision do."""
    weights = safetensors.torch.load_file(path)
    weights = {name: value for name, value in weights.items() if not name.startswith("vision_tower.head.")}
    prefix = "vision_tower."
    weights = {re.sub(f"^{prefix}", f"{prefix}vision_model.", name): value for name, value in weights.items()}
    safetensors.torch.save_file(weights, path, metadata={"format": "pt"})
