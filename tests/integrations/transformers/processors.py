"""Real processors with tiny settings: one for each model type that takes videos.

Each has a tokenizer with one token per byte, a chat template, and the processor classes of the library. A token is a
square of 8 pixels in families with patches.
"""

# no `from __future__ import annotations`: dataclasses cannot resolve them in a file that is loaded by its path
import inspect
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")

PATCH, MERGE, SIDE = 4, 2, 24  # pixels of a patch, patches of a token, pixels of a square frame
QWEN = {
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}
OMNI = {
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
    "audio_token": "<|AUDIO|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
GLM = {
    "image_token": "<|image|>",
    "video_token": "<|video|>",
    "image_start_token": "<|begin_of_image|>",
    "image_end_token": "<|end_of_image|>",
    "video_start_token": "<|begin_of_video|>",
    "video_end_token": "<|end_of_video|>",
}
LLAVA = {"image_token": "<image>", "video_token": "<video>"}
MUSE = {
    "image_token": "<|patch|>",
    "image_start_token": "<|image_start|>",
    "image_end_token": "<|image_end|>",
    "video_token": "<|video|>",
    "video_sep_token": "<|vid_frame_separator|>",
    "video_start_token": "<|vid_start|>",
    "video_end_token": "<|vid_end|>",
    "audio_token": "<|audio|>",
    "audio_start_token": "<|soft_audio_start|>",
    "audio_end_token": "<|soft_audio_end|>",
}
MINICPM = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}
GEMMA = {
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
}
IN_QWEN = "<|vision_start|><|video_pad|><|vision_end|>"
PATCHES = {"patch_size": PATCH, "merge_size": MERGE, "size": {"shortest_edge": 16 * 24, "longest_edge": 48 * 48}}
WHOLE = {**PATCHES, "size": {"shortest_edge": 16 * 24, "longest_edge": 48 * 48 * 8}}  # limits the whole video
TILINGS = [[SIDE, SIDE], [SIDE, 2 * SIDE], [2 * SIDE, SIDE]]  # of an image
SQUARE = {"size": {"height": SIDE, "width": SIDE}}


@dataclass(frozen=True)
class Parts:
    """What a processor is made of."""

    special: dict[str, str]
    video: str  # what the chat template writes for a video
    settings: dict[str, Any]  # of the video processor
    options: dict[str, Any] = field(default_factory=dict)  # of the processor
    images: dict[str, Any] = field(default_factory=dict)  # of the image processor, beside those it shares
    image: str = ""  # what the chat template writes for an image, if not as for a video
    tokens: tuple[str, ...] = ()  # further special tokens
    like: str = ""  # another type whose classes it uses


