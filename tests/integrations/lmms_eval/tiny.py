"""Tiny models with random weights for lmms-eval, saved with tokenizer, processor and generation config."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch

from tests.integrations.transformers.checkpoints import save
from tests.integrations.transformers.processors import create_processor
from tests.integrations.transformers.tiny_configs import create_config, create_model, set_token_ids
from tests.integrations.transformers.zoo import ODD_PIXELS, PATCH, PIXELS, transformers

ANSWERS = "ABCD"
OMNI = "qwen3_omni_moe"
OMNI_PATCH = 16  # its processor has the usual frame size in each call, so that smaller patches would be too many
NORMAL = dict(image_mean=[0.5] * 3, image_std=[0.2] * 3, do_convert_rgb=True)
GRID = dict(
    NORMAL, patch_size=PATCH, merge_size=2, temporal_patch_size=2, size=dict(shortest_edge=64, longest_edge=4096)
)
# model type -> its processor classes (whole, image, video) and their config
PROCESSORS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "qwen2_vl": ("Qwen2VLProcessor", "Qwen2VLImageProcessor", "Qwen2VLVideoProcessor", GRID),
    "qwen2_5_vl": ("Qwen2_5_VLProcessor", "Qwen2VLImageProcessor", "Qwen2VLVideoProcessor", GRID),
    "qwen3_vl": ("Qwen3VLProcessor", "Qwen2VLImageProcessor", "Qwen3VLVideoProcessor", GRID),
    "qwen3_vl_moe": ("Qwen3VLProcessor", "Qwen2VLImageProcessor", "Qwen3VLVideoProcessor", GRID),
    "internvl": (
        "InternVLProcessor",
        "GotOcr2ImageProcessor",
        "InternVLVideoProcessor",
        dict(NORMAL, size=dict(height=PIXELS, width=PIXELS)),
    ),
    "llava_onevision": (
        "LlavaOnevisionProcessor",
        "LlavaOnevisionImageProcessor",
        "LlavaOnevisionVideoProcessor",
        dict(NORMAL, size=dict(height=ODD_PIXELS, width=ODD_PIXELS)),
    ),
}
PROCESSOR_OPTIONS: dict[str, dict[str, Any]] = {
    "internvl": dict(image_seq_length=9),
    "llava_onevision": dict(num_image_tokens=25, vision_feature_select_strategy="full"),
}
# the chat template expects a list of parts, but some models of lmms-eval pass one text
PARTS = "{% for part in message['content'] %}"
TEXT = "{% if message['content'] is string %}{{ message['content'] }}{% endif %}"


def write(kind: str, folder: Path, **text: Any) -> Path:
    """Save a model that generates only answer letters, with its tokenizer and processor."""
    if kind in PROCESSORS:
        save(kind, folder, **text)
        whole, image, video, config = PROCESSORS[kind]
        _write_json(folder / "processor_config.json", processor_class=whole, **PROCESSOR_OPTIONS.get(kind, {}))
        _write_json(folder / "preprocessor_config.json", processor_class=whole, image_processor_type=image, **config)
        _write_json(
            folder / "video_preprocessor_config.json", processor_class=whole, video_processor_type=video, **config
        )
    else:
        _create_model(kind).save_pretrained(folder)
        create_processor(kind).save_pretrained(folder)
        if kind == OMNI:
            path = folder / "processor_config.json"
            config = json.loads(path.read_text())
            for part in ("image_processor", "video_processor"):
                config[part]["patch_size"] = OMNI_PATCH
            path.write_text(json.dumps(config))
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


def _create_model(kind: str) -> Any:
    """Return a tiny model whose answers depend on the video."""
    if kind == OMNI:
        thinker = create_config(kind)
        set_token_ids(thinker, kind)
        thinker.vision_config.patch_size = OMNI_PATCH
        config = transformers.Qwen3OmniMoeConfig(thinker_config=thinker.to_dict(), enable_audio_output=False)
        torch.manual_seed(0)
        model = transformers.Qwen3OmniMoeForConditionalGeneration(config).eval()
        embeddings = model.thinker.get_input_embeddings()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.copy_(torch.randn(weight.shape) * 0.2)
    else:
        model = copy.deepcopy(create_model(kind))
        embeddings = model.get_input_embeddings()
    with torch.no_grad():
        embeddings.weight.mul_(0.1)
    return model


def _write_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(values))
