"""Vision features of prepared frames: what the bare model gives its decoder at the placeholders of a video."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

pytest.importorskip("torchvision", reason="processors need torchvision: pip install 'floc-video[hf]'")

import floc.encoders
from floc.encoders import vision_features
from floc.encoders.vision_features import can_encode_in_chunks, encode_prepared, split_prepared
from floc.families import FAMILIES
from floc.families.processing import VideoFacts, VideoPlan, VideoPreparer
from tests.integrations.transformers.processors import PARTS, create_processor, transformers
from tests.integrations.transformers.tiny_configs import create_config, create_model

FRAMES = np.random.default_rng(0).integers(0, 256, (32, 40, 64, 3), np.uint8)
FACTS = VideoFacts(32, 8.0, 64, 40)
CLOSE = dict(atol=1e-5, rtol=1e-5)
# types whose prepared frames are not split: frames depend on each other, or cannot be told apart by a general rule
STAY_WHOLE = [
    "minimax_m3_vl",
    "kimi_k25",
    "gemma4",
    "gemma4_unified",
    "minicpmv4_6",
    "minicpmv4_7",
    "minicpm_ocr",
    "molmo2",
    "nemotron_h_omni",
]
# processors of GLM-V and MiniCPM-V pass tensors to numpy
pytestmark = pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")
ALL = pytest.mark.parametrize("kind", PARTS)


class Example(NamedTuple):
    """A tiny model, and one video as its own processor prepares it."""

    model: Any
    preparer: VideoPreparer
    plan: VideoPlan

    def prepare(self, start: int = 0, stop: int | None = None) -> dict[str, Any]:
        """Prepare a range of slices."""
        step = self.preparer.frames_per_slice
        indices = self.plan.indices[start * step : None if stop is None else stop * step]
        return self.preparer.prepare(self.plan, FRAMES[indices])

    def encode(self, start: int = 0, stop: int | None = None) -> tuple[torch.Tensor, ...]:
        return encode_prepared(self.model.base_model, self.prepare(start, stop)).all


@cache
def create_example(kind: str) -> Example:
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"{kind} is not in this release of transformers")
    processor = copy.copy(create_processor(kind))
    if kind == "kimi_k25":  # the model of transformers 5.22 fails if several frames are joined
        processor.video_processor = type(processor.video_processor)(**PARTS[kind].settings, temporal_patch_size=1)
    preparer = VideoPreparer(processor)
    return Example(create_model(kind), preparer, preparer.plan(FACTS, fps=2, max_frames=8))


class _Stop(Exception):
    pass


def record_decoder(example: Example) -> tuple[torch.Tensor, ...]:
    """Return the tokens and deep features, [n, D] each, that the bare model gives its decoder at the placeholders."""
    model, processor, plan = example.model, example.preparer.processor, example.plan
    changed = ("cap_pixels_per_frame", "use_token_compression", "do_resize", "size")
    settings = {name: value for name, value in example.preparer.settings.items() if name in changed}
    turn = [{"type": "video", "video": FRAMES[plan.indices]}, {"type": "text", "text": "What?"}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": turn}],
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={
            **settings,
            "do_sample_frames": False,
            # the processor of Nemotron takes those of one video only; times do not matter here
            **({} if hasattr(processor, "video_temporal_patch_dim") else {"video_metadata": [plan.describe()]}),
            "return_metadata": True,
            "return_mm_token_type_ids": True,
        },
    )
    inputs.pop("video_metadata", None)
    if "mm_token_type_ids" not in inspect.signature(model.forward).parameters:
        inputs.pop("mm_token_type_ids", None)
    if model.config.model_type == "nemotron_h_omni":  # in transformers 5.22 it takes only a list of its own features
        features = model.get_video_features(inputs.pop("pixel_values_videos"), return_dict=True)
        inputs["mm_encoder_outputs"] = {"video": features}
        features.pooler_output = list(features.pooler_output)
    calls: list[dict[str, Any]] = []

    def stop(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        calls.append(kwargs)
        raise _Stop

    hook = model.get_decoder().register_forward_pre_hook(stop, with_kwargs=True)
    with pytest.raises(_Stop):
        model.generate(**inputs, max_new_tokens=1)
    hook.remove()
    ids = inputs["input_ids"][0]
    ((placeholder, _),) = Counter(ids.tolist()).most_common(1)
    deep = calls[0].get("deepstack_visual_embeds") or ()
    return (calls[0]["inputs_embeds"][0, ids == placeholder], *deep)


@ALL
def test_tokens_are_what_the_decoder_sees(kind: str) -> None:
    example = create_example(kind)
    encoded, expected = example.encode(), record_decoder(example)
    assert len(encoded) == len(expected)
    newline = getattr(example.model.base_model, "image_newline", None) if kind == "llava_onevision" else None
    for actual, rows in zip(encoded, expected, strict=True):
        if newline is not None:
            assert torch.equal(rows[-1], newline)
            rows = rows[:-1]
        torch.testing.assert_close(actual.flatten(0, 2), rows, **CLOSE)
    slices = len(example.plan.indices) // example.preparer.frames_per_slice
    assert len(encoded[0]) == slices > 2
    assert encoded[0].std(0).min() > 0  # frames differ


@ALL
@pytest.mark.parametrize("step", [1, 3])
def test_chunks_equal_the_whole_video(kind: str, step: int) -> None:
    example = create_example(kind)
    whole = example.encode()
    chunks = [example.encode(start, start + step) for start in range(0, len(whole[0]), step)]
    for layer, parts in zip(whole, zip(*chunks, strict=True), strict=True):
        joined = torch.cat(parts)
        assert joined.shape == layer.shape
        scale = float(layer.abs().max().clamp(min=1))  # random weights make some features huge
        is_equal = torch.allclose(joined / scale, layer / scale, **CLOSE)
        assert is_equal == can_encode_in_chunks(example.model.base_model.config)


@ALL
def test_prepared_frames_are_split(kind: str) -> None:
    example = create_example(kind)
    config, whole = example.model.base_model.config, example.encode()
    prepared = example.prepare()
    if kind == "internvl":  # as its processor returns them
        prepared = {"pixel_values": prepared["pixel_values_videos"][0]}
    parts = [*split_prepared(config, prepared, len(whole[0]), 3)]
    encoded = [encode_prepared(example.model.base_model, part).all for part in parts]
    for layer, pieces in zip(whole, zip(*encoded, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(pieces), layer, **CLOSE)
    assert (len(parts) == 1) == (kind in STAY_WHOLE)


def test_encoders_refuse_models_that_need_the_whole_video(tmp_path: Path) -> None:
    create_config("minimax_m3_vl").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"minimax_m3_vl attends across all frames .*; use floc\.capture"):
        floc.encoders.get_layout(f"hf:{tmp_path}")


@pytest.mark.parametrize("kind", ["qwen3_vl", "kimi_k25"])  # the latter does not convert pixels
def test_tokens_have_the_dtype_of_the_model(kind: str) -> None:
    example = create_example(kind)
    half = copy.deepcopy(example.model.base_model).bfloat16()
    expected = example.encode()
    for actual, layer in zip(encode_prepared(half, example.prepare()).all, expected, strict=True):
        assert actual.dtype == torch.bfloat16
        torch.testing.assert_close(actual.float(), layer, atol=0.1, rtol=0.1)


def test_wrong_inputs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    example = create_example("qwen2_5_vl")
    base, prepared = example.model.base_model, example.prepare()
    with pytest.raises(ValueError, match="must have pixel_values_videos, got video_grid_thw; prepare them"):
        encode_prepared(base, {"video_grid_thw": prepared["video_grid_thw"]})
    two = {name: value.repeat(2, 1) for name, value in prepared.items() if torch.is_tensor(value)}
    with pytest.raises(ValueError, match="must be of one video, got grids of"):
        encode_prepared(base, two)
    family = replace(FAMILIES["qwen2_5_vl"], read_grids=lambda config, arguments: [(1, 2, 3)])
    monkeypatch.setattr(vision_features, "find_family", lambda config: family)
    with pytest.raises(ValueError, match=r"qwen2_5_vl returned 112 tokens for a grid of \(1, 2, 3\)"):
        encode_prepared(base, prepared)
