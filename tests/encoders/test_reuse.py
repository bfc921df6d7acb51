"""Slices that look like the last encoded one take its tokens: which ones, in which chunks, and for which models."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("torchvision", reason="processors need torchvision: pip install 'floc-video[hf]'")

from floc import encoders
from floc.encoders import vision_tower
from floc.encoders.slice_choice import DifferenceRule, SliceOptions, find_new, measure_frames
from floc.encoders.vision_features import can_encode_in_chunks, require_separate_slices
from floc.encoders.vision_tower import VisionTower
from tests.encoders.test_vision_features import ALL, CLOSE, FRAMES, create_example
from tests.integrations.transformers.checkpoints import save

PATCH = 3


def measure_by_hand(first: np.ndarray, second: np.ndarray) -> float:
    """Return the root mean square of the worst patch of two slices [frames, height, width, 3]."""
    frames, height, width, _ = first.shape
    worst = 0.0
    for top in range(0, height, PATCH):
        for left in range(0, width, PATCH):
            squares = [
                (int(first[f, y, x, c]) - int(second[f, y, x, c])) ** 2
                for f in range(frames)
                for y in range(top, min(top + PATCH, height))
                for x in range(left, min(left + PATCH, width))
                for c in range(3)
            ]
            worst = max(worst, math.sqrt(sum(squares) / len(squares)))
    return worst


def create_rule(tolerance: float) -> DifferenceRule:
    return DifferenceRule(tolerance, lambda slices, last: measure_frames(slices, last, PATCH))


@st.composite
def draw_films(draw: Any) -> np.ndarray:
    """Draw slices that stay, drift or cut, [T, frames, height, width, 3]."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 7)), draw(st.integers(1, 8)), 3)
    slices = [rng.integers(0, 256, shape)]
    for kind in draw(st.lists(st.sampled_from(["stay", "drift", "spot", "cut"]), max_size=24)):
        last = slices[-1].copy()
        if kind == "drift":
            last += rng.integers(-3, 4, shape)
        elif kind == "spot":  # one value, so that only one patch differs
            last[tuple(rng.integers(0, shape))] += 30
        elif kind == "cut":
            last = rng.integers(0, 256, shape)
        slices.append(last.clip(0, 255))
    return np.stack(slices).astype(np.uint8)


@settings(max_examples=150, deadline=None)
@given(draw_films(), st.floats(0, 60), st.lists(st.integers(0, 25), max_size=4))
def test_reused_slices_are_within_the_tolerance_of_their_source(
    film: np.ndarray, tolerance: float, cuts: list[int]
) -> None:
    """In chunks of any size, as plain Python says of the whole film."""
    expected, sources = [], []
    for number, slice_ in enumerate(film):
        difference = measure_by_hand(slice_, film[sources[-1]]) if sources else math.inf
        assume(difference == 0 or abs(difference - tolerance) > 1e-3)  # float32 rounds
        expected.append(difference > tolerance)
        sources.append(number if expected[-1] else sources[-1])
    rule = create_rule(tolerance)
    found: list[bool] = []
    values: list[torch.Tensor] = []
    for start, stop in pairwise(sorted({0, len(film), *(min(cut, len(film)) for cut in cuts)})):
        part = torch.from_numpy(film[start:stop])
        taken = rule.find_sources(part)
        is_new = find_new(taken)
        tokens, deep = rule.expand(part, taken, encode(part[is_new]) if is_new.any() else ())
        assert torch.equal(deep, tokens + 1)
        found += is_new.tolist()
        values += tokens
    assert found == expected
    assert torch.equal(torch.stack(values), encode(torch.from_numpy(film[sources]))[0])
    if tolerance == 0:
        assert torch.equal(torch.stack(values), encode(torch.from_numpy(film))[0])


