from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

DATA = Path(os.environ.get("FLOC_DATA", Path(__file__).parents[3] / "shared" / "data"))
GOLDEN = DATA.parent / "baselines" / "golden"


@pytest.fixture
def read_golden() -> Callable[[str], dict[str, np.ndarray]]:
    """Return a function that reads reference outputs by file name; it skips the test if there are none."""

    def read(name: str) -> dict[str, np.ndarray]:
        path = GOLDEN / f"{name}.npz"
        if not path.exists():
            pytest.skip(f"no reference outputs at {GOLDEN}; set FLOC_DATA to the data folder beside baselines/")
        with np.load(path) as file:
            return dict(file)

    return read
