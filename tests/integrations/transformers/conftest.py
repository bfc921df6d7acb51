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
def _light() -> Iterator[None]:
    """No gradients, and one thread: on models this small, threads only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)
