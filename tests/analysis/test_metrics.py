"""Each metric equals a direct implementation of its definition."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens
from floc import analysis

each_method = pytest.mark.parametrize("method", floc.methods.list_methods())


@pytest.fixture(scope="module")
def keep(video: np.ndarray) -> Callable[[str], floc.Kept]:
    """Keep 60 tokens with a method, or the fewest that it can; all tests of a video share the result."""

    @cache
    def compress(method: str) -> floc.Kept:
        options = {"nearest": True} if "nearest" in floc.methods.list_options(method) else {}
        return floc.compress(video, budget=60, method=method, **options)

    return compress


def unit(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64).reshape(-1, x.shape[-1])
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.divide(x, length, out=np.zeros_like(x), where=length > 0)


@pytest.fixture(scope="module", params=["plain", "half", "zeros"])
def video(request: pytest.FixtureRequest) -> np.ndarray:
    tokens = make_tokens(40, 2, 3, dim=20, seed=4, dtype=np.float16 if request.param == "half" else np.float32)
    if request.param == "zeros":
        tokens[::3, 1] = 0
    return tokens


@each_method
def test_averaged_sum_coverage(video: np.ndarray, keep: Callable[[str], floc.Kept], method: str) -> None:
    kept = keep(method)
    expected = np.mean([v @ u for v in unit(video) for u in unit(kept.features)])
    assert analysis.averaged_sum_coverage(video, kept) == pytest.approx(expected, abs=1e-5)


@each_method
def test_averaged_distance(video: np.ndarray, keep: Callable[[str], floc.Kept], method: str) -> None:
    kept = keep(method)
    s = unit(kept.features)
    expected = np.mean([1 - s[i] @ s[j] for i in range(len(s)) for j in range(len(s)) if i != j])
    assert analysis.averaged_distance(video, kept) == pytest.approx(expected, abs=1e-5)


@each_method
def test_coverage_and_worst_coverage(
    video: np.ndarray, keep: Callable[[str], floc.Kept], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep(method)
    best = (unit(video) @ unit(kept.features).T).max(1)
    for tile_bytes in (1 << 26, 1000):  # in one tile, in many
        monkeypatch.setattr("floc.representatives.TILE_BYTES", tile_bytes)
        np.testing.assert_allclose(analysis.closeness(video, kept), best, atol=1e-5)
        assert analysis.coverage(video, kept) == pytest.approx(best.mean(), abs=1e-5)
    assert analysis.worst_coverage(video, kept) == pytest.approx(np.sort(best)[:12].mean(), abs=1e-5)
    assert analysis.coverage(video, kept) >= kept.coverage - 1e-4


@each_method
def test_redundancy_between_blocks(
    video: np.ndarray, keep: Callable[[str], floc.Kept], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep(method)
    s, block = unit(kept.features), kept.positions[:, 0] // 16
    best = [max((s[i] @ s[j] for j in range(len(s)) if block[j] != block[i]), default=None) for i in range(len(s))]
    expected = np.mean([cosine for cosine in best if cosine is not None])
    for tile_bytes in (1 << 26, 1000):
        monkeypatch.setattr("floc.analysis.metrics.TILE_BYTES", tile_bytes)
        assert analysis.redundancy(video, kept, block=16) == pytest.approx(expected, abs=1e-5)
    assert np.isnan(analysis.redundancy(video, kept, block=40))


def test_one_token_has_no_distance_and_no_redundancy() -> None:
    tokens = torch.randn(3, 4, 5)
    kept = floc.compress(tokens, budget=1)
    assert np.isnan(analysis.averaged_distance(tokens, kept))
    assert np.isnan(analysis.redundancy(tokens, kept))


def test_counts_per_frame_and_second(video: np.ndarray) -> None:
    kept = floc.compress(video, budget=30)
    expected = [(kept.indices // 6 == t).sum() for t in range(40)]
    assert analysis.count_per_frame(kept).tolist() == expected
    times = 3 + np.arange(40) * 0.5  # two frames per second, starting after 0
    assert analysis.count_per_second(kept, times).tolist() == [sum(expected[i : i + 2]) for i in range(0, 40, 2)]
    with pytest.raises(ValueError, match="one time for each of 40 frames, got 39"):
        analysis.count_per_second(kept, times[1:])


def test_zscore_of_equal_values_is_zero() -> None:
    assert analysis.zscore(np.array([0.3, 0.3, 0.3])).tolist() == [0, 0, 0]
    z = analysis.zscore(np.array([1.0, 2.0, 6.0]))
    assert z.mean() == pytest.approx(0)
    assert z.std() == pytest.approx(1)
