"""Tiny models as vLLM takes them: its attention on CPUs wants heads of 32 channels or more."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch

from tests.integrations.lmms_eval import tiny
from tests.integrations.transformers.zoo import MROPE

FRAMES = 64
STAMPED = ("qwen3_vl", "qwen3_vl_moe")  # they write the time before every frame
ROPE = dict(MROPE, mrope_section=[4, 6, 6])
TEXT = dict(num_attention_heads=2, num_key_value_heads=1, head_dim=32)


def write(kind: str, folder: Path) -> Path:
    """A model, its tokenizer and its processor, in a folder of its own."""
    folder.mkdir()
    rope = dict(ROPE, mrope_interleaved=True) if kind in STAMPED else ROPE
    experts = dict(norm_topk_prob=True) if kind == "qwen3_vl_moe" else {}  # as checkpoints have it
    tiny.write(kind, folder, **TEXT, **experts, rope_parameters=rope)
    if experts:
        _turn_experts(folder / "model.safetensors")
    if kind in STAMPED:  # which take the limit for a whole film, not for a frame
        path = folder / "video_preprocessor_config.json"
        about = json.loads(path.read_text())
        about["size"]["longest_edge"] *= FRAMES
        path.write_text(json.dumps(about))
    return folder


def _turn_experts(path: Path) -> None:
    """Checkpoints have the weights of experts the other way round than transformers saves them."""
    weights = safetensors.torch.load_file(path)
    turned = {name: each.mT.contiguous() if ".experts." in name else each for name, each in weights.items()}
    safetensors.torch.save_file(turned, path, metadata={"format": "pt"})
