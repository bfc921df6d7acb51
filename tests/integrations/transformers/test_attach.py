"""What attaching to a model promises, on tiny models of every family.

Two oracles: the decoder called by hand with inputs that were shortened in a plain loop, and the bare model with the
dropped tokens masked. Both take what the bare model hands to its decoder, and know where the videos are from how the
prompt was written.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import floc
from floc.integrations.transformers import FAMILIES, shorten
from floc.integrations.transformers.shorten import Layout, Shortener
from tests.integrations.transformers.zoo import (
    GLMS,
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
    transformers,
)

RATIO = 1 / 4
# Families whose pixels the bare model puts into the wrong rows, or refuses, when beams or samples repeat a prompt.
NEW = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 22)
MISPLACED = GLMS if NEW else {"internvl"}
MISPLACED_IF_SEVERAL = set() if NEW else {"llava_next_video", "llava_onevision", "smolvlm"}
CLOSE = dict(atol=2e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def models() -> dict[tuple[str, str], Any]:
    made: dict[tuple[str, str], Any] = {}

    class Lazy(dict):  # type: ignore[type-arg]
        def __missing__(self, key: tuple[str, str]) -> Any:
            self[key] = model(*key)
            return self[key]

    return Lazy(made)


@pytest.fixture(autouse=True)
def _light() -> Iterator[None]:
    """No gradients, and one thread: with models as small as these, threads only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def one(kind: str, slices: int = 5, seed: int = 0) -> Prompt:
    return prompt(kind, [[Text(4), Video(slices, *side(kind)), Text(5)]], seed)


def batch(kind: str) -> Prompt:
    """Rows of unequal length; with unequal videos where the family allows it, and two of them in the first row."""
    longer, shorter = (4, 4) if kind in STACKED else (6, 3)
    return prompt(
        kind,
        [
            [Text(3), Video(longer, *side(kind)), Text(4), Video(shorter, *side(kind)), Text(3)],
            [Text(9), Video(shorter, *side(kind)), Text(6)],
        ],
        seed=1,
    )


@contextmanager
def decoder_calls(model: Any) -> Iterator[list[dict[str, Any]]]:
    """What the decoder gets, call by call, after all other hooks."""
    calls: list[dict[str, Any]] = []
    hook = model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(dict(kwargs)), with_kwargs=True
    )
    try:
        yield calls
    finally:
        hook.remove()


