"""`encode` in `floc.attach` and in `floc.capture`: a share of the slices passes the vision encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import floc
from floc.encoders.slice_choice import SliceOptions, find_new
from floc.families.processing import VideoPreparer
from floc.integrations.transformers.slice_choice import create_patch_rule
from floc.tokens import Frames
from tests.integrations.transformers.helpers import CLOSE, create_batch, create_prompt, list_hooks
from tests.integrations.transformers.processors import create_processor
from tests.integrations.transformers.test_reuse import GRID, OTHERS, compare, copy_slices, record
from tests.integrations.transformers.tiny_configs import create_model


def find_sources(model: Any, pixels: torch.Tensor, slices: int, share: Any) -> np.ndarray:
    return create_patch_rule(model.config, SliceOptions(encode=share)).find_sources(pixels.unflatten(0, (slices, -1)))


@GRID
def test_attach_equals_videos_of_the_chosen_slices(kind: str, models) -> None:
    """Two videos of a row and one of another; positions and counts are those of all slices."""
    bare, example = models[kind, "sdpa"], create_batch(kind)
    pixels, counts = example.inputs["pixel_values_videos"], [6, 3, 3]
    videos = pixels.split([len(pixels) // 12 * count for count in counts])
    sources = [find_sources(bare, video, count, "1/3") for video, count in zip(videos, counts, strict=True)]
    expected, full = record(bare, copy_slices(example, [one.tolist() for one in sources]).inputs)
    with floc.attach(bare, ratio=1, encode="1/3"):
        actual, reduced = record(bare, example.inputs)
    compare(actual, expected)
    assert (actual["position_ids"] is None) == (expected["position_ids"] is None)
    assert actual["position_ids"] is None or torch.equal(actual["position_ids"], expected["position_ids"])
    assert reduced == (2 + 1 + 1) * len(pixels) // 12
    assert full == len(pixels)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_all_slices_equal_the_bare_model_to_the_bit(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_batch(kind)
    expected, full = record(bare, example.inputs)
    with floc.attach(bare, ratio=1, encode=1):
        actual, passed = record(bare, example.inputs)
    assert passed == full
    assert torch.equal(actual["inputs_embeds"], expected["inputs_embeds"])
    captured, bare_captured = (
        floc.capture(bare, create_prompt(kind).inputs, ratio=1, **o) for o in ({"encode": 1.0}, {})
    )
    assert torch.equal(captured.features, bare_captured.features)
    assert "encode" not in captured.made


@pytest.mark.parametrize("share", ["1/2", 0.25, 1 / 74])
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "video_llama_3"])
def test_capture_of_prepared_inputs(kind: str, share: Any, models, tmp_path) -> None:
    """Longer than a group; a file records the share."""
    bare, example = models[kind, "sdpa"], create_prompt(kind, slices=37)
    pixels = example.inputs["pixel_values_videos"]
    sources = find_sources(bare, pixels, 37, share)
    whole = floc.capture(bare, example.inputs, ratio=1)
    actual = floc.capture(bare, example.inputs, ratio=1, encode=share)
    assert find_new(sources).sum() == {"1/2": 19, 0.25: 9}.get(share, 1)
    for layer, expected in zip((actual.features, *actual.deep), (whole.features, *whole.deep), strict=True):
        rows = expected.unflatten(0, (37, -1))[torch.from_numpy(sources)].flatten(0, 1)
        torch.testing.assert_close(layer, rows, **CLOSE)
    assert actual.shape == whole.shape
    assert torch.equal(actual.indices, whole.indices)
    actual.save(tmp_path / "video.floc")
    assert floc.load(tmp_path / "video.floc").made["encode"] == {"1/2": "1/2", 0.25: "1/4"}.get(share, "1/74")


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "llava_onevision", "internvl", "gemma4"])
def test_capture_of_frames(kind: str) -> None:
    """Two groups and a half, in batches of 7 and of all frames: shapes, times and prompts as with all slices."""
    model, processor = create_model(kind), create_processor(kind)
    step = VideoPreparer(processor).frames_per_slice
    pixels = np.random.default_rng(0).integers(0, 256, (80 * step, 40, 64, 3), np.uint8)
    times_s = np.arange(len(pixels)) / 2
    frames = [Frames(pixels[i : i + 7], times_s[i : i + 7]) for i in range(0, len(pixels), 7)]
    whole = floc.capture(model, frames, processor=processor, ratio=1)
    actual = floc.capture(model, frames, processor=processor, ratio=1, encode="1/4")
    at_once = floc.capture(model, [Frames(pixels, times_s)], processor=processor, ratio=1, encode="1/4")
    assert torch.equal(actual.features, at_once.features)
    assert actual.shape == whole.shape
    np.testing.assert_array_equal(actual.times_s, whole.times_s)
    slices = actual.features.unflatten(0, (80, -1)).flatten(1)
    assert len(slices.unique(dim=0)) == 20
    scale = float(whole.features.abs().max())
    is_own = torch.isclose(slices / scale, whole.features.unflatten(0, (80, -1)).flatten(1) / scale, atol=1e-4).all(1)
    assert is_own.sum() == 20
    seconds = actual.made["seconds"]
    assert {"decode", "compare", "preprocess", "vision", "select", "other", "total"} == seconds.keys()
    assert actual.made["encode"] == "1/4"
    inputs = [video.inputs(processor, "What?") for video in (actual, whole)]
    assert torch.equal(inputs[0]["input_ids"], inputs[1]["input_ids"])


@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), "some", True])
def test_wrong_values_are_refused_before_the_model_is_changed(value: Any, models) -> None:
    bare, inputs = models["qwen2_5_vl", "sdpa"], create_prompt("qwen2_5_vl").inputs
    before = list_hooks(bare)
    with pytest.raises(ValueError, match="encode must be"):
        floc.attach(bare, ratio=1 / 2, encode=value)
    with pytest.raises(ValueError, match="encode must be"):
        floc.capture(bare, inputs, ratio=1 / 2, encode=value)
    with pytest.raises(ValueError, match="reuse and encode both say which slices are encoded"):
        floc.attach(bare, ratio=1 / 2, encode=1 / 2, reuse=8)
    assert list_hooks(bare) == before


@OTHERS
def test_models_without_grids_are_refused(kind: str, models) -> None:
    with pytest.raises(
        ValueError, match=r"encode (with prepared frames needs video_grid_thw, which|needs slices that are)"
    ):
        floc.attach(models[kind, "sdpa"], ratio=1, encode=1 / 2)
