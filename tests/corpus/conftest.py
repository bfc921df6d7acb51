from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from floc import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    from floc import Store

    return Store(tmp_path / "store", create=True)
