"""The batches of the torch engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.selection.engine import Job
from floc.selection.objective import Similarity
from floc.selection.torch import engine
from tests.selection.matrices import make_video_tokens


def test_batched_sets_equal_single_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the engine pads sets into one batch; this forces it on the CPU."""
    jobs = [Job(torch.from_numpy(make_video_tokens(n, seed=n)), k) for n, k in ((50, 6), (17, 17), (33, 1), (1, 1))]
    single = list(engine.TorchEngine().solve(jobs, Similarity(detail=2), with_cosines=True))
    monkeypatch.setattr(engine, "_batch_jobs", lambda jobs: [jobs])
    batched = list(engine.TorchEngine().solve(jobs, Similarity(detail=2), with_cosines=True))
    for a, b in zip(single, batched, strict=True):
        np.testing.assert_array_equal(a.picks, b.picks)
        np.testing.assert_array_equal(a.gains, b.gains)
        assert a.next_gain == b.next_gain
