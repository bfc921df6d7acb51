"""The pipeline of qwen-vl-utils: `process_vision_info`, the processor, and the model with floc attached."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import floc
from tests.integrations.transformers.processors import MERGE, PATCH, create_processor
from tests.integrations.transformers.tiny_configs import create_model

utils = pytest.importorskip("qwen_vl_utils", reason="qwen-vl-utils is not installed: pip install 'floc-video[dev]'")
image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'floc-video[video]'")

FRAMES = 12
KINDS = pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5"])


def create_inputs(kind: str) -> Any:
    """Prepare a video as the model cards of Qwen-VL do, from a list of images."""
    pixels = np.random.default_rng(5).integers(0, 256, (FRAMES, 40, 64, 3), np.uint8)
    size = {"min_pixels": (2 * PATCH * MERGE) ** 2, "max_pixels": (4 * PATCH * MERGE) ** 2}
    video = {"type": "video", "video": [image.fromarray(frame) for frame in pixels], "sample_fps": 4.0, **size}
    messages = [{"role": "user", "content": [video, {"type": "text", "text": "What is shown?"}]}]
    processor = create_processor(kind)
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    # with metadata: without, it returns a list of rates, which the processors of transformers refuse
    images, videos, options = utils.process_vision_info(
        messages, return_video_kwargs=True, return_video_metadata=True, image_patch_size=PATCH
    )
    videos, metadata = zip(*videos, strict=True)
    options["video_metadata"] = list(metadata)
    return processor(text=[text], images=images, videos=list(videos), do_resize=False, return_tensors="pt", **options)


@KINDS
def test_attach_needs_no_change(kind: str) -> None:
    model, inputs = create_model(kind), create_inputs(kind)
    ids = inputs["input_ids"]
    with floc.attach(model, ratio=1):
        everything = model(**inputs).logits
    torch.testing.assert_close(everything, model(**inputs).logits)
    with floc.attach(model, ratio=1 / 8) as handle:
        logits = model(**inputs).logits
        answer = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    (kept,) = handle.last
    assert kept.shape[0] == FRAMES // 2
    assert kept.n == int((ids == model.config.video_token_id).sum())
    assert len(kept) == round(kept.n / 8)
    assert logits.shape[1] == ids.shape[1] - kept.n + len(kept)
    assert answer.shape[1] == ids.shape[1] + 4
