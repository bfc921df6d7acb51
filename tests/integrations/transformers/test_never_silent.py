"""A video that FLoC cannot shorten is an error that says why; other calls are none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import floc
from tests.integrations.transformers.helpers import (
    CLOSE,
    DISTINCT,
    IS_NEW,
    RATIO,
    create_prompt,
    list_hooks,
    record_bare_call,
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

SOME = pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl", "llava_onevision"])


@DISTINCT
def test_rejects_prompts_without_pixels(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    with floc.attach(bare, ratio=RATIO):
        with pytest.raises(ValueError, match=r"the prompt has \d+ video tokens, but neither pixel_values"):
            bare(**without_pixels(example.inputs))
        assert bare.generate(**example.inputs, max_new_tokens=2).shape[1]  # no state is left


@DISTINCT
def test_rejects_embeddings(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    call = record_bare_call(bare, example.inputs)
    with floc.attach(bare, ratio=RATIO):
        with pytest.raises(ValueError, match="cannot see whether inputs_embeds contain a video"):
            bare(inputs_embeds=call["inputs_embeds"], position_ids=call["position_ids"])
        with pytest.raises(ValueError, match="the decoder was called directly"):
            bare.get_decoder()(inputs_embeds=call["inputs_embeds"])


@SOME
def test_rejects_prefill_in_chunks(kind: str, models) -> None:
    """transformers drops the pixels of a prompt that it reads in chunks."""
    bare = models[kind, "sdpa"]
    video = Video(40, *side(kind))
    for before in (4, 200):  # the video is in the first chunk, or after it
        example = prompt(kind, [[Text(before), video, Text(5)]])
        for chunk in (16, 64, 190) if IS_NEW else (190,):  # in 5.17 the bare model fails with small chunks
            with floc.attach(bare, ratio=RATIO), pytest.raises(ValueError, match="no prefill_chunk_size"):
                bare.generate(**example.inputs, max_new_tokens=2, prefill_chunk_size=chunk)


@pytest.mark.skipif(not IS_NEW, reason="not in this release")
@SOME
def test_videos_that_were_encoded_before(kind: str, models) -> None:
    """Works where the prompt or other arguments show the grid; else it is an error."""
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    with floc.attach(bare, ratio=RATIO):
        expected = bare.generate(**example.inputs, max_new_tokens=4)
    encoded = dict(example.inputs)
    pixels = encoded.pop("pixel_values_videos", None)
    if pixels is None:
        outputs = {"image": bare.model.get_image_features(encoded.pop("pixel_values"), return_dict=True)}
    else:
        grids = [encoded["video_grid_thw"]] if "video_grid_thw" in encoded else []
        outputs = {"video": bare.model.get_video_features(pixels, *grids, return_dict=True)}
    with floc.attach(bare, ratio=RATIO):
        if kind == "llava_onevision":
            with pytest.raises(ValueError, match="only if the model encodes it while floc is attached"):
                bare(**encoded, mm_encoder_outputs=dict(outputs))
            return
        assert bare(**encoded, mm_encoder_outputs=dict(outputs)).logits.shape[1] < encoded["input_ids"].shape[1]
        if kind == "qwen2_5_vl":
            del encoded["video_grid_thw"]
            with pytest.raises(ValueError, match="video_grid_thw"):
                bare.generate(**encoded, mm_encoder_outputs=outputs, max_new_tokens=4)
        else:
            found = bare.generate(**encoded, mm_encoder_outputs=outputs, max_new_tokens=4)
            assert found.tolist() == expected.tolist()


def test_rejects_a_decoder_that_is_not_called(models, monkeypatch) -> None:
    bare, example = model("llava_onevision"), create_prompt("llava_onevision")
    decoder = bare.model.language_model
    unused = type(decoder)(decoder.config)
    bare.model.spare = unused
    monkeypatch.setattr(type(bare), "get_decoder", lambda self: unused)
    with floc.attach(bare, ratio=RATIO), pytest.raises(RuntimeError, match="did not call its language model"):
        bare(**example.inputs)


def test_rejects_models_whose_decoder_cannot_be_found(monkeypatch) -> None:
    bare = model("llava_onevision")
    before = list_hooks(bare)
    for found in (lambda self: self.base_model, lambda self: torch.nn.Linear(1, 1)):
        monkeypatch.setattr(type(bare), "get_decoder", found)
        with pytest.raises(ValueError, match="cannot find the language model inside LlavaOnevisionModel"):
            floc.attach(bare, ratio=RATIO)
    assert list_hooks(bare) == before


# ---- no false alarms


@DISTINCT
def test_accepts_text(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    text = prompt(kind, [[Text(9)], [Text(5)]]).inputs
    expected = bare.generate(**text, max_new_tokens=3)
    hidden = bare.get_decoder()(input_ids=text["input_ids"]).last_hidden_state
    with floc.attach(bare, ratio=RATIO) as handle:
        assert bare.generate(**text, max_new_tokens=3).tolist() == expected.tolist()
        assert torch.equal(bare.get_decoder()(input_ids=text["input_ids"]).last_hidden_state, hidden)
    assert handle.last == []


@DISTINCT
def test_accepts_images(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    size = side(kind) if kind in ("internvl", "smolvlm", *STACKED) else (2, 3)
    images = prompt(kind, [[Text(6), Image(*size), Text(4)]]).inputs
    expected = bare.generate(**images, max_new_tokens=3)
    with floc.attach(bare, ratio=RATIO) as handle:
        assert bare.generate(**images, max_new_tokens=3).tolist() == expected.tolist()
    assert handle.last == []
    assert kind in IMAGE_BESIDE_VIDEO or kind.startswith("glm")


def check_placeholders_after_prompt(bare: Any, inputs: dict[str, Any], token: int) -> None:
    """Check that several placeholders after a prompt, as an assistant guesses them, equal one after the other."""
    guess = torch.full((1, 5), token)
    cache = bare(**inputs, use_cache=True).past_key_values
    at_once = bare(input_ids=guess, past_key_values=cache).logits
    cache = bare(**inputs, use_cache=True).past_key_values
    steps = [bare(input_ids=guess[:, :1], past_key_values=cache).logits for _ in range(5)]
    torch.testing.assert_close(at_once, torch.cat(steps, 1), **CLOSE)


@DISTINCT
def test_accepts_answers_with_placeholders(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    token = int(example.inputs["input_ids"][0, example.clips[0].places[0]])
    others = [*(set(range(bare.config.text_config.vocab_size)) - {token})]
    for ratio in (1, RATIO):
        with floc.attach(bare, ratio=ratio):
            answer = bare.generate(**example.inputs, max_new_tokens=6, suppress_tokens=others)
            assert answer[0, -6:].tolist() == [token] * 6
            check_placeholders_after_prompt(bare, example.inputs, token)


@DISTINCT
def test_replay_accepts_answers_with_placeholders(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    token = int(example.inputs["input_ids"][0, example.clips[0].places[0]])
    with floc.replay(bare, floc.capture(bare, example.inputs, ratio=RATIO)):
        check_placeholders_after_prompt(bare, without_pixels(example.inputs), token)