def bare_call(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What the bare model hands to its decoder, with positions for every token."""
    with decoder_calls(model) as calls:
        model(**inputs, use_cache=False)
    (call,) = calls
    if call.get("position_ids") is None:
        call["position_ids"] = torch.arange(call["inputs_embeds"].shape[1])[None]
    return call


def staying(made: Prompt, handle: Any) -> list[list[int]]:
    """For each row the places that stay: all but padding and what was dropped of its videos."""
    ids, mask = made.inputs["input_ids"], made.inputs["attention_mask"]
    stays = [[p for p in range(ids.shape[1]) if mask[row, p]] for row in range(len(ids))]
    assert len(handle.last) == len(made.clips)
    for clip, kept in zip(made.clips, handle.last, strict=True):
        assert kept.shape == clip.shape
        gone = set(clip.places.tolist()) - set(clip.places[kept.indices.numpy()].tolist())
        assert len(gone) == kept.n - len(kept) > 0
        stays[clip.row] = [p for p in stays[clip.row] if p not in gone]
    return stays


def by_hand(model: Any, call: dict[str, Any], stays: list[list[int]]) -> list[torch.Tensor]:
    """Logits of each row alone, from inputs cut in a loop."""
    found = []
    for row, places in enumerate(stays):
        kwargs: dict[str, Any] = {"inputs_embeds": call["inputs_embeds"][row : row + 1, places], "use_cache": False}
        positions = call["position_ids"]
        positions = positions.expand(*positions.shape[:-2], len(stays), -1)
        kwargs["position_ids"] = positions[..., row : row + 1, :][..., places]
        kwargs["attention_mask"] = torch.ones(1, len(places), dtype=torch.long)
        if call.get("deepstack_visual_embeds"):
            marked = call["visual_pos_masks"]
            order = {(r, p): i for i, (r, p) in enumerate(marked.nonzero().tolist())}
            mine = [order[row, p] for p in places if (row, p) in order]
            kwargs["visual_pos_masks"] = marked[row : row + 1, places]
            kwargs["deepstack_visual_embeds"] = [each[mine] for each in call["deepstack_visual_embeds"]]
        hidden = model.get_decoder()(**kwargs).last_hidden_state
        found.append(model.lm_head(hidden)[0])
    return found


def masked(made: Prompt, handle: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Inputs for the bare model in which dropped tokens are hidden, and all others have the positions they had."""
    hidden = torch.zeros_like(made.inputs["attention_mask"])
    call = {**call, "position_ids": call["position_ids"].cpu()}
    for row, places in enumerate(staying(made, handle)):
        hidden[row, places] = 1
    positions = call["position_ids"].expand(*call["position_ids"].shape[:-2], *hidden.shape)
    if positions.ndim == 3 and positions.shape[0] == 3:  # with the places of text in front, as generation has them
        positions = torch.cat([(made.inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)[None], positions])
    return {**made.inputs, "attention_mask": hidden, "position_ids": positions}


def rows_of(logits: torch.Tensor, stays: list[list[int]]) -> list[torch.Tensor]:
    """Of left-padded logits the rows' own."""
    return [each[len(each) - len(places) :] for each, places in zip(logits, stays, strict=True)]


def check_by_hand(model: Any, made: Prompt) -> None:
    call = bare_call(model, made.inputs)
    with floc.attach(model, ratio=RATIO) as handle:
        logits = model(**made.inputs).logits
    stays = staying(made, handle)
    assert logits.shape[1] == max(map(len, stays))
    for mine, theirs in zip(rows_of(logits, stays), by_hand(model, call, stays), strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


def check_masked(model: Any, made: Prompt) -> None:
    call = bare_call(model, made.inputs)
    with floc.attach(model, ratio=RATIO) as handle:
        logits = model(**made.inputs).logits
    stays = staying(made, handle)
    whole = model(**masked(made, handle, call)).logits
    for row, (mine, places) in enumerate(zip(rows_of(logits, stays), stays, strict=True)):
        torch.testing.assert_close(mine, whole[row, places], **CLOSE)


def check_generated(model: Any, made: Prompt, **settings: Any) -> None:
    """Generation equals that of the bare model with the dropped tokens masked."""
    call = bare_call(model, made.inputs)
    settings = {"max_new_tokens": 6, **settings}
    torch.manual_seed(0)
    with floc.attach(model, ratio=RATIO) as handle:
        mine = model.generate(**made.inputs, **settings)
    hidden = masked(made, handle, call)
    torch.manual_seed(0)
    theirs = model.generate(**hidden, **{**settings, "cache_implementation": None})
    assert mine.tolist() == theirs.tolist()


BOTH = pytest.mark.parametrize("attention", ["sdpa", "eager"])
ALL = pytest.mark.parametrize("kind", KINDS)


@ALL
@BOTH
def test_all_tokens_are_bit_identical(kind: str, attention: str, models) -> None:
    bare = models[kind, attention]
    for made in (one(kind), batch(kind)):
        logits = bare(**made.inputs).logits
        ids = bare.generate(**made.inputs, max_new_tokens=5)
        with floc.attach(bare, ratio=1) as handle:
            assert torch.equal(bare(**made.inputs).logits, logits)
            assert torch.equal(bare.generate(**made.inputs, max_new_tokens=5), ids)
        assert [len(kept) for kept in handle.last] == [len(clip.places) for clip in made.clips]


@ALL
@BOTH
def test_equals_inputs_shortened_by_hand(kind: str, attention: str, models) -> None:
    check_by_hand(models[kind, attention], one(kind))
    check_by_hand(models[kind, attention], batch(kind))


@ALL
@BOTH
def test_equals_the_bare_model_with_dropped_tokens_masked(kind: str, attention: str, models) -> None:
    check_masked(models[kind, attention], one(kind))
    check_masked(models[kind, attention], batch(kind))


@ALL
def test_what_is_kept_is_what_compress_keeps(kind: str, models) -> None:
    made = one(kind)
    call = bare_call(models[kind, "sdpa"], made.inputs)
    (clip,) = made.clips
    tokens = call["inputs_embeds"][0, clip.places].view(*clip.shape, -1)
    with floc.attach(models[kind, "sdpa"], budget=7, method="floc-paper", block=2) as handle:
        models[kind, "sdpa"](**made.inputs)
    (kept,) = handle.last
    expected = floc.compress(tokens, budget=7, method="floc-paper", block=2)
    assert kept.indices.tolist() == expected.indices.tolist()
    assert kept.settings == expected.settings
    assert kept.seconds > 0
    assert kept.at(budget=3).indices.tolist() == expected.at(budget=3).indices.tolist()


@ALL
def test_the_cache_holds_kept_and_text(kind: str, models) -> None:
    bare, made = models[kind, "sdpa"], one(kind)
    with floc.attach(bare, ratio=RATIO) as handle:
        cache = bare(**made.inputs, use_cache=True).past_key_values
        (kept,) = handle.last
        whole = made.inputs["input_ids"].shape[1]
        assert cache.layers[0].keys.shape[-2] == whole - kept.n + len(kept)
        assert cache.get_seq_length() == whole  # so that what follows is counted from there
        held = bare.generate(**made.inputs, max_new_tokens=4, return_dict_in_generate=True).past_key_values
        assert held.layers[-1].keys.shape[-2] == whole - kept.n + len(kept) + 3


@ALL
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_beams": 3},
        {"num_beams": 2, "num_return_sequences": 2},
        {"do_sample": True, "temperature": 2.0, "num_return_sequences": 2},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"prompt_lookup_num_tokens": 2},
    ],
    ids=["greedy", "beams", "several beams", "sampling", "no cache", "static cache", "prompt lookup"],
)
def test_generation_equals_that_with_dropped_tokens_masked(kind: str, settings: dict[str, Any], models) -> None:
    expands = settings.keys() & {"num_beams", "num_return_sequences"}
    if expands and kind in MISPLACED:
        pytest.skip(f"transformers {transformers.__version__} cannot repeat the prompts of {kind}")
    made = one(kind)
    if "prompt_lookup_num_tokens" in settings:  # so that there is something to look up, and to take back
        made.inputs["input_ids"][0, -4:] = torch.tensor([30, 31, 30, 31])
    check_generated(models[kind, "sdpa"], made, **settings)
    if expands and kind in MISPLACED_IF_SEVERAL:
        return
    if "prompt_lookup_num_tokens" not in settings:  # which takes one prompt at a time
        check_generated(models[kind, "sdpa"], batch(kind), **settings)


