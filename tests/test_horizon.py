"""Option `horizon` of method floc: what `floc.compress` returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import floc
from floc.methods.floc import choose_horizon
from tests.selection.matrices import sharpen
from tests.test_compression import assert_same, unit

BACKENDS = ["reference", "cpu", "torch"]


def check_representatives(tokens: np.ndarray, kept: floc.Kept, horizon: int, detail: int) -> None:
    """Check `represents` and `coverage` against all cosines within the horizon; detail leaves few digits near 1."""
    rows = unit(tokens)
    cells = len(rows) // len(tokens)
    t = np.arange(len(rows)) // cells
    cosine = np.where(np.abs(t[:, None] - t[kept.indices]) <= horizon, rows @ rows[kept.indices].T, -2)
    best = cosine.max(1)
    itself = np.isin(np.arange(len(rows)), kept.indices)
    chosen = cosine[np.arange(len(rows)), kept.represents]
    has_one = (best > 1e-4) | itself
    gap, least = (1 - sharpen(values[has_one].clip(-1, 1), detail) for values in (chosen, best))
    np.testing.assert_allclose(gap, least, atol=2e-4)
    # a token without a similar kept token in its horizon: the kept token of the nearest index, which counts 0
    for v in np.flatnonzero(best < -1e-4):
        distance = np.abs(kept.indices - v)
        assert distance[kept.represents[v]] == distance.min()
    assert kept.coverage == pytest.approx(np.where(has_one, best, 0).mean(), abs=2e-4 if detail == 1 else 2e-3)


@pytest.mark.parametrize("detail", [1, 2, 3, 10])
@pytest.mark.parametrize("horizon", [None, 4])
def test_picks_from_a_static_video_still_gain(detail: float, horizon: int | None) -> None:
    """Cosines of 0.9996 differ enough for an eighth of the tokens."""
    rng = np.random.default_rng(0)
    tokens = (rng.standard_normal((1, 3, 4, 64)) + 0.02 * rng.standard_normal((24, 3, 4, 64))).astype(np.float32)
    kept = floc.compress(tokens, ratio=1 / 8, horizon=horizon, detail=detail)
    assert (kept.gains > 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("budget", [1, 3, 40, 400])
@pytest.mark.parametrize("horizon", [0, 2, 20])
@pytest.mark.parametrize("detail", [1, 3])
def test_representatives_are_within_the_horizon(tokens, backend, budget, horizon, detail) -> None:
    kept = floc.compress(tokens, budget=budget, horizon=horizon, detail=detail, backend=backend)
    check_representatives(tokens, kept, horizon, detail)
    assert 0 < kept.bound <= 1
    assert kept.settings["block"] is None
    assert (kept.settings["dedupe"], kept.settings["horizon"]) == (1, horizon)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 12), st.integers(1, 3), st.integers(1, 3)),
    horizon=st.integers(0, 12),
    detail=st.sampled_from([1, 2, 3, 2.5]),
    seed=st.integers(0, 999),
    data=st.data(),
)
def test_backends_agree_and_orders_are_nested(shape, horizon, detail, seed, data) -> None:
    tokens = np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), (*shape, 16))
    tokens[-1, 0, 0] = 0
    count = data.draw(st.integers(1, tokens[..., 0].size))
    fewer = data.draw(st.integers(1, count))
    options = dict(horizon=horizon, detail=detail)
    want = floc.compress(tokens, budget=count, backend="reference", **options)
    for backend in ("cpu", "torch"):
        kept = floc.compress(tokens, budget=count, backend=backend, **options)
        for name in ("indices", "order", "gains", "represents"):
            np.testing.assert_array_equal(getattr(kept, name), getattr(want, name), err_msg=name)
        assert (kept.coverage, kept.bound) == pytest.approx((want.coverage, want.bound), abs=1e-6)
        assert_same(kept.at(budget=fewer), floc.compress(tokens, budget=fewer, backend=backend, **options))


@pytest.mark.parametrize("detail", [1, 2])
@pytest.mark.parametrize("horizon", [69, 70, 10**6])
def test_a_horizon_longer_than_the_video_is_no_limit(tokens, horizon, detail) -> None:
    want = floc.compress(tokens, budget=100, horizon=None, detail=detail)
    kept = floc.compress(tokens, budget=100, horizon=horizon, detail=detail)
    assert_same(kept, want)
    assert kept.settings == want.settings


def test_horizon_zero_keeps_frames_apart() -> None:
    frames = np.repeat(np.eye(3, dtype=np.float32)[None], 4, axis=0)
    assert floc.compress(frames, budget=12, horizon=0).gains.tolist() == [1] * 12
    assert floc.compress(frames, budget=12, horizon=1).gains.tolist() == [3] * 3 + [1] * 3 + [0] * 6


@pytest.mark.parametrize(("n", "count", "want"), [(640, 80, 4), (640, 20, 4), (640, 10, 8), (640, 640, 4), (9, 1, 4)])
def test_auto_follows_the_ratio(n: int, count: int, want: int) -> None:
    assert choose_horizon(n, count) == want
    tokens = np.random.default_rng(0).standard_normal((n, 1, 4)).astype(np.float32)
    kept = floc.compress(tokens, budget=count, horizon="auto")
    assert kept.settings["horizon"] == want
    assert_same(kept, floc.compress(tokens, budget=count, horizon=want))


@pytest.mark.parametrize("horizon", [0, 3, "auto"])
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95])
def test_coverage_is_reached_with_the_fewest_tokens(tokens, horizon, coverage) -> None:
    kept = floc.compress(tokens, coverage=coverage, horizon=horizon)
    assert kept.coverage >= coverage
    used = kept.settings["horizon"]
    assert used == (horizon if horizon != "auto" else used)
    assert_same(kept, floc.compress(tokens, budget=len(kept), horizon=used))
    if len(kept) > 1:
        assert floc.compress(tokens, budget=len(kept) - 1, horizon=used).coverage < coverage
    if horizon == "auto":  # the ratio that the least horizon needs
        assert used == choose_horizon(840, len(floc.compress(tokens, coverage=coverage, horizon=4)))


def test_types_and_threads_do_not_matter(tokens, set_threads) -> None:
    want = floc.compress(tokens, ratio=1 / 8, horizon=4)
    for threads in (1, 3):
        set_threads(threads)
        assert_same(floc.compress(torch.from_numpy(tokens), ratio=1 / 8, horizon=np.int64(4)), want)
    half = floc.compress(torch.from_numpy(tokens).bfloat16(), ratio=1 / 8, horizon=4)
    assert half.features.dtype == torch.bfloat16
    done: list[float] = []
    floc.compress(tokens, ratio=1 / 8, horizon=4, progress=done.append)
    assert done[-1] == pytest.approx(1)


def test_keeps_what_happens_again() -> None:
    """Two equal events far apart: without a limit one represents both, within a horizon both are kept."""
    tokens = np.zeros((64, 1, 8), np.float32)
    tokens[:, 0, 0] = 1
    tokens[[10, 50], 0] = np.eye(8)[3]
    assert {10, 50} <= set(floc.compress(tokens, budget=16, horizon=4).indices.tolist())
    assert not {10, 50} <= set(floc.compress(tokens, budget=2, horizon=None).indices.tolist())


def test_the_method_rejects_blocks_that_are_not_the_default() -> None:
    with pytest.raises(ValueError, match="horizon=4 excludes blocks"):
        floc.methods.get("floc")(block=8, horizon=4)