PARTS: dict[str, Parts] = {
    "qwen2_vl": Parts(QWEN, IN_QWEN, PATCHES),
    "qwen2_5_vl": Parts(QWEN, IN_QWEN, PATCHES),
    "qwen3_vl": Parts(QWEN, IN_QWEN, WHOLE),
    "qwen3_vl_moe": Parts(QWEN, IN_QWEN, WHOLE, like="qwen3_vl"),
    "qwen3_5": Parts(QWEN, IN_QWEN, WHOLE),
    "qwen3_5_moe": Parts(QWEN, IN_QWEN, WHOLE),
    "qwen4_exp": Parts(QWEN, IN_QWEN, WHOLE),
    "cosmos3_omni": Parts(QWEN, IN_QWEN, WHOLE, like="qwen3_vl"),
    "cosmos3_edge": Parts(QWEN, "<|video_pad|>", WHOLE),
    "exaone4_5": Parts(QWEN, IN_QWEN, PATCHES),
    "hyperclovax_vision_v2": Parts(QWEN, IN_QWEN, PATCHES),
    "qwen2_5_omni": Parts(OMNI, "<|vision_bos|><|VIDEO|><|vision_eos|>", PATCHES),
    "qwen3_omni_moe": Parts(OMNI, "<|vision_bos|><|VIDEO|><|vision_eos|>", PATCHES),
    "glm4v": Parts(GLM, "<|begin_of_video|><|video|><|end_of_video|>", WHOLE),
    "glm4v_moe": Parts(GLM, "<|begin_of_video|><|video|><|end_of_video|>", WHOLE, like="glm4v"),
    "glm46v": Parts(GLM, "<|begin_of_video|><|video|><|end_of_video|>", WHOLE),
    "glmga": Parts(GLM, "<|begin_of_video|><|video|><|end_of_video|>", WHOLE, like="glm46v"),
    "glm_ocr": Parts(GLM, "<|begin_of_video|><|video|><|end_of_video|>", WHOLE, like="glm46v"),
    "glm5_next": Parts(GLM, "<|begin_of_video|><|video|><|end_of_video|>", WHOLE),
    "ernie4_5_vl_moe": Parts(
        {**GLM, "image_token": "<|IMAGE_PLACEHOLDER|>", "video_token": "<|VIDEO_PLACEHOLDER|>"},
        "<|begin_of_video|><|VIDEO_PLACEHOLDER|><|end_of_video|>",
        {**PATCHES, "draw_on_frames": False},  # the model's folder has the font
    ),
    "cohere_compass": Parts(
        {},
        "<|VIDEO_PAD|>",
        WHOLE,
        tokens=("<|IMAGE_PAD|>", "<|VIDEO_PAD|>", "<|VISION_START|>", "<|VISION_END|>"),
    ),
    "muse_glimmer": Parts(MUSE, "<|video|>", WHOLE, image="<|patch|>"),
    "muse_spark": Parts(MUSE, "<|video|>", WHOLE, image="<|patch|>"),
    "minimax_m3_vl": Parts(
        {},
        "]<]video[>[",
        PATCHES,
        tokens=("]<]image[>[", "]<]video[>[", "]<]start of image[>[", "]<]end of image[>["),
    ),
    "kimi_k25": Parts(
        {"image_token": "<|media_pad|>", "video_token": "<|video|>"},
        "<|video|>",
        {"patch_size": PATCH, "merge_size": MERGE, "size": {"max_height": 48, "max_width": 48}},
        tokens=("<|media_begin|>", "<|media_content|>", "<|media_end|>"),
        image="<|media_pad|>",
    ),
    "video_llama_3": Parts(QWEN, "<|video_pad|>\n", WHOLE),
    "gemma4": Parts(GEMMA, "<|video|>", {"patch_size": PATCH, "pooling_kernel_size": MERGE}),
    "gemma4_unified": Parts(GEMMA, "<|video|>", {"patch_size": PATCH, "pooling_kernel_size": MERGE}),
    "minicpmv4_6": Parts(MINICPM, "<|video_pad|>", {"patch_size": PATCH, "scale_resolution": 32}),
    "minicpmv4_7": Parts(MINICPM, "<|video_pad|>", {"patch_size": PATCH, "scale_resolution": 32}),
    "minicpm_ocr": Parts(MINICPM, "<|video_pad|>", {"patch_size": PATCH, "scale_resolution": 32}),
    "molmo2": Parts(
        {"image_token": "<|image|>", "video_token": "<|video|>"},
        "<|video|>",
        {**SQUARE, "patch_size": PATCH, "pooling_size": [MERGE, MERGE]},
        images={"max_crops": 2, "overlap_margins": [1, 1]},
        tokens=(
            "<im_patch>",
            "<im_col>",
            "<im_start>",
            "<low_res_im_start>",
            "<frame_start>",
            "<im_end>",
            "<frame_end>",
            "<im_low>",
        ),
    ),
    "nemotron_h_omni": Parts(
        LLAVA,
        "<video>",
        {"patch_size": PATCH, "video_target_num_patches": 48, "norm_mean": [0.5] * 3, "norm_std": [0.5] * 3},
        images={"min_num_patches": 16, "max_num_patches": 48},
        tokens=("<img>", "</img>", "<so_embedding>"),
    ),
    "llava_next_video": Parts(
        LLAVA,
        "<video>\n",
        {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}},
        {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        {"image_grid_pinpoints": TILINGS},
    ),
    "llava_onevision": Parts(
        LLAVA,
        "<video>\n",
        SQUARE,
        {"num_image_tokens": 36, "vision_feature_select_strategy": "full"},
        {"image_grid_pinpoints": TILINGS},
    ),
    "video_llava": Parts(
        LLAVA,
        "<video>\n",
        {**SQUARE, "crop_size": {"height": SIDE, "width": SIDE}},
        {"patch_size": PATCH},
        {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}},
    ),
    "perception_lm": Parts(
        LLAVA,
        "<video>\n",
        {"size": {"height": 64, "width": 64}},
        {"patch_size": 16, "pooling_ratio": MERGE},  # its vision encoder has a fixed patch
        {"tile_size": 64, "max_num_tiles": 2},
    ),
    "internvl": Parts(
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        "<video>\n",
        SQUARE,
        {"image_seq_length": 9},
        image="<IMG_CONTEXT>\n",
    ),
    "smolvlm": Parts(
        {
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "image_token": "<image>",
            "video_token": "<video>",
        },
        "<video>",
        {"size": {"longest_edge": SIDE}, "max_image_size": {"longest_edge": SIDE}, "num_frames": 64, "fps": 1},
        {"image_seq_len": 9},
    ),
}


