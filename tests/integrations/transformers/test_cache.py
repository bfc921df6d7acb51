"""KV caches that hold a shortened prompt."""

from __future__ import annotations

import copy

import pytest
import torch

import floc
from floc.integrations.transformers.hooks import DecoderHooks
from tests.integrations.transformers.helpers import (
    ALL,
    CLOSE,
    DISTINCT,
    RATIO,
    check_generated,
    create_batch,
    create_prompt,
)
from tests.integrations.transformers.zoo import transformers


@ALL
def test_cache_holds_kept_tokens_and_text(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    with floc.attach(bare, ratio=RATIO) as handle:
        cache = bare(**example.inputs, use_cache=True).past_key_values
        (kept,) = handle.last
        whole = example.inputs["input_ids"].shape[1]
        assert cache.layers[0].keys.shape[-2] == whole - kept.n + len(kept)
        assert cache.get_seq_length() == whole  # the next tokens are counted from there
        held = bare.generate(**example.inputs, max_new_tokens=4, return_dict_in_generate=True).past_key_values
        assert held.layers[-1].keys.shape[-2] == whole - kept.n + len(kept) + 3


def test_cache_can_be_copied_and_reset(models) -> None:
    bare, example = models["qwen2_5_vl", "sdpa"], create_prompt("qwen2_5_vl")
    with floc.attach(bare, ratio=RATIO):
        cache = bare(**example.inputs, use_cache=True).past_key_values
        length = cache.get_seq_length()
        mask = torch.ones(1, length + 1, dtype=torch.long)
        step = dict(input_ids=torch.tensor([[33]]), attention_mask=mask)
        twin = copy.deepcopy(cache)
        expected = bare(**step, past_key_values=twin).logits
        assert cache.get_seq_length() == length
        assert twin.get_seq_length() == length + 1
        assert torch.equal(bare(**step, past_key_values=cache).logits, expected)

    static = transformers.StaticCache(config=bare.config.get_text_config(), max_cache_len=80)
    with floc.attach(bare, ratio=RATIO):
        bare(**example.inputs, past_key_values=static)
        assert int(static.get_seq_length()) == length
        static.reset()
        assert int(static.get_seq_length()) == 0
        bare(input_ids=torch.tensor([[5, 6, 7]]), past_key_values=static)
        assert int(static.get_seq_length()) == 3


def test_cache_can_be_cropped(models) -> None:
    """To ask another question about the same video."""
    bare, example = models["llava_onevision", "sdpa"], create_prompt("llava_onevision")
    other = example.inputs["input_ids"].clone()
    other[0, -5:-2] = torch.tensor([41, 42, 43])
    with floc.attach(bare, ratio=RATIO):
        expected = bare(**{**example.inputs, "input_ids": other}).logits[:, -5:-2]
        cache = bare(**example.inputs, use_cache=True).past_key_values
        cache.crop(-5)
        assert cache.get_seq_length() == other.shape[1] - 5
        step = dict(input_ids=other[:, -5:-2], attention_mask=torch.ones(1, other.shape[1] - 2, dtype=torch.long))
        torch.testing.assert_close(bare(**step, past_key_values=cache).logits, expected, **CLOSE)
        cache.batch_repeat_interleave(2)
        step = dict(
            input_ids=other[:, -2:].repeat(2, 1), attention_mask=torch.ones(2, other.shape[1], dtype=torch.long)
        )
        with pytest.raises(ValueError, match="1 rows, but the call has 2"):
            bare(**step, past_key_values=cache)


def test_reset_cache_works_without_hooks(models) -> None:
    bare, example = models["llava_onevision", "sdpa"], create_prompt("llava_onevision")
    static = transformers.StaticCache(config=bare.config.get_text_config(), max_cache_len=80)
    expected = bare(**example.inputs).logits
    with floc.attach(bare, ratio=RATIO):
        bare(**example.inputs, past_key_values=static)
    static.reset()
    torch.testing.assert_close(bare(**example.inputs, past_key_values=static).logits, expected, **CLOSE)


def test_shortened_cache_needs_the_hooks(models) -> None:
    bare, example = models["llava_onevision", "sdpa"], create_prompt("llava_onevision")
    with floc.attach(bare, ratio=RATIO):
        out = bare.generate(**example.inputs, max_new_tokens=3, return_dict_in_generate=True)
    ids = torch.cat([out.sequences, out.sequences[:, -1:]], 1)
    with pytest.raises(RuntimeError, match="attach floc again"):
        bare.generate(input_ids=ids, past_key_values=out.past_key_values, max_new_tokens=2)
    with floc.attach(bare, ratio=RATIO):
        bare.generate(input_ids=ids, past_key_values=out.past_key_values, max_new_tokens=2)


@DISTINCT
def test_tests_detect_a_missing_record(kind: str, models, monkeypatch) -> None:
    bare, example = models[kind, "sdpa"], create_batch(kind)
    check_generated(bare, example)
    monkeypatch.setattr(DecoderHooks, "after_decoder", lambda self, *args: None)
    with pytest.raises((AssertionError, RuntimeError, IndexError, ValueError)):
        check_generated(bare, example)
