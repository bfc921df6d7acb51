"""Folders of models as on the hub, without weights: config, tokenizer, and preprocessor files with real numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.integrations.transformers.processors import create_tokenizer, transformers
from tests.integrations.transformers.tiny_configs import set_token_ids

CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
MERGED = {"temporal_patch_size": 2, "merge_size": 2}
QWEN3_VL: dict[str, dict[str, Any]] = {
    "preprocessor_config.json": {
        "processor_class": "Qwen3VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "size": {"longest_edge": 16777216, "shortest_edge": 65536},
        "patch_size": 16,
        **MERGED,
        **HALF,
    },
    "video_preprocessor_config.json": {
        "processor_class": "Qwen3VLProcessor",
        "video_processor_type": "Qwen3VLVideoProcessor",
        "size": {"longest_edge": 25165824, "shortest_edge": 4096},
        "patch_size": 16,
        **MERGED,
        **HALF,
    },
}
FILES: dict[str, dict[str, dict[str, Any]]] = {
    "qwen2_5_vl": {
        "preprocessor_config.json": {
            "processor_class": "Qwen2_5_VLProcessor",
            "image_processor_type": "Qwen2VLImageProcessor",
            "min_pixels": 3136,
            "max_pixels": 12845056,
            "patch_size": 14,
            **MERGED,
            **CLIP,
        }
    },
    "qwen3_vl": QWEN3_VL,
    "qwen3_5": QWEN3_VL,
    "internvl": {
        "preprocessor_config.json": {
            "processor_class": "InternVLProcessor",
            "image_processor_type": "GotOcr2ImageProcessorFast",
            "size": {"height": 448, "width": 448},
        },
        "video_preprocessor_config.json": {
            "processor_class": "InternVLProcessor",
            "video_processor_type": "InternVLVideoProcessor",
            "size": {"height": 448, "width": 448},
        },
        "processor_config.json": {"processor_class": "InternVLProcessor", "image_seq_length": 256},
    },
    "gemma4": {
        "processor_config.json": {
            "processor_class": "Gemma4Processor",
            "image_processor": {
                "image_processor_type": "Gemma4ImageProcessor",
                "patch_size": 16,
                "max_soft_tokens": 280,
            },
            "video_processor": {
                "video_processor_type": "Gemma4VideoProcessor",
                "patch_size": 16,
                "pooling_kernel_size": 3,
                "max_soft_tokens": 70,
                "num_frames": 32,
            },
            "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"},
            "image_seq_length": 280,
        }
    },
}


def save(kind: str, folder: Path, **text: Any) -> Path:
    """Write a folder of a model type; `text` changes the config of its language model."""
    tokenizer = create_tokenizer(kind)
    config = transformers.CONFIG_MAPPING[kind](dtype="bfloat16")
    config.get_text_config().update(text)
    set_token_ids(config, kind)
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name, settings in FILES[kind].items():
        (folder / name).write_text(json.dumps(settings))
    return folder
