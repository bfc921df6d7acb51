from __future__ import annotations

import pytest

from .launches import poison


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote shows."""
    poison(monkeypatch)
