"""Files of a Qwen2.5-VL model for vLLM, all but its weights, and synthetic videos for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import FULL_SECTIONS, FULL_TEXT, FULL_VISION, make_config

SIDE = 8  # tokens along a frame
SPECIAL = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|endoftext|>")


def get_patch_size(has_gpu: bool) -> int:
    """Return the side of a patch in pixels: of the full-size model on a GPU, else of a tiny one."""
    return 14 if has_gpu else 4


def write_model(folder: Path, has_gpu: bool) -> None:
    """Write tokenizer, configuration and processor files: a full-size model on a GPU, else a tiny one."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL])
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[-1]).save_pretrained(folder)
    ids = {token: len(letters) + i for i, token in enumerate(SPECIAL)}
    _make_config(has_gpu, ids).save_pretrained(folder)
    patch = get_patch_size(has_gpu)
    processor = dict(
        patch_size=patch,
        merge_size=2,
        temporal_patch_size=2,
        size=dict(shortest_edge=64, longest_edge=4 * SIDE**2 * patch**2),
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    files = {
        "preprocessor_config.json": dict(processor, image_processor_type="Qwen2VLImageProcessor"),
        "video_preprocessor_config.json": dict(processor, video_processor_type="Qwen2VLVideoProcessor"),
        "processor_config.json": {},
    }
    for name, values in files.items():
        (folder / name).write_text(json.dumps({"processor_class": "Qwen2_5_VLProcessor", **values}))


def _make_config(has_gpu: bool, ids: dict[str, int]) -> Any:
    text: dict[str, Any]
    if has_gpu:
        text, vision, sections = dict(FULL_TEXT, head_dim=128), FULL_VISION, FULL_SECTIONS
    else:
        text = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=2)
        text |= dict(num_key_value_heads=1, head_dim=32, vocab_size=512)
        vision = dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=2, fullatt_block_indexes=[1])
        sections = [4, 6, 6]
    return make_config(
        text,
        dict(vision, patch_size=get_patch_size(has_gpu)),
        sections,
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def make_video(slices: int, pixels: int, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Return a window that drifts over noise, [2 * slices, pixels, pixels, 3], and its metadata."""
    rng = np.random.default_rng(seed)
    frames = 2 * slices
    still = rng.integers(0, 256, (2 * pixels, 2 * pixels, 3), dtype=np.uint8)
    corners = np.abs(rng.integers(-2, 3, (frames, 2)).cumsum(0)) % pixels
    video = np.stack([still[y : y + pixels, x : x + pixels] for y, x in corners])
    metadata = dict(fps=2.0, total_num_frames=frames, duration=frames / 2, frames_indices=[*range(frames)])
    return video, dict(metadata, do_sample_frames=False, video_backend="noise")
