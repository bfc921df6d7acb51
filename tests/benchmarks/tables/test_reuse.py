"""The table of reuse: sources of slices, and a small run."""

import numpy as np
import pytest

from benchmarks import registry
from tests.benchmarks.conftest import ENVIRONMENT, parse_rows

pytest.importorskip("torchvision", reason="the table needs pip install 'floc-video[hf]'")
pytest.importorskip("av", reason="the table needs pip install 'floc-video[video]'")

from benchmarks.tables import reuse


def test_sources_of_a_setting():
    levels = np.array([0, 0, 3, 9, 9, 0], np.uint8).repeat(2)
    frames = np.broadcast_to(levels[:, None, None, None], (12, 28, 28, 3)).copy()
    assert reuse.find_sources(frames, "reuse 4").tolist() == [0, 0, 0, 3, 3, 5]
    assert reuse.find_sources(frames, "encode 1/3").tolist() == [2, 2, 2, 3, 3, 2]  # 2 alone is best
    assert reuse.find_sources(frames, "uniform 1/3").tolist() == [1, 1, 1, 4, 4, 4]
    assert reuse.find_sources(frames, "off").tolist() == [*range(6)]


def test_reuse_runs_small(run_small):
    document = run_small("reuse") | ENVIRONMENT
    accuracy = {(one["camera"], one["setting"], one["keep"]): one for one in document["accuracy"]}
    off = [one for (_, setting, _), one in accuracy.items() if setting == "off"]
    assert all(one["share"] == 1 and one["to_off"] == (0, 0) for one in off)
    assert accuracy["stands still", "reuse 8", "1"]["share"] < accuracy["moves", "reuse 8", "1"]["share"]
    for kind in ("encode 1/2", "uniform 1/2"):
        assert accuracy["moves", kind, "1/8"]["share"] == 0.5
    (film,) = {one["film"] for one in document["footage"]}
    footage = {one["setting"]: one for one in document["footage"]}
    assert footage["reuse 8"]["share"] >= footage["reuse 80"]["share"]
    assert 0 < footage["reuse 80"]["mean_error"] <= footage["reuse 80"]["largest_error"]
    slices = footage["encode 1/2"]["slices"]
    assert footage["encode 1/2"]["share"] == footage["uniform 1/2"]["share"] == pytest.approx(0.5, abs=0.51 / slices)
    settings = ["off", "reuse 8", "encode 1/2", "encode 1/4", "encode 1/8"]
    assert [one["setting"] for one in document["speed"]] == settings * 2
    assert {one["film"] for one in document["speed"]} == {film, "still.mp4"}
    still = document["speed"][-1]
    assert still["stages"].keys() >= {*reuse.STAGES, "slices"}
    assert still["setting"] == "encode 1/8"
    assert still["share"] == 1 / 2  # one of two slices
    for view in registry.get("reuse").views.values():
        assert len(parse_rows(view(document))) > 1
