"""`encode`: which slices represent a group best, how many are encoded, and whose tokens the others take."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torchvision", reason="processors need torchvision: pip install 'floc-video[hf]'")

from floc import encoders
from floc.budget import Budget
from floc.encoders import slice_choice
from floc.encoders.slice_choice import ShareRule, SliceOptions, choose_sources, find_new, shrink_frames
from floc.encoders.vision_features import can_encode_in_chunks, find_patch
from floc.encoders.vision_tower import VisionTower
from floc.tokens import Frames
from tests.encoders.test_vision_features import ALL, CLOSE, FRAMES, create_example

PATCH, CELL = 6, 3


@st.composite
def draw_slices(draw: Any) -> np.ndarray:
    """Draw slices of a few scenes, [T, frames, height, width, 3]."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 8)), draw(st.integers(1, 7)), 3)
    scenes = rng.integers(0, 256, (draw(st.integers(1, 4)), *shape))
    order = draw(st.lists(st.integers(0, len(scenes) - 1), min_size=1, max_size=7))
    noise = draw(st.sampled_from([0, 5, 80]))
    return (scenes[order] + rng.integers(-noise, noise + 1, (len(order), *shape))).clip(0, 255).astype(np.uint8)


def compare_by_hand(first: np.ndarray, second: np.ndarray) -> float:
    """Return the root mean square, over frames and colours, of the means of the cell that differs most."""
    frames, height, width, _ = first.shape
    worst = 0.0
    for top, left in itertools.product(range(0, height, CELL), range(0, width, CELL)):
        squares = [
            float(
                first[f, top : top + CELL, left : left + CELL, c].mean()
                - second[f, top : top + CELL, left : left + CELL, c].mean()
            )
            ** 2
            for f in range(frames)
            for c in range(3)
        ]
        worst = max(worst, math.sqrt(sum(squares) / len(squares)))
    return worst


@settings(max_examples=100, deadline=None)
@given(draw_slices(), st.data())
def test_the_choice_represents_all_slices(slices: np.ndarray, data: Any) -> None:
    """As greedy facility location in plain Python; the best choice of all is at most e / (e - 1) as good."""
    n = len(slices)
    count = data.draw(st.integers(1, n))
    differences = [[compare_by_hand(one, other) for other in slices] for one in slices]
    positive = sorted(value for row in differences for value in row if value > 0)
    width = positive[(len(positive) - 1) // 2] / 2 if positive else 1.0
    similarity = [[math.exp(-((value / width) ** 2) / 2) for value in row] for row in differences]

    def evaluate(chosen: Any) -> float:
        return sum(max((similarity[i][j] for i in chosen), default=0) for j in range(n))

    greedy: list[int] = []
    for _ in range(count):
        greedy.append(max((i for i in range(n) if i not in greedy), key=lambda i: evaluate([*greedy, i])))
    thumbnails = torch.stack([shrink_frames(one, PATCH) for one in torch.from_numpy(slices)])
    sources = choose_sources(thumbnails, count)
    chosen = np.flatnonzero(find_new(sources)).tolist()
    assert len(chosen) == count
    best = max(evaluate(some) for some in itertools.combinations(range(n), count))
    assert evaluate(chosen) >= (1 - 1 / math.e) * best - 1e-3
    if count == 1:
        assert evaluate(chosen) == pytest.approx(best, abs=1e-3)
    assert evaluate(chosen) == pytest.approx(evaluate(greedy), abs=0.01 * n)
    for i, source in enumerate(sources):
        assert source in chosen
        assert differences[i][source] == pytest.approx(min(differences[i][j] for j in chosen), abs=1e-3)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), st.fractions(0, 1).filter(bool), st.integers(0, 2**32 - 1), st.lists(st.integers(0, 9)))
