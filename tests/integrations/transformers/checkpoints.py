"""Tiny checkpoints on disk: a model, its tokenizer with a chat template, and its preprocessor file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from tests.integrations.transformers.zoo import FAMILIES, transformers

# special tokens, by the names that a tokenizer may have for them
QWEN = {
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}
GLM = {"image_token": "<|image|>", "video_token": "<|video|>"}
LLAVA = {"image_token": "<image>", "video_token": "<video>"}
INTERNVL = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
SMOLVLM = {
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "image_token": "<image>",
    "video_token": "<video>",
}
IN_QWEN, IN_GLM = "<|vision_start|><|video_pad|><|vision_end|>", "<|begin_of_video|><|video|><|end_of_video|>"


class ProcessorFacts(NamedTuple):
    """A family's processor and tokens."""

    module: str
    processor: str  # its class
    special: dict[str, str]
    placeholder: str  # name of the placeholder token
    video: str  # what the chat template writes for a video


PROCESSORS = {
    "qwen2_vl": ProcessorFacts("qwen2_vl", "Qwen2VLProcessor", QWEN, "video_token", IN_QWEN),
    "qwen2_5_vl": ProcessorFacts("qwen2_5_vl", "Qwen2_5_VLProcessor", QWEN, "video_token", IN_QWEN),
    "qwen3_vl": ProcessorFacts("qwen3_vl", "Qwen3VLProcessor", QWEN, "video_token", IN_QWEN),
    "qwen3_vl_moe": ProcessorFacts("qwen3_vl", "Qwen3VLProcessor", QWEN, "video_token", IN_QWEN),
    "glm4v": ProcessorFacts("glm4v", "Glm4vProcessor", GLM, "image_token", IN_GLM),
    "glm4v_moe": ProcessorFacts("glm4v", "Glm4vProcessor", GLM, "image_token", IN_GLM),
    "video_llama_3": ProcessorFacts("video_llama_3", "VideoLlama3Processor", QWEN, "video_token", "<|video_pad|>\n"),
    "llava_next_video": ProcessorFacts(
        "llava_next_video", "LlavaNextVideoProcessor", LLAVA, "video_token", "<video>\n"
    ),
    "llava_onevision": ProcessorFacts("llava_onevision", "LlavaOnevisionProcessor", LLAVA, "video_token", "<video>\n"),
    "internvl": ProcessorFacts("internvl", "InternVLProcessor", INTERNVL, "context_image_token", "<video>\n"),
    # the template of its models writes no videos
    "smolvlm": ProcessorFacts("smolvlm", "SmolVLMProcessor", SMOLVLM, "image_token", ""),
}


def create_template(video: str, opening: str = "") -> str:
    """Return a chat template that writes `video` for a video."""
    return (
        opening + "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% for part in message['content'] %}"
        "{% if part['type'] == 'video' %}" + video + "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
        "{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def create_tokenizer(kind: str, opening: str = "", names: str = "usual") -> Any:
    """Return a tokenizer with one token per byte, so that every letter counts, and a <s> before every text.

    Args:
        kind: model type.
        opening: start of the chat template.
        names: "usual" special tokens, "none" that the tokenizer names, or "other" ones.
    """
    facts = PROCESSORS[kind]
    special, video = facts.special, facts.video
    if names == "other":
        special = {name: f"<{name} of another kind>" for name in special}
        if kind == "smolvlm":
            special["video_token"] = "<video>"  # its processor's template writes no other
        for name, token in facts.special.items():
            video = video.replace(token, special[name])
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bare = Tokenizer(models.BPE(vocabulary, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens(["<s>", "<|begin_of_video|>", "<|end_of_video|>", *special.values()])
    bare.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bare.token_to_id("<s>"))]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bare,
        bos_token="<s>",
        chat_template=create_template(video, opening),
        extra_special_tokens={} if names == "none" else special,
    )


def save(kind: str, folder: Path, **text: Any) -> Path:
    """Save a model, its tokenizer and its preprocessor file; `text` changes the config of the language model."""
    tokenizer = create_tokenizer(kind)
    special = PROCESSORS[kind].special
    config = FAMILIES[kind][0](kind)
    config.get_text_config().update(text)
    config.get_text_config().vocab_size = len(tokenizer) + 7
    ids = {
        "image_token_id": special.get("context_image_token") or special["image_token"],
        "video_token_id": special["video_token"],
        "video_start_token_id": "<|begin_of_video|>",
        "video_end_token_id": "<|end_of_video|>",
    }
    for name, token in ids.items():
        if hasattr(config, name):
            setattr(config, name, tokenizer.convert_tokens_to_ids(token))
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape) * 0.25)
    model.generation_config.update(eos_token_id=None, bos_token_id=None, pad_token_id=0)
    model.generation_config.suppress_tokens = list(range(256, len(tokenizer) + 7))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    values = dict(image_mean=[0.5] * 3, image_std=[0.2] * 3, min_pixels=16 * 24, max_pixels=16 * 24)
    side = 20 if kind == "llava_onevision" else 24
    (folder / "preprocessor_config.json").write_text(json.dumps(dict(values, size=dict(height=side, width=side))))
    return folder
