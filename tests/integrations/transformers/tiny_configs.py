"""Tiny configs of every model type that takes videos: the library's own config classes with small numbers.

A number is used wherever a config has a field of that name, so a type needs an entry only for what is its own.
"""

# no `from __future__ import annotations`: dataclasses cannot resolve them in a file that is loaded by its path
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")

from tests.integrations.transformers.processors import MERGE, PARTS, TILINGS, create_processor  # noqa: E402

HIDDEN = 64
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
TEXT = dict(
    vocab_size=512,
    hidden_size=HIDDEN,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=8192,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=None,
    sliding_window=64,
    # experts
    num_experts=4,
    num_local_experts=4,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    shared_expert_intermediate_size=24,
    shared_intermediate_size=24,
    dense_intermediate_size=48,
    n_shared_experts=1,
    # linear attention
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_head_dim=16,
    linear_num_heads=2,
    # compressed keys and values, and indexers of sparse attention
    kv_lora_rank=16,
    q_lora_rank=16,
    qk_nope_head_dim=16,
    v_head_dim=16,
    index_head_dim=16,
    index_n_heads=2,
    rotary_dim=8,
)
VISION = dict(
    depth=3,
    num_hidden_layers=3,
    hidden_size=32,
    embed_dim=32,
    intermediate_size=48,
    num_heads=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    patch_size=4,
    out_hidden_size=HIDDEN,
    num_position_embeddings=36,
    num_patches=36,
    image_size=24,
    window_size=16,
    fullatt_block_indexes=[1],
    deepstack_visual_indexes=[0, 1],
    pos_emb_height=8,
    pos_emb_width=8,
    max_position_embeddings=64,
    projection_intermediate_size=48,
)
WHOLE = dict(projector_hidden_size=48, projection_hidden_size=32, out_hidden_size=HIDDEN)
GRID_TEXT = {"rope_parameters": MROPE}
PARTIAL = {"rope_parameters": {**MROPE, "partial_rotary_factor": 1.0}}
HALF = {"rope_parameters": {**MROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}}
OMNI_AUDIO = dict(d_model=32, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=32, output_dim=HIDDEN)
# what a type needs beside the numbers above: of its text_config, vision_config, and the config itself
OWN: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"text": GRID_TEXT, "vision": {"hidden_size": HIDDEN, "mlp_ratio": 2}},
    "qwen2_5_vl": {"text": GRID_TEXT},
    "qwen3_vl": {"text": GRID_TEXT},
    "qwen3_vl_moe": {"text": GRID_TEXT},
    "cosmos3_omni": {"text": GRID_TEXT},
    "cosmos3_edge": {"text": GRID_TEXT},
    "qwen3_5": {"text": PARTIAL},
    "qwen3_5_moe": {"text": PARTIAL},
    "qwen4_exp": {
        "text": dict(
            PARTIAL,
            hc_lowrank=8,
            indexer_n_heads=2,
            indexer_kv_heads=1,
            indexer_head_dim=16,
            indexer_budget=4096,
            indexer_compress_ratio=4,
        )
    },
    "glm4v": {"text": HALF},
    "glm4v_moe": {"text": HALF},
    "glm46v": {"text": HALF},
    "glmga": {"text": HALF},
    "glm_ocr": {"text": HALF},
    "muse_glimmer": {"whole": {"out_hidden_size": 128}},
    "smolvlm": {"whole": {"scale_factor": 2}},
    "internvl": {},
    **{kind: {"whole": {"image_grid_pinpoints": TILINGS}} for kind in ("llava_next_video", "llava_onevision")},
    **{kind: {"whole": {"insert_layer_id": 1}} for kind in ("minicpmv4_6", "minicpmv4_7", "minicpm_ocr")},
    "exaone4_5": {"text": {"model_type": "exaone4"}, "vision": {"num_key_value_heads": 1}},
    "glm5_next": {"text": {"num_key_value_heads": 4}},
    "ernie4_5_vl_moe": {
        "text": {
            "rope_parameters": {**MROPE, "mrope_section": [3, 3, 2]},
            "moe_intermediate_size": [24, 24],
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
        }
    },
    "cohere_compass": {"text": {"rope_parameters": {"full_attention": MROPE}}},
    "muse_spark": {
        "text": {"moe_hidden_size": 32},
        "whole": {"out_hidden_size": 128, "audio_config": {"hidden_sizes": (8, 8, 8, 8), "out_hidden_size": HIDDEN}},
    },
    "gemma4": {
        "text": {"vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 8, "sliding_window": 1024},
        "vision": {"head_dim": 16, "position_embedding_size": 64, "pooling_kernel_size": MERGE},
        "whole": {"audio_config": None},
    },
    "gemma4_unified": {
        "text": {"sliding_window": 1024},
        "vision": {"mm_embed_dim": 32, "mm_posemb_size": 64, "pooling_kernel_size": MERGE, "output_proj_dims": 32},
        "whole": {"audio_config": None},
    },
    "qwen2_5_omni": {"text": GRID_TEXT, "whole": {"vision_start_token_id": 1}},
    "qwen3_omni_moe": {"text": {**GRID_TEXT, "sliding_window": None}, "whole": {"vision_start_token_id": 1}},
    "molmo2": {
        "text": {"additional_vocab_size": 16},
        "vision": {"image_size": [24, 24], "head_dim": 16},
        "whole": {
            "adapter_config": dict(
                hidden_size=32,
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=16,
                intermediate_size=48,
                text_hidden_size=HIDDEN,
                vision_feature_layer=[-1, -2],
            )
        },
    },
    "kimi_k25": {"text": {"num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "qk_rope_head_dim": 16}},
    "nemotron_h_omni": {
        "text": {"ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "chunk_size": 16},
        "vision": {"video_temporal_patch_size": 2, "num_registers": 2},
        "whole": {"vision_hidden_size": 32, "image_token_id": 0, "video_token_id": 0},
    },
    "perception_lm": {
        "vision": {
            "architecture": "vit_pe_core_tiny_patch16_384",
            "model_args": {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": [64, 64], "global_pool": ""},
        },
        "whole": {"projector_pooling_ratio": MERGE},
    },
}


def _pick(config_class: type, numbers: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(config_class)} if is_dataclass(config_class) else set()
    return {name: value for name, value in numbers.items() if name in names}


def create_config(kind: str) -> Any:
    """Return a tiny config of a model type; of a model that also speaks, of the part that thinks."""
    config_class = transformers.CONFIG_MAPPING[kind]
    if hasattr(config_class(), "thinker_config"):
        config_class = type(config_class().thinker_config)
    defaults = config_class()
    own = OWN.get(kind, {})
    parts = {}
    for name, numbers in (("text_config", TEXT), ("vision_config", VISION)):
        part = type(getattr(defaults, name) or config_class.sub_configs[name]())
        parts[name] = {"model_type": part.model_type, **_pick(part, numbers), **own.get(name.split("_")[0], {})}
    if kind in ("qwen2_5_omni", "qwen3_omni_moe"):
        parts["audio_config"] = OMNI_AUDIO
    return config_class(**parts, **{**_pick(config_class, WHOLE), **own.get("whole", {})})


# tokens whose name in the config is not that of the tokenizer's attribute
NAMED_OTHERWISE = {
    "cohere_compass": {
        "image_token_id": "<|IMAGE_PAD|>",
        "video_token_id": "<|VIDEO_PAD|>",
        "vision_start_token_id": "<|VISION_START|>",
        "vision_end_token_id": "<|VISION_END|>",
    },
    "minimax_m3_vl": {"image_token_index": "]<]image[>[", "video_token_index": "]<]video[>["},
    "molmo2": {
        "image_patch_id": "<im_patch>",
        "image_start_token_id": "<im_start>",
        "low_res_image_start_token_id": "<low_res_im_start>",
        "image_end_token_id": "<im_end>",
        "frame_start_token_id": "<frame_start>",
        "frame_end_token_id": "<frame_end>",
    },
    "internvl": {"image_token_id": "<IMG_CONTEXT>"},
    "gemma4": {"video_token_id": "<|video|>"},
    "gemma4_unified": {"video_token_id": "<|video|>"},
    "qwen2_5_omni": {"vision_start_token_id": "<|vision_bos|>"},
    "qwen3_omni_moe": {"vision_start_token_id": "<|vision_bos|>"},
}


def set_token_ids(config: Any, kind: str) -> None:
    """Give a config the ids of the tokenizer of its processor."""
    tokenizer, special = create_processor(kind).tokenizer, PARTS[kind].special
    for attribute in (field.name for field in fields(config)):
        name = attribute.removesuffix("_id").removesuffix("_index")
        token = NAMED_OTHERWISE.get(kind, {}).get(attribute) or special.get(name) or special.get(f"{name}_token")
        if token is not None and attribute != name:
            setattr(config, attribute, tokenizer.convert_tokens_to_ids(token))


@cache
def create_model(kind: str) -> Any:
    """Return a tiny model of a type with random weights."""
    config = create_config(kind)
    set_token_ids(config, kind)
    torch.manual_seed(0)
    model = transformers.AutoModelForMultimodalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 or not name.endswith("weight"):  # norms keep their weights
                weight.copy_(torch.randn(weight.shape) * 0.2)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model
