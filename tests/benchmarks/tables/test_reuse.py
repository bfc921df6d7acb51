"""The table of reuse: sources of slices, and a small run."""

import numpy as np
import pytest

from benchmarks import registry
from tests.benchmarks.conftest import ENVIRONMENT, parse_rows

pytest.importorskip("torchvision", reason="the table needs pip install 'floc-video[hf]'")
pytest.importorskip("av", reason="the table needs pip install 'floc-video[video]'")

from benchmarks.tables import reuse


def test_sources_are_the_last_slices_that_differ():
    levels = np.array([0, 0, 3, 9, 9, 0], np.uint8).repeat(2)
    frames = np.broadcast_to(levels[:, None, None, None], (12, 28, 28, 3)).copy()
    assert reuse.find_sources(frames, 4).tolist() == [0, 0, 0, 3, 3, 5]
    assert reuse.find_sources(frames, -1).tolist() == [*range(6)]


def test_reuse_runs_small(run_small):
    document = run_small("reuse") | ENVIRONMENT
    off = [record for record in document["accuracy"] if record["reuse"] == -1]
    assert all(record["share"] == 1 and record["difference"] == 0 for record in off)
    shares = {(record["camera"], record["reuse"]): record["share"] for record in document["accuracy"]}
    assert shares["stands still", 8] < shares["moves", 8]
    (film,) = {record["film"] for record in document["footage"]}
    strict, loose = document["footage"]
    assert strict["share"] >= loose["share"]
    assert 0 < loose["mean_error"] <= loose["largest_error"]
    assert [record["reuse"] for record in document["speed"]] == ["off", "8", "32"] * 2
    assert {record["film"] for record in document["speed"]} == {film, "still.mp4"}
    still = document["speed"][-1]["stages"]
    assert still.keys() >= {*reuse.STAGES, "slices"}
    for view in registry.get("reuse").views.values():
        assert len(parse_rows(view(document))) > 1
