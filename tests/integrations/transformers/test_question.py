"""Questions that steer and merged tokens in `floc.attach`, `floc.capture` and `floc.replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floc
from floc.captured.steer import select_by_question
from floc.integrations.transformers import embed_text
from floc.methods.floc import choose_horizon
from floc.methods.shared.question import compute_relevance
from floc.selection import reference
from floc.selection.engine import WEIGHT_SCALE
from floc.selection.objective import Similarity
from floc.selection.torch.engine import compute_symmetric_matrix
from tests.integrations.transformers.checkpoints import create
from tests.integrations.transformers.helpers import (
    CLOSE,
    DISTINCT,
    RATIO,
    compute_cut_logits,
    create_batch,
    create_prompt,
    forbid_vision,
    list_hooks,
    list_staying,
    record_bare_call,
    record_decoder,
    strip_padding,
)
from tests.integrations.transformers.zoo import (
    END,
    FAKE,
    GLOBAL,
    START,
    WORDS,
    Prompt,
    Video,
    model,
    prompt,
    side,
    without_pixels,
)

STEERED: dict[str, Any] = {"query": "prompt", "query_weight": 1.0}
UNNAMED = {"internvl": {START, END}, "smolvlm": {FAKE, GLOBAL}}  # special tokens that the config does not name


def list_text(kind: str, example: Prompt, row: int, embeds: torch.Tensor) -> torch.Tensor:
    """Return the embeddings of a row's text, by a loop: words before the first video, between videos, and after."""
    ids, mask = example.inputs["input_ids"], example.inputs["attention_mask"]
    text = {*range(1, WORDS.stop), *UNNAMED.get(kind, ())}
    spans = [(clip.places.min(), clip.places.max()) for clip in example.clips if clip.row == row]
    columns = [
        at
        for at in range(ids.shape[1])
        if mask[row, at] and int(ids[row, at]) in text and not any(a <= at <= b for a, b in spans)
    ]
    return embeds[row, columns]


@DISTINCT
def test_the_prompt_steers_and_equals_inputs_cut_by_hand(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    for example in (create_prompt(kind), create_batch(kind)):
        call = record_bare_call(bare, example.inputs)
        embeds = call["inputs_embeds"]
        with floc.attach(bare, ratio=RATIO, **STEERED) as handle:
            logits = bare(**example.inputs).logits
        for clip, kept in zip(example.clips, handle.last, strict=True):
            tokens = embeds[clip.row, clip.places].view(*clip.shape, -1)
            text = list_text(kind, example, clip.row, embeds)
            expected = floc.compress(tokens, ratio=RATIO, query=text, query_weight=1.0)
            assert kept.indices.tolist() == expected.indices.tolist()
            assert kept.settings["query"] == f"array {tuple(text.shape)}"
        stays = list_staying(example, handle)
        for actual, wanted in zip(strip_padding(logits, stays), compute_cut_logits(bare, call, stays), strict=True):
            torch.testing.assert_close(actual, wanted, **CLOSE)


def test_rows_with_other_questions_about_one_video_keep_other_tokens(models) -> None:
    bare = models["qwen2_5_vl", "sdpa"]
    example = create_prompt("qwen2_5_vl", slices=9)
    inputs = {
        name: value.repeat(2, *[1] * (value.ndim - 1)) if name != "video_grid_thw" else value.repeat(2, 1)
        for name, value in example.inputs.items()
    }
    with floc.attach(bare, ratio=RATIO, **STEERED) as handle:
        bare(**inputs)
        assert len(handle.last) == 1  # the same video and question
        inputs["input_ids"][1, -4:] = torch.tensor([20, 31, 42, 53])
        bare(**inputs)
    first, second = handle.last
    assert first.indices.tolist() != second.indices.tolist()


def test_padding_is_no_text_whatever_its_id(models) -> None:
    bare, example = models["qwen2_5_vl", "sdpa"], create_batch("qwen2_5_vl")
    inputs = {
        **example.inputs,
        "input_ids": example.inputs["input_ids"].masked_fill(example.inputs["attention_mask"] == 0, 20),
    }
    kept = []
    for given in (example.inputs, inputs):
        with floc.attach(bare, ratio=RATIO, **STEERED) as handle:
            bare(**given)
        kept.append([(one.indices.tolist(), one.settings["query"]) for one in handle.last])
    assert not torch.equal(inputs["input_ids"], example.inputs["input_ids"])
    assert kept[0] == kept[1]


def test_generation_with_a_steering_prompt(models) -> None:
    bare, example = models["qwen3_vl", "sdpa"], create_prompt("qwen3_vl")
    call = record_bare_call(bare, example.inputs)
    with floc.attach(bare, ratio=RATIO, **STEERED) as handle:
        ids = bare.generate(**example.inputs, max_new_tokens=1)
    (logits,) = compute_cut_logits(bare, call, list_staying(example, handle))
    logits[:, bare.generation_config.suppress_tokens] = -torch.inf
    assert int(logits[-1].argmax()) == int(ids[0, -1])


def test_mmtok_takes_the_prompt_too(models) -> None:
    bare, example = models["qwen2_vl", "sdpa"], create_prompt("qwen2_vl")
    with floc.attach(bare, ratio=RATIO, method="mmtok", query="prompt") as handle:
        bare(**example.inputs)
    assert "without query" not in str(handle.last[0].settings.get("fallback"))


def test_a_prompt_without_text_is_an_error(models) -> None:
    bare = models["qwen2_5_vl", "sdpa"]
    example = prompt("qwen2_5_vl", [[Video(5, *side("qwen2_5_vl"))]])
    with floc.attach(bare, ratio=RATIO, **STEERED), pytest.raises(ValueError, match=r"row 0 .* only special tokens"):
        bare(**example.inputs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": "prompt"}, "query has no effect with query_weight=0"),
        ({"query": "What is it?", "query_weight": 1.0}, "query must be 'prompt', for the text of the prompt, or embed"),
        ({"query_weight": 1.0}, "needs the question"),
        ({**STEERED, "query_weight": -1.0}, "query_weight must be a number from 0"),
        ({**STEERED, "method": "kmeans"}, "unknown option of method 'kmeans'"),
        ({"merge": 2}, "merge must be a number from 0 to 1"),
        ({"merge": 0.5, "method": "pooling"}, "merges tokens itself"),
    ],
)
def test_rejects_bad_settings_before_adding_hooks(arguments: dict[str, Any], message: str, models) -> None:
    bare = models["qwen2_vl", "sdpa"]
    before = list_hooks(bare)
    with pytest.raises(ValueError, match=message):
        floc.attach(bare, ratio=RATIO, **arguments)
    assert list_hooks(bare) == before