def _find_classes(kind: str) -> tuple[Any, Any, Any]:
    """Return the classes of the processor, the video processor and the image processor of a model type."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
    from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES

    names = [kind, PARTS[kind].like]
    found = []
    for mapping in (PROCESSOR_MAPPING_NAMES, VIDEO_PROCESSOR_MAPPING_NAMES, IMAGE_PROCESSOR_MAPPING_NAMES):
        entry = next((mapping[name] for name in names if mapping.get(name)), None)
        if isinstance(entry, dict):
            entry = entry.get("torchvision") or next(iter(entry.values()))
        found.append(None if entry is None else getattr(transformers, entry))
    return found[0], found[1], found[2]


def create_tokenizer(kind: str) -> Any:
    """Return a tokenizer with one token per byte, so that every letter counts, and a chat template."""
    parts = PARTS[kind]
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bare = Tokenizer(models.BPE(vocabulary, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens(["<s>", *dict.fromkeys([*parts.special.values(), *parts.tokens])])
    bare.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bare.token_to_id("<s>"))]
    )
    image = parts.image or parts.video.replace("video", "image").replace("VIDEO", "IMAGE")
    template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
        "{% if part['type'] == 'video' %}" + parts.video + "{% elif part['type'] == 'image' %}" + image + ""
        "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bare,
        bos_token="<s>",
        pad_token="<s>",
        chat_template=template,
        extra_special_tokens=parts.special,
    )


@cache
def create_processor(kind: str) -> Any:
    """Return the processor of a model type."""
    parts = PARTS[kind]
    tokenizer = create_tokenizer(kind)
    Processor, VideoProcessor, ImageProcessor = _find_classes(kind)
    defaults = getattr(Processor.valid_processor_kwargs, "_defaults", {}).get("videos_kwargs", {})
    if "size" in defaults:  # omni models replace the size of their video processor in each call
        defaults["size"] = {"shortest_edge": 24 * 24, "longest_edge": 40 * 40}
    given = {"tokenizer": tokenizer, "chat_template": tokenizer.chat_template, **parts.options}
    given["video_processor"] = VideoProcessor(**parts.settings)
    accepted = inspect.signature(Processor.__init__).parameters
    if "image_processor" in accepted:
        # images, and their tokens, are as large as those of videos
        known = getattr(ImageProcessor.valid_kwargs, "__annotations__", {})
        shared = {name: value for name, value in parts.settings.items() if name in known}
        given["image_processor"] = ImageProcessor(**{**shared, **parts.images})
    if "feature_extractor" in accepted:
        given["feature_extractor"] = transformers.WhisperFeatureExtractor()
    return Processor(**given)


def create_turn(question: str, *media: tuple[str, Any]) -> dict[str, Any]:
    """Return what a user says in a chat: media, such as ("video", frames), and a question."""
    parts = [{"type": kind, kind: value} for kind, value in media]
    return {"role": "user", "content": [*parts, {"type": "text", "text": question}]}


def apply_template(processor: Any, turns: list[Any], **options: Any) -> dict[str, Any]:
    """Return the inputs of a model that a processor makes of a chat, or of several; options are the processor's."""
    settings: dict[str, Any] = dict(add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt")
    inputs = processor.apply_chat_template(turns, **settings, processor_kwargs=options)
    return {name: value for name, value in inputs.items() if torch.is_tensor(value)}
