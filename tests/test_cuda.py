"""The torch backend on a GPU: the same answer, on the device it was asked on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import floc
from floc.selection import reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("n", [1, 17, 257, 1000])
def test_select_equals_the_reference(n: int) -> None:
    similarity = np.random.default_rng(n).integers(-300, 300, (n, n)).astype(np.int16)
    got = floc.select(torch.from_numpy(similarity).cuda(), max(1, n // 8))
    assert got.picks.is_cuda
    want = reference.greedy(similarity, max(1, n // 8))
    np.testing.assert_array_equal(got.picks.cpu().numpy(), want[0])
    np.testing.assert_array_equal(got.gains.cpu().numpy(), want[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("options", [{}, dict(method="floc-paper"), dict(block=None), dict(metric="gaussian")], ids=str)
def test_compress_stays_on_the_device(tokens: np.ndarray, dtype: torch.dtype, options: dict) -> None:
    given = torch.from_numpy(tokens).to(dtype)
    on_gpu = floc.compress(given.cuda(), ratio=1 / 8, **options)
    on_cpu = floc.compress(given, ratio=1 / 8, backend="torch", **options)
    for name in ("indices", "features", "positions", "order", "gains", "represents"):
        assert getattr(on_gpu, name).is_cuda, name
    assert on_gpu.features.dtype == dtype
    assert float(on_gpu.gains.sum()) == pytest.approx(float(on_cpu.gains.sum()), rel=1e-5)
    assert on_gpu.coverage == pytest.approx(on_cpu.coverage, abs=1e-3)
    assert on_gpu.at(ratio="1/16").features.is_cuda
