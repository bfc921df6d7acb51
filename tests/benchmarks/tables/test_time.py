import sys

import pytest
import torch

import floc
from benchmarks.registry import get
from benchmarks.tables import time
from floc.evaluation import paper
from tests.benchmarks.conftest import ENVIRONMENT, RATIO, parse_rows


def make_tokens():
    return torch.from_numpy(time.SMALL.make_tokens())


def test_times_all_lengths_and_ratios(run_small, tmp_path):
    document = run_small("time")
    methods = [method for method in time.METHODS if method not in document["missing"]]
    timed = {(record["contender"], record["keep"], record["block"]) for record in document["times"]}
    assert timed == {(method, ratio, length) for method in methods for ratio in time.RATIOS for length in time.LENGTHS}
    assert all(record["ratio"] == 1 for record in document["times"] if record["contender"] == time.BASELINE)
    if (tmp_path / "time.png").exists():
        assert (tmp_path / "time.png").read_bytes().startswith(b"\x89PNG")


def test_skips_slow_methods_but_never_the_baseline(monkeypatch):
    monkeypatch.setattr(time, "PATIENCE_S", 0.0)
    missing = {"kmeans": "", "kmedoids": "", "spectral": ""}
    records = list(time._measure_ratio("1/8", make_tokens(), missing, True, lambda _: None))
    timed = [(record["contender"], record["block"]) for record in records]
    assert timed == [("floc-paper", 2), ("floc", 2), ("floc-paper", 8), ("floc-paper", 32)]


def test_names_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "kmedoids", None)
    assert "pip install" in time._find_missing("kmedoids", make_tokens())
    assert time._find_missing("floc", make_tokens()) is None


def test_rejects_method_that_misses_its_budget(monkeypatch):
    tokens = make_tokens()
    fewer = floc.compress(tokens, budget=3)
    monkeypatch.setattr(floc, "compress", lambda *_, **__: fewer)
    with pytest.raises(AssertionError, match="kept 3 of 384 tokens for 1/8, blocks of 2"):
        time._compress("floc", tokens, "1/8", 2)


def test_view_has_the_papers_seconds_and_ratios():
    records = [
        {"keep": "1/8", "block": length, "contender": method, "ms": 1500.0, **RATIO}
        for method in ("kmeans", "floc")
        for length in (2, 8, 32)
    ]
    missing = {"spectral": "no scikit-learn"}
    document = {**ENVIRONMENT, "ran_on": "CPU", "shape": [8, 4, 2], "missing": missing, "times": records}
    text = get("time").views["time"](document)
    by_case = {(row[0], row[1]): row[2:] for row in parse_rows(text)}
    assert by_case.keys() == {("1/8", "kmeans"), ("1/8", "floc")}  # what was not measured has no row
    assert by_case["1/8", "kmeans"][8:] == ["1.5", "218", "2.00x (1.50 to 3.00)", "414x"]
    assert by_case["1/8", "floc"][0] == "1.5"
    assert set(by_case["1/8", "floc"][1::4]) == {""}  # not in the paper
    published = paper.get_row("table3", "kmeans")["seconds"]["1/8"].values()
    assert [float(seconds) for seconds in by_case["1/8", "kmeans"][1::4]] == list(published)
    assert "spectral: no scikit-learn" in text


def test_plot_shows_the_paper_beside_ours():
    pytest.importorskip("matplotlib", reason="plots need pip install 'floc-video[report]'")
    timed = [{"keep": "1/8", "block": length, "contender": "floc", "ms": 1.0} for length in (2, 8, 32)]
    panels = get("time").plots["time"]({"times": timed}).axes
    assert len(panels) == 3
    assert {"floc", "floc-paper, paper", "kmeans, paper"} <= {line.get_label() for line in panels[2].lines}
