from __future__ import annotations

import pytest

from tests.selection.gpu.launches import poison


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote shows."""
    poison(monkeypatch)
