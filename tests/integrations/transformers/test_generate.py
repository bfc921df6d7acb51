"""`model.generate` with FLoC attached: decoding strategies, batches and further turns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import floc
from tests.integrations.transformers.helpers import (
    ALL,
    CANNOT_REPEAT,
    CLOSE,
    DISTINCT,
    MISPLACED,
    MISPLACED_IF_SEVERAL,
    RATIO,
    check_by_hand,
    check_generated,
    create_batch,
    create_prompt,
    record_bare_call,
    record_decoder,
    split_turns,
)
from tests.integrations.transformers.zoo import MROPES, Text, Video, model, prompt, side


@ALL
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "temperature": 2.0, "num_return_sequences": 2},
        {"use_cache": False},
        {"cache_implementation": "static"},
    ],
    ids=["greedy", "beams", "sampling", "no cache", "static cache"],
)
def test_generation_equals_masking(kind: str, settings: dict[str, Any], models) -> None:
    expands = settings.keys() & {"num_beams", "num_return_sequences"}
    if expands and kind in MISPLACED:
        pytest.skip(CANNOT_REPEAT)
    check_generated(models[kind, "sdpa"], create_prompt(kind), **settings)
    if not (expands and kind in MISPLACED_IF_SEVERAL):
        check_generated(models[kind, "sdpa"], create_batch(kind), **settings)


@ALL
def test_generation_with_static_cache_and_eager_attention(kind: str, models) -> None:
    check_generated(models[kind, "eager"], create_batch(kind), cache_implementation="static")


@DISTINCT
def test_batch_with_a_row_without_video(kind: str, models) -> None:
    """After cutting, another row is padded than before."""
    bare = models[kind, "sdpa"]
    for rows in (
        [[Text(3), Video(4, *side(kind)), Text(2)], [Text(60)]],
        [[Text(9)], [Video(4, *side(kind)), Text(3)]],
    ):
        example = prompt(kind, rows)
        check_by_hand(bare, example)
        check_generated(bare, example)


@ALL
def test_second_turn_continues_from_the_cache(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    example = create_prompt(kind)
    more = torch.tensor([[20, 30, 40, 50]])
    with floc.attach(bare, ratio=RATIO):
        first = bare.generate(**example.inputs, max_new_tokens=4, return_dict_in_generate=True)
        talk = torch.cat([first.sequences, more], 1)
        again = {name: tensor for name, tensor in example.inputs.items() if not name.startswith("pixel")}
        again |= {"input_ids": talk, "attention_mask": torch.ones_like(talk)}
        if kind in MROPES:
            kinds = example.inputs["mm_token_type_ids"]
            again["mm_token_type_ids"] = torch.nn.functional.pad(kinds, (0, talk.shape[1] - kinds.shape[1]))
        pixels = {name: tensor for name, tensor in example.inputs.items() if name.startswith("pixel")}
        at_once = bare.generate(**again, **pixels, max_new_tokens=5)
        with record_decoder(bare) as calls:
            onwards = bare.generate(**again, past_key_values=first.past_key_values, max_new_tokens=5)
        assert calls[0]["inputs_embeds"].shape[1] == 5  # the last token of the answer was not read yet
        assert onwards.tolist() == at_once.tolist()


@ALL
def test_second_turn_with_another_video(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    size = Video(4, *side(kind))
    both = prompt(kind, [[Text(4), size, Text(15), size, Text(3)]], seed=3)
    cut = int(both.clips[0].places[-1]) + 12  # in the text between the videos
    with floc.attach(bare, ratio=RATIO) as handle:
        expected = bare(**both.inputs).logits[:, -3:]
        kept = [result.indices.tolist() for result in handle.last]
        one_turn, other = split_turns(kind, both, cut)
        cache = bare(**one_turn, use_cache=True).past_key_values
        found = bare(**other, past_key_values=cache).logits[:, -3:]
        assert handle.last[0].indices.tolist() == kept[1]
    torch.testing.assert_close(found, expected, **CLOSE)


@DISTINCT
@pytest.mark.parametrize("positions", ["keep", "compact"])
def test_video_after_a_turn_of_text(kind: str, positions: Any, models) -> None:
    """Three calls: a video, text alone, another video."""
    if positions == "compact" and kind in MROPES:
        pytest.skip("positions are places")
    bare = models[kind, "sdpa"]
    size = Video(4, *side(kind))
    both = prompt(kind, [[Text(4), size, Text(15), size, Text(3)]], seed=3)
    cut = int(both.clips[0].places[-1]) + 12
    with floc.attach(bare, ratio=RATIO, positions=positions):
        expected = bare(**both.inputs).logits[:, -3:]
        one_turn, other = split_turns(kind, both, cut)
        late = {"input_ids": one_turn["input_ids"][:, cut - 3 : cut], "attention_mask": one_turn["attention_mask"]}
        call = record_bare_call(model(kind), both.inputs)
        late["position_ids"] = call["position_ids"][..., cut - 3 : cut]
        for name in ("input_ids", "mm_token_type_ids", "attention_mask"):
            if name in one_turn:
                one_turn[name] = one_turn[name][:, : cut - 3]
        cache = bare(**one_turn, use_cache=True).past_key_values
        bare(**late, past_key_values=cache)
        found = bare(**other, past_key_values=cache).logits[:, -3:]
    torch.testing.assert_close(found, expected, **CLOSE)


def test_several_threads(models) -> None:
    from concurrent.futures import ThreadPoolExecutor

    bare = models["llava_onevision", "sdpa"]
    prompts = [create_prompt("llava_onevision", slices=3 + i, seed=i) for i in range(4)]

    def answer(i: int) -> list[Any]:
        with torch.no_grad():
            return bare.generate(**prompts[i % 4].inputs, max_new_tokens=5).tolist()

    with floc.attach(bare, ratio=RATIO):
        expected = [answer(i) for i in range(4)]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(answer, range(16)))
    assert found == expected * 4
