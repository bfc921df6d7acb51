"""The hooks: they restore the model, keep no state after errors, and the tests detect broken ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import floc
from floc.integrations.transformers import cut
from floc.integrations.transformers.cache import CacheLayout
from floc.integrations.transformers.hooks import DecoderHooks
from tests.integrations.transformers.helpers import (
    ALL,
    DISTINCT,
    RATIO,
    check_by_hand,
    check_masked,
    create_prompt,
    list_hooks,
)


@ALL
def test_model_is_restored(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    logits = bare(**example.inputs).logits
    before = list_hooks(bare)
    with floc.attach(bare, ratio=RATIO):
        assert list_hooks(bare) != before
        bare.generate(**example.inputs, max_new_tokens=3)
    assert list_hooks(bare) == before
    assert torch.equal(bare(**example.inputs).logits, logits)

    with pytest.raises(ZeroDivisionError), floc.attach(bare, ratio=RATIO):
        raise ZeroDivisionError
    assert list_hooks(bare) == before

    handle = floc.attach(bare, ratio=RATIO)
    with pytest.raises(RuntimeError, match="already attached to this model"):
        floc.attach(bare, ratio=RATIO)
    with pytest.raises(RuntimeError, match="already attached to this model"):
        floc.attach(bare.model, ratio=RATIO)
    handle.detach()
    handle.detach()
    assert list_hooks(bare) == before


def test_failed_call_keeps_the_cache_usable(models, monkeypatch) -> None:
    bare, example = models["qwen2_5_vl", "sdpa"], create_prompt("qwen2_5_vl")
    before = list_hooks(bare)
    layer = bare.get_decoder().layers[1]
    with floc.attach(bare, ratio=RATIO):
        cache = bare(**example.inputs, use_cache=True).past_key_values
        step = dict(input_ids=torch.tensor([[9]]), past_key_values=cache, use_cache=True)
        length = cache.get_seq_length()
        with monkeypatch.context() as patch:
            patch.setattr(layer, "forward", lambda *args, **kwargs: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                bare(**step)
        assert cache.get_seq_length() == length + 1  # the first layer has already stored the token
    assert list_hooks(bare) == before


def test_failed_call_leaves_no_state(models, monkeypatch) -> None:
    bare, example = models["llava_onevision", "sdpa"], create_prompt("llava_onevision")
    text = torch.arange(20, 29)[None]
    with floc.attach(bare, ratio=RATIO):
        with monkeypatch.context() as patch:
            patch.setattr(bare.model.vision_tower, "forward", lambda *args, **kwargs: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                bare(**example.inputs)
        assert bare.get_decoder()(input_ids=text).last_hidden_state.shape[1] == text.shape[1]


# The checks of the other tests must detect broken code.


def break_gather(patch: pytest.MonkeyPatch) -> None:
    gather = cut.gather_tokens
    patch.setattr(cut, "gather_tokens", lambda values, columns: gather(values, columns).roll(1, 1))


def break_mask(patch: pytest.MonkeyPatch) -> None:
    cut_mask = CacheLayout.cut_mask
    first = torch.tensor(0)
    patch.setattr(
        CacheLayout, "cut_mask", lambda self, *args: torch.ones_like(cut_mask(self, *args)).index_fill(1, first, 0)
    )


def break_positions(patch: pytest.MonkeyPatch) -> None:
    cut_positions = DecoderHooks._cut_positions
    patch.setattr(
        DecoderHooks,
        "_cut_positions",
        lambda self, *args: cut_positions(self, *args).sort(-1, descending=True).values,
    )


def break_deepstack(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cut, "cut_deepstack", lambda kwargs, cut, selected: kwargs.pop("deepstack_visual_embeds"))


@DISTINCT
@pytest.mark.parametrize("break_code", [break_gather, break_mask, break_positions])
def test_tests_detect_broken_code(kind: str, break_code: Any, models, monkeypatch) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    for check in (check_by_hand, check_masked):
        check(bare, example)
        with monkeypatch.context() as patch:
            break_code(patch)
            with pytest.raises(AssertionError):
                check(bare, example)


@pytest.mark.parametrize("kind", ["qwen3_vl", "qwen3_vl_moe"])
def test_tests_detect_broken_deepstack(kind: str, models, monkeypatch) -> None:
    break_deepstack(monkeypatch)
    with pytest.raises(AssertionError):
        check_by_hand(models[kind, "sdpa"], create_prompt(kind))
