"""Models of lmms-eval's families, tiny and with random weights, saved with all that lmms-eval loads beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.integrations.transformers.checkpoints import save
from tests.integrations.transformers.zoo import ODD_PIXELS, PATCH, PIXELS, transformers

ANSWERS = "ABCD"
NORMAL = dict(image_mean=[0.5] * 3, image_std=[0.2] * 3, do_convert_rgb=True)
GRID = dict(
    NORMAL, patch_size=PATCH, merge_size=2, temporal_patch_size=2, size=dict(shortest_edge=64, longest_edge=4096)
)
# of each kind: its classes for the whole, for pictures and for films, and how those prepare frames
PREPARED: dict[str, tuple[str, str, str, dict[str, Any]]] = {
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
OF_ALL: dict[str, dict[str, Any]] = {
    "internvl": dict(image_seq_length=9),
    "llava_onevision": dict(num_image_tokens=25, vision_feature_select_strategy="full"),
}
# a template writes the parts of a message; some models of lmms-eval give it one text
PARTS = "{% for part in message['content'] %}"
TEXT = "{% if message['content'] is string %}{{ message['content'] }}{% endif %}"


def write(kind: str, folder: Path, **text: Any) -> Path:
    """A model that says nothing but letters of answers, its tokenizer and its processor."""
    save(kind, folder, **text)
    whole, pictures, films, preparing = PREPARED[kind]
    _write(folder / "processor_config.json", processor_class=whole, **OF_ALL.get(kind, {}))
    _write(folder / "preprocessor_config.json", processor_class=whole, image_processor_type=pictures, **preparing)
    _write(folder / "video_preprocessor_config.json", processor_class=whole, video_processor_type=films, **preparing)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"eos_token": "</s>", "pad_token": "<pad>"})
    tokenizer.chat_template = tokenizer.chat_template.replace(PARTS, TEXT + PARTS)
    tokenizer.save_pretrained(folder)
    letters = tokenizer.convert_tokens_to_ids(list(ANSWERS))
    generation = json.loads((folder / "generation_config.json").read_text())
    vocabulary = json.loads((folder / "config.json").read_text())["text_config"]["vocab_size"]
    generation["suppress_tokens"] = [each for each in range(vocabulary) if each not in letters]
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def _write(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(values))