@DISTINCT
def test_merged_features_replace_embeddings(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind, slices=8)
    before = record_bare_call(bare, example.inputs)
    with floc.attach(bare, ratio=RATIO, merge=0.25) as handle, record_decoder(bare) as calls:
        bare(**example.inputs)
    (kept,), (call,), (clip,) = handle.last, calls, example.clips
    (places,) = list_staying(example, handle)
    tokens = before["inputs_embeds"][0, clip.places]

    def merge(values: torch.Tensor) -> torch.Tensor:
        means = torch.stack([values[kept.represents == place].mean(0) for place in range(len(kept))])
        return 0.75 * values[kept.indices] + 0.25 * means

    slots = [places.index(at) for at in clip.places[kept.indices.numpy()]]
    torch.testing.assert_close(call["inputs_embeds"][0, slots], merge(tokens), **CLOSE)
    others = [i for i in range(len(places)) if i not in slots]
    assert torch.equal(call["inputs_embeds"][0, others], before["inputs_embeds"][0, [places[i] for i in others]])
    if before.get("deepstack_visual_embeds"):
        for layer, whole in zip(call["deepstack_visual_embeds"], before["deepstack_visual_embeds"], strict=True):
            torch.testing.assert_close(layer, merge(whole), **CLOSE)


@DISTINCT
def test_a_merged_capture_equals_attach(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind, slices=8)
    with floc.attach(bare, ratio=RATIO, merge=0.5):
        expected = bare(**example.inputs).logits
    video = floc.capture(bare, example.inputs, ratio=RATIO, merge=0.5)
    with floc.replay(bare, video):
        torch.testing.assert_close(bare(**without_pixels(example.inputs)).logits, expected, **CLOSE)
    with pytest.raises(ValueError, match="tokens were merged; capture again at budget=3"):
        video.at(budget=3)


@pytest.fixture(scope="module")
def captured() -> floc.Captured:
    bare = model("qwen3_vl")
    return floc.capture(bare, create_prompt("qwen3_vl", slices=20).inputs, ratio=1 / 4)


def make_query(count: int, dim: int) -> torch.Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(count))


def test_a_capture_stores_how_many_tokens_each_represents(captured: floc.Captured, tmp_path: Path) -> None:
    assert captured.members is not None
    assert int(captured.members.sum()) == captured.n
    assert int(captured.members.min()) >= 1
    captured.save(tmp_path / "a.floc")
    loaded = floc.load(tmp_path / "a.floc")
    assert torch.equal(loaded.members, captured.members)
    assert torch.equal(loaded.at(budget=5).members, captured.members[captured.order[:5].sort().values])


