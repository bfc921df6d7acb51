from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.synthetic import film


@pytest.fixture(scope="session")
def tokens() -> np.ndarray:
    """70 frames of 3 x 4 cells: three blocks, the last one short."""
    return film(70, 3, 4, dim=48, seed=1, scenes=3, shot_frames=15, dtype=np.float32)


@pytest.fixture
def set_threads():
    """Set torch's threads, and put them back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
