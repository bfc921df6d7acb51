"""Two oracles for the hooks, and prompts to test them with.

One oracle calls the decoder with inputs that were cut in a plain loop, the other masks the dropped tokens in the bare
model. Both start from what the bare model passes to its decoder, and know from the prompt where the videos are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import floc
from tests.integrations.transformers.zoo import (
    GLMS,
    KINDS,
    STACKED,
    Prompt,
    Text,
    Video,
    model,
    prompt,
    side,
    transformers,
)

RATIO = 1 / 4
CLOSE = dict(atol=2e-4, rtol=1e-4)
# Types that differ from qwen3_vl or glm4v in their layers only. For the table of models, slow tests run with them, too;
# test_families.py runs its tests with every type.
_SIMILAR = GLMS - {"glm4v"} | {"qwen3_vl_moe", "cosmos3_omni"}
_DISTINCT = [kind for kind in KINDS if kind not in _SIMILAR]
_SLOW = [kind for kind in KINDS if kind in _SIMILAR]
DISTINCT = pytest.mark.parametrize("kind", _DISTINCT)
ALL = pytest.mark.parametrize("kind", [*_DISTINCT, *(pytest.param(kind, marks=pytest.mark.slow) for kind in _SLOW)])
BOTH = pytest.mark.parametrize(
    ("kind", "attention"),
    [
        *((kind, attention) for attention in ("sdpa", "eager") for kind in _DISTINCT),
        *(pytest.param(kind, "sdpa", marks=pytest.mark.slow) for kind in _SLOW),
    ],
)
# Families whose pixels the bare model puts into the wrong rows, or rejects, if beams or samples repeat a prompt.
IS_NEW = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 22)
MISPLACED = GLMS if IS_NEW else {"internvl"}
CANNOT_REPEAT = (
    f"transformers {transformers.__version__} puts the pixels of repeated prompts into wrong rows, or rejects them"
)
MISPLACED_IF_SEVERAL = set() if IS_NEW else {"llava_next_video", "llava_onevision", "smolvlm"}


def create_prompt(kind: str, slices: int = 5, seed: int = 0) -> Prompt:
    return prompt(kind, [[Text(4), Video(slices, *side(kind)), Text(5)]], seed)


def create_batch(kind: str) -> Prompt:
    """Rows of unequal length; two videos in the first row, of unequal length if the family allows it."""
    longer, shorter = (4, 4) if kind in STACKED else (6, 3)
    return prompt(
        kind,
        [
            [Text(3), Video(longer, *side(kind)), Text(4), Video(shorter, *side(kind)), Text(3)],
            [Text(9), Video(shorter, *side(kind)), Text(6)],
        ],
        seed=1,
    )


def split_turns(kind: str, both: Prompt, cut: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a prompt with two videos into two calls; the second has positions, as generation would pass them."""
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    call = record_bare_call(model(kind), both.inputs)
    for name, tensor in both.inputs.items():
        if name in ("input_ids", "mm_token_type_ids"):
            first[name], second[name] = tensor[:, :cut], tensor[:, cut:]
        elif name == "attention_mask":
            first[name], second[name] = tensor[:, :cut], tensor
        elif name.startswith("pixel") and kind == "smolvlm":
            first[name], second[name] = tensor[:1], tensor[1:]
        else:
            first[name], second[name] = tensor.chunk(2)
    second["position_ids"] = call["position_ids"][..., cut:]
    return first, second


@contextmanager
def record_decoder(model: Any) -> Iterator[list[dict[str, Any]]]:
    """Record the arguments of the decoder's calls, after all other hooks."""
    calls: list[dict[str, Any]] = []
    hook = model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(dict(kwargs)), with_kwargs=True
    )
    try:
        yield calls
    finally:
        hook.remove()


