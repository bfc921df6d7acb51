"""Streams with a budget: bounded memory, weights that add up, decay, and coverage close to that of one selection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens, make_tokens_and_cuts
from floc import second_pass
from floc.representatives import find_nearest
from floc.streaming import bounded
from floc.streaming.bounded import ROOM


def true_coverage(tokens: np.ndarray, kept: floc.Kept) -> float:
    flat = torch.from_numpy(tokens).reshape(-1, tokens.shape[-1]).float()
    return float(find_nearest(flat, torch.as_tensor(kept.features).float())[0].mean())


def test_budget_is_kept_in_bounded_memory() -> None:
    tokens = make_tokens(640, 2, 3, dim=16, dtype=np.float32)
    stream = floc.Stream(budget=40, block=8)
    held = []
    for t, frame in enumerate(tokens):
        stream.push(frame, time_s=t * 2.0)
        if t % 64 == 63:
            kept = stream.kept()
            assert len(kept) == min(40, (t + 1) * 6)
            assert kept.shape == (t + 1, 2, 3)
            assert kept.span_s == (0.0, t * 2.0)
            np.testing.assert_array_equal(kept.features, tokens.reshape(-1, 16)[kept.indices])
            np.testing.assert_array_equal(kept.positions, np.stack(np.unravel_index(kept.indices, kept.shape), 1))
            np.testing.assert_array_equal(kept.times_s, kept.positions[:, 0] * 2.0)
            assert (np.diff(kept.indices) > 0).all()
            assert sorted(kept.order.tolist()) == list(range(len(kept)))
            held.append(sum(each.numel() * each.element_size() for each in stream._past.tensors().values()))
    assert max(held) <= ROOM * 40 * (16 * 8 + 16)
    assert held[-1] <= 1.5 * held[1]


def test_budget_is_kept_for_static_video() -> None:
    stream = floc.Stream(budget=40, block=8)
    stream.push(np.repeat(make_tokens(1, 2, 3, dim=16), 100, 0))
    assert len(stream.kept()) == 40


def test_budget_above_all_tokens_keeps_all() -> None:
    tokens = make_tokens(20, 2, 3, dim=16)
    stream = floc.Stream(budget=1000, block=8)
    stream.push(tokens)
    kept = stream.kept()
    assert kept.indices.tolist() == list(range(120))
    assert kept.coverage == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("detail", [1, 2])
def test_coverage_is_close_to_that_of_one_selection(detail: float) -> None:
    tokens = make_tokens(600, 3, 4, dim=32, dtype=np.float32)
    stream = floc.Stream(budget=200, detail=detail)
    stream.push(tokens)
    kept = stream.kept()
    whole = floc.compress(tokens, budget=200, horizon=None, detail=detail)
    assert true_coverage(tokens, kept) > 0.98 * true_coverage(tokens, whole)
    # the coverage by sums assumes one representative per cluster: it is never above the true one
    assert 0.9 * true_coverage(tokens, kept) < kept.coverage < true_coverage(tokens, kept) + 1e-6


def test_sums_of_survivors_add_up_to_all_tokens() -> None:
    """Reductions neither lose tokens nor count them twice."""
    tokens = make_tokens(400, 2, 3, dim=16, dtype=np.float32)
    stream = floc.Stream(budget=20, block=8)
    stream.push(tokens)
    unit = tokens.reshape(-1, 16)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    np.testing.assert_allclose(stream._past.tensors()["sums"].sum(0).numpy(), unit.sum(0), rtol=1e-4)
    assert stream._past.metadata()["counted"] == len(unit)


def test_rare_tokens_survive_many_reductions() -> None:
    """Two unique tokens of one early frame are still kept after many reductions."""
    tokens = make_tokens(3000, 2, 3, dim=32, dtype=np.float32)
    needle = np.random.default_rng(9).standard_normal((2, 32)).astype(np.float32)
    tokens[20, 0, :2] = needle
    stream = floc.Stream(budget=100, block=8)
    stream.push(tokens)
    assert stream._past.metadata()["reductions"] >= 6
    cosine, _ = find_nearest(torch.from_numpy(needle), torch.from_numpy(stream.kept().features))
    assert cosine.min() > 0.9


def test_half_life_reduces_the_measure_share_of_the_past() -> None:
    first, second = make_tokens(320, 2, 3, dim=32, seed=1), make_tokens(320, 2, 3, dim=32, seed=2)

    def measure_share_of_the_past(half_life_s: float | None) -> float:
        stream = floc.Stream(budget=60, block=16, half_life_s=half_life_s)
        stream.push(np.concatenate([first, second]))
        return float((stream.kept().positions[:, 0] < 320).mean())

    shares = [measure_share_of_the_past(each) for each in (None, 200.0, 20.0)]
    assert 0.3 < shares[0] < 0.7
    assert shares[0] > shares[1] > shares[2]


def test_half_life_favours_the_present() -> None:
    stream = floc.Stream(budget=60, block=8, half_life_s=50.0)
    stream.push(make_tokens(3000, 2, 3, dim=16))
    recent = stream.kept().positions[:, 0] >= 2800  # four half-lives
    assert recent.mean() > 0.6


@pytest.mark.parametrize("waits", [False, True])  # whether the last block is still incomplete
def test_gains_of_the_past_decay_with_it(waits: bool) -> None:
    """After a gap in which all weight decayed, a block has as many survivors as it would have alone."""
    rng, times = np.random.default_rng(0), np.arange(16.0)
    old, new = (rng.standard_normal((frames, 2, 3, 16)) for frames in (400, 16))

    def count_survivors(stream: floc.Stream, first: int) -> int:
        past = stream._past
        if waits:
            past = past._copy_with(stream._get_selector(), stream._get_block(slice(0, 15)))
        return int((past.tensors()["index"] >= first * 6).sum())

    options: dict[str, Any] = dict(budget=20, block=16, dedupe=2, half_life_s=100.0)
    alone, later = floc.Stream(**options), floc.Stream(**options)
    later.push(old, time_s=np.arange(400.0))
    assert later._past.metadata()["bar"] > 1
    few = slice(0, 15 if waits else 16)
    alone.push(new[few], time_s=times[few])
    later.push(new[few], time_s=times[few] + 1e6)
    assert count_survivors(later, 400) == count_survivors(alone, 0) == 40


def test_many_survivors_are_selected_from_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = make_tokens(600, 3, 4, dim=32, dtype=np.float32)
    unit = tokens.reshape(-1, 32) / np.linalg.norm(tokens.reshape(-1, 32), axis=1, keepdims=True)
    whole = floc.Stream(budget=200)
    whole.push(tokens)
    sizes = []
    plain = second_pass.Targets
    monkeypatch.setattr(second_pass, "Targets", lambda *given: sizes.append(len(given[1])) or plain(*given))
    monkeypatch.setattr(second_pass, "SURVIVORS_TOGETHER", 90)
    stream = floc.Stream(budget=200)
    stream.push(tokens)
    kept = stream.kept()
    assert max(sizes) <= 90
    assert len(kept) == len(set(kept.indices.tolist())) == 200
    np.testing.assert_allclose(stream._past.tensors()["sums"].sum(0).numpy(), unit[: 576 * 12].sum(0), rtol=1e-4)
    assert true_coverage(tokens, kept) > 0.97 * true_coverage(tokens, whole.kept())


def test_memory_for_a_huge_budget_is_not_allocated() -> None:
    stream = floc.Stream(budget=10**12, block=8)
    stream.push(make_tokens(20, 2, 3, dim=16))
    assert len(stream.kept()) == 120


def test_a_failed_reduction_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = make_tokens(200, 2, 3, dim=16)
    plain, failing = (floc.Stream(budget=20, block=8, half_life_s=30.0) for _ in range(2))
    choose, failures = bounded._reduce, []

    def fail_once(*given: Any) -> Any:
        if not failures:
            failures.append("no memory")
            raise MemoryError
        return choose(*given)

    for t, frame in enumerate(tokens):
        plain.push(frame, time_s=float(t))
    monkeypatch.setattr(bounded, "_reduce", fail_once)
    with pytest.raises(MemoryError):
        failing.push(tokens, time_s=np.arange(200.0))
    done = failing.frames  # the last frame was added; its block is selected from later
    assert 0 < done < 200
    failing.push(tokens[done:], time_s=np.arange(done, 200.0))
    np.testing.assert_array_equal(plain.kept().indices, failing.kept().indices)
    assert plain.kept().coverage == failing.kept().coverage


def test_at_of_a_budget() -> None:
    stream = floc.Stream(budget=60, block=8)
    stream.push(make_tokens(200, 2, 3, dim=16))
    kept = stream.kept()
    smaller = kept.at(budget=20)
    assert set(smaller.indices.tolist()) == set(kept.indices[kept.order[:20]].tolist())
    assert 0 < smaller.coverage < kept.coverage
    assert len(smaller.times_s) == 20
    with pytest.raises(ValueError, match="does not store its tokens"):
        _ = kept.represents


def test_kept_does_not_change_the_stream() -> None:
    tokens = make_tokens(150, 2, 3, dim=16)
    plain, observed = floc.Stream(budget=30, block=8), floc.Stream(budget=30, block=8)
    for frame in tokens:
        plain.push(frame)
        observed.push(frame)
        observed.kept()
    np.testing.assert_array_equal(plain.kept().indices, observed.kept().indices)


def test_scenes_with_a_budget() -> None:
    tokens, cuts = make_tokens_and_cuts(600, 2, 3, 32, seed=2, shot_frames=15, noise=0.3)
    stream = floc.Stream(budget=100, block="scene")
    for t, frame in enumerate(tokens):
        stream.push(frame)
        if t % 97 == 0:
            assert len(stream.kept()) == min(100, (t + 1) * 6)
    kept, even = stream.kept(), floc.Stream(budget=100)
    even.push(tokens)
    assert len(cuts) > 20
    assert true_coverage(tokens, kept) > 0.98 * true_coverage(tokens, even.kept())
