"""Rows in every float format against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

rows = pytest.importorskip("floc.selection.cpu.rows", reason="backend 'cpu' needs numba: pip install 'floc-video[cpu]'")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn])
def test_normalize_equals_torch_in_every_format(dtype: torch.dtype) -> None:
    values = torch.cat([torch.randn(200) * 10.0**e for e in range(-6, 5)] + [torch.zeros(24)]).clamp(-400, 400)
    tokens = values.to(dtype).reshape(-1, 8)
    want = tokens.double()
    lengths = want.norm(dim=1)
    want = (want / lengths.clamp_min(1e-300)[:, None]).float().numpy()
    got, got_lengths = np.full(want.shape, np.nan, np.float32), np.full(len(want), np.nan)
    rows.normalize(rows.view_bits(tokens), got, got_lengths, 0, len(want))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(got_lengths, lengths, rtol=1e-6)
