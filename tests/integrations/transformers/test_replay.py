"""`floc.replay`: the logits of `floc.attach`, without the vision encoder."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import floc
from floc.encoders.vision_features import encode_prepared
from floc.integrations.transformers import FAMILIES
from tests.integrations.transformers.helpers import (
    BOTH,
    CLOSE,
    DISTINCT,
    MISPLACED,
    RATIO,
    create_prompt,
    forbid_vision,
    list_hooks,
    record_decoder,
)
from tests.integrations.transformers.zoo import (
    IMAGE_BESIDE_VIDEO,
    STACKED,
    Image,
    Text,
    Video,
    model,
    prompt,
    side,
    without_pixels,
)


@BOTH
def test_replay_equals_attach(kind: str, attention: str, models, tmp_path: Path) -> None:
    bare, example = models[kind, attention], create_prompt(kind, slices=20)  # more than one step of the vision encoder
    with floc.attach(bare, ratio=RATIO) as handle:
        expected = bare(**example.inputs).logits
        ids = bare.generate(**example.inputs, max_new_tokens=5)
    video = floc.capture(bare, example.inputs, ratio=RATIO)
    assert video.indices.tolist() == handle.last[0].indices.tolist()
    assert video.shape == example.clips[0].shape
    video.save(tmp_path / "talk.floc")
    before = list_hooks(bare)
    for again in (video, floc.load(tmp_path / "talk.floc")):
        with floc.replay(bare, again), forbid_vision(bare):
            question = without_pixels(example.inputs)
            torch.testing.assert_close(bare(**question).logits, expected, **CLOSE)
            assert bare.generate(**question, max_new_tokens=5).tolist() == ids.tolist()
    assert list_hooks(bare) == before


@DISTINCT
def test_another_question_about_the_same_video(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    other = {name: tensor.clone() for name, tensor in example.inputs.items()}
    other["input_ids"][0, -5:] = torch.tensor([11, 12, 13, 14, 15])
    video = floc.capture(bare, example.inputs, ratio=RATIO)
    with floc.attach(bare, ratio=RATIO):
        expected = bare(**other).logits
    with floc.replay(bare, video), forbid_vision(bare):
        torch.testing.assert_close(bare(**without_pixels(other)).logits, expected, **CLOSE)


@DISTINCT
def test_rows_about_one_video_and_beams(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    video = floc.capture(bare, example.inputs, ratio=RATIO)
    question = without_pixels(example.inputs)
    with floc.replay(bare, video):
        alone = bare(**question).logits
        twice = {name: torch.cat([tensor, tensor]) for name, tensor in question.items()}
        both = bare(**twice).logits
        torch.testing.assert_close(both[0], alone[0], **CLOSE)
        torch.testing.assert_close(both[1], alone[0], **CLOSE)
        if kind not in MISPLACED:
            beams = bare.generate(**question, num_beams=2, max_new_tokens=4)
    if kind not in MISPLACED:
        with floc.attach(bare, ratio=RATIO):
            assert beams.tolist() == bare.generate(**example.inputs, num_beams=2, max_new_tokens=4).tolist()


@DISTINCT
def test_several_videos_in_a_prompt(kind: str, models) -> None:
    bare, size = models[kind, "sdpa"], Video(4, *side(kind))
    both = prompt(kind, [[Text(4), size, Text(15), size, Text(3)]], seed=3)
    halves = [take_half(kind, both.inputs, i) for i in range(2)]
    cut = int(both.clips[0].places[-1]) + 12
    for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
        for half, columns in zip(halves, (slice(0, cut), slice(cut, None)), strict=True):
            if name in half:
                half[name] = both.inputs[name][:, columns]
    videos = [floc.capture(bare, half, ratio=RATIO) for half in halves]
    with floc.attach(bare, ratio=RATIO):
        expected = bare(**both.inputs).logits
    with floc.replay(bare, videos), forbid_vision(bare):
        torch.testing.assert_close(bare(**without_pixels(both.inputs)).logits, expected, **CLOSE)
    with pytest.raises(ValueError, match="one video at a time"):
        floc.capture(bare, both.inputs, ratio=RATIO)


def take_half(kind: str, inputs: dict[str, torch.Tensor], i: int) -> dict[str, torch.Tensor]:
    return {
        name: tensor if name in ("input_ids", "attention_mask", "mm_token_type_ids") else tensor.chunk(2)[i]
        for name, tensor in inputs.items()
    }


@pytest.mark.parametrize("kind", sorted(IMAGE_BESIDE_VIDEO - {"internvl", "smolvlm"}))
def test_images_beside_a_replayed_video(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    image = Image(2, 3) if kind not in STACKED else Image(*side(kind))
    example = prompt(kind, [[Text(6), image, Text(7), Video(5, *side(kind)), Text(4)]], seed=2)
    video = floc.capture(bare, example.inputs, ratio=RATIO)
    with floc.attach(bare, ratio=RATIO):
        expected = bare(**example.inputs).logits
    with floc.replay(bare, video):
        torch.testing.assert_close(bare(**without_pixels(example.inputs)).logits, expected, **CLOSE)


@DISTINCT
def test_smaller_budget_from_the_same_file(kind: str, models, tmp_path: Path) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind, slices=8)
    floc.capture(bare, example.inputs, ratio=1 / 2).save(tmp_path / "a.floc")
    video = floc.load(tmp_path / "a.floc")
    with floc.attach(bare, ratio=1 / 2) as handle:
        bare(**example.inputs)
    smaller = video.at(ratio=1 / 8)
    expected = handle.last[0].at(ratio=1 / 8)
    assert smaller.indices.tolist() == expected.indices.tolist()
    assert torch.equal(smaller.features, expected.features)
    assert smaller.order.tolist() == expected.order.tolist()
    assert smaller.positions.tolist() == expected.positions.tolist()
    with floc.replay(bare, smaller), record_decoder(bare) as calls:
        bare(**without_pixels(example.inputs))
    (call,) = calls
    assert call["inputs_embeds"].shape[1] == example.inputs["input_ids"].shape[1] - video.n + len(smaller)
    with pytest.raises(ValueError, match="capture again with a larger budget"):
        smaller.at(ratio=1 / 4)


@pytest.mark.parametrize("method", ["pooling", "prunevid", "divprune", "random", "floc-paper"])
def test_replay_with_any_method(method: str, models) -> None:
    bare, example = models["qwen3_vl", "sdpa"], create_prompt("qwen3_vl", slices=8)
    with floc.attach(bare, ratio=RATIO, method=method):
        expected = bare(**example.inputs).logits
    video = floc.capture(bare, example.inputs, ratio=RATIO, method=method)
    assert video.made["method"] == method
    with floc.replay(bare, video):
        torch.testing.assert_close(bare(**without_pixels(example.inputs)).logits, expected, **CLOSE)
    if not video.nested:
        with pytest.raises(ValueError, match="no nested order"):
            video.at(ratio=1 / 8)


@DISTINCT
def test_video_of_one_frame(kind: str, models) -> None:
    """A single frame looks like an image in the prompt, but is captured and replayed as a video."""
    bare, example = models[kind, "sdpa"], prompt(kind, [[Text(4), Video(1, *side(kind)), Text(5)]])
    expected = bare(**example.inputs).logits
    pixels = FAMILIES[kind].pixels
    if pixels == "pixel_values":
        with pytest.raises(ValueError, match="the inputs have 0"):
            floc.capture(bare, example.inputs, ratio=1)
        encoded = encode_prepared(bare.model, example.inputs)
        two = floc.capture(bare, create_prompt(kind).inputs, ratio=1)
        video = dataclasses.replace(
            two, features=encoded.tokens.flatten(0, 2), indices=torch.arange(9), order=torch.arange(9), shape=(1, 3, 3)
        )
    else:
        video = floc.capture(bare, example.inputs, ratio=1)
    with floc.replay(bare, video), forbid_vision(bare):
        torch.testing.assert_close(bare(**without_pixels(example.inputs)).logits, expected, **CLOSE)


@pytest.mark.parametrize("kind", ["llava_next_video", "internvl"])
def test_replay_with_compact_positions(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    video = floc.capture(bare, example.inputs, ratio=RATIO)
    with floc.attach(bare, ratio=RATIO, positions="compact"):
        expected = bare(**example.inputs).logits
    with floc.replay(bare, video, positions="compact"):
        torch.testing.assert_close(bare(**without_pixels(example.inputs)).logits, expected, **CLOSE)


def test_rows_with_different_videos_and_beams(models) -> None:
    kind = "qwen2_5_vl"
    bare = models[kind, "sdpa"]
    alone = [prompt(kind, [[Text(3 + i), Video(4 - i, *side(kind)), Text(4)]], seed=i) for i in range(2)]
    videos = [floc.capture(bare, example.inputs, ratio=RATIO) for example in alone]
    rows = prompt(kind, [[Text(3), Video(4, *side(kind)), Text(4)], [Text(4), Video(3, *side(kind)), Text(4)]])
    rows.inputs["pixel_values_videos"] = torch.cat([example.inputs["pixel_values_videos"] for example in alone])
    for settings in ({}, {"num_beams": 2}, {"num_beams": 3, "num_return_sequences": 3}):
        with floc.attach(bare, ratio=RATIO):
            expected = bare.generate(**rows.inputs, max_new_tokens=4, **settings)
        with floc.replay(bare, videos), forbid_vision(bare):
            actual = bare.generate(**without_pixels(rows.inputs), max_new_tokens=4, **settings)
        assert actual.tolist() == expected.tolist(), settings


def test_batch_of_questions_about_one_video(models) -> None:
    """Rows of unequal length about the same video."""
    kind = "llava_onevision"
    bare = models[kind, "sdpa"]
    size = Video(4, *side(kind))
    rows = prompt(kind, [[Text(3), size, Text(4)], [Text(9), size, Text(6)]])
    rows.inputs["pixel_values_videos"][1] = rows.inputs["pixel_values_videos"][0]
    with floc.attach(bare, ratio=RATIO) as handle:
        ids = bare.generate(**rows.inputs, max_new_tokens=4)
    assert len(handle.last) == 1  # one video, two questions
    alone = {"pixel_values_videos": rows.inputs["pixel_values_videos"][:1]}
    video = floc.capture(bare, alone, ratio=RATIO)
    with floc.replay(bare, video), forbid_vision(bare):
        assert bare.generate(**without_pixels(rows.inputs), max_new_tokens=4).tolist() == ids.tolist()


def test_rejects_videos_of_another_model(models) -> None:
    video = floc.capture(models["qwen3_vl", "sdpa"], create_prompt("qwen3_vl").inputs, ratio=1 / 2)
    with pytest.raises(ValueError, match=r"captured for qwen3_vl.*the model is qwen2_5_vl"):
        floc.replay(models["qwen2_5_vl", "sdpa"], video)
    other = model("qwen3_vl", seed=5)
    before = list_hooks(other)
    with pytest.raises(ValueError, match="the vision encoder of this model has other weights"):
        floc.replay(other, video)
    assert list_hooks(other) == before
    near = model("qwen3_vl")
    for weight in near.model.visual.parameters():
        weight.mul_(1 + 0.03 * torch.randn(weight.shape))
    with pytest.raises(ValueError, match="the vision encoder of this model has other weights"):
        floc.replay(near, video)
    with floc.replay(model("qwen3_vl", dtype=torch.bfloat16), video):  # the same model in another dtype
        pass
    offloaded = model("qwen3_vl")
    offloaded.model.visual.to("meta")  # a replay does not need it
    with floc.replay(offloaded, video):
        pass


def test_rejects_inputs_that_do_not_fit(models) -> None:
    bare, example = models["qwen2_5_vl", "sdpa"], create_prompt("qwen2_5_vl")
    video = floc.capture(bare, example.inputs, ratio=RATIO)
    with floc.replay(bare, video):
        with pytest.raises(ValueError, match="needs no pixels"):
            bare(**example.inputs)
        with pytest.raises(ValueError, match="the rows of the prompt have"):
            bare(**without_pixels(create_prompt("qwen2_5_vl", slices=4).inputs))
        bare(input_ids=torch.tensor([[5, 6, 7]]))  # a prompt without a video is not changed
        with pytest.raises(RuntimeError, match="already attached to this model"):
            floc.attach(bare, ratio=RATIO)
    with pytest.raises(ValueError, match="how this video was prepared is unknown"):
        video.inputs(None, "?")
    with pytest.raises(ValueError, match="must have pixel_values_videos"):
        floc.capture(bare, without_pixels(example.inputs), ratio=RATIO)