def encode(slices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return tokens and deep features that tell slices apart."""
    tokens = slices.flatten(1).float() / 7
    return tokens, tokens + 1


def test_slow_changes_do_not_accumulate() -> None:
    brighter = torch.arange(0, 40, dtype=torch.uint8).view(-1, 1, 1, 1, 1).expand(40, 2, 6, 6, 3)
    rule = create_rule(5)
    assert np.unique(rule.find_sources(brighter)).tolist() == [*range(0, 40, 6)]


def test_a_difference_that_is_not_a_number_is_one() -> None:
    rule = DifferenceRule(255, lambda slices, last: (slices - last).abs().amax(1))
    assert rule.find_sources(torch.tensor([[0.0], [0.0], [math.nan], [math.nan]])).tolist() == [0, 0, 2, 3]


def test_slices_of_another_size_are_new() -> None:
    rule = create_rule(255)
    for size in (4, 6, 4):
        part = torch.zeros(2, 1, size, size, 3, dtype=torch.uint8)
        taken = rule.find_sources(part)
        assert taken.tolist() == [0, 0]
        (tokens,) = rule.expand(part, taken, [torch.full((1, size), float(size))])
        assert tokens.tolist() == [[float(size)] * size] * 2


def create_tower(kind: str, tolerance: float | None) -> VisionTower:
    example = create_example(kind)
    base = dict(name=kind, preparer=example.preparer, plan=example.plan, model=example.model.base_model)
    return VisionTower(**base, is_half=False, slices=SliceOptions(tolerance))  # type: ignore[arg-type]


def repeat_slices(kind: str, numbers: list[int]) -> np.ndarray:
    """Return the frames of a video whose slices are these of FRAMES."""
    step = create_example(kind).preparer.frames_per_slice
    return np.concatenate([FRAMES[step * number : step * (number + 1)] for number in numbers])


@ALL
def test_a_video_with_repeats_equals_encoding_every_slice(kind: str) -> None:
    config = create_example(kind).model.base_model.config
    if not can_encode_in_chunks(config):
        with pytest.raises(ValueError, match=f"independently .* {kind} attends across all frames of a video; leave"):
            create_tower(kind, 0.0)
        return
    pixels = repeat_slices(kind, [0, 0, 1, 1, 1, 0])
    expected = create_tower(kind, None).encode(pixels).all
    tower = create_tower(kind, 0.0)
    parts = [tower.encode(part).all for part in np.split(pixels, [len(pixels) // 2])]
    for whole, layers in zip(expected, zip(*parts, strict=True), strict=True):
        joined, scale = torch.cat(layers), float(whole.abs().max().clamp(min=1))
        assert torch.equal(joined[0], joined[1])
        assert torch.equal(joined[2], joined[4])
        torch.testing.assert_close(joined / scale, whole / scale, **CLOSE)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_frames_alone_in_the_encoder_are_bit_equal(kind: str) -> None:
    """With equal shapes of every call, results are equal to the bit: one slice at a time."""
    pixels, step = repeat_slices(kind, [0, 0, 1, 1, 0, 2]), create_example(kind).preparer.frames_per_slice
    bare, tower = create_tower(kind, None), create_tower(kind, 0.0)
    for frames in pixels.reshape(-1, step, *pixels.shape[1:]):
        for expected, actual in zip(bare.encode(frames).all, tower.encode(frames).all, strict=True):
            assert torch.equal(actual, expected)


def count_encoded(tower: VisionTower, pixels: np.ndarray) -> int:
    """Return the patches that pass the vision encoder."""
    counts: list[int] = []
    hook = tower.model.visual.register_forward_pre_hook(lambda module, args: counts.append(len(args[0])))
    tower.encode(pixels)
    hook.remove()
    return sum(counts)


def test_only_new_slices_pass_the_encoder() -> None:
    pixels = repeat_slices("qwen2_5_vl", [0, 0, 1, 1, 1, 0])
    full, reduced = (count_encoded(create_tower("qwen2_5_vl", value), pixels) for value in (None, 0.0))
    assert (reduced, full) == (full // 2, 6 * full // 6)
    assert full > 0
    assert count_encoded(create_tower("qwen2_5_vl", 255), pixels) == full // 6
    tower = create_tower("qwen2_5_vl", 0.0)
    tower.encode(pixels)
    assert count_encoded(tower, pixels[:2]) == 0
    assert count_encoded(replace(tower), pixels[:2]) == full // 6  # a copy for another video
    tower.forget()
    assert count_encoded(tower, pixels[:2]) == full // 6


def test_the_memory_is_right_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tower, pixels = create_tower("qwen2_5_vl", 0.0), repeat_slices("qwen2_5_vl", [0, 1, 1])
    tower.encode(pixels[:2])

    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(vision_tower, "encode_prepared", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            tower.encode(pixels[2:4])
    expected = create_tower("qwen2_5_vl", None).encode(pixels)
    torch.testing.assert_close(tower.encode(pixels[2:]).tokens, expected.tokens[1:], **CLOSE)


@pytest.mark.parametrize("value", [-1, -1e-9, 255.1, math.nan, math.inf, "8", True, [8]])
def test_wrong_tolerances_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="reuse must be a number of levels of a pixel, 0 to 255, or None"):
        encoders.get("hf:somewhere", reuse=value)


def test_other_encoders_and_unknown_models_are_refused(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match=r"reuse is for the vision encoders of models, hf:<model>, not 'pixels'"):
        encoders.get("pixels", reuse=8)
    with pytest.raises(ValueError, match="floc does not know whether the vision encoder of new_vl attends across"):
        require_separate_slices(SimpleNamespace(model_type="new_vl"), "reuse")
    folder = save("qwen2_5_vl", tmp_path)
    assert encoders.get(f"hf:{folder}", device="cpu", reuse=8).slices.reuse == 8  # type: ignore[attr-defined]
