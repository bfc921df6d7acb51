from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote is full of NaN, or of numbers that are no similarity and no index."""

    def poisoning(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def poisoned(*args: Any, **options: Any) -> torch.Tensor:
            memory = allocate(*args, **options)
            if memory.is_floating_point():
                return memory.fill_(torch.nan)
            return memory if memory.dtype == torch.bool else memory.fill_(torch.iinfo(memory.dtype).max // 3 * 2)

        return poisoned

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoning(getattr(torch, name)))
