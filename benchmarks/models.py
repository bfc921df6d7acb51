"""Qwen2.5-VL and Qwen3-VL with random weights, which need the same time and memory as trained ones."""

from __future__ import annotations

from typing import Any

import torch

FULL_NAME, TINY_NAME = "Qwen2.5-VL-7B", "tiny Qwen2.5-VL"
FULL_TEXT = dict(
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    vocab_size=152_064,
)
FULL_VISION: dict[str, Any] = dict(
    depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16, fullatt_block_indexes=[7, 15, 23, 31]
)
FULL_SECTIONS = [16, 24, 24]  # of the rotary embedding
QWEN3_NAME, TINY_QWEN3_NAME = "Qwen3-VL-8B", "tiny Qwen3-VL"
QWEN3_TEXT = dict(
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151_936,
)
QWEN3_VISION: dict[str, Any] = dict(
    depth=27, hidden_size=1152, intermediate_size=4304, num_heads=16, deepstack_visual_indexes=[8, 16, 24]
)
QUESTION_TOKENS = 40


def make_config(text: dict[str, Any], vision: dict[str, Any], sections: list[int], **options: Any) -> Any:
    """Build a Qwen2.5-VL configuration."""
    import transformers

    rope = dict(rope_type="default", rope_theta=1e6, mrope_section=sections)
    return transformers.Qwen2_5_VLConfig(
        text_config=dict(text, max_position_embeddings=128_000, rope_parameters=rope),
        vision_config=dict(vision, out_hidden_size=text["hidden_size"], tokens_per_second=2),
        **options,
    )


def make_qwen(device: torch.device, tiny: bool, vision: dict[str, Any] | None = None) -> Any:
    """Build Qwen2.5-VL with random weights: the 7B model, or a tiny one, whose vision encoder may be larger."""
    import transformers

    if tiny:
        text = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
        text |= dict(num_key_value_heads=2, vocab_size=FULL_TEXT["vocab_size"])
        tiny_vision = dict(depth=2, hidden_size=16, intermediate_size=24, num_heads=2, fullatt_block_indexes=[1])
        config = make_config(text, vision or tiny_vision, [2, 3, 3])
    else:
        config = make_config(FULL_TEXT, FULL_VISION, FULL_SECTIONS)
    return _build(transformers.Qwen2_5_VLForConditionalGeneration, config, device)


def make_qwen3(device: torch.device, tiny: bool) -> Any:
    """Build Qwen3-VL with random weights: the 8B model, or a tiny one."""
    import transformers

    text: dict[str, Any] = dict(QWEN3_TEXT)
    vision, sections = dict(QWEN3_VISION), [24, 20, 20]
    if tiny:
        text |= dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2)
        text |= dict(num_key_value_heads=2, head_dim=16)
        vision |= dict(depth=2, hidden_size=16, intermediate_size=24, num_heads=2, deepstack_visual_indexes=[0])
        sections = [2, 3, 3]
    rope = dict(rope_type="default", rope_theta=5e6, mrope_section=sections)
    config = transformers.Qwen3VLConfig(
        text_config=dict(text, max_position_embeddings=262_144, rope_parameters=rope),
        vision_config=dict(vision, out_hidden_size=text["hidden_size"]),
    )
    return _build(transformers.Qwen3VLForConditionalGeneration, config, device)


def _build(model_class: Any, config: Any, device: torch.device) -> Any:
    torch.manual_seed(0)
    with device:
        model = model_class._from_config(
            config, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32
        ).eval()
    model.generation_config.update(eos_token_id=None, bos_token_id=None, pad_token_id=0, do_sample=False)
    return model


def make_processor(max_tokens: int) -> Any:
    """Build the processor of Qwen2.5-VL with at most so many tokens for two frames, and a tokenizer of single bytes."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = dict(image_token="<|image_pad|>", video_token="<|video_pad|>", vision_start_token="<|vision_start|>")
    bare = Tokenizer(
        models.BPE({letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.add_special_tokens(list(special.values()))
    template = "{% for message in messages %}{% for part in message['content'] %}"
    template += "{% if part['type'] == 'video' %}<|video_pad|>{% else %}{{ part['text'] }}{% endif %}"
    template += "{% endfor %}{% endfor %}"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bare, extra_special_tokens=special)
    size = dict(shortest_edge=4 * 28 * 28, longest_edge=max_tokens * 28 * 28)
    parts = dict(video_processor=transformers.Qwen2VLVideoProcessor(size=size), chat_template=template)
    images = transformers.Qwen2VLImageProcessor()
    return transformers.Qwen2_5_VLProcessor(image_processor=images, tokenizer=tokenizer, **parts)


def count_weight_bytes(model: Any) -> int:
    """Return the bytes of all parameters."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())
