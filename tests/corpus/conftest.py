from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("lance", reason="a store needs pip install 'floc[store]'")

from floc import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", create=True)
