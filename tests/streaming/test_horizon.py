"""Streams with a horizon: the definition, the difference to `floc.compress` of the whole, saved state and bad input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import floc
from examples.synthetic import make_tokens
from floc import _system
from floc.budget import Budget
from floc.selection import reference
from floc.selection.objective import SCALE
from floc.streaming.horizon import HorizonPast
from tests.selection.matrices import sharpen
from tests.streaming.test_bounded import true_coverage
from tests.streaming.test_stream import assert_same
from tests.test_compression import unit

BLOCK = 32


def make_signs(frames: int, cells: int, dim: int = 64, seed: int = 0) -> np.ndarray:
    """[frames, 1, cells, dim] tokens of +1 and -1, whose cosines are exact; each frame resembles the one before."""
    rng = np.random.default_rng(seed)
    tokens = rng.choice(np.array([-1, 1], np.float32), (frames, 1, cells, dim))
    for t in range(1, frames):
        tokens[t] = np.where(rng.random(tokens[t].shape) < 0.1, tokens[t], tokens[t - 1])
    return tokens


def measure_similarity(tokens: np.ndarray, horizon: int, detail: int) -> np.ndarray:
    """[n, n] fixed-point similarities of all tokens, 0 beyond the horizon."""
    cosine = (unit(tokens) @ unit(tokens).T).clip(0, 1).astype(np.float32)
    fixed = np.rint(sharpen(cosine, detail) * SCALE).astype(np.int16)
    return reference.limit_to_horizon(fixed, tokens.shape[2], horizon)


def push_all(stream: floc.Stream, tokens: Any) -> floc.Kept:
    stream.push(tokens)
    return stream.kept()


def keep_by_definition(tokens: np.ndarray, ratio: str, horizon: int, detail: int) -> tuple[list[int], list[int]]:
    """Return the kept tokens and their gains, most important first: docs/background/how-it-works.md, step by step."""
    budget, cells, frames = Budget.parse(ratio, None, None), tokens.shape[2], len(tokens)
    similarity = measure_similarity(tokens, horizon, detail)
    block, around = max(BLOCK, 8 * horizon), 2 * horizon
    stored: list[tuple[int, float, int]] = []  # minus the gain, the order among those that gain nothing, the token
    start = 0
    while start < frames:
        is_complete = start + block + around <= frames
        end, seen = (start + block, start + block + around) if is_complete else (frames, frames)
        kept: list[int] = []
        if stored:
            level = sorted(stored)[budget.count(start * cells) - 1][0]
            kept = [token for loss, _, token in stored if loss <= level]
        covered = similarity[kept].max(0, initial=0)
        known = np.arange(max(0, start - around) * cells, seen * cells)
        candidates = np.arange(start * cells, seen * cells)
        rises = np.maximum(similarity[candidates] - covered, 0)[:, known]
        picks, gains = reference.greedy(rises, len(candidates))
        size = (end - start) * cells
        is_own = picks < size
        for rank, (pick, gain) in enumerate(zip(picks[is_own], gains[is_own], strict=True)):
            if rank < min(size, 2 * budget.count(size)):
                stored.append((-int(gain), 0.0 if gain else rank / size, int(candidates[pick])))
        start = end
    best = sorted(stored)[: budget.count(frames * cells)]
    return [token for _, _, token in best], [-loss for loss, _, _ in best]


@pytest.mark.parametrize("backend", ["cpu", "torch", "reference"])
@pytest.mark.parametrize("detail", [1, 2])
@pytest.mark.parametrize(
    ("frames", "cells", "horizon", "ratio"),
    [(150, 2, 2, "1/4"), (103, 3, 0, "1/8"), (99, 1, 4, "1/3"), (40, 2, 3, "1/2"), (170, 1, 5, "1/20"), (65, 3, 1, 1)],
)
def test_equals_the_definition(backend: str, detail: int, frames: int, cells: int, horizon: int, ratio: Any) -> None:
    tokens = make_signs(frames, cells, seed=frames)
    kept = push_all(floc.Stream(ratio=ratio, horizon=horizon, detail=detail, backend=backend), tokens)
    picks, gains = keep_by_definition(tokens, ratio, horizon, detail)
    np.testing.assert_array_equal(kept.gains, np.array(gains) / SCALE)
    np.testing.assert_array_equal(kept.indices[kept.order], picks)


@settings(deadline=None, max_examples=30)
@given(
    frames=st.integers(1, 120),
    cells=st.integers(1, 3),
    horizon=st.integers(0, 4),
    ratio=st.sampled_from(["1/3", "1/8", "2/7", "1/50", "5/6"]),
    seed=st.integers(0, 99),
    parts=st.lists(st.integers(1, 40), min_size=1, max_size=12),
)
def test_parts_of_any_size_give_the_same(
    frames: int, cells: int, horizon: int, ratio: str, seed: int, parts: list[int]
) -> None:
    tokens = make_signs(frames, cells, dim=16, seed=seed)
    stream, start = floc.Stream(ratio=ratio, horizon=horizon, detail=2), 0
    for size in [*parts, frames]:
        if start < frames:
            stream.push(tokens[start : start + size])
            before = stream.kept()  # does not change what comes later
            assert before.n == stream.frames * cells
        start += size
    kept = stream.close()
    picks, gains = keep_by_definition(tokens, ratio, horizon, 2)
    np.testing.assert_array_equal(kept.indices[kept.order], picks)
    np.testing.assert_array_equal(kept.gains, np.array(gains) / SCALE)


@pytest.mark.parametrize("detail", [1, 2])
@pytest.mark.parametrize("ratio", ["1/8", 0.3, 1, "1/60"])
@pytest.mark.parametrize(("frames", "horizon"), [(1, 3), (31, 0), (39, 4), (79, 8), (20, 19), (20, 10**6), (150, 100)])
def test_equals_compress_until_a_block_is_complete(detail: int, ratio: Any, frames: int, horizon: int) -> None:
    tokens = make_tokens(frames, 2, 3, dim=16)
    want = floc.compress(tokens, ratio=ratio, horizon=horizon, detail=detail)
    assert_same(push_all(floc.Stream(ratio=ratio, horizon=horizon, detail=detail), tokens), want)


@pytest.mark.parametrize("detail", [1, 2, 3])
def test_the_whole_video_is_hardly_better(detail: int) -> None:
    tokens = make_tokens(600, 3, 4, dim=32, dtype=np.float32).reshape(600, 1, 12, 32)
    tokens[250:450] = tokens[250, 0, 0]  # nothing happens here, so that it gets less than its share
    similarity = measure_similarity(tokens, 4, detail)
    for ratio, most in (("1/8", 0.002), ("1/32", 0.004)):
        whole = floc.compress(tokens, ratio=ratio, horizon=4, detail=detail)
        kept = push_all(floc.Stream(ratio=ratio, horizon=4, detail=detail), tokens)
        objective, best = (similarity[each.indices].max(0).sum() for each in (kept, whole))
        assert objective > (1 - most) * best
        assert len(kept) == len(whole)
        share = [((each.indices >= 250 * 12) & (each.indices < 450 * 12)).mean() for each in (kept, whole)]
        assert share[0] == pytest.approx(share[1], abs=0.02)
        assert share[0] < 0.2  # of 0.33


@pytest.mark.parametrize("detail", [1, 3])
@pytest.mark.parametrize("horizon", [0, 2, 4])
def test_representatives_are_within_the_horizon(detail: int, horizon: int) -> None:
    tokens = make_tokens(200, 2, 3, dim=24, dtype=np.float32)
    kept = push_all(floc.Stream(ratio="1/6", horizon=horizon, detail=detail), tokens)
    rows, t = unit(tokens), np.arange(1200) // 6
    cosine = rows @ rows[kept.indices].T
    cosine[abs(t[:, None] - t[kept.indices]) > horizon] = 0
    best = cosine.max(1)
    chosen = cosine[np.arange(1200), kept.represents]
    assert (kept.represents[kept.indices] == np.arange(len(kept))).all()
    # at the borders of blocks the second best may represent a token, or what represents it may not be known
    assert best.clip(0).mean() - 3e-3 < kept.coverage < chosen.clip(0).mean() + 1e-4
    assert kept.bound is None
    assert_same(kept.at(ratio="1/6"), kept)
    fewer = kept.at(ratio="1/30")
    assert (len(fewer), set(fewer.indices) <= set(kept.indices)) == (40, True)


def test_borders_do_not_cut() -> None:
    """One event on both sides of a border is kept once, and again if it happens again."""
    tokens = np.tile(np.eye(16, dtype=np.float32)[0], (100, 1, 1, 1))
    tokens[[30, 31, 32, 33, 34, 70], 0, 0] = np.eye(16)[5]
    kept = push_all(floc.Stream(ratio="1/5", horizon=4), tokens)
    gains = dict(zip(kept.indices[kept.order].tolist(), kept.gains, strict=True))
    events = [token for token, gain in gains.items() if gain > 0 and (30 <= token <= 34 or token == 70)]
    assert sorted(events) == [30, 70]
    blocks = push_all(floc.Stream(ratio="1/5", block=32), tokens)
    gains = dict(zip(blocks.indices[blocks.order].tolist(), blocks.gains, strict=True))
    assert sum(gain > 0 for token, gain in gains.items() if 30 <= token <= 34) == 2


def test_kept_gains_are_updated_with_every_block() -> None:
    tokens = make_tokens(400, 2, 3, dim=16)
    stream = floc.Stream(ratio="1/7", horizon=2)
    for t in range(0, 400, 50):
        stream.push(tokens[t : t + 50])
        past = stream._past
        assert isinstance(past, HorizonPast)
        if past.blocks:
            gains = np.concatenate([stored.gains for stored in past.blocks])
            count = past.budget.count(6 * past.frames)
            assert past._kept_gains[0] == np.sort(gains)[-count]
    entries = sum(len(stored.token) for stored in past.blocks)
    assert sum(s.token.nbytes + s.pick.nbytes + s.cosine.nbytes for s in past.blocks) == 12 * entries


def test_static_video_is_shared_evenly() -> None:
    tokens = np.ones((200, 1, 4, 8), np.float32)
    kept = push_all(floc.Stream(ratio="1/4", horizon=1), tokens)
    per_block = np.bincount(kept.indices // (32 * 4))[:5]
    assert per_block.min() >= 25
    assert per_block.max() <= 40


def test_waiting_frames_count_as_frames_of_the_stream() -> None:
    tokens = make_tokens(100, 2, 3, dim=8)
    stream = floc.Stream(ratio="1/8", horizon=4)
    for t, frame in enumerate(tokens):
        stream.push(frame, time_s=5 + t * 0.5)
        assert stream.frames == t + 1
        if t in (0, 30, 47, 48, 99):
            kept = stream.kept()
            assert kept.shape == (t + 1, 2, 3)
            assert kept.span_s == (5, 5 + t * 0.5)
            np.testing.assert_array_equal(kept.features, tokens.reshape(-1, 8)[kept.indices])
            np.testing.assert_array_equal(kept.times_s, kept.positions[:, 0] * 0.5 + 5)
    assert kept.settings["horizon"] == 4
    assert "block" not in kept.settings


def test_dim_compares_the_first_features_only() -> None:
    tokens = make_tokens(120, 2, 3, dim=16, dtype=np.float32)
    beside = np.random.default_rng(0).standard_normal((120, 2, 3, 5)).astype(np.float32) * 100
    one = push_all(floc.Stream(ratio="1/8", horizon=2), tokens)
    other = push_all(floc.Stream(ratio="1/8", horizon=2, dim=16), np.concatenate([tokens, beside], -1))
    np.testing.assert_array_equal(one.indices, other.indices)
    np.testing.assert_array_equal(other.features[:, 16:], beside.reshape(-1, 5)[one.indices])


@pytest.mark.parametrize("ratio", ["1/8", "1/80", 1])
def test_auto_follows_the_ratio(ratio: Any) -> None:
    assert floc.Stream(ratio=ratio, horizon="auto").settings["horizon"] == (10 if ratio == "1/80" else 4)
    assert floc.Stream(budget=5, horizon="auto").settings["horizon"] is None


# ---- with a budget


def test_memory_is_bounded_with_a_horizon() -> None:
    tokens = make_tokens(640, 2, 3, dim=16, dtype=np.float32)
    stream = floc.Stream(budget=40, block=8, horizon=2)
    held = []
    for t, frame in enumerate(tokens):
        stream.push(frame)
        if t % 64 == 63:
            assert len(stream.kept()) == 40
            held.append(sum(each.numel() * each.element_size() for each in stream._past.tensors().values()))
    assert held[-1] <= 1.5 * held[1]
    sums = stream._past.tensors()["sums"].sum(0).numpy()
    np.testing.assert_allclose(sums, unit(tokens).sum(0), rtol=1e-4, atol=1e-2)  # nothing is lost


def test_a_budget_with_a_horizon_longer_than_the_video_equals_none() -> None:
    tokens = make_tokens(300, 2, 3, dim=16, dtype=np.float32)
    want, kept = (push_all(floc.Stream(budget=40, horizon=horizon), tokens) for horizon in (None, 10**6))
    np.testing.assert_array_equal(kept.indices, want.indices)
    assert kept.coverage == want.coverage


def test_a_budget_with_a_horizon_keeps_what_happens_again() -> None:
    """A thing appears for 4 of every 40 frames. With a horizon, the stream keeps it more often."""
    tokens = make_tokens(800, 2, 3, dim=32, scenes=1, shot_frames=1000, dtype=np.float32)
    for first in range(20, 800, 40):
        tokens[first : first + 4] = np.random.default_rng(5).standard_normal(32) * 3

    def count_events(horizon: int | None) -> int:
        kept = push_all(floc.Stream(budget=100, block=8, horizon=horizon), tokens)
        return sum(
            bool(((kept.positions[:, 0] >= t) & (kept.positions[:, 0] < t + 4)).any()) for t in range(20, 800, 40)
        )

    assert count_events(None) <= 2
    assert count_events(4) == 20


def test_the_horizon_of_a_budget_grows_until_the_past_decays() -> None:
    tokens = make_tokens(1500, 2, 3, dim=8, dtype=np.float32)

    def measure_horizons(half_life_s: float | None) -> list[int]:
        stream, horizons = floc.Stream(budget=20, block=10, horizon=4, half_life_s=half_life_s), []
        for first in range(0, 1500, 500):
            stream.push(tokens[first : first + 500])
            past: Any = stream._past
            horizons.append(past._get_reach(past.buffer.view(), 6).horizon)
        return horizons

    assert measure_horizons(None) == [19, 38, 56]  # frames x 6 tokens / (8 x 20)
    # 6 tokens a frame, which weigh half after 200 frames: in all as much as those of 200 / ln 2 frames
    assert measure_horizons(200.0) == pytest.approx(
        [9, 200 / math.log(2) * 6 / 160, 200 / math.log(2) * 6 / 160], abs=1
    )


def test_a_block_is_selected_from_with_the_horizon() -> None:
    tokens = make_tokens(32, 2, 3, dim=16, dtype=np.float32)
    stream = floc.Stream(budget=24, horizon=2)  # a block stores 1.25 times its share
    stream.push(tokens)
    want = floc.compress(tokens, budget=30, horizon=2)
    assert sorted(stream._past.tensors()["index"].tolist()) == want.indices.tolist()
    assert want.indices.tolist() != floc.compress(tokens, budget=30, horizon=None).indices.tolist()


def test_a_budget_with_a_horizon_covers_the_video() -> None:
    tokens = make_tokens(600, 3, 4, dim=32, dtype=np.float32)
    kept, want = (push_all(floc.Stream(budget=200, horizon=horizon), tokens) for horizon in (4, None))
    assert true_coverage(tokens, kept) > 0.93 * true_coverage(tokens, want)


# ---- saved states


@pytest.mark.parametrize(
    "options",
    [
        {"ratio": "1/5", "horizon": 2},
        {"ratio": "1/5", "horizon": 0},
        {"ratio": "1/60", "horizon": "auto"},
        {"ratio": "1/5", "horizon": 3, "dim": 9},
        {"budget": 30, "block": 16, "horizon": 3, "half_life_s": 40.0},
    ],
)
@pytest.mark.parametrize("at", [0, 3, 31, 32, 36, 37, 80, 130])
def test_loaded_stream_continues_identically(options: dict[str, Any], at: int, tmp_path: Path) -> None:
    tokens = torch.from_numpy(make_tokens(150, 2, 3, dim=16)).bfloat16()
    whole, part = floc.Stream(**options), floc.Stream(**options)
    whole.push(tokens, time_s=np.arange(150) * 0.5)
    if at:
        part.push(tokens[:at], time_s=np.arange(at) * 0.5)
    part.save(tmp_path / "state")
    part = floc.Stream.load(tmp_path / "state")
    assert (part.frames, part.settings) == (at, whole.settings)
    part.push(tokens[at:], time_s=np.arange(at, 150) * 0.5)
    one, other = whole.kept(), part.kept()
    assert torch.equal(one.features, other.features)
    for name in ("indices", "order", "gains", "times_s"):
        np.testing.assert_array_equal(np.asarray(getattr(one, name)), np.asarray(getattr(other, name)))
    assert (one.coverage, one.span_s, one.settings) == (other.coverage, other.span_s, other.settings)


# ---- bad input


@pytest.mark.parametrize("horizon", [-1, 1.5, "near", "4", True, math.nan, math.inf, [4], np.array([1, 2])])
@pytest.mark.parametrize("size", [{"ratio": "1/8"}, {"budget": 9}])
def test_rejects_bad_horizons(horizon: Any, size: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="horizon must be a whole number of frames, at least 0, 'auto', or None"):
        floc.Stream(**size, horizon=horizon)


def test_rejects_what_a_horizon_replaces() -> None:
    for block in (8, "scene"):
        with pytest.raises(ValueError, match=f"horizon=4 excludes blocks .* remove block={block!r}"):
            floc.Stream(ratio="1/8", horizon=4, block=block)
        assert floc.Stream(budget=9, horizon=4, block=block).settings["block"] == block
    with pytest.raises(ValueError, match=r"excludes blocks .* remove metric='gaussian'"):
        floc.Stream(ratio="1/8", horizon=4, metric="gaussian")


def test_a_horizon_that_does_not_fit_in_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = floc.Stream(ratio="1/8", horizon=400, backend="torch")
    stream.push(make_tokens(64, 2, 3, dim=16))
    before = stream.kept().indices
    with monkeypatch.context() as scarce:
        scarce.setattr(_system, "available_bytes", lambda device: 2**20)
        with pytest.raises(MemoryError, match="pass a horizon below 400, or smaller frames"):
            stream.push(make_tokens(1, 2, 3, dim=16))
    np.testing.assert_array_equal(stream.kept().indices, before)
    stream.push(make_tokens(10, 2, 3, dim=16))
    assert stream.frames == 74
