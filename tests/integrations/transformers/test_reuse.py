"""Reuse in `floc.attach` and in `floc.capture`: slices that look the same pass the vision encoder once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import floc
from floc.encoders.slice_choice import SliceOptions
from floc.families.processing import VideoPreparer
from floc.integrations.transformers import slice_choice as module
from floc.tokens import Frames
from tests.integrations.transformers.helpers import (
    CLOSE,
    create_batch,
    create_prompt,
    list_hooks,
    record_decoder,
)
from tests.integrations.transformers.processors import create_processor
from tests.integrations.transformers.tiny_configs import create_model
from tests.integrations.transformers.zoo import GLMS, GRIDS, KINDS, Image, Prompt, Text, Video, prompt, side

TAKE_GRIDS = [kind for kind in KINDS if kind in GRIDS]
GRID = pytest.mark.parametrize("kind", TAKE_GRIDS)
OTHERS = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in GRIDS])


@pytest.fixture(autouse=True)
def one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a level be the unit of the random patches here; some types have no processor of their own."""
    monkeypatch.setattr(module, "_find_levels", lambda config: 1.0)


def copy_slices(example: Prompt, sources: list[list[int]], noise: float = 0.0) -> Prompt:
    """Return a prompt whose videos have the pixels of other slices of theirs, and noise in every value."""
    pixels, videos, start = example.inputs["pixel_values_videos"], [], 0
    for numbers, grid in zip(sources, example.inputs["video_grid_thw"].prod(1).tolist(), strict=True):
        slices = pixels[start : start + grid].unflatten(0, (len(numbers), -1))
        videos.append(slices[numbers].flatten(0, 1))
        start += grid
    changed = torch.cat(videos)
    signs = torch.randn(changed.shape, generator=torch.Generator().manual_seed(0)).sign()
    return Prompt({**example.inputs, "pixel_values_videos": changed + noise * signs}, example.clips)


