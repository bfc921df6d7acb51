"""Grids of any size: short ones are processed in parts, long ones at once."""

from __future__ import annotations

import pytest
import torch

from floc import tokens
from floc.tokens import TokenGrid

DIM = 64
PART = tokens._ALONE // DIM  # tokens


@pytest.mark.parametrize("count", [1, PART - 1, PART, PART + 1, 3 * PART + 7, tokens._PARTS * PART + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gather(count: int, dtype: torch.dtype) -> None:
    flat = torch.randn(2 * count, DIM, generator=torch.Generator().manual_seed(0)).to(dtype)
    wanted = torch.arange(count).flip(0) * 2
    found = TokenGrid(flat.view(2, count, 1, DIM)).gather(wanted.numpy())
    assert found.dtype == dtype
    assert torch.equal(found, flat[::2].flip(0))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("frames", [1, 3, tokens._PARTS + 1])
def test_rejects_non_finite_values_anywhere(frames: int, value: float) -> None:
    tokens = torch.ones(frames, PART, 1, DIM)
    TokenGrid.from_array(tokens)
    for frame in (0, frames // 2, frames - 1):
        wrong = tokens.clone()
        wrong[frame, -1, 0, -1] = value
        with pytest.raises(ValueError, match="tokens must be finite"):
            TokenGrid.from_array(wrong)
