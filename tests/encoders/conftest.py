from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _light(one_thread: None) -> None:
    """Tests of tiny models use one thread."""
