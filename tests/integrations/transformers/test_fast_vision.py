"""Fast attention in vision towers: the same features as the bare model, and a model that is left as it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

import floc
from floc.encoders import fast_attention
from floc.encoders.fast_attention import NAME, FastVision, Windows, find_towers, group_windows
from floc.encoders.vision_features import encode_prepared
from tests.integrations.transformers.helpers import CLOSE, RATIO, create_batch, create_prompt, list_hooks
from tests.integrations.transformers.test_families import KINDS, create_inputs
from tests.integrations.transformers.tiny_configs import create_model
from tests.integrations.transformers.zoo import GRIDS, Image, Text, Video, model, prompt, transformers

# types whose vision encoder has no windows: it takes frames as a batch, or attends across all of them
WITHOUT_WINDOWS = {
    *("gemma4", "gemma4_unified", "internvl", "llava_next_video", "llava_onevision", "minimax_m3_vl", "molmo2"),
    *("perception_lm", "smolvlm", "video_llava"),
}
# types that call once in any case: one attends to the whole part of a video, one has windows for pictures only
ONE_CALL = {"kimi_k25", "nemotron_h_omni"}
SOME = pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "glm4v", "video_llama_3"])
PACKED = pytest.mark.parametrize("is_packed", [False, True], ids=["patterns", "groups"])
REGISTRY = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
GRID_ROWS = [[3, 8, 12], [1, 4, 4], [2, 10, 14], [1, 8, 12], [5, 6, 26]]


@contextmanager
def count_calls() -> Iterator[list[tuple[int, ...]]]:
    """Record the shapes of the queries of the library's own attention function."""
    own, shapes = REGISTRY["sdpa"], []

    def attend(module: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        shapes.append(tuple(query.shape))
        return own(module, query, *args, **kwargs)

    REGISTRY["sdpa"] = attend
    try:
        yield shapes
    finally:
        del REGISTRY["sdpa"]


def get_state(bare: Any) -> list[Any]:
    """Return what fast attention changes for a while."""
    return [
        sorted(REGISTRY),
        [(name, part.config._attn_implementation) for name, part in bare.named_modules() if hasattr(part, "config")],
        dict(fast_attention._calls),
    ]


@pytest.fixture
def packed(is_packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group windows on a CPU as on a GPU, if `is_packed`."""
    group_windows.cache_clear()
    if is_packed:
        monkeypatch.setattr(fast_attention, "PATTERN_DEVICES", ())
    yield
    group_windows.cache_clear()


# ---- the same features


@KINDS
def test_features_equal_those_of_the_bare_model(kind: str) -> None:
    bare, inputs = create_model(kind), create_inputs(kind)
    before, base = get_state(bare), bare.base_model
    assert bool(find_towers(base)) == (kind not in WITHOUT_WINDOWS)
    with count_calls() as slow:
        expected = encode_prepared(base, inputs, fast_vision=False)
    with count_calls() as fast:
        features = encode_prepared(base, inputs)
    for actual, wanted in zip(features.all, expected.all, strict=True):
        assert torch.equal(actual, wanted)  # the same kernel for each window
    calls = len(fast), len(slow)
    assert calls[0] <= calls[1]
    if kind not in WITHOUT_WINDOWS | ONE_CALL:
        assert calls[0] < calls[1]
    assert get_state(bare) == before


def encode_grids(kind: str, rows: Sequence[Sequence[int]], models: Any) -> tuple[Any, torch.Tensor]:
    """Return the output of a tower of the zoo for grids of noise, without and with fast attention."""
    if kind == "glm4v":  # the model passes frames one by one
        rows = [[1, h, w] for t, h, w in rows for _ in range(t)]
    base = models[kind, "sdpa"].base_model
    (tower,) = find_towers(base)
    width = 3 * 4 * 4 * (1 if kind == "video_llama_3" else 2)
    torch.manual_seed(0)
    pixels = torch.randn(sum(t * h * w for t, h, w in rows), width)
    grids = torch.tensor(rows)
    more = {"merge_sizes": torch.full((len(rows),), 2)} if kind == "video_llama_3" else {}
    bare = tower(pixels, grid_thw=grids, **more)
    with FastVision(base).use():
        fast = tower(pixels, grid_thw=grids, **more)
    return bare, fast


@SOME
@PACKED
@pytest.mark.parametrize(
    "rows",
    [GRID_ROWS, [[1, 4, 4]], [[7, 10, 14]], [[1, 10, 14]], [[4, 10, 4], [4, 10, 4]], [[1, 2, 2], [1, 2, 2]]],
    ids=["ragged", "one window", "edge windows", "one frame", "two equal videos", "smallest"],
)
def test_grids(kind: str, rows: Any, is_packed: bool, packed: None, models) -> None:
    bare, fast = encode_grids(kind, rows, models)
    assert torch.equal(fast.last_hidden_state, bare.last_hidden_state)
    if getattr(bare, "pooler_output", None) is not None:
        assert torch.equal(fast.pooler_output, bare.pooler_output)


@PACKED
def test_half_precision(is_packed: bool, packed: None) -> None:
    base = model("qwen2_5_vl", dtype=torch.bfloat16).base_model
    (tower,) = find_towers(base)
    pixels, grids = torch.randn(5 * 10 * 14, 96).bfloat16(), torch.tensor([[5, 10, 14]])
    bare = tower(pixels, grid_thw=grids).pooler_output
    with FastVision(base).use():
        assert torch.equal(tower(pixels, grid_thw=grids).pooler_output, bare)


@PACKED
@pytest.mark.parametrize("kind", sorted(GRIDS & set(transformers.CONFIG_MAPPING)))
def test_videos_and_pictures_in_one_call(kind: str, is_packed: bool, packed: None, models) -> None:
    bare = models[kind, "sdpa"]
    # GLM-V takes no pictures beside videos
    pictures = [] if kind.startswith("glm") else [Image(4, 6), Image(2, 2)]
    parts = [Text(3), Video(4, 4, 6), Text(2), *pictures, Video(1, 2, 8), Text(3)]
    example = prompt(kind, [parts, [Text(4), Video(3, 2, 3), Text(2)]])
    logits = []
    for fast_vision in (False, True):
        with floc.attach(bare, ratio=RATIO, fast_vision=fast_vision), count_calls() as calls:
            logits.append(bare(**example.inputs).logits)
        logits.append(len(calls))
    assert torch.equal(logits[2], logits[0])
    assert logits[3] < logits[1] if is_packed else logits[3] <= logits[1]


@SOME
def test_capture_and_attach(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind, slices=40)
    videos, answers = [], []
    for fast_vision in (False, True):
        videos.append(floc.capture(bare, example.inputs, ratio=RATIO, fast_vision=fast_vision))
        with floc.attach(bare, ratio=RATIO, fast_vision=fast_vision):
            answers.append(bare.generate(**example.inputs, max_new_tokens=5).tolist())
    assert torch.equal(videos[0].features, videos[1].features)
    assert torch.equal(videos[0].indices, videos[1].indices)
    assert answers[0] == answers[1]


# ---- windows


def test_groups_of_windows(monkeypatch) -> None:
    cpu = torch.device("cpu")
    assert group_windows((5, 5, 5), cpu).pattern == (5,)
    assert group_windows((4, 2, 4, 2), cpu).pattern == (4, 2)
    assert group_windows((4, 0, 2), cpu).pattern == (4, 2)
    monkeypatch.setattr(fast_attention, "PATTERN_DEVICES", ())
    group_windows.cache_clear()
    windows = group_windows((4, 2, 4, 2, 1), cpu)
    assert windows.groups == ((1, 1), (2, 2), (2, 4))
    assert windows.order is not None
    assert windows.order.tolist() == [12, 4, 5, 10, 11, 0, 1, 2, 3, 6, 7, 8, 9]
    assert torch.equal(windows.order[windows.inverse], torch.arange(13))
    group_windows.cache_clear()


@PACKED
def test_no_call_has_more_windows_than_kernels_number(is_packed: bool, packed: None, models, monkeypatch) -> None:
    monkeypatch.setattr(fast_attention, "MOST_WINDOWS", 3)
    with count_calls() as calls:
        bare, fast = encode_grids("qwen2_5_vl", [[8, 10, 14]], models)
    assert torch.equal(fast.pooler_output, bare.pooler_output)
    # the bare model calls with one window at a time
    assert max(shape[0] for shape in calls) == 3


def test_boundaries_are_read_once_for_all_layers(models, monkeypatch) -> None:
    lengths = []
    read = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: lengths.append(tensor.shape) or read(tensor))
    base = model("qwen3_vl").base_model  # three layers, all within frames
    (tower,) = find_towers(base)
    with FastVision(base).use():
        tower(torch.randn(7 * 8 * 4, 96), grid_thw=torch.tensor([[7, 8, 4]]))
    assert lengths.count((7,)) == 1


# ---- kernels for windows of several lengths


def attend_packed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends_q: Any, ends_k: Any, most_q: int, most_k: int, scale: float
) -> torch.Tensor:
    """Attend within windows by plain products, as a kernel for packed sequences does."""
    assert ends_q.dtype == ends_k.dtype == torch.int32
    assert most_q == most_k == int(ends_q.diff().max())
    outputs = []
    for start, stop in zip(ends_q[:-1].tolist(), ends_q[1:].tolist(), strict=True):
        rows = [part[start:stop].float() for part in (q, k, v)]
        scores = torch.einsum("qhd,khd->hqk", *rows[:2]) * scale
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), rows[2]).to(q.dtype))
    return torch.cat(outputs)


def install(name: str, function: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a function in place of one of a kernel package; return what runs it."""
    module = ModuleType(name)
    if name == "flash_attn":
        module.flash_attn_varlen_func = (  # type: ignore[attr-defined]
            lambda *parts, softmax_scale, causal: function(*parts, scale=softmax_scale) if not causal else None
        )
    else:
        module.varlen_attn = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    fast_attention._is_usable.cache_clear()
    return fast_attention._run_flash_attn if name == "flash_attn" else fast_attention._run_torch_varlen


KERNELS = pytest.mark.parametrize("name", ["flash_attn", "torch.nn.attention.varlen"])
ON_CPU = (torch.device("cpu"), torch.float32, 16)


@KERNELS
def test_packed_kernel(name: str, models, monkeypatch) -> None:
    run = install(name, attend_packed, monkeypatch)
    assert fast_attention._is_usable(run, *ON_CPU)
    used = []

    def find_kernel(packed: Any, windows: Windows, kwargs: Any) -> Any:
        used.append(windows.groups)
        return run

    monkeypatch.setattr(fast_attention, "PATTERN_DEVICES", ())
    monkeypatch.setattr(fast_attention, "_find_packed_kernel", find_kernel)
    group_windows.cache_clear()
    bare, fast = encode_grids("qwen2_5_vl", GRID_ROWS, models)
    group_windows.cache_clear()
    fast_attention._is_usable.cache_clear()
    torch.testing.assert_close(fast.pooler_output, bare.pooler_output, **CLOSE)
    assert len(used) == 2  # a layer with windows, and one with frames


def test_packed_kernel_gets_the_longest_window_as_a_number(monkeypatch) -> None:
    """Some releases of transformers pass it as a tensor, and reading it would wait for the GPU in every layer."""
    given: list[Any] = []

    def run(packed: Any, bounds: torch.Tensor, longest: Any, scale: float) -> torch.Tensor:
        given.append(longest)
        return packed[2]

    monkeypatch.setattr(fast_attention, "PATTERN_DEVICES", ())
    monkeypatch.setattr(fast_attention, "_find_packed_kernel", lambda *_: run)
    group_windows.cache_clear()
    bounds, parts = torch.tensor([0, 2, 5, 9], dtype=torch.int32), torch.randn(3, 1, 2, 9, 4)
    longest = dict.fromkeys(("max_length_q", "max_length_k"), torch.tensor(4))
    fast_attention.attend_windows(None, *parts, cu_seq_lens_q=bounds, cu_seq_lens_k=bounds, scaling=0.5, **longest)
    group_windows.cache_clear()
    assert [(type(value), value) for value in given] == [(int, 4)]


@KERNELS
def test_only_kernels_that_agree_are_used(name: str, monkeypatch) -> None:
    def ignore_windows(q: Any, k: Any, v: Any, ends: Any, _: Any, most: int, __: int, scale: float) -> Any:
        whole = torch.tensor([0, len(q)], dtype=torch.int32)
        return attend_packed(q, k, v, whole, whole, len(q), len(q), scale)

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no kernel image is available")

    for function in (ignore_windows, fail):
        assert not fast_attention._is_usable(install(name, function, monkeypatch), *ON_CPU)
    monkeypatch.setitem(sys.modules, name, None)  # not installed
    fast_attention._is_usable.cache_clear()
    assert not fast_attention._is_usable(fast_attention._run_flash_attn, *ON_CPU)
    fast_attention._is_usable.cache_clear()


# ---- the model is left as it was


@SOME
def test_attach_leaves_the_model_as_it_was(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    before, hooks = get_state(bare), list_hooks(bare)
    assert NAME not in before[0]
    with floc.attach(bare, ratio=RATIO):
        assert get_state(bare) == before  # only calls of the tower change it
        bare(**create_batch(kind).inputs)
        assert get_state(bare) == before
    assert list_hooks(bare) == hooks
    assert get_state(bare) == before


@pytest.mark.parametrize("where", ["tower", "hook before", "hook after"])
def test_restores_after_an_error(where: str) -> None:
    bare = model("qwen2_5_vl")
    before, example = get_state(bare), create_prompt("qwen2_5_vl")

    def fail(*_: Any) -> None:
        raise RuntimeError("a defect")

    visual = bare.base_model.visual
    if where == "hook before":
        visual.register_forward_pre_hook(fail)
    with floc.attach(bare, ratio=RATIO) as handle:
        if where == "hook after":
            visual.register_forward_pre_hook(fail)
        elif where == "tower":
            visual.blocks[1].register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="a defect"):
            bare(**example.inputs)
        assert get_state(bare) == before
    handle.detach()
    with pytest.raises(RuntimeError, match="a defect"):
        floc.capture(bare, example.inputs, ratio=RATIO)
    assert get_state(bare) == before


def test_nested_and_repeated_use(models) -> None:
    bare = models["qwen2_5_vl", "sdpa"]
    base, before = bare.base_model, get_state(bare)
    first, second = FastVision(base), FastVision(base)
    for _ in range(2):
        with first.use():
            with first.use(), second.use():
                assert base.visual.config._attn_implementation == NAME
            assert base.visual.config._attn_implementation == NAME
            assert bare.get_decoder().config._attn_implementation == "sdpa"
        assert get_state(bare) == before


def test_keeps_what_the_user_chooses_meanwhile() -> None:
    base = model("qwen2_5_vl").base_model
    with FastVision(base).use():
        base.visual.config._attn_implementation = "eager"
    assert base.visual.config._attn_implementation == "eager"
    assert NAME not in REGISTRY


def test_several_threads_and_models() -> None:
    made = [model("qwen2_5_vl"), model("qwen3_vl")]
    examples = [create_prompt("qwen2_5_vl", 9), create_prompt("qwen3_vl", 9)]
    before = [get_state(bare) for bare in made]
    expected = [floc.capture(bare, each.inputs, ratio=RATIO) for bare, each in zip(made, examples, strict=True)]
    failures: list[Any] = []

    def work(number: int) -> None:
        try:
            for _ in range(20):
                video = floc.capture(made[number % 2], examples[number % 2].inputs, ratio=RATIO)
                assert torch.equal(video.features, expected[number % 2].features)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [get_state(bare) for bare in made] == before


# ---- where the model's own attention stays


@pytest.mark.parametrize("why", ["training", "eager", "off", "replaced"])
def test_own_attention(why: str) -> None:
    bare = model("qwen2_5_vl", "eager" if why == "eager" else "sdpa")
    example = create_prompt("qwen2_5_vl")
    if why == "training":
        bare.train()
    if why == "replaced":
        for block in bare.base_model.visual.blocks:
            block.attn.forward = block.attn.forward
    seen = []
    tower = bare.base_model.visual
    tower.blocks[0].register_forward_pre_hook(lambda *_: seen.append(tower.config._attn_implementation))
    with floc.attach(bare, ratio=RATIO, fast_vision=why != "off"):
        bare(**example.inputs)
    assert seen == ["eager" if why == "eager" else "sdpa"]


def test_gradients(models) -> None:
    bare, example = model("qwen2_5_vl"), create_prompt("qwen2_5_vl")
    weight = bare.base_model.visual.blocks[0].attn.qkv.weight
    gradients = []
    for fast_vision in (False, True):
        bare.zero_grad()
        with torch.enable_grad(), floc.attach(bare, ratio=RATIO, fast_vision=fast_vision):
            bare(**example.inputs).logits.square().mean().backward()
        gradients.append(weight.grad.clone())
    torch.testing.assert_close(*gradients)


def test_inference_mode(models) -> None:
    bare, example = models["qwen3_vl", "sdpa"], create_prompt("qwen3_vl")
    expected = floc.capture(bare, example.inputs, ratio=RATIO, fast_vision=False)
    with torch.inference_mode():
        video = floc.capture(bare, example.inputs, ratio=RATIO)
    assert torch.equal(video.features, expected.features)


@pytest.mark.parametrize("kind", ["qwen2_5_vl"])
def test_compiled_tower(kind: str) -> None:
    bare, example = model(kind), create_prompt(kind)
    expected = floc.capture(bare, example.inputs, ratio=RATIO, fast_vision=False)
    before = get_state(bare)
    bare.base_model.visual.compile(backend="eager")
    for _ in range(2):
        video = floc.capture(bare, example.inputs, ratio=RATIO)
        torch.testing.assert_close(video.features, expected.features, **CLOSE)
        assert get_state(bare) == before


def test_offloaded_tower() -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    bare, example = model("qwen2_5_vl"), create_prompt("qwen2_5_vl")
    expected = floc.capture(bare, example.inputs, ratio=RATIO, fast_vision=False)
    accelerate.cpu_offload(bare, torch.device("cpu"))
    with count_calls() as calls:
        video = floc.capture(bare, example.inputs, ratio=RATIO)
    torch.testing.assert_close(video.features, expected.features, **CLOSE)
    slices = example.clips[0].shape[0]
    assert slices in {shape[0] for shape in calls}  # all frames at once


def test_unknown_packing_is_an_error(models) -> None:
    base = models["qwen2_5_vl", "sdpa"].base_model
    attention = base.visual.blocks[0].attn
    ends, others = torch.tensor([0, 8]), torch.tensor([0, 4, 8])
    for rows, key_ends in ((2, ends), (1, others)):
        states = torch.zeros(rows, 2, 8, 16)
        packing = {"cu_seq_lens_q": ends, "cu_seq_lens_k": key_ends}
        with pytest.raises(RuntimeError, match="fast vision does not know; pass fast_vision=False"):
            fast_attention.attend_windows(attention, states, states, states, None, **packing)