@ALL
def test_static_cache_eager(kind: str, models) -> None:
    check_generated(models[kind, "eager"], batch(kind), cache_implementation="static")


@ALL
def test_a_second_turn_goes_on_from_the_cache(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    made = one(kind)
    more = torch.tensor([[20, 30, 40, 50]])
    with floc.attach(bare, ratio=RATIO):
        first = bare.generate(**made.inputs, max_new_tokens=4, return_dict_in_generate=True)
        talk = torch.cat([first.sequences, more], 1)
        again = {name: each for name, each in made.inputs.items() if not name.startswith("pixel")}
        again |= {"input_ids": talk, "attention_mask": torch.ones_like(talk)}
        if kind in MROPES:
            kinds = made.inputs["mm_token_type_ids"]
            again["mm_token_type_ids"] = torch.nn.functional.pad(kinds, (0, talk.shape[1] - kinds.shape[1]))
        pixels = {name: each for name, each in made.inputs.items() if name.startswith("pixel")}
        at_once = bare.generate(**again, **pixels, max_new_tokens=5)
        with decoder_calls(bare) as calls:
            onwards = bare.generate(**again, past_key_values=first.past_key_values, max_new_tokens=5)
        assert calls[0]["inputs_embeds"].shape[1] == 5  # the last answer token was not read yet
        assert onwards.tolist() == at_once.tolist()


@ALL
def test_rows_without_a_video_beside_one(kind: str, models) -> None:
    """The row that is filled up is not the one that was padded."""
    bare = models[kind, "sdpa"]
    for rows in (
        [[Text(3), Video(4, *side(kind)), Text(2)], [Text(60)]],
        [[Text(9)], [Video(4, *side(kind)), Text(3)]],
    ):
        made = prompt(kind, rows)
        check_by_hand(bare, made)
        check_generated(bare, made)


@ALL
def test_without_a_mask(kind: str, models) -> None:
    """Positions with gaps and no mask look like several packed prompts to some releases."""
    bare, made = models[kind, "sdpa"], one(kind)
    bare_inputs = {name: each for name, each in made.inputs.items() if name != "attention_mask"}
    with floc.attach(bare, ratio=RATIO):
        expected = bare(**made.inputs, use_cache=False).logits
        torch.testing.assert_close(bare(**bare_inputs, use_cache=False).logits, expected, **CLOSE)


@ALL
def test_with_gradients(kind: str, models) -> None:
    bare, made = models[kind, "sdpa"], one(kind)
    with floc.attach(bare, ratio=RATIO) as handle:
        expected = bare(**made.inputs).logits
        with torch.enable_grad():
            logits = bare(**made.inputs).logits
            torch.testing.assert_close(logits, expected, **CLOSE)
            logits.sum().backward()
    weight = next(bare.get_decoder().layers[0].parameters())
    assert weight.grad is not None
    bare.zero_grad()
    assert not handle.last[0].features.requires_grad


def test_several_threads_at_once(models) -> None:
    from concurrent.futures import ThreadPoolExecutor

    bare = models["llava_onevision", "sdpa"]
    prompts = [one("llava_onevision", slices=3 + i, seed=i) for i in range(4)]

    def answer(i: int) -> list[Any]:
        with torch.no_grad():
            return bare.generate(**prompts[i % 4].inputs, max_new_tokens=5).tolist()

    with floc.attach(bare, ratio=RATIO):
        expected = [answer(i) for i in range(4)]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(answer, range(16)))
    assert found == expected * 4