def test_counts_and_groups(length: int, share: Any, seed: int, cuts: list[int]) -> None:
    """Exactly the share is encoded, whatever the parts; others take tokens of their group, or of the last before it."""
    numbers = np.random.default_rng(seed).random(length)
    slices = torch.from_numpy(numbers)[:, None, None]
    found: list[float] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slice_choice, "GROUP", 4)
        rule = ShareRule(Budget(ratio=share), lambda slice_: slice_)
        for start, stop in itertools.pairwise(sorted({0, length, *(min(4 * cut, length) for cut in cuts)})):
            part = slices[start:stop]
            sources = rule.find_sources(part)
            np.testing.assert_array_equal(rule.find_sources(part), sources)  # nothing is remembered yet
            new = part[find_new(sources)]
            layers = rule.expand(part, sources, [new, 2 * new] if len(new) else [])
            assert torch.equal(layers[1], 2 * layers[0])
            found += layers[0].flatten().tolist()
    encoded = [i for i in range(length) if found[i] == numbers[i]]
    assert len(encoded) == Budget(ratio=share).count(length)
    for i, value in enumerate(found):
        known = [place for place in encoded if place // 4 == i // 4] or [max(p for p in encoded if p < i)]
        assert value == numbers[min(known, key=lambda place, i=i: abs(numbers[place] - numbers[i]))]


@pytest.mark.parametrize("length", [1, 2, 31, 33, 65])
def test_slices_that_are_all_alike(length: int) -> None:
    """Black slices have no scale; so have slices of which one differs."""
    slices = torch.zeros(length, 2, 14, 14, 3, dtype=torch.uint8)
    for one in range(min(2, length)):
        slices[:one] = 9
        rule = ShareRule(Budget(ratio=Budget.parse("1/4", None, None).ratio), partial(shrink_frames, patch=PATCH))
        assert find_new(rule.find_sources(slices)).sum() == max(1, round(length / 4 + 1e-9))


def create_tower(kind: str, encode: Any = None) -> VisionTower:
    example = create_example(kind)
    base = dict(name=kind, preparer=example.preparer, plan=example.plan, model=example.model.base_model)
    return VisionTower(**base, is_half=False, slices=SliceOptions(encode=encode))  # type: ignore[arg-type]


def list_sources(pixels: np.ndarray, step: int, patch: int, share: str) -> np.ndarray:
    rule = ShareRule(Budget.parse(share, None, None), partial(shrink_frames, patch=patch))
    return rule.find_sources(torch.from_numpy(pixels).unflatten(0, (-1, step)))


@ALL
def test_encoded_slices_have_their_own_tokens_and_others_those_of_their_source(kind: str) -> None:
    config = create_example(kind).model.base_model.config
    if not can_encode_in_chunks(config):
        with pytest.raises(ValueError, match=f"encode needs slices .* {kind} attends across all frames of a video"):
            create_tower(kind, 0.5)
        assert create_tower(kind, 1).rule is None
        return
    step = create_example(kind).preparer.frames_per_slice
    pixels = FRAMES[: len(FRAMES) // step * step]
    whole, tower = create_tower(kind).encode(pixels), create_tower(kind, "1/3")
    sources = list_sources(pixels, step, find_patch(config), "1/3")
    assert 0 < find_new(sources).sum() < len(sources)
    for layer, expected in zip(tower.encode(pixels).all, whole.all, strict=True):
        scale = float(expected.abs().max().clamp(min=1))
        torch.testing.assert_close(layer / scale, expected[torch.from_numpy(sources)] / scale, **CLOSE)
        assert torch.equal(layer, layer[torch.from_numpy(sources)])
    assert all(map(torch.equal, create_tower(kind, "1").encode(pixels).all, whole.all))  # all slices: nothing changes


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_encoded_slices_are_bit_equal(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With equal shapes of every call of the vision encoder: one slice at a time."""
    step = create_example(kind).preparer.frames_per_slice
    monkeypatch.setattr(VisionTower, "chunk_frames", step)
    sources = torch.from_numpy(list_sources(FRAMES, step, find_patch(create_example(kind).model.config), "1/2"))
    for layer, expected in zip(
        create_tower(kind, 0.5).encode(FRAMES).all, create_tower(kind).encode(FRAMES).all, strict=True
    ):
        assert torch.equal(layer, expected[sources])


def test_exactly_the_share_passes_the_encoder_and_videos_are_apart() -> None:
    """In batches of any size; another video never takes tokens of the one before."""
    frames = [np.random.default_rng(seed).integers(0, 256, (134, 40, 64, 3), np.uint8) for seed in range(2)]
    tower, counts, results = create_tower("qwen2_5_vl", "1/8"), list[int](), []
    tower.model.visual.register_forward_pre_hook(lambda module, args: counts.append(len(args[0])))
    for size in (3, 64):
        for pixels in frames:
            batches = [Frames(part, np.arange(len(part))) for part in np.split(pixels, range(size, len(pixels), size))]
            results.append(encoders.encode(batches, tower).tokens)
    create_tower("qwen2_5_vl").encode(frames[0][:2])
    per_slice = counts.pop()
    assert sum(counts) == 4 * 8 * per_slice  # of 67 slices
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])
    assert not torch.isclose(results[0], results[1]).all(-1).any()


@pytest.mark.parametrize("value", [0, -0.5, 1.5, math.nan, math.inf, "half", "2/1", "0", True, [0.5]])
def test_wrong_shares_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"encode must be (in \(0, 1\], encoded / all slices|a number such as)"):
        encoders.get("hf:somewhere", encode=value)


def test_other_options_and_encoders_are_refused() -> None:
    with pytest.raises(ValueError, match="reuse and encode both say which slices are encoded; leave out one of them"):
        encoders.get("hf:somewhere", encode=0.5, reuse=8)
    with pytest.raises(ValueError, match="encode is for the vision encoders of models, hf:<model>, not 'pixels'"):
        encoders.get("pixels", encode=0.5)
    assert SliceOptions(encode=1) == SliceOptions(encode="1.0") == SliceOptions()
    assert SliceOptions(encode="0.50").describe() == {"encode": "1/2"}