def record_bare_call(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return what the bare model passes to its decoder, with positions for every token."""
    with record_decoder(model) as calls:
        model(**inputs, use_cache=False)
    (call,) = calls
    if call.get("position_ids") is None:
        call["position_ids"] = torch.arange(call["inputs_embeds"].shape[1])[None]
    return call


@contextmanager
def forbid_vision(model: Any) -> Iterator[None]:
    """Fail if the vision encoder is called."""

    def fail(*args: Any) -> None:
        raise AssertionError("the vision encoder was called")

    decoder = model.get_decoder()
    towers = [part for part in model.base_model.children() if part is not decoder and list(part.parameters())]
    hooks = [tower.register_forward_pre_hook(fail) for tower in towers]
    assert hooks
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def list_hooks(model: Any) -> list[Any]:
    """Return the hooks and attributes of all modules."""
    return [
        (name, dict(module._forward_pre_hooks), dict(module._forward_hooks), set(vars(module)))
        for name, module in model.named_modules()
    ]


def list_staying(example: Prompt, handle: Any) -> list[list[int]]:
    """Return for each row the columns that stay: all but padding and dropped video tokens."""
    ids, mask = example.inputs["input_ids"], example.inputs["attention_mask"]
    stays = [[p for p in range(ids.shape[1]) if mask[row, p]] for row in range(len(ids))]
    assert len(handle.last) == len(example.clips)
    for clip, kept in zip(example.clips, handle.last, strict=True):
        assert kept.shape == clip.shape
        dropped = set(clip.places.tolist()) - set(clip.places[kept.indices.numpy()].tolist())
        assert len(dropped) == kept.n - len(kept) > 0
        stays[clip.row] = [p for p in stays[clip.row] if p not in dropped]
    return stays


def compute_cut_logits(model: Any, call: dict[str, Any], stays: list[list[int]]) -> list[torch.Tensor]:
    """Compute the logits of each row alone, from inputs that were cut in a loop."""
    logits = []
    for row, places in enumerate(stays):
        kwargs: dict[str, Any] = {"inputs_embeds": call["inputs_embeds"][row : row + 1, places], "use_cache": False}
        positions = call["position_ids"]
        positions = positions.expand(*positions.shape[:-2], len(stays), -1)
        kwargs["position_ids"] = positions[..., row : row + 1, :][..., places]
        kwargs["attention_mask"] = torch.ones(1, len(places), dtype=torch.long)
        if call.get("deepstack_visual_embeds"):
            marked = call["visual_pos_masks"]
            order = {(r, p): i for i, (r, p) in enumerate(marked.nonzero().tolist())}
            selected = [order[row, p] for p in places if (row, p) in order]
            kwargs["visual_pos_masks"] = marked[row : row + 1, places]
            kwargs["deepstack_visual_embeds"] = [layer[selected] for layer in call["deepstack_visual_embeds"]]
        hidden = model.get_decoder()(**kwargs).last_hidden_state
        logits.append(model.lm_head(hidden)[0])
    return logits


def mask_dropped(example: Prompt, handle: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Return inputs of the bare model that mask the dropped tokens and keep the positions of all others."""
    mask = torch.zeros_like(example.inputs["attention_mask"])
    positions = call["position_ids"].cpu()
    for row, places in enumerate(list_staying(example, handle)):
        mask[row, places] = 1
    positions = positions.expand(*positions.shape[:-2], *mask.shape)
    if positions.ndim == 3 and positions.shape[0] == 3:  # generation puts the positions of text first
        text = (example.inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)[None]
        positions = torch.cat([text, positions])
    return {**example.inputs, "attention_mask": mask, "position_ids": positions}


def strip_padding(logits: torch.Tensor, stays: list[list[int]]) -> list[torch.Tensor]:
    """Remove the left padding of each row."""
    return [row[len(row) - len(places) :] for row, places in zip(logits, stays, strict=True)]


def check_by_hand(model: Any, example: Prompt) -> None:
    """Check logits against inputs that were cut by hand."""
    call = record_bare_call(model, example.inputs)
    with floc.attach(model, ratio=RATIO) as handle:
        logits = model(**example.inputs).logits
    stays = list_staying(example, handle)
    assert logits.shape[1] == max(map(len, stays))
    for actual, expected in zip(strip_padding(logits, stays), compute_cut_logits(model, call, stays), strict=True):
        torch.testing.assert_close(actual, expected, **CLOSE)


def check_masked(model: Any, example: Prompt) -> None:
    """Check logits against the bare model with dropped tokens masked."""
    call = record_bare_call(model, example.inputs)
    with floc.attach(model, ratio=RATIO) as handle:
        logits = model(**example.inputs).logits
    stays = list_staying(example, handle)
    whole = model(**mask_dropped(example, handle, call)).logits
    for row, (actual, places) in enumerate(zip(strip_padding(logits, stays), stays, strict=True)):
        torch.testing.assert_close(actual, whole[row, places], **CLOSE)


def check_generated(model: Any, example: Prompt, **settings: Any) -> None:
    """Check generated ids against the bare model with dropped tokens masked."""
    call = record_bare_call(model, example.inputs)
    settings = {"max_new_tokens": 6, **settings}
    torch.manual_seed(0)
    with floc.attach(model, ratio=RATIO) as handle:
        actual = model.generate(**example.inputs, **settings)
    masked = mask_dropped(example, handle, call)
    torch.manual_seed(0)
    expected = model.generate(**masked, **{**settings, "cache_implementation": None})
    assert actual.tolist() == expected.tolist()
