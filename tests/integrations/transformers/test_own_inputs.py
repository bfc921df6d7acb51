"""`floc.attach` with inputs that a user prepared: frames sampled and resized beforehand, as qwen-vl-utils does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import floc
from tests.integrations.transformers.processors import PARTS, create_processor
from tests.integrations.transformers.tiny_configs import create_model

FRAMES, HEIGHT, WIDTH, FPS = 12, 40, 64, 2.0
KINDS = pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "qwen3_5", "internvl"])


def create_inputs(kind: str, **options: Any) -> Any:
    """Call the processor with a text and frames, without its chat template, sampling and resizing."""
    video = torch.from_numpy(np.random.default_rng(3).integers(0, 256, (FRAMES, 3, HEIGHT, WIDTH), np.uint8))
    if kind == "internvl":  # its frames are squares
        video = torch.nn.functional.interpolate(video.float(), (24, 24)).to(torch.uint8)
    metadata = {"fps": 8.0, "frames_indices": list(range(0, 4 * FRAMES, 4)), "total_num_frames": 4 * FRAMES}
    text = f"<|im_start|>user\n{PARTS[kind].video}What is shown?<|im_end|>\n<|im_start|>assistant\n"
    return create_processor(kind)(
        text=[text],
        videos=[video],
        video_metadata=[metadata],
        do_sample_frames=False,
        do_resize=False,
        return_tensors="pt",
        **options,
    )


def generate(model: Any, inputs: Any) -> list[int]:
    ids = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    return ids[0, inputs["input_ids"].shape[1] :].tolist()


@KINDS
def test_all_tokens_equal_the_bare_model(kind: str) -> None:
    model, inputs = create_model(kind), create_inputs(kind)
    with floc.attach(model, ratio=1):
        answer = generate(model, inputs)
    assert answer == generate(model, inputs)


@KINDS
def test_an_eighth_of_the_tokens(kind: str) -> None:
    model, inputs = create_model(kind), create_inputs(kind)
    lengths: list[int] = []

    def note_length(module: Any, args: Any, kwargs: Any) -> None:
        lengths.append(kwargs["inputs_embeds"].shape[1])

    with floc.attach(model, ratio=1 / 8) as handle:
        hook = model.get_decoder().register_forward_pre_hook(note_length, with_kwargs=True)  # after the hook of floc
        assert len(generate(model, inputs)) == 6
        hook.remove()
    (kept,) = handle.last
    slices = FRAMES if kind == "internvl" else FRAMES // 2
    assert kept.shape[0] == slices
    assert len(kept) == round(kept.n / 8)
    assert lengths[0] == inputs["input_ids"].shape[1] - kept.n + len(kept)
    assert lengths[1:] == [1] * 5
