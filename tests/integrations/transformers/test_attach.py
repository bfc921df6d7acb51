"""`floc.attach` on tiny models of every family: logits, kept tokens, methods and errors."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import floc
from floc.captured.recipe import Recipe
from floc.integrations.transformers import FAMILIES
from floc.integrations.transformers.cache import is_attached
from tests.integrations.transformers.helpers import (
    BOTH,
    CLOSE,
    DISTINCT,
    RATIO,
    check_by_hand,
    check_masked,
    compute_cut_logits,
    create_batch,
    create_prompt,
    list_hooks,
    list_staying,
    mask_dropped,
    record_bare_call,
    record_decoder,
)
from tests.integrations.transformers.zoo import (
    IMAGE_BESIDE_VIDEO,
    KINDS,
    MROPES,
    STACKED,
    Image,
    Prompt,
    Text,
    Video,
    model,
    prompt,
    side,
)


@BOTH
def test_ratio_one_is_bit_identical(kind: str, attention: str, models) -> None:
    bare = models[kind, attention]
    for example in (create_prompt(kind), create_batch(kind)):
        logits = bare(**example.inputs).logits
        ids = bare.generate(**example.inputs, max_new_tokens=5)
        with floc.attach(bare, ratio=1) as handle:
            assert torch.equal(bare(**example.inputs).logits, logits)
            assert torch.equal(bare.generate(**example.inputs, max_new_tokens=5), ids)
        assert [len(kept) for kept in handle.last] == [len(clip.places) for clip in example.clips]


@BOTH
def test_equals_inputs_cut_by_hand(kind: str, attention: str, models) -> None:
    check_by_hand(models[kind, attention], create_prompt(kind))
    check_by_hand(models[kind, attention], create_batch(kind))


@BOTH
def test_equals_the_bare_model_with_dropped_tokens_masked(kind: str, attention: str, models) -> None:
    check_masked(models[kind, attention], create_prompt(kind))
    check_masked(models[kind, attention], create_batch(kind))


@DISTINCT
def test_keeps_the_tokens_of_compress(kind: str, models) -> None:
    example = create_prompt(kind)
    call = record_bare_call(models[kind, "sdpa"], example.inputs)
    (clip,) = example.clips
    tokens = call["inputs_embeds"][0, clip.places].view(*clip.shape, -1)
    with floc.attach(models[kind, "sdpa"], budget=7, method="floc-paper", block=2) as handle:
        models[kind, "sdpa"](**example.inputs)
    (kept,) = handle.last
    expected = floc.compress(tokens, budget=7, method="floc-paper", block=2)
    assert kept.indices.tolist() == expected.indices.tolist()
    assert kept.settings == expected.settings
    assert kept.seconds > 0
    assert kept.at(budget=3).indices.tolist() == expected.at(budget=3).indices.tolist()


@pytest.mark.parametrize("kind", sorted(IMAGE_BESIDE_VIDEO))
def test_images_are_not_compressed(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    image = Image(2, 3) if kind not in ("internvl", "smolvlm", *STACKED) else Image(side(kind)[0], side(kind)[1])
    example = prompt(kind, [[Text(6), image, Text(7), Video(5, *side(kind)), Text(4)]], seed=2)
    check_by_hand(bare, example)
    check_masked(bare, example)
    only = prompt(kind, [[Text(6), image, Text(4)]])
    logits = bare(**only.inputs).logits
    with floc.attach(bare, ratio=RATIO) as handle:
        assert torch.equal(bare(**only.inputs).logits, logits)
    assert handle.last == []


@pytest.mark.parametrize("kind", sorted(set(KINDS) - MROPES))
def test_compact_positions_have_no_gaps(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    for example in (create_prompt(kind), create_batch(kind)):
        call = record_bare_call(bare, example.inputs)
        with floc.attach(bare, ratio=RATIO, positions="compact") as handle, record_decoder(bare) as calls:
            ids = bare.generate(**example.inputs, max_new_tokens=5)
        stays = list_staying(example, handle)
        for row, places in enumerate(stays):
            n = len(places)
            assert calls[0]["position_ids"][row, -n:].tolist() == list(range(n))
            assert [step["position_ids"][row].tolist() for step in calls[1:]] == [[n + i] for i in range(4)]
        # by hand: the same tokens as a prompt without gaps
        call["position_ids"] = torch.zeros_like(example.inputs["input_ids"])
        for row, places in enumerate(stays):
            call["position_ids"][row, places] = torch.arange(len(places))
        logits = compute_cut_logits(bare, call, stays)
        for row_logits in logits:
            row_logits[:, bare.generation_config.suppress_tokens] = -torch.inf
        assert [int(row_logits[-1].argmax()) for row_logits in logits] == ids[:, -5].tolist()


@pytest.mark.parametrize("kind", sorted(MROPES))
def test_rejects_compact_positions_for_grid_positions(kind: str, models) -> None:
    with pytest.raises(ValueError, match="a position is a frame, row and column"):
        floc.attach(models[kind, "sdpa"], ratio=RATIO, positions="compact")
    assert not is_attached(models[kind, "sdpa"].model)


@DISTINCT
@pytest.mark.parametrize("method", ["pooling", "prunevid"])
def test_merged_features_replace_embeddings(kind: str, method: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind, slices=8)
    with floc.attach(bare, ratio=RATIO, method=method) as handle, record_decoder(bare) as calls:
        bare(**example.inputs)
    (kept,), (call,) = handle.last, calls
    assert kept.merged
    (places,) = list_staying(example, handle)
    (clip,) = example.clips
    slots = [places.index(p) for p in clip.places[kept.indices.numpy()]]
    torch.testing.assert_close(call["inputs_embeds"][0, slots], kept.features)
    before = record_bare_call(bare, example.inputs)
    others = [i for i in range(len(places)) if i not in slots]
    assert torch.equal(call["inputs_embeds"][0, others], before["inputs_embeds"][0, [places[i] for i in others]])
    if before.get("deepstack_visual_embeds"):
        for layer, whole in zip(call["deepstack_visual_embeds"], before["deepstack_visual_embeds"], strict=True):
            means = torch.stack([whole[kept.represents == k].mean(0) for k in range(len(kept))])
            torch.testing.assert_close(layer, means)


def list_parts() -> list[Any]:
    """Return each type with three parts of all methods, two of them slow: the quick ones run a method with 3 types."""
    kinds = DISTINCT.args[1]
    quick = {(kind, number % 3) for number, kind in enumerate(kinds)}
    parts = [(kind, part) for kind in kinds for part in range(3)]
    return [case if case in quick else pytest.param(*case, marks=pytest.mark.slow) for case in parts]


@pytest.mark.parametrize(("kind", "part"), list_parts())
def test_every_method_runs(kind: str, part: int, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind, slices=8)
    for method in floc.methods.list_methods()[part::3]:
        options: dict[str, Any] = {"nearest": True} if "nearest" in floc.methods.list_options(method) else {}
        with floc.attach(bare, ratio=1 / 2, method=method, **options) as handle:
            logits = bare(**example.inputs).logits
        (kept,) = handle.last
        assert logits.shape[1] == example.inputs["input_ids"].shape[1] - kept.n + len(kept)


def test_recipe_replaces_the_arguments_of_compress(models) -> None:
    bare, example = models["qwen2_5_vl", "sdpa"], create_prompt("qwen2_5_vl")
    with floc.attach(bare, budget=7, method="floc-paper") as handle:
        expected = bare(**example.inputs).logits
    with floc.attach(bare, recipe=Recipe(budget=7, method="floc-paper")) as same:
        assert torch.equal(bare(**example.inputs).logits, expected)
    assert same.last[0].settings == handle.last[0].settings


@DISTINCT
def test_base_model_without_language_head(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"].model, create_prompt(kind)
    with floc.attach(models[kind, "sdpa"], ratio=RATIO):
        expected = bare(**example.inputs).last_hidden_state
    with floc.attach(bare, ratio=RATIO) as handle:
        assert torch.equal(bare(**example.inputs).last_hidden_state, expected)
    assert expected.shape[1] < example.inputs["input_ids"].shape[1]
    assert len(handle.last) == 1


def test_accepts_positional_input_ids(models) -> None:
    bare, example = models["qwen2_5_vl", "sdpa"], create_prompt("qwen2_5_vl")
    inputs = dict(example.inputs)
    with floc.attach(bare, ratio=RATIO):
        expected = bare(**inputs).logits
        ids = inputs.pop("input_ids")
        assert torch.equal(bare(ids, **inputs).logits, expected)
        assert torch.equal(bare.model(ids, **inputs).last_hidden_state, bare.model(ids, **inputs)[0])


def test_keeps_half_precision(models) -> None:
    bare = model("qwen3_vl", dtype=torch.bfloat16)
    example = create_prompt("qwen3_vl")
    with floc.attach(bare, ratio=RATIO) as handle, record_decoder(bare) as calls:
        bare.generate(**example.inputs, max_new_tokens=2)
    assert calls[0]["inputs_embeds"].dtype == torch.bfloat16
    assert handle.last[0].features.dtype == torch.bfloat16


@DISTINCT
def test_gradients_flow(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    with floc.attach(bare, ratio=RATIO) as handle:
        expected = bare(**example.inputs).logits
        with torch.enable_grad():
            logits = bare(**example.inputs).logits
            torch.testing.assert_close(logits, expected, **CLOSE)
            logits.sum().backward()
    weight = next(bare.get_decoder().layers[0].parameters())
    assert weight.grad is not None
    bare.zero_grad()
    assert not handle.last[0].features.requires_grad


def test_rejects_unsupported_models() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
    with pytest.raises(ValueError, match=r"type 'llama'.*qwen2_5_vl"):
        floc.attach(LlamaForCausalLM(config), ratio=RATIO)
    with pytest.raises(ValueError, match="type None"):
        floc.attach(torch.nn.Linear(1, 1), ratio=RATIO)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of"),
        ({"ratio": 2}, "ratio must be in"),
        ({"ratio": 0.5, "budget": 3}, "exactly one of"),
        ({"ratio": 0.5, "method": "nope"}, "unknown method"),
        ({"ratio": 0.5, "blok": 3}, "blok"),
        ({"ratio": 0.5, "positions": "zip"}, "unknown positions"),
    ],
)
def test_rejects_bad_settings_before_adding_hooks(arguments: dict[str, Any], message: str, models) -> None:
    bare = models["qwen2_vl", "sdpa"]
    before = list_hooks(bare)
    with pytest.raises((ValueError, TypeError), match=message):
        floc.attach(bare, **arguments)
    assert list_hooks(bare) == before


def test_rejects_labels_positions_and_embeddings(models) -> None:
    bare, example = models["qwen2_5_vl", "sdpa"], create_prompt("qwen2_5_vl")
    with floc.attach(bare, ratio=RATIO):
        with pytest.raises(ValueError, match="labels are for training"):
            bare(**example.inputs, labels=example.inputs["input_ids"])
        with pytest.raises(ValueError, match="logits_to_keep"):
            bare(**example.inputs, logits_to_keep=torch.tensor([1, 2]))
        embeds = bare.get_input_embeddings()(example.inputs["input_ids"])
        given = {name: tensor for name, tensor in example.inputs.items() if name != "input_ids"}
        embeds[0, example.clips[0].places] = bare.get_input_embeddings()(torch.tensor(bare.config.video_token_id))
        with pytest.raises(ValueError, match="needs input_ids"):
            bare(**given, inputs_embeds=embeds)


def test_rejects_tokens_dropped_by_the_processor(models) -> None:
    bare, example = models["video_llama_3", "sdpa"], create_prompt("video_llama_3")
    dropped = dict(example.inputs)
    (clip,) = example.clips
    stays = torch.ones(example.inputs["input_ids"].shape[1], dtype=torch.bool)
    stays[clip.places[3]] = False
    dropped["video_compression_mask"] = dropped["video_compression_mask"].clone()
    dropped["video_compression_mask"][3] = False
    dropped |= {name: dropped[name][:, stays] for name in ("input_ids", "attention_mask")}
    with floc.attach(bare, ratio=RATIO), pytest.raises(ValueError, match="use_token_compression=False"):
        bare(**dropped)


def test_family_table_has_every_tiny_model() -> None:
    assert set(KINDS) <= set(FAMILIES)
    assert all(np.prod(side(kind)) > 1 for kind in KINDS)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_attach_on_gpu(kind: str) -> None:
    bare, example = model(kind).cuda(), create_prompt(kind)
    on_gpu = Prompt({name: tensor.cuda() for name, tensor in example.inputs.items()}, example.clips)
    with floc.attach(bare, ratio=RATIO) as handle:
        logits = bare(**on_gpu.inputs).logits
        ids = bare.generate(**on_gpu.inputs, max_new_tokens=5)
        static = bare.generate(**on_gpu.inputs, max_new_tokens=5, cache_implementation="static", disable_compile=True)
    assert ids.tolist() == static.tolist()
    handle.last = [dataclasses.replace(kept, indices=kept.indices.cpu()) for kept in handle.last]
    (places,) = list_staying(example, handle)
    masked = mask_dropped(example, handle, record_bare_call(bare, on_gpu.inputs))
    whole = bare(**{name: tensor.cuda() for name, tensor in masked.items()}).logits
    torch.testing.assert_close(logits[0], whole[0, places], atol=2e-2, rtol=1e-2)


@pytest.mark.gpu
def test_compiled_decoding_on_gpu() -> None:
    bare, example = model("qwen2_5_vl").cuda(), create_prompt("qwen2_5_vl")
    inputs = {name: tensor.cuda() for name, tensor in example.inputs.items()}
    with floc.attach(bare, ratio=RATIO):
        ids = bare.generate(**inputs, max_new_tokens=5)
        assert bare.generate(**inputs, max_new_tokens=5, cache_implementation="static").tolist() == ids.tolist()
