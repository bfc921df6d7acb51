"""`floc.compress`: results for every combination of options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import floc
from examples.synthetic import make_tokens
from floc import blocks
from floc.selection import reference
from floc.tokens import TokenGrid
from tests.selection.matrices import snap

WAYS = {
    "default": {},
    "paper": dict(method="floc-paper"),
    "second pass": dict(block=32, dedupe=2, detail=1),
    "detail": dict(block=32),
    "whole": dict(horizon=None),
    "gaussian": dict(metric="gaussian", dedupe=2),
    "gaussian blocks": dict(metric="gaussian", detail=1),
    "short blocks": dict(block=3),
    "scenes": dict(block="scene"),
    "fractions": dict(dedupe=1.5, detail=1.5),
    "horizon": dict(horizon=3, detail=2),
}
each_way = pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
NESTED = ["indices", "positions", "order", "gains", "represents", "features"]


def unit(tokens: np.ndarray) -> np.ndarray:
    flat = tokens.reshape(-1, tokens.shape[-1]).astype(np.float64)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-300)


def assert_same(a: floc.Kept, b: floc.Kept) -> None:
    for name in NESTED:
        np.testing.assert_array_equal(np.asarray(getattr(a, name)), np.asarray(getattr(b, name)), err_msg=name)
    assert (a.coverage, a.bound) == (b.coverage, b.bound)


@each_way
@pytest.mark.parametrize("budget", [1, 2, 5, 105, 839, 840])
def test_kept_is_consistent(tokens: np.ndarray, options: dict, budget: int) -> None:
    kept = floc.compress(tokens, budget=budget, **options)
    n = 70 * 3 * 4
    assert len(kept) == budget == len(set(kept.indices.tolist()))
    assert (np.diff(kept.indices) > 0).all()
    t, y, x = kept.positions.T
    np.testing.assert_array_equal(t * 12 + y * 4 + x, kept.indices)
    np.testing.assert_array_equal(kept.features, tokens.reshape(n, -1)[kept.indices])
    assert sorted(kept.order) == list(range(budget))
    assert kept.gains.shape == (budget,)
    assert kept.represents.shape == (n,)
    assert kept.represents.min() >= 0
    assert kept.represents.max() < budget
    assert 0 < kept.bound <= 1
    if budget > 24:  # every block keeps a token, so every token has a representative of its block
        rows = unit(tokens)
        cosine = (rows * rows[kept.indices[kept.represents]]).sum(1)
        assert kept.coverage == pytest.approx(cosine.mean(), abs=1e-4)
    if budget == n:
        assert kept.coverage == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("block", [32, 7, None])
def test_paper_method_is_plain_greedy_in_every_block(tokens: np.ndarray, block: int | None) -> None:
    kept = floc.compress(tokens, ratio=1 / 8, method="floc-paper", block=block)
    spans = blocks.split_blocks(70, block)
    shares = blocks.share_budget([12 * (span.stop - span.start) for span in spans], 105)
    want, gains = [], 0.0
    for span, k in zip(spans, shares, strict=True):
        rows = unit(tokens[span])
        picks, won = reference.greedy(snap((rows @ rows.T).astype(np.float32)), int(k))
        want += (span.start * 12 + picks).tolist()
        gains += won.sum() / 2**14
    assert sorted(want) == kept.indices.tolist()
    assert kept.gains.sum() == pytest.approx(gains)
    assert kept.coverage == pytest.approx(gains / 840)


@settings(max_examples=25, deadline=None)
@given(
    frames=st.integers(1, 20),
    height=st.integers(1, 3),
    width=st.integers(1, 3),
    block=st.one_of(st.none(), st.integers(1, 9)),
    dedupe=st.sampled_from([1, 2, 3]),
    detail=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_any_grid_and_budget(frames, height, width, block, dedupe, detail, seed, data) -> None:
    tokens = np.random.default_rng(seed).standard_normal((frames, height, width, 5)).astype(np.float32)
    tokens[tokens[..., 0] > 1.2] = 0
    n = frames * height * width
    budget = data.draw(st.integers(1, n + 3))
    before = tokens.copy()
    kept = floc.compress(tokens, budget=budget, block=block, dedupe=dedupe, detail=detail)
    np.testing.assert_array_equal(tokens, before)
    assert len(kept) == min(budget, n)
    assert (np.diff(kept.indices) > 0).all()
    assert 0 <= kept.represents.min() <= kept.represents.max() < len(kept)
    again = floc.compress(tokens, budget=budget, block=block, dedupe=dedupe, detail=detail)
    assert_same(kept, again)


@each_way
def test_backends_agree(tokens: np.ndarray, options: dict) -> None:
    kept = {b: floc.compress(tokens, ratio=1 / 8, backend=b, **options) for b in ("cpu", "torch", "reference")}
    for other in ("torch", "reference"):
        # only the similarity matrix may differ, by a unit in the last place: the objective may not
        assert kept[other].gains.sum() == pytest.approx(kept["cpu"].gains.sum(), rel=1e-5)
        assert np.isin(kept[other].indices, kept["cpu"].indices).mean() > 0.97
    np.testing.assert_array_equal(kept["torch"].indices, kept["reference"].indices)
    np.testing.assert_array_equal(kept["torch"].gains, kept["reference"].gains)


@each_way
@pytest.mark.parametrize("coverage", [0.5, 0.85, 0.95])
def test_coverage_is_reached_with_the_fewest_tokens(tokens: np.ndarray, options: dict, coverage: float) -> None:
    kept = floc.compress(tokens, coverage=coverage, **options)
    assert kept.coverage >= coverage
    assert len(kept) == 1 or kept.at(budget=len(kept) - 1).coverage < coverage
    assert_same(kept.at(coverage=coverage), kept)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("metric", ["cosine", "gaussian"])
def test_no_smaller_budget_reaches_the_coverage(seed: int, metric: str) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.standard_normal((12, 3, 3)) * rng.uniform(0.1, 5, (12, 3, 1))
    options = dict(block=5, dedupe=1, detail=1, metric=metric)
    full = floc.compress(tokens, ratio=1, **options)
    for coverage in (0.6, 0.8, 0.9, 0.95):
        fewest = min(k for k in range(1, 37) if full.at(budget=k).coverage >= coverage)
        assert len(floc.compress(tokens, coverage=coverage, **options)) == fewest


def test_coverage_of_one_keeps_all_distinct_tokens(tokens: np.ndarray) -> None:
    twice = np.concatenate([tokens[:20], tokens[:20]])
    kept = floc.compress(twice, coverage=1.0, horizon=None, detail=1)
    assert len(kept) == 240


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_torch_input_gives_torch_output(tokens: np.ndarray, dtype: torch.dtype, backend: str) -> None:
    given_ = torch.from_numpy(tokens).to(dtype)
    kept = floc.compress(given_, ratio=1 / 8, backend=backend)
    assert kept.features.dtype == dtype
    assert torch.equal(kept.features, given_.reshape(840, -1)[kept.indices])
    for name in NESTED:
        assert isinstance(getattr(kept, name), torch.Tensor)
        assert getattr(kept, name).device == given_.device
    # half precision is normalised in float32: the same as widening first
    wide = floc.compress(given_.float(), ratio=1 / 8, backend=backend)
    assert torch.equal(kept.indices, wide.indices)
    assert torch.equal(kept.gains, wide.gains)
    assert torch.equal(kept.at(budget=50).features.float(), wide.at(budget=50).features)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numpy_input_gives_numpy_output(tokens: np.ndarray, dtype: type) -> None:
    kept = floc.compress(tokens.astype(dtype), ratio=1 / 8)
    assert kept.features.dtype == dtype
    assert all(isinstance(getattr(kept, name), np.ndarray) for name in NESTED)


def test_foreign_byte_order_is_preserved(tokens: np.ndarray) -> None:
    kept = floc.compress(tokens.astype(">f4"), ratio=1 / 8)
    assert kept.features.dtype == np.dtype(">f4")
    np.testing.assert_array_equal(kept.features, floc.compress(tokens, ratio=1 / 8).features)


@each_way
def test_memory_layout_does_not_matter(tokens: np.ndarray, options: dict) -> None:
    channels_first = torch.from_numpy(np.ascontiguousarray(tokens.transpose(0, 3, 1, 2))).permute(0, 2, 3, 1)
    assert not channels_first.is_contiguous()
    assert_same(floc.compress(channels_first, ratio=1 / 8, **options), floc.compress(tokens, ratio=1 / 8, **options))
    assert_same(floc.compress(tokens[::-1][::-1], budget=9, **options), floc.compress(tokens, budget=9, **options))
    backwards = floc.compress(tokens[::-1], budget=9, **options)
    assert_same(backwards, floc.compress(tokens[::-1].copy(), budget=9, **options))
    read_only = tokens.copy()
    read_only.setflags(write=False)
    assert_same(floc.compress(read_only, budget=9, **options), floc.compress(tokens, budget=9, **options))


@each_way
@pytest.mark.parametrize("budget", [1, 13, 105, 840])
def test_indices_equal_those_of_compress(tokens: np.ndarray, options: dict, budget: int) -> None:
    name, own = options.get("method", "floc"), {key: value for key, value in options.items() if key != "method"}
    named = floc.methods.make(name, own).select_indices(TokenGrid.from_array(tokens), budget)
    assert named.tolist() == floc.compress(tokens, budget=budget, **options).indices.tolist()


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_indices_equal_those_of_compress_in_windows(
    tokens: np.ndarray, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floc.second_pass.SURVIVORS_TOGETHER", 150)
    method = floc.methods.make("floc", {"dedupe": 2, "backend": backend})
    assert len(method.plan_windows(torch.from_numpy(tokens), 105)) > 1
    named = method.select_indices(TokenGrid.from_array(tokens), 105)
    assert named.tolist() == floc.compress(tokens, budget=105, dedupe=2, backend=backend).indices.tolist()


def test_frames_without_rows(tokens: np.ndarray) -> None:
    flat = floc.compress(tokens.reshape(70, 12, -1), ratio=1 / 8)
    grid = floc.compress(tokens, ratio=1 / 8)
    np.testing.assert_array_equal(flat.indices, grid.indices)
    assert flat.shape == (70, 1, 12)
    np.testing.assert_array_equal(flat.positions[:, 2], grid.positions[:, 1] * 4 + grid.positions[:, 2])


def test_features_do_not_require_grad(tokens: np.ndarray) -> None:
    given_ = torch.from_numpy(tokens).requires_grad_()
    kept = floc.compress(given_, budget=7)
    assert not kept.features.requires_grad  # selection is not differentiable: gather by index for gradients
    assert given_.reshape(840, -1)[kept.indices].requires_grad


@each_way
def test_threads_do_not_change_the_result(tokens: np.ndarray, options: dict, set_threads) -> None:
    side = 2 if options.get("metric") == "gaussian" else 5  # which takes torch much longer
    noise = np.random.default_rng(0).normal(0, 0.5, (70, 3 * side, 4 * side, 48)).astype(np.float32)
    wide = np.tile(tokens, (1, side, side, 1)) + noise
    answers = []
    for threads in (1, 2, 3):
        set_threads(threads)
        answers.append(floc.compress(wide, ratio=1 / 32, **options))
    assert_same(answers[0], answers[1])
    assert_same(answers[0], answers[2])


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        (np.zeros((6, 2, 2, 3)), 4),  # nothing but zeros
        (np.ones((40, 2, 2, 3)), 5),  # all the same
        (np.ones((1, 1, 1, 1)), 1),
        (np.eye(7)[:, None], 3),  # orthogonal
        (np.concatenate([np.eye(4), -np.eye(4)])[:, None], 4),  # opposites
    ],
)
@each_way
def test_degenerate_tokens(tokens: np.ndarray, kept: int, options: dict) -> None:
    got = floc.compress(tokens.astype(np.float32), budget=kept, **options)
    assert len(got) == kept
    assert np.isfinite([got.coverage, got.bound]).all()
    assert np.isfinite(got.gains).all()


STATIC = make_tokens(64, 3, 4, dim=64, seed=5, noise=0.03, objects=0, rare_every=10**9, scenes=1, dtype=np.float32)


@each_way
def test_static_video_keeps_the_worst_covered_tokens(options: dict) -> None:
    """All cosines are near 1, where 1 - (1 - cos)^2 has no resolution."""
    kept = floc.compress(STATIC, ratio=1 / 4, **options)
    plain = floc.compress(STATIC, ratio=1 / 4, **{**options, "detail": 1})
    assert 1 - kept.coverage < 2.6 * (1 - plain.coverage)
    np.testing.assert_array_equal(kept.represents[kept.indices], np.arange(len(kept)))
    everything = floc.compress(STATIC, ratio=1, **options)
    assert everything.coverage == 1
    np.testing.assert_array_equal(everything.represents, np.arange(everything.n))
    assert floc.compress(STATIC, coverage=0.9999, **options).coverage >= 0.9999


@pytest.mark.parametrize("length", [1e-6, 3, 1e5])
@pytest.mark.parametrize("backend", ["cpu", "torch", "reference"])
@pytest.mark.parametrize("dedupe", [1, 2])
@pytest.mark.parametrize("metric", ["cosine", "gaussian"])
def test_equal_tokens_have_similarity_one(length: float, backend: str, dedupe: int, metric: str) -> None:
    for dim in (7, 64, 100, 333, 1000):  # for some of them the cosine of equal tokens rounds to less than 1
        one = np.random.default_rng(dim).standard_normal(dim)
        tokens = np.tile(length * one, (12, 2, 2, 1)).astype(np.float32)
        kept = floc.compress(tokens, budget=3, block=4, dedupe=dedupe, detail=1, metric=metric, backend=backend)
        assert kept.gains.sum() == pytest.approx(48, rel=1e-3)
        assert kept.coverage == pytest.approx(1)


def test_zero_tokens_are_similar_to_nothing() -> None:
    tokens = np.zeros((4, 1, 3), np.float32)
    tokens[2] = [1, 0, 0]
    kept = floc.compress(tokens, budget=1)
    assert kept.indices.tolist() == [2]
    assert kept.coverage == pytest.approx(0.25)
    with pytest.raises(ValueError, match=r"coverage 0.5 cannot be reached.*0.250000"):
        floc.compress(tokens, coverage=0.5)


@pytest.mark.parametrize("options", [{}, dict(detail=1), dict(metric="gaussian")], ids=str)
def test_kept_tokens_represent_themselves_after_two_passes(tokens: np.ndarray, options: dict) -> None:
    kept = floc.compress(tokens, ratio=1 / 8, **options)
    np.testing.assert_array_equal(kept.represents[kept.indices], np.arange(len(kept)))


def test_second_pass_removes_what_blocks_repeat() -> None:
    """Two blocks of the same four things: one pass keeps each twice, two passes keep each once."""
    things = np.eye(4, dtype=np.float32)
    tokens = np.tile(things[None], (64, 1, 1))
    one = floc.compress(tokens, budget=4, block=32)
    two = floc.compress(tokens, budget=4, block=32, dedupe=2)
    assert one.coverage == pytest.approx(0.5)
    assert two.coverage == pytest.approx(1.0)


@pytest.mark.parametrize("ratio", [8, 32])
def test_second_pass_gains_most_of_what_the_whole_video_gains(ratio: int) -> None:
    tokens = make_tokens(160, 5, 6, dim=64, seed=3, shot_frames=25)
    plain, second, whole = (
        floc.compress(tokens, ratio=1 / ratio, detail=1, **options)
        for options in (dict(block=32), dict(dedupe=2), dict(horizon=None))
    )
    assert (second.coverage - plain.coverage) / (whole.coverage - plain.coverage) >= 0.65


def test_detail_raises_the_worst_coverage(tokens: np.ndarray) -> None:
    rows = unit(tokens)

    def worst(kept: floc.Kept) -> float:
        return float(np.quantile((rows @ rows[kept.indices].T).max(1), 0.02))

    plain, detailed = (floc.compress(tokens, ratio=1 / 32, detail=d, horizon=None) for d in (1, 3))
    assert worst(detailed) > worst(plain)


def test_progress_goes_to_one(tokens: np.ndarray) -> None:
    seen: list[float] = []
    floc.compress(tokens, ratio=1 / 8, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1, abs=0.01)
    for coverage in (0.9, 0.1):  # with the least horizon, and with a second selection within a longer one
        seen.clear()
        floc.compress(tokens, coverage=coverage, progress=seen.append)
        assert seen == sorted(seen)
        assert seen[-1] == pytest.approx(1, abs=0.01)


def test_settings_are_recorded(tokens: np.ndarray) -> None:
    kept = floc.compress(tokens, ratio=1 / 8, block=16)
    assert kept.method == "floc"
    expected = dict(horizon=None, detail=3, block=16, dedupe=1, metric="cosine", backend="cpu")
    assert kept.settings == {**expected, "query": None, "query_weight": 0}
    assert kept.seconds > 0
    assert kept.ratio == 1 / 8
    assert "105 of 840" in repr(kept)
