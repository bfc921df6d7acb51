from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(scope="package")
def models() -> Any:
    """Tiny models by (kind, attention), created on first use."""
    from tests.integrations.transformers.zoo import model

    class LazyModels(dict):  # type: ignore[type-arg]
        def __missing__(self, key: tuple[str, str]) -> Any:
            self[key] = model(*key)
            return self[key]

    return LazyModels()


@pytest.fixture(autouse=True)
def _light(one_thread: None) -> Iterator[None]:
    """No gradients, and one thread."""
    with torch.no_grad():
        yield
