"""The files of the model: an unmodified Qwen2.5-VL of five million parameters, with tokenizer and processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from examples.tiny_video_model.questions import list_texts

PATCH, MERGE = 14, 2
CELL = PATCH * MERGE  # pixels of a token
HEIGHT, WIDTH = 112, 168  # a frame of 4 x 6 tokens
MAX_SLICES = 256
SLOW = 12  # pairs of a head that turn slowly with the distance of two tokens
MATCH = 1.9
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# the answer starts with a space, so that a word is the same token in a question and in an answer
PREFIX = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|>"
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %} {{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Train a tokenizer of bytes and words on all questions and answers."""
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=640, special_tokens=[], initial_alphabet=alphabet, show_progress=False)
    bare.train_from_iterator(list_texts(), trainer)
    bare.add_special_tokens([*SPECIAL])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bare, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )


def make_config(tokenizer: Any) -> transformers.Qwen2_5_VLConfig:
    """Return the configuration of the model."""
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
    hidden = 256
    return transformers.Qwen2_5_VLConfig(
        text_config=dict(
            initializer_range=hidden**-0.5,  # with 0.02 so narrow a model learns to look things up much later
            hidden_size=hidden,
            intermediate_size=640,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=64,
            vocab_size=len(tokenizer),
            max_position_embeddings=32_768,
            tie_word_embeddings=True,
            # short videos and small frames: the frequencies of long text would not tell rows and columns apart
            rope_parameters=dict(rope_type="default", rope_theta=2000.0, mrope_section=[6, 4, 22]),
            bos_token_id=None,
            eos_token_id=ids["<|im_end|>"],
            pad_token_id=ids["<|endoftext|>"],
        ),
        vision_config=dict(
            initializer_range=0.05,
            depth=3,
            hidden_size=96,
            intermediate_size=256,
            num_heads=3,
            patch_size=PATCH,
            spatial_merge_size=MERGE,
            temporal_patch_size=2,
            window_size=24 * PATCH,  # a window holds a frame of up to 24 x 24 patches
            fullatt_block_indexes=[2],
            out_hidden_size=hidden,
            tokens_per_second=1,
        ),
        tie_word_embeddings=True,
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def make_model(tokenizer: Any, seed: int) -> transformers.Qwen2_5_VLForConditionalGeneration:
    """Return the model with random weights that have some order, which saves most of the training.

    Two of four attention heads start with equal queries and keys in the slow dimensions, so that a token attends to
    tokens like itself, near or far. One of the two prefers visual tokens: a word attends to what looks like its thing.
    The other heads of the first layers start with random biases, so that their attention depends on positions.
    """
    torch.manual_seed(seed)
    model = transformers.Qwen2_5_VLForConditionalGeneration._from_config(make_config(tokenizer), dtype=torch.float32)
    with torch.no_grad():
        mark = model.get_input_embeddings().weight[model.config.video_token_id]
        mark = mark / mark.norm()
        model.model.visual.merger.mlp[-1].bias.copy_(4 * mark)
        for number, layer in enumerate(model.model.language_model.layers):
            attention = layer.self_attn
            tied, half = 2 * attention.head_dim, attention.head_dim // 2
            queries = attention.q_proj.weight[:tied].view(2, 2, half, -1)
            queries[:, :, :-SLOW] = 0
            queries[:, :, -SLOW:] *= MATCH
            queries[0, :, -1] = 0
            attention.k_proj.weight[:tied] = attention.q_proj.weight[:tied]
            attention.q_proj.bias[half - 1] = 6
            attention.k_proj.weight[half - 1] = 0.7 * mark
            attention.o_proj.weight *= 0.04
            layer.mlp.down_proj.weight *= 0.04
            if number < 2:
                attention.q_proj.bias[tied:].normal_()
                attention.k_proj.bias[tied:].normal_()
    return model


def write_processor(folder: Path, tokenizer: Any, height: int = HEIGHT, width: int = WIDTH) -> None:
    """Write tokenizer and processor files, such that AutoProcessor loads them.

    Args:
        folder: Where to write.
        tokenizer: The model's tokenizer.
        height, width: Size of a frame in pixels; larger frames are shrunk to as many pixels.
    """
    tokenizer.save_pretrained(folder)
    shared = dict(
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        processor_class="Qwen2_5_VLProcessor",
    )
    image = dict(shared, size=dict(shortest_edge=CELL**2, longest_edge=height * width))
    video = dict(
        shared,
        size=dict(shortest_edge=CELL**2, longest_edge=height * width),
        fps=2,
        min_frames=4,
        max_frames=2 * MAX_SLICES,
        do_sample_frames=True,
    )
    files = {
        "preprocessor_config.json": dict(image, image_processor_type="Qwen2VLImageProcessor"),
        "video_preprocessor_config.json": dict(video, video_processor_type="Qwen2VLVideoProcessor"),
    }
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values, indent=2) + "\n")
