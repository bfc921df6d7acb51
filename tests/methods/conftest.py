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
    """What the published programs made of known tokens, by the name of a file; a skip where they are not there."""

    def read(name: str) -> dict[str, np.ndarray]:
        path = GOLDEN / f"{name}.npz"
        if not path.exists():
            pytest.skip(f"the reference outputs are not at {GOLDEN}")
        with np.load(path) as file:
            return dict(file)

    return read
