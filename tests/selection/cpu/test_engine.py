"""The CPU engine: the same results with any number of threads, and errors of tasks reach the caller."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from floc import _system
from floc.selection.engine import Job
from floc.selection.objective import Similarity
from tests.selection.matrices import make_video_tokens

engine = pytest.importorskip(
    "floc.selection.cpu.engine", reason="backend 'cpu' needs numba: pip install 'floc-video[cpu]'"
)


@pytest.mark.parametrize("detail", [1, 2, 3])
def test_results_do_not_depend_on_the_number_of_threads(detail: float, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(torch.from_numpy(make_video_tokens(n, seed=n)), k) for n, k in ((600, 60), (33, 5), (1, 1))]
    results = []
    for threads in (1, 3):
        monkeypatch.setattr(_system, "count_threads", lambda threads=threads: threads)
        results.append(list(engine.CpuEngine().solve(jobs, Similarity(detail=detail), with_cosines=True)))
    for one, several in zip(*results, strict=True):
        np.testing.assert_array_equal(one.picks, several.picks)
        np.testing.assert_array_equal(one.gains, several.gains)
        np.testing.assert_array_equal(one.history.rank, several.history.rank)


def test_a_huge_detail_does_not_overflow() -> None:
    tokens = torch.from_numpy(make_video_tokens(40))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [solution] = engine.CpuEngine().solve([Job(tokens, 5)], Similarity(detail=1e300), with_cosines=True)
    assert len(set(solution.picks.tolist())) == 5
