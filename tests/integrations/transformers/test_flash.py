"""Flash attention: the functions of transformers around it, with a plain kernel in place of the CUDA kernels."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

import floc
from tests.integrations.transformers.helpers import CLOSE, IS_NEW, RATIO, create_batch, create_prompt, split_turns
from tests.integrations.transformers.zoo import Text, Video, model, prompt, side, transformers

SOME = pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl", "llava_onevision"])


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None) -> torch.Tensor:
    """Attend from [Q, heads, D] to [K, key heads, D]; the last query sees all keys."""
    k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * (scale or q.shape[-1] ** -0.5)
    if causal:
        is_seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        scores = scores.masked_fill(~is_seen, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def run_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, softmax_scale: float | None) -> Any:
    return torch.stack([attend(*row, causal, softmax_scale) for row in zip(q, k, v, strict=True)])


def run_packed(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, causal: bool, softmax_scale: Any) -> Any:
    rows = zip(q.split(cu_seqlens_q.diff().tolist()), *_split(cu_seqlens_k, k, v), strict=True)
    return torch.cat([attend(*row, causal, softmax_scale) for row in rows])


def _split(ends: torch.Tensor, *tensors: torch.Tensor) -> list[Any]:
    assert int(ends[-1]) == len(tensors[0]), "the lengths do not cover all keys"
    return [tensor.split(ends.diff().tolist()) for tensor in tensors]


def choose(is_causal: bool = True, softmax_scale: float | None = None, **_: Any) -> dict[str, Any]:
    return {"causal": is_causal, "softmax_scale": softmax_scale}


@pytest.fixture(params=["flash_attention_2", "flash_attention_3"])
def flash(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Create models with flash attention in their decoder."""
    utilities = transformers.modeling_flash_attention_utils
    functions = (run_rows, run_packed, None, utilities._pad_input, utilities._unpad_input)
    chosen = (choose, choose) if IS_NEW else choose  # of a plain and of a paged kernel
    monkeypatch.setattr(utilities, "lazy_import_flash_attention", lambda *_, **__: (functions, chosen))

    def create(kind: str) -> Any:
        made = model(kind)
        made.get_decoder().config._attn_implementation = request.param
        assert made.config.text_config._attn_implementation == request.param
        return made

    return create


@SOME
def test_prompts_and_answers(kind: str, flash: Any, models) -> None:
    plain, fast = models[kind, "sdpa"], flash(kind)
    for example in (create_prompt(kind), create_batch(kind)):
        results = []
        for each in (plain, fast):
            with floc.attach(each, ratio=RATIO):
                results.append((each(**example.inputs).logits, each.generate(**example.inputs, max_new_tokens=5)))
        (expected, answer), (logits, found) = results
        stays = example.inputs["attention_mask"][:, -1].bool()
        torch.testing.assert_close(logits[stays, -1], expected[stays, -1], **CLOSE)
        assert found.tolist() == answer.tolist()


@SOME
@pytest.mark.parametrize("is_attached", [False, True], ids=["bare", "attached"])
@pytest.mark.parametrize("by_generation", [False, True], ids=["forward", "generate"])
def test_second_turn_with_another_video(kind: str, is_attached: bool, by_generation: bool, flash: Any, models) -> None:
    """Positions with gaps on a filled cache are one sequence, not several packed ones."""
    size = Video(4, *side(kind))
    both = prompt(kind, [[Text(4), size, Text(15), size, Text(3)]], seed=3)
    cut = int(both.clips[0].places[-1]) + 12
    first, second = split_turns(kind, both, cut)
    if by_generation and second["position_ids"].ndim == 3:  # generation puts the positions of text first
        text = torch.arange(cut, both.inputs["input_ids"].shape[1])[None, None]
        second["position_ids"] = torch.cat([text, second["position_ids"]])
    results = []
    for each in (models[kind, "sdpa"], flash(kind)):
        with floc.attach(each, ratio=RATIO) if is_attached else nullcontext():
            cache = each(**first, use_cache=True).past_key_values
            results.append(each(**second, past_key_values=cache).logits)
    torch.testing.assert_close(*results, **CLOSE)


def test_rejects_another_video_with_other_layers(flash: Any) -> None:
    fast = flash("llava_onevision")
    size = Video(4, *side("llava_onevision"))
    both = prompt("llava_onevision", [[Text(4), size, Text(15), size, Text(3)]], seed=3)
    first, second = split_turns("llava_onevision", both, int(both.clips[0].places[-1]) + 12)
    with floc.attach(fast, ratio=RATIO):
        cache = fast(**first, use_cache=True).past_key_values
        fast.config.text_config.layer_types = ["full_attention", "sliding_attention", "full_attention"]
        with pytest.raises(
            ValueError, match=r"in layers of sliding_attention; load the model with attn_implementation"
        ):
            fast(**second, past_key_values=cache)