def record(model: Any, inputs: dict[str, torch.Tensor]) -> tuple[dict[str, Any], int]:
    """Return what the decoder gets, and how many patches passed the vision encoder."""
    name = "visual" if hasattr(model.base_model, "visual") else "vision_model"
    counts: list[int] = []

    def count(tower: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        counts.append(len(args[0] if args else kwargs["pixel_values"]))

    hook = getattr(model.base_model, name).register_forward_pre_hook(count, with_kwargs=True)
    with record_decoder(model) as calls, torch.no_grad():
        model(**inputs, use_cache=False)
    hook.remove()
    return calls[0], sum(counts)


def compare(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    torch.testing.assert_close(actual["inputs_embeds"], expected["inputs_embeds"], **CLOSE)
    deep, expected_deep = (call.get("deepstack_visual_embeds") or [] for call in (actual, expected))
    assert len(deep) == len(expected_deep)
    for layer, expected_layer in zip(deep, expected_deep, strict=True):
        torch.testing.assert_close(layer, expected_layer, **CLOSE)


@GRID
def test_all_tokens_equal_the_bare_model(kind: str, models) -> None:
    """Two videos of a row and one of another, whose slices repeat; a video does not use the slices of another."""
    bare = models[kind, "sdpa"]
    example = copy_slices(create_batch(kind), [[0, 0, 0, 3, 3, 0], [0, 0, 0], [0, 1, 1]])
    pixels = example.inputs["pixel_values_videos"]
    per_slice = len(pixels) // 12
    pixels[6 * per_slice : 9 * per_slice] = pixels[:per_slice].repeat(3, 1)  # the second video looks like the first
    expected, full = record(bare, example.inputs)
    with floc.attach(bare, ratio=1, reuse=0):
        actual, reduced = record(bare, example.inputs)
    compare(actual, expected)
    assert full == len(pixels)
    assert reduced == (3 + 1 + 2) * per_slice


@GRID
def test_slices_within_the_tolerance_take_the_tokens_of_the_first(kind: str, models) -> None:
    bare, sources = models[kind, "sdpa"], [0, 0, 0, 3, 3]
    exact = copy_slices(create_prompt(kind), [sources])
    noisy = copy_slices(create_prompt(kind), [sources], noise=0.01)  # two slices differ by up to 0.02
    per_slice = len(noisy.inputs["pixel_values_videos"]) // 5
    firsts = noisy.inputs["pixel_values_videos"].unflatten(0, (5, -1))[sources].flatten(0, 1)
    expected, _ = record(bare, {**noisy.inputs, "pixel_values_videos": firsts})
    with floc.attach(bare, ratio=1, reuse=0.03):
        actual, reduced = record(bare, noisy.inputs)
    compare(actual, expected)
    assert reduced == 2 * per_slice
    with floc.attach(bare, ratio=1, reuse=0.005):
        assert record(bare, noisy.inputs)[1] == 5 * per_slice
    with floc.attach(bare, ratio=1 / 4, reuse=0) as handle:
        bare(**exact.inputs, use_cache=False)
    selected = handle.last[0].indices
    with floc.attach(bare, ratio=1 / 4) as handle:
        bare(**exact.inputs, use_cache=False)
    assert torch.equal(handle.last[0].indices, selected)


@GRID
def test_noise_equals_the_bare_model_to_the_bit(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_batch(kind)
    expected, full = record(bare, example.inputs)
    with floc.attach(bare, ratio=1, reuse=0.1):
        actual, passed = record(bare, example.inputs)
    assert passed == full
    assert torch.equal(actual["inputs_embeds"], expected["inputs_embeds"])


@pytest.mark.parametrize("kind", [kind for kind in TAKE_GRIDS if kind not in GLMS])
def test_pictures_are_encoded_as_ever(kind: str, models) -> None:
    rows, columns = side(kind)
    parts = [Text(3), Image(rows * 2, columns * 2), Text(2), Video(4, rows, columns), Image(rows, columns), Text(3)]
    bare, example = models[kind, "sdpa"], copy_slices(prompt(kind, [parts]), [[0, 0, 2, 2]])
    example.inputs["pixel_values"][:] = example.inputs["pixel_values"][:1]  # all patches of all pictures are equal
    expected, full = record(bare, example.inputs)
    with floc.attach(bare, ratio=1, reuse=0):
        actual, reduced = record(bare, example.inputs)
    compare(actual, expected)
    assert full - reduced == len(example.inputs["pixel_values_videos"]) // 2


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "glm4v"])
def test_generation_encodes_less_and_answers_alike(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], copy_slices(create_prompt(kind), [[0, 0, 2, 2, 2]])
    options: Any = dict(max_new_tokens=4, do_sample=False)
    with floc.attach(bare, ratio=1 / 2):
        expected = bare.generate(**example.inputs, **options)
    with floc.attach(bare, ratio=1 / 2, reuse=0):
        assert bare.generate(**example.inputs, **options).tolist() == expected.tolist()


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_hooks_are_removed_after_an_error(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], copy_slices(create_prompt(kind), [[0, 0, 2, 2, 2]])
    before, expected = list_hooks(bare), record(bare, example.inputs)

    def fail(*args: Any) -> None:
        raise RuntimeError("no memory")

    failing = bare.base_model.visual.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"), floc.attach(bare, ratio=1, reuse=0):
        bare(**example.inputs)
    failing.remove()
    assert list_hooks(bare) == before
    after = record(bare, example.inputs)
    assert after[1] == expected[1]
    compare(after[0], expected[0])


@pytest.mark.parametrize("value", [-1, 256, float("nan"), "8", True])
def test_wrong_values_are_refused_before_the_model_is_changed(value: Any, models) -> None:
    bare = models["qwen2_5_vl", "sdpa"]
    before = list_hooks(bare)
    for run in (
        floc.attach,
        lambda model, **options: floc.capture(model, create_prompt("qwen2_5_vl").inputs, **options),
    ):
        with pytest.raises(ValueError, match="reuse must be a number of levels"):
            run(bare, ratio=1 / 2, reuse=value)
    assert list_hooks(bare) == before


@OTHERS
def test_models_without_grids_are_refused(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    before = list_hooks(bare)
    with pytest.raises(ValueError, match=f"video_grid_thw, which {kind} does not take; pass a file or frames to"):
        floc.attach(bare, ratio=1, reuse=0)
    assert list_hooks(bare) == before


def test_tensors_for_all_slices_are_refused(models) -> None:
    bare, example = models["qwen3_vl", "sdpa"], copy_slices(create_prompt("qwen3_vl"), [[0, 0, 2, 2, 2]])
    encode = module.leave_out_slices(bare.base_model.get_video_features, bare.config, SliceOptions(reuse=0))
    given = [example.inputs[name] for name in ("pixel_values_videos", "video_grid_thw")]
    with pytest.raises(ValueError, match="video_cu_seqlens was computed for all slices, but reuse leaves some out"):
        encode(*given, video_cu_seqlens=torch.zeros(3))
    features, *_ = encode(*given, return_dict=False)
    assert features is not None


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "glm4v", "video_llama_3"])
def test_capture_of_prepared_inputs(kind: str, models) -> None:
    """Longer than the frames that are encoded at a time, so that the memory crosses their border."""
    bare, sources = models[kind, "sdpa"], [0] * 20 + [20] * 5 + [*range(25, 37)]
    example = copy_slices(create_prompt(kind, slices=37), [sources])
    expected = floc.capture(bare, example.inputs, ratio=1)
    actual = floc.capture(bare, example.inputs, ratio=1, reuse=0)
    for layer, whole in zip((actual.features, *actual.deep), (expected.features, *expected.deep), strict=True):
        torch.testing.assert_close(layer, whole, **CLOSE)
    assert torch.equal(actual.features[: 20 * 6], actual.features[:6].repeat(20, 1))
    assert actual.shape == expected.shape
    assert (actual.made["reuse"], expected.made.get("reuse")) == (0.0, None)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "llava_onevision", "internvl", "gemma4"])
