from __future__ import annotations

import pytest

from tests.selection.gpu.launches import poison


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill fresh memory with invalid values, so that a test fails if a kernel reads memory it did not write."""
    poison(monkeypatch)
