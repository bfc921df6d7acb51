"""The GPU engine and `floc.select` with backend="gpu" against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens
from floc.selection import reference
from floc.selection.gpu.engine import GpuEngine
from floc.selection.objective import Similarity
from tests.selection.gpu.launches import MARKS
from tests.selection.matrices import make_matrix

pytestmark = MARKS


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.from_numpy(make_tokens(7, 2, 2, dim=24, seed=1, scenes=3, shot_frames=3, dtype=np.float32))


def test_select_takes_sets_of_different_sizes(device: torch.device) -> None:
    matrices, depths = [make_matrix("centred", n, n) for n in (12, 1, 9)], [5, 1, 9]
    on_device = [torch.from_numpy(matrix).to(device) for matrix in matrices]
    picks, gains = GpuEngine().select(on_device, depths)
    wanted = [reference.greedy(matrix, depth) for matrix, depth in zip(matrices, depths, strict=True)]
    np.testing.assert_array_equal(picks.cpu(), np.concatenate([picks for picks, _ in wanted]))
    np.testing.assert_array_equal(gains.cpu(), np.concatenate([gains for _, gains in wanted]))


@pytest.mark.parametrize("weighted", [False, True])
def test_public_select_equals_reference(weighted: bool, device: torch.device) -> None:
    rng = np.random.default_rng(0)
    similarity = rng.integers(-16384, 16384, (14, 9)).astype(np.int16)
    weights = rng.integers(0, 9, 9) if weighted else None
    got = floc.select(torch.from_numpy(similarity).to(device), 6, weights, backend="gpu")
    picks, gains = reference.greedy(similarity, 6, weights)
    assert got.picks.device.type == device.type
    np.testing.assert_array_equal(got.picks.cpu(), picks)
    np.testing.assert_array_equal(got.gains.cpu(), gains)


def test_column_major_floats_equal_reference(device: torch.device) -> None:
    similarity = torch.rand(6, 5, generator=torch.Generator().manual_seed(0))
    column_major = similarity.to(device).T.contiguous().T
    got, want = floc.select(column_major, 4, backend="gpu"), floc.select(similarity, 4, backend="reference")
    assert torch.equal(got.picks.cpu(), want.picks)
    assert torch.equal(got.gains.cpu(), want.gains)


@pytest.mark.parametrize("dedupe", [1, 2])
def test_gaussian_equals_reference(tokens: torch.Tensor, dedupe: int, device: torch.device) -> None:
    options = dict(budget=7, block=2, metric="gaussian", dedupe=dedupe)
    got = floc.compress(tokens.to(device), backend="gpu", **options)
    want = floc.compress(tokens, backend="reference", **options)
    np.testing.assert_array_equal(got.indices.cpu(), want.indices)
    np.testing.assert_array_equal(got.represents.cpu(), want.represents)
    np.testing.assert_allclose(got.gains.cpu(), want.gains, atol=1e-3)
    assert got.coverage == pytest.approx(want.coverage, abs=1e-5)
    assert got.bound == pytest.approx(want.bound, abs=1e-3)


@pytest.mark.parametrize("options", [dict(ratio="1/4"), dict(budget=6)], ids=str)
def test_stream_equals_reference(tokens: torch.Tensor, options: dict, device: torch.device) -> None:
    streams = {backend: floc.Stream(block=2, backend=backend, **options) for backend in ("gpu", "reference")}
    streams["gpu"].push(tokens.to(device))
    streams["reference"].push(tokens)
    got, want = (streams[backend].kept() for backend in ("gpu", "reference"))
    np.testing.assert_array_equal(got.indices.cpu(), want.indices)
    np.testing.assert_allclose(got.gains.cpu(), want.gains, rtol=1e-3, atol=1e-3)
    assert got.coverage == pytest.approx(want.coverage, abs=1e-3)


def test_window_matrices_fit_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_bytes = 1 << 20
    monkeypatch.setattr("floc.selection.gpu.engine.LIMIT_BYTES", limit_bytes)
    sizes = np.full(50, 200)
    survivors = 1000
    window_blocks = GpuEngine().limit_survivors(sizes, survivors) / (survivors / len(sizes))
    assert 0.9 * limit_bytes < window_blocks * 2 * 200**2 <= limit_bytes


def test_bytes_needed_includes_the_transpose() -> None:
    n = 1000
    assert GpuEngine().estimate_bytes(n, 8, Similarity(), weighted=True) >= 2 * 2 * n * n
    assert GpuEngine().estimate_bytes(n, 8, Similarity("gaussian")) >= 2 * 2 * n * n