def test_capture_of_frames(kind: str) -> None:
    """Frames that repeat: all tokens are those of a capture without reuse, also of models without grids."""
    model, processor = create_model(kind), create_processor(kind)
    step = VideoPreparer(processor).frames_per_slice
    rng = np.random.default_rng(0)
    distinct = rng.integers(0, 256, (3 * step, 40, 64, 3), np.uint8)
    order = [0] * 9 + [1] * 4 + [0] + [2] * 9
    pixels = np.concatenate([distinct[step * i : step * (i + 1)] for i in order])
    times_s = np.arange(len(pixels)) / 2
    frames = [Frames(pixels[i : i + 7], times_s[i : i + 7]) for i in range(0, len(pixels), 7)]
    expected = floc.capture(model, frames, processor=processor, ratio=1)
    actual = floc.capture(model, frames, processor=processor, ratio=1, reuse=0)
    assert actual.shape == expected.shape
    assert actual.shape[0] == len(order)
    for layer, whole in zip((actual.features, *actual.deep), (expected.features, *expected.deep), strict=True):
        scale = float(whole.abs().max().clamp(min=1))
        torch.testing.assert_close(layer / scale, whole / scale, atol=1e-4, rtol=1e-4)
    np.testing.assert_array_equal(actual.times_s, expected.times_s)
    seconds = actual.made["seconds"]
    assert {"decode", "compare", "preprocess", "vision", "select", "other", "total"} == seconds.keys()
    assert actual.made["reuse"] == 0.0
    inputs = [video.inputs(processor, "What?") for video in (actual, expected)]
    assert torch.equal(inputs[0]["input_ids"], inputs[1]["input_ids"])


def test_levels_are_those_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    expected = {"qwen2_5_vl": 0.27577711, "qwen3_vl": 0.5, "glm4v": 0.27577711, "video_llama_3": 0.5}
    for kind, deviation in expected.items():
        assert module._find_levels(create_model(kind).config) == pytest.approx(255 * deviation)
    (example,) = [create_prompt("qwen2_5_vl")]
    rule = module.create_patch_rule(create_model("qwen2_5_vl").config, SliceOptions(reuse=10))
    first = example.inputs["pixel_values_videos"][None]
    assert rule.find_sources(torch.cat([first, first + 9 / 70.4, first + 11 / 70.4])).tolist() == [0, 0, 2]