def test_a_call_that_fails_leaves_nothing_behind(models, monkeypatch) -> None:
    bare, made = models["llava_onevision", "sdpa"], one("llava_onevision")
    embeds = torch.randn(1, made.inputs["input_ids"].shape[1], 64)
    with floc.attach(bare, ratio=RATIO):
        with monkeypatch.context() as patch:
            patch.setattr(bare.model.vision_tower, "forward", lambda *args, **kwargs: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                bare(**made.inputs)
        assert bare.get_decoder()(inputs_embeds=embeds).last_hidden_state.shape[1] == embeds.shape[1]


@ALL
def test_another_video_in_a_second_turn(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    size = Video(4, *side(kind))
    both = prompt(kind, [[Text(4), size, Text(15), size, Text(3)]], seed=3)
    cut = int(both.clips[0].places[-1]) + 12  # after the first video and what closes it, in the text between
    with floc.attach(bare, ratio=RATIO) as handle:
        expected = bare(**both.inputs).logits[:, -3:]
        kept = [each.indices.tolist() for each in handle.last]
        one_turn, other = _halves(kind, both, cut)
        cache = bare(**one_turn, use_cache=True).past_key_values
        found = bare(**other, past_key_values=cache).logits[:, -3:]
        assert handle.last[0].indices.tolist() == kept[1]
    torch.testing.assert_close(found, expected, **CLOSE)


@ALL
@pytest.mark.parametrize("positions", ["keep", "compact"])
def test_a_video_after_text_of_its_own_turn(kind: str, positions: Any, models) -> None:
    """Three calls: a video, text alone, another video."""
    if positions == "compact" and kind in MROPES:
        pytest.skip("positions are places")
    bare = models[kind, "sdpa"]
    size = Video(4, *side(kind))
    both = prompt(kind, [[Text(4), size, Text(15), size, Text(3)]], seed=3)
    cut = int(both.clips[0].places[-1]) + 12
    with floc.attach(bare, ratio=RATIO, positions=positions):
        expected = bare(**both.inputs).logits[:, -3:]
        one_turn, other = _halves(kind, both, cut)
        late = {name: each[:, cut - 3 : cut] for name, each in one_turn.items() if name in ("input_ids",)}
        late["attention_mask"] = one_turn["attention_mask"]
        call = bare_call(model(kind), both.inputs)
        late["position_ids"] = call["position_ids"][..., cut - 3 : cut]
        for name in ("input_ids", "mm_token_type_ids", "attention_mask"):
            if name in one_turn:
                one_turn[name] = one_turn[name][:, : cut - 3]
        cache = bare(**one_turn, use_cache=True).past_key_values
        bare(**late, past_key_values=cache)
        found = bare(**other, past_key_values=cache).logits[:, -3:]
    torch.testing.assert_close(found, expected, **CLOSE)


def _halves(kind: str, both: Prompt, cut: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A prompt of two videos in two calls, the second with positions of its own, as generation would give them."""
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    call = bare_call(model(kind), both.inputs)
    for name, each in both.inputs.items():
        if name in ("input_ids", "mm_token_type_ids"):
            first[name], second[name] = each[:, :cut], each[:, cut:]
        elif name == "attention_mask":
            first[name], second[name] = each[:, :cut], each
        elif name.startswith("pixel") and kind == "smolvlm":
            first[name], second[name] = each[:1], each[1:]
        else:
            first[name], second[name] = each.chunk(2)
    second["position_ids"] = call["position_ids"][..., cut:]
    return first, second


@pytest.mark.parametrize("kind", sorted(IMAGE_BESIDE_VIDEO))
def test_pictures_are_left_alone(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    picture = Image(2, 3) if kind not in ("internvl", "smolvlm", *STACKED) else Image(side(kind)[0], side(kind)[1])
    made = prompt(kind, [[Text(6), picture, Text(7), Video(5, *side(kind)), Text(4)]], seed=2)
    check_by_hand(bare, made)
    check_masked(bare, made)
    only = prompt(kind, [[Text(6), picture, Text(4)]])
    logits = bare(**only.inputs).logits
    with floc.attach(bare, ratio=RATIO) as handle:
        assert torch.equal(bare(**only.inputs).logits, logits)
    assert handle.last == []


@pytest.mark.parametrize("kind", sorted(set(KINDS) - MROPES))
def test_compact_positions_have_no_gaps(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    for made in (one(kind), batch(kind)):
        call = bare_call(bare, made.inputs)
        with floc.attach(bare, ratio=RATIO, positions="compact") as handle, decoder_calls(bare) as calls:
            ids = bare.generate(**made.inputs, max_new_tokens=5)
        stays = staying(made, handle)
        for row, places in enumerate(stays):
            n = len(places)
            assert calls[0]["position_ids"][row, -n:].tolist() == list(range(n))
            assert [step["position_ids"][row].tolist() for step in calls[1:]] == [[n + i] for i in range(4)]
        # by hand: the same tokens as a prompt of their own
        call["position_ids"] = torch.zeros_like(made.inputs["input_ids"])
        for row, places in enumerate(stays):
            call["position_ids"][row, places] = torch.arange(len(places))
        logits = by_hand(bare, call, stays)
        for each in logits:
            each[:, bare.generation_config.suppress_tokens] = -torch.inf
        assert [int(each[-1].argmax()) for each in logits] == ids[:, -5].tolist()


@pytest.mark.parametrize("kind", sorted(MROPES))
def test_compact_positions_are_refused_where_positions_are_places(kind: str, models) -> None:
    with pytest.raises(ValueError, match="a position is a frame, row and column"):
        floc.attach(models[kind, "sdpa"], ratio=RATIO, positions="compact")
    assert not shorten.is_attached(models[kind, "sdpa"].model)


@ALL
@pytest.mark.parametrize("method", ["pooling", "prunevid"])
def test_merged_features_go_in_where_the_method_puts_them(kind: str, method: str, models) -> None:
    bare, made = models[kind, "sdpa"], one(kind, slices=8)
    with floc.attach(bare, ratio=RATIO, method=method) as handle, decoder_calls(bare) as calls:
        bare(**made.inputs)
    (kept,), (call,) = handle.last, calls
    assert kept.merged
    (places,) = staying(made, handle)
    (clip,) = made.clips
    slots = [places.index(p) for p in clip.places[kept.indices.numpy()]]
    torch.testing.assert_close(call["inputs_embeds"][0, slots], kept.features)
    before = bare_call(bare, made.inputs)
    others = [i for i in range(len(places)) if i not in slots]
    assert torch.equal(call["inputs_embeds"][0, others], before["inputs_embeds"][0, [places[i] for i in others]])
    if before.get("deepstack_visual_embeds"):
        for layer, whole in zip(call["deepstack_visual_embeds"], before["deepstack_visual_embeds"], strict=True):
            means = torch.stack([whole[kept.represents == k].mean(0) for k in range(len(kept))])
            torch.testing.assert_close(layer, means)


@ALL
def test_every_method_runs(kind: str, models) -> None:
    bare, made = models[kind, "sdpa"], one(kind, slices=8)
    for method in floc.methods.names():
        options: dict[str, Any] = {"nearest": True} if "nearest" in floc.methods.options(method) else {}
        with floc.attach(bare, ratio=1 / 2, method=method, **options) as handle:
            logits = bare(**made.inputs).logits
        (kept,) = handle.last
        assert logits.shape[1] == made.inputs["input_ids"].shape[1] - kept.n + len(kept)


def hooks_of(model: Any) -> list[Any]:
    return [
        (name, dict(module._forward_pre_hooks), dict(module._forward_hooks), set(vars(module)))
        for name, module in model.named_modules()
    ]


@ALL
def test_the_model_is_left_as_it_was(kind: str, models) -> None:
    bare, made = models[kind, "sdpa"], one(kind)
    logits = bare(**made.inputs).logits
    before = hooks_of(bare)
    with floc.attach(bare, ratio=RATIO):
        assert hooks_of(bare) != before
        bare.generate(**made.inputs, max_new_tokens=3)
    assert hooks_of(bare) == before
    assert torch.equal(bare(**made.inputs).logits, logits)

    with pytest.raises(ZeroDivisionError), floc.attach(bare, ratio=RATIO):
        raise ZeroDivisionError
    assert hooks_of(bare) == before

    handle = floc.attach(bare, ratio=RATIO)
    with pytest.raises(RuntimeError, match="attached to this model already"):
        floc.attach(bare, ratio=RATIO)
    with pytest.raises(RuntimeError, match="attached to this model already"):
        floc.attach(bare.model, ratio=RATIO)
    handle.detach()
    handle.detach()
    assert hooks_of(bare) == before


def test_a_failure_inside_a_call_does_no_harm(models, monkeypatch) -> None:
    bare, made = models["qwen2_5_vl", "sdpa"], one("qwen2_5_vl")
    before = hooks_of(bare)
    layer = bare.get_decoder().layers[1]
    with floc.attach(bare, ratio=RATIO):
        cache = bare(**made.inputs, use_cache=True).past_key_values
        step = dict(input_ids=torch.tensor([[9]]), past_key_values=cache, use_cache=True)
        length = cache.get_seq_length()
        with monkeypatch.context() as patch:
            patch.setattr(layer, "forward", lambda *args, **kwargs: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                bare(**step)
        assert cache.get_seq_length() == length + 1  # the first layer had taken the token already
    assert hooks_of(bare) == before


@ALL
def test_the_base_model_alone(kind: str, models) -> None:
    bare, made = models[kind, "sdpa"].model, one(kind)
    with floc.attach(models[kind, "sdpa"], ratio=RATIO):
        expected = bare(**made.inputs).last_hidden_state
    with floc.attach(bare, ratio=RATIO) as handle:
        assert torch.equal(bare(**made.inputs).last_hidden_state, expected)
    assert expected.shape[1] < made.inputs["input_ids"].shape[1]
    assert len(handle.last) == 1


def test_ids_may_be_given_by_position(models) -> None:
    bare, made = models["qwen2_5_vl", "sdpa"], one("qwen2_5_vl")
    inputs = dict(made.inputs)
    with floc.attach(bare, ratio=RATIO):
        expected = bare(**inputs).logits
        ids = inputs.pop("input_ids")
        assert torch.equal(bare(ids, **inputs).logits, expected)
        assert torch.equal(bare.model(ids, **inputs).last_hidden_state, bare.model(ids, **inputs)[0])


def test_right_padded_rows(models) -> None:
    kind = "llava_next_video"
    bare = models[kind, "sdpa"]
    rows = [[Text(5), Video(4, *side(kind)), Text(9)], [Text(3), Video(4, *side(kind)), Text(2)]]
    made = prompt(kind, rows)
    ids, mask = made.inputs["input_ids"].clone(), made.inputs["attention_mask"].clone()
    pads = int((mask[1] == 0).sum())
    ids[1], mask[1] = ids[1].roll(-pads), mask[1].roll(-pads)
    right = {**made.inputs, "input_ids": ids, "attention_mask": mask}
    with floc.attach(bare, ratio=RATIO) as handle:
        logits = bare(**right).logits
    clip = made.clips[1]
    kept = handle.last[1]
    gone = set((clip.places - pads).tolist()) - set((clip.places - pads)[kept.indices.numpy()].tolist())
    stays = [p for p in range(ids.shape[1]) if mask[1, p] and p not in gone]
    call = bare_call(bare, right)
    alone = by_hand(bare, call, [list(range(ids.shape[1])), stays])[1]
    torch.testing.assert_close(logits[1, : len(stays)], alone, **CLOSE)


def test_a_mask_made_by_hand_is_cut_in_both_directions(models) -> None:
    bare, made = models["llava_onevision", "eager"], one("llava_onevision")
    n = made.inputs["input_ids"].shape[1]
    open_to = torch.ones(n, n).tril().bool()
    open_to[:, 1] = False  # nobody looks at the second token
    open_to[1, 1] = True
    mask = torch.zeros(1, 1, n, n).masked_fill(~open_to, torch.finfo(torch.float32).min)
    with floc.attach(bare, ratio=RATIO) as handle:
        mine = bare(**{**made.inputs, "attention_mask": mask}).logits
    (places,) = staying(made, handle)
    for p in set(range(n)) - set(places):
        mask[..., p] = torch.finfo(torch.float32).min
    whole = bare(**{**made.inputs, "attention_mask": mask}).logits
    torch.testing.assert_close(mine[0], whole[0, places], **CLOSE)


def test_a_cache_can_be_copied_and_reset(models) -> None:
    bare, made = models["qwen2_5_vl", "sdpa"], one("qwen2_5_vl")
    with floc.attach(bare, ratio=RATIO):
        cache = bare(**made.inputs, use_cache=True).past_key_values
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
        bare(**made.inputs, past_key_values=static)
        assert int(static.get_seq_length()) == length
        static.reset()
        assert int(static.get_seq_length()) == 0
        bare(input_ids=torch.tensor([[5, 6, 7]]), past_key_values=static)
        assert int(static.get_seq_length()) == 3


def test_a_cache_can_be_cut_off(models) -> None:
    """Another question after the same video."""
    bare, made = models["llava_onevision", "sdpa"], one("llava_onevision")
    other = made.inputs["input_ids"].clone()
    other[0, -5:-2] = torch.tensor([41, 42, 43])
    with floc.attach(bare, ratio=RATIO):
        expected = bare(**{**made.inputs, "input_ids": other}).logits[:, -5:-2]
        cache = bare(**made.inputs, use_cache=True).past_key_values
        cache.crop(-5)
        assert cache.get_seq_length() == other.shape[1] - 5
        step = dict(input_ids=other[:, -5:-2], attention_mask=torch.ones(1, other.shape[1] - 2, dtype=torch.long))
        torch.testing.assert_close(bare(**step, past_key_values=cache).logits, expected, **CLOSE)
        cache.batch_repeat_interleave(2)
        step = dict(
            input_ids=other[:, -2:].repeat(2, 1), attention_mask=torch.ones(2, other.shape[1], dtype=torch.long)
        )
        with pytest.raises(ValueError, match="1 rows, and the call has 2"):
            bare(**step, past_key_values=cache)


def test_a_cache_that_was_reset_is_as_good_as_new(models) -> None:
    bare, made = models["llava_onevision", "sdpa"], one("llava_onevision")
    static = transformers.StaticCache(config=bare.config.get_text_config(), max_cache_len=80)
    expected = bare(**made.inputs).logits
    with floc.attach(bare, ratio=RATIO):
        bare(**made.inputs, past_key_values=static)
    static.reset()
    torch.testing.assert_close(bare(**made.inputs, past_key_values=static).logits, expected, **CLOSE)


def test_a_cache_is_no_use_without_the_hooks(models) -> None:
    bare, made = models["llava_onevision", "sdpa"], one("llava_onevision")
    with floc.attach(bare, ratio=RATIO):
        out = bare.generate(**made.inputs, max_new_tokens=3, return_dict_in_generate=True)
    ids = torch.cat([out.sequences, out.sequences[:, -1:]], 1)
    with pytest.raises(RuntimeError, match="attach floc again"):
        bare.generate(input_ids=ids, past_key_values=out.past_key_values, max_new_tokens=2)
    with floc.attach(bare, ratio=RATIO):
        bare.generate(input_ids=ids, past_key_values=out.past_key_values, max_new_tokens=2)


def test_half_precision_stays(models) -> None:
    bare = model("qwen3_vl", dtype=torch.bfloat16)
    made = one("qwen3_vl")
    with floc.attach(bare, ratio=RATIO) as handle, decoder_calls(bare) as calls:
        bare.generate(**made.inputs, max_new_tokens=2)
    assert calls[0]["inputs_embeds"].dtype == torch.bfloat16
    assert handle.last[0].features.dtype == torch.bfloat16


# ---- what goes wrong


def test_unknown_models_are_refused_by_name() -> None:
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
def test_bad_settings_are_refused_at_once(arguments: dict[str, Any], message: str, models) -> None:
    bare = models["qwen2_vl", "sdpa"]
    before = hooks_of(bare)
    with pytest.raises((ValueError, TypeError), match=message):
        floc.attach(bare, **arguments)
    assert hooks_of(bare) == before


def test_windows_are_refused() -> None:
    bare = model("qwen2_vl")
    bare.config.text_config.layer_types = ["full_attention", "sliding_attention", "full_attention"]
    with pytest.raises(ValueError, match="layers with sliding_attention"):
        floc.attach(bare, ratio=RATIO)


def test_what_cannot_work_says_so(models) -> None:
    bare, made = models["qwen2_5_vl", "sdpa"], one("qwen2_5_vl")
    with floc.attach(bare, ratio=RATIO):
        with pytest.raises(ValueError, match="labels are for training"):
            bare(**made.inputs, labels=made.inputs["input_ids"])
        with pytest.raises(ValueError, match="logits_to_keep"):
            bare(**made.inputs, logits_to_keep=torch.tensor([1, 2]))
        embeds = bare.get_input_embeddings()(made.inputs["input_ids"])
        given = {name: each for name, each in made.inputs.items() if name != "input_ids"}
        embeds[0, made.clips[0].places] = bare.get_input_embeddings()(torch.tensor(bare.config.video_token_id))
        with pytest.raises(ValueError, match="by input_ids"):
            bare(**given, inputs_embeds=embeds)


def test_tokens_that_were_dropped_before_are_refused(models) -> None:
    bare, made = models["video_llama_3", "sdpa"], one("video_llama_3")
    dropped = dict(made.inputs)
    (clip,) = made.clips
    stays = torch.ones(made.inputs["input_ids"].shape[1], dtype=torch.bool)
    stays[clip.places[3]] = False
    dropped["video_compression_mask"] = dropped["video_compression_mask"].clone()
    dropped["video_compression_mask"][3] = False
    dropped |= {name: dropped[name][:, stays] for name in ("input_ids", "attention_mask")}
    with floc.attach(bare, ratio=RATIO), pytest.raises(ValueError, match="use_token_compression=False"):
        bare(**dropped)


# ---- the checks above see what is broken


def broken_gather(patch: pytest.MonkeyPatch) -> None:
    gathered = shorten._gathered
    patch.setattr(shorten, "_gathered", lambda values, columns: gathered(values, columns).roll(1, 1))


def broken_mask(patch: pytest.MonkeyPatch) -> None:
    mask = Layout.mask
    patch.setattr(
        Layout, "mask", lambda self, *args: torch.ones_like(mask(self, *args)).index_fill(1, torch.tensor(0), 0)
    )


def broken_positions(patch: pytest.MonkeyPatch) -> None:
    positions = Shortener._positions
    patch.setattr(Shortener, "_positions", lambda self, *args: positions(self, *args).sort(-1, descending=True).values)


def broken_deepstack(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shorten, "_deepen", lambda kwargs, part, changed: kwargs.pop("deepstack_visual_embeds"))


@ALL
@pytest.mark.parametrize("broken", [broken_gather, broken_mask, broken_positions])
def test_broken_code_is_seen(kind: str, broken: Any, models, monkeypatch) -> None:
    bare, made = models[kind, "sdpa"], one(kind)
    for check in (check_by_hand, check_masked):
        check(bare, made)
        with monkeypatch.context() as patch:
            broken(patch)
            with pytest.raises(AssertionError):
                check(bare, made)


@pytest.mark.parametrize("kind", ["qwen3_vl", "qwen3_vl_moe"])
def test_broken_deepstack_is_seen(kind: str, models, monkeypatch) -> None:
    broken_deepstack(monkeypatch)
    with pytest.raises(AssertionError):
        check_by_hand(models[kind, "sdpa"], one(kind))


@ALL
def test_a_missing_note_is_seen(kind: str, models, monkeypatch) -> None:
    bare, made = models[kind, "sdpa"], batch(kind)
    check_generated(bare, made)
    monkeypatch.setattr(Shortener, "after_decoder", lambda self, *args: None)
    with pytest.raises((AssertionError, RuntimeError, IndexError, ValueError)):
        check_generated(bare, made)


def test_the_table_has_what_the_zoo_has() -> None:
    assert set(KINDS) <= set(FAMILIES)
    assert all(np.prod(side(kind)) > 1 for kind in KINDS)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu(kind: str) -> None:
    bare, made = model(kind).cuda(), one(kind)
    on_gpu = Prompt({name: each.cuda() for name, each in made.inputs.items()}, made.clips)
    with floc.attach(bare, ratio=RATIO) as handle:
        logits = bare(**on_gpu.inputs).logits
        ids = bare.generate(**on_gpu.inputs, max_new_tokens=5)
        static = bare.generate(**on_gpu.inputs, max_new_tokens=5, cache_implementation="static", disable_compile=True)
    assert ids.tolist() == static.tolist()
    handle.last = [dataclasses.replace(kept, indices=kept.indices.cpu()) for kept in handle.last]
    (places,) = staying(made, handle)
    hidden = masked(made, handle, bare_call(bare, on_gpu.inputs))
    whole = bare(**{name: each.cuda() for name, each in hidden.items()}).logits
    torch.testing.assert_close(logits[0], whole[0, places], atol=2e-2, rtol=1e-2)


@pytest.mark.gpu
def test_compiled_decoding_on_a_gpu() -> None:
    bare, made = model("qwen2_5_vl").cuda(), one("qwen2_5_vl")
    inputs = {name: each.cuda() for name, each in made.inputs.items()}
    with floc.attach(bare, ratio=RATIO):
        ids = bare.generate(**inputs, max_new_tokens=5)
        assert bare.generate(**inputs, max_new_tokens=5, cache_implementation="static").tolist() == ids.tolist()
