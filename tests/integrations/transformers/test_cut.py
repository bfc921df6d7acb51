"""Masks and padding of shortened inputs."""

from __future__ import annotations

import torch

import floc
from tests.integrations.transformers.helpers import (
    CLOSE,
    DISTINCT,
    RATIO,
    compute_cut_logits,
    create_prompt,
    list_staying,
    record_bare_call,
)
from tests.integrations.transformers.zoo import Text, Video, prompt, side


@DISTINCT
def test_without_attention_mask(kind: str, models) -> None:
    """Some releases read positions with gaps as several packed prompts if there is no mask."""
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    bare_inputs = {name: tensor for name, tensor in example.inputs.items() if name != "attention_mask"}
    with floc.attach(bare, ratio=RATIO):
        expected = bare(**example.inputs, use_cache=False).logits
        torch.testing.assert_close(bare(**bare_inputs, use_cache=False).logits, expected, **CLOSE)


def test_right_padded_rows(models) -> None:
    kind = "llava_next_video"
    bare = models[kind, "sdpa"]
    rows = [[Text(5), Video(4, *side(kind)), Text(9)], [Text(3), Video(4, *side(kind)), Text(2)]]
    example = prompt(kind, rows)
    ids, mask = example.inputs["input_ids"].clone(), example.inputs["attention_mask"].clone()
    pads = int((mask[1] == 0).sum())
    ids[1], mask[1] = ids[1].roll(-pads), mask[1].roll(-pads)
    right = {**example.inputs, "input_ids": ids, "attention_mask": mask}
    with floc.attach(bare, ratio=RATIO) as handle:
        logits = bare(**right).logits
    clip = example.clips[1]
    kept = handle.last[1]
    gone = set((clip.places - pads).tolist()) - set((clip.places - pads)[kept.indices.numpy()].tolist())
    stays = [p for p in range(ids.shape[1]) if mask[1, p] and p not in gone]
    call = record_bare_call(bare, right)
    alone = compute_cut_logits(bare, call, [list(range(ids.shape[1])), stays])[1]
    torch.testing.assert_close(logits[1, : len(stays)], alone, **CLOSE)


def test_prepared_mask_is_cut_on_both_axes(models) -> None:
    bare, example = models["llava_onevision", "eager"], create_prompt("llava_onevision")
    n = example.inputs["input_ids"].shape[1]
    open_to = torch.ones(n, n).tril().bool()
    open_to[:, 1] = False  # no other token sees the second
    open_to[1, 1] = True
    mask = torch.zeros(1, 1, n, n).masked_fill(~open_to, torch.finfo(torch.float32).min)
    with floc.attach(bare, ratio=RATIO) as handle:
        actual = bare(**{**example.inputs, "attention_mask": mask}).logits
    (places,) = list_staying(example, handle)
    for p in set(range(n)) - set(places):
        mask[..., p] = torch.finfo(torch.float32).min
    whole = bare(**{**example.inputs, "attention_mask": mask}).logits
    torch.testing.assert_close(actual[0], whole[0, places], **CLOSE)