@pytest.mark.parametrize("budget", [1, 7, 20])
@pytest.mark.parametrize("stored", [True, False])
def test_at_with_a_question_equals_greedy_among_kept_tokens(captured: floc.Captured, budget: int, stored: bool) -> None:
    from dataclasses import replace

    video = captured if stored else replace(captured, members=None)
    query, kept = make_query(3, captured.features.shape[1]), len(captured)
    smaller = video.at(budget=budget, query=query, query_weight=0.5)
    matrix = compute_symmetric_matrix(video.features, Similarity("cosine", 3))[0].numpy()
    frames, horizon = video.positions[:, 0].numpy(), choose_horizon(video.n, budget)
    matrix = np.where(np.abs(frames[:, None] - frames) <= horizon, matrix, 0)
    relevance = compute_relevance(video.features, query).numpy()
    counts = video.members.numpy() if stored else np.ones(kept, np.int64)
    each = round(0.5 * WEIGHT_SCALE * counts.sum() / 3)
    weights = np.concatenate([counts * WEIGHT_SCALE, [each] * 3])
    picks, gains = reference.greedy(np.concatenate([matrix, relevance], 1), budget, weights)
    assert smaller.indices.tolist() == sorted(video.indices[picks].tolist())
    assert smaller.indices[smaller.order].tolist() == video.indices[picks].tolist()
    np.testing.assert_allclose(smaller.gains, gains / 2**14 / WEIGHT_SCALE)
    for layer, whole in zip(smaller.deep, video.deep, strict=True):
        assert torch.equal(layer, whole[picks[np.argsort(picks)]])
    assert smaller.made["query_weight"] == 0.5
    assert smaller.nested
    prefix = smaller.at(budget=1)
    assert prefix.indices.tolist() == [int(video.indices[picks[0]])]


def test_replay_of_a_steered_video_needs_no_vision_encoder() -> None:
    bare, example = model("qwen2_5_vl"), create_prompt("qwen2_5_vl", slices=12)
    video = floc.capture(bare, example.inputs, ratio=1 / 2)
    query = bare.get_input_embeddings()(torch.tensor([20, 30, 40])).detach()
    smaller = video.at(ratio=1 / 8, query=query, query_weight=2.0)
    assert smaller.indices.tolist() != video.at(ratio=1 / 8).indices.tolist()
    call = record_bare_call(bare, example.inputs)
    (clip,) = example.clips
    dropped = set(clip.places.tolist()) - set(clip.places[smaller.indices.numpy()].tolist())
    stays = [at for at in range(example.inputs["input_ids"].shape[1]) if at not in dropped]
    (expected,) = compute_cut_logits(bare, call, [stays])
    with floc.replay(bare, smaller), forbid_vision(bare):
        logits = bare(**without_pixels(example.inputs)).logits
    torch.testing.assert_close(logits[0], expected, **CLOSE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_weight": 0.5}, "needs the question"),
        ({"query": torch.ones(2, 64)}, "query has no effect with query_weight=0"),
        ({"query": torch.ones(2, 63), "query_weight": 0.5}, r"query must be \[Q, 64\]"),
        ({"query": torch.ones(0, 64), "query_weight": 0.5}, r"query must be \[Q, 64\]"),
        ({"query": torch.full((2, 64), torch.nan), "query_weight": 0.5}, "query must be finite"),
        ({"query": torch.ones(2, 64), "query_weight": -1.0}, "query_weight must be a number from 0"),
        ({"query": torch.ones(2, 64), "query_weight": 0.5, "budget": 10**6}, "capture again with a larger budget"),
    ],
)
def test_at_rejects_questions_that_cannot_steer(captured: floc.Captured, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        captured.at(**{"budget": 3, **options})


def test_embeds_the_words_of_a_text_alone() -> None:
    bare, processor = create("qwen2_5_vl")
    query = embed_text(bare, processor, "What is on the table?")
    ids = processor.tokenizer("What is on the table?", add_special_tokens=False)["input_ids"]
    assert torch.equal(query, bare.get_input_embeddings().weight[ids])
    assert not query.requires_grad
    assert torch.equal(embed_text(bare, processor.tokenizer, "What is on the table?"), query)
    with pytest.raises(ValueError, match="a question must have words, got ''"):
        embed_text(bare, processor, "")


def test_many_kept_tokens_are_selected_within_the_horizon() -> None:
    """Equal tokens in frames that are far apart are both kept: neither can represent the other."""
    features = torch.eye(4).repeat(2, 1)
    frames = torch.tensor([0, 0, 0, 0, 90, 90, 90, 90])
    steered = select_by_question(features, None, frames, 8000, 8, torch.eye(4)[:1], 0.1)
    assert steered.picks.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert float(steered.gains.min()) >= 1
