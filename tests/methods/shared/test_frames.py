"""Frame statistics."""

from __future__ import annotations

import pytest
import torch

from floc.methods.shared import frames
from floc.tokens import TokenGrid


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_averages_frames_in_float32_or_float64(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "CPU_BYTES", 500)  # several tiles
    tokens = torch.randn(9, 4, 3, 2, generator=torch.Generator().manual_seed(1)).to(dtype).permute(0, 2, 1, 3)
    means = frames.average_frames(TokenGrid(tokens))
    assert means.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(means.double(), tokens.double().mean((1, 2)), atol=1e-6, rtol=0)
