"""Tiny models with random weights for lmms-eval, saved with processor and generation config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from tests.integrations.transformers.checkpoints import save
from tests.integrations.transformers.processors import create_processor, transformers
from tests.integrations.transformers.tiny_configs import create_config, set_token_ids

ANSWERS = "ABCD"
OMNI = "qwen3_omni_moe"
OMNI_PATCH = 16  # its processor has the usual frame size in each call, so that smaller patches would be too many
FRAME = dict(shortest_edge=64, longest_edge=4096)  # pixels; lmms-eval and vLLM set larger limits for videos
FRAME_LIMITED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
BLIND = ("qwen3_5", OMNI)  # answers would hardly depend on the video, but on the text
# the chat template expects a list of parts, but some models of lmms-eval pass one text
PARTS = "{% for part in message['content'] %}"
TEXT = "{% if message['content'] is string %}{{ message['content'] }}{% endif %}"


def write(kind: str, folder: Path, **text: Any) -> Path:
    """Save a model that generates only answer letters, with its tokenizer and processor."""
    if kind == OMNI:
        _save_omni(folder)
        _change_processor(folder, patch_size=OMNI_PATCH)
    else:
        save(kind, folder, **text)
    if kind in FRAME_LIMITED:
        _change_processor(folder, size=FRAME, image_mean=[0.5] * 3, image_std=[0.2] * 3)  # noise with some contrast
    if kind in BLIND:
        weights = safetensors.torch.load_file(folder / "model.safetensors")
        for name, weight in weights.items():
            if name.endswith("embed_tokens.weight"):
                weight.mul_(0.1)
            elif name.endswith("q_norm.weight"):  # sharp attention
                weight.fill_(8)
        safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"eos_token": "</s>", "pad_token": "<pad>"})
    tokenizer.chat_template = tokenizer.chat_template.replace(PARTS, TEXT + PARTS)
    tokenizer.save_pretrained(folder)
    letters = tokenizer.convert_tokens_to_ids(list(ANSWERS))
    generation = json.loads((folder / "generation_config.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    vocabulary = config.get("thinker_config", config)["text_config"]["vocab_size"]
    generation["suppress_tokens"] = [token for token in range(vocabulary) if token not in letters]
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def _change_processor(folder: Path, **settings: Any) -> None:
    """Change settings of the saved image and video processors."""
    path = folder / "processor_config.json"
    config = json.loads(path.read_text())
    for part in ("image_processor", "video_processor"):
        config[part].update(settings)
    path.write_text(json.dumps(config))


def _save_omni(folder: Path) -> None:
    """Save a Qwen3-Omni that cannot speak."""
    thinker = create_config(OMNI)
    set_token_ids(thinker, OMNI)
    thinker.vision_config.patch_size = OMNI_PATCH
    config = transformers.Qwen3OmniMoeConfig(thinker_config=thinker.to_dict(), enable_audio_output=False)
    torch.manual_seed(0)
    model = transformers.Qwen3OmniMoeForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape) * 0.2)
    model.save_pretrained(folder)
    create_processor(OMNI).save_pretrained(folder)
