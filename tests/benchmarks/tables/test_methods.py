import json

import pytest
import torch

from benchmarks import run
from benchmarks.registry import Unavailable, get
from benchmarks.tables import methods as table
from tests.benchmarks.conftest import ENVIRONMENT, RATIO, parse_rows


def make_document() -> dict:
    accuracy = [
        {"method": "all tokens", "keep": "1", "mean": 0.99, "interval": [0.98, 1.0]},
        {"method": "floc", "keep": "1/8", "mean": 0.93, "interval": [0.9, 0.95]},
        {"method": "floc", "keep": "1/16", "mean": 0.9, "interval": [0.88, 0.92]},
        {"method": "divprune", "keep": "1/8", "mean": 0.94, "interval": [0.9, 0.95]}
        | {"difference_interval": [0.005, 0.02]},
        {"method": "divprune", "keep": "1/16", "mean": 0.85, "interval": [0.8, 0.9]}
        | {"difference_interval": [-0.08, -0.02]},
        {"method": "scope", "keep": "1/16", "mean": 0.89, "interval": [0.8, 0.9]}
        | {"difference_interval": [-0.03, 0.01]},
    ]
    timed = {"ms": 1500.0, **RATIO, "peak_bytes": 3 * 2**20}
    mean = {"mean": 0.5, "low": 0.4, "high": 0.6, "count": 9}
    names = ("floc", "divprune", "scope")
    cost = {"shape": [64, 40, 512], "bytes": 2**20, "missing": {"kmedoids": "no package"}}
    extra = {"films": 100, "questions": 1574, "notes": {"scope": "equal weights"}, "date": "2026-11-19", "commit": "0"}
    footage = {"encoder": "mobilenet", "is_real": True, "frame": [5, 9, 1280], "videos": 16, "gpu_name": None}
    return {
        **ENVIRONMENT,
        **footage,
        "keep": "1/16",
        "accuracy": {"accuracy": accuracy, **extra},
        "cost": {"cpu": {**cost, "methods": dict.fromkeys(names, timed)}},
        "footage": {name: dict.fromkeys(("coverage", "clip", "object"), mean) for name in names},
    }


def test_view_has_accuracy_footage_and_cost_in_order():
    text = get("methods").views["methods"](make_document())
    rows = {row[0]: row[1:] for row in parse_rows(text)}
    assert list(rows) == ["floc", "scope *", "divprune"]
    assert rows["divprune"][:2] == ["94.0 ↑", "85.0 (80.0-90.0) ↓"]
    assert rows["scope *"][0] == "-"
    assert rows["divprune"][2:7] == [".500 (.400-.600)", "50% (40-60)", "50% (40-60)", "1.5", "2.00x (1.50 to 3.00)"]
    assert rows["divprune"][7:] == ["3", "58.3"]  # the peak, and the number of the FLoC paper
    assert "Not run: kmedoids: no package." in text


def test_says_when_another_method_is_best():
    lines = get("methods").views["methods-best"](make_document()).splitlines()
    assert lines[0].startswith("- 1/8: divprune is best with 94.0 (floc 93.0); above it beyond the error: divprune;")
    assert lines[1].startswith("- 1/16: floc 90.0 is best; above it beyond the error: none;")
    assert lines[1].endswith("equal within the error: scope.")


def test_needs_the_results_of_table_accuracy(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    with pytest.raises(Unavailable, match="python -m benchmarks accuracy"):
        table.run_table(True, print)


def test_measures_methods_in_turn(monkeypatch, tmp_path):
    accuracy = make_document()["accuracy"]
    (tmp_path / "accuracy.json").write_text(json.dumps(accuracy))
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    monkeypatch.setattr(table.methods, "list_methods", lambda: ["divprune", "evs", "floc", "frame_uniform"])
    document = table.run_table(True, lambda _: None)
    cost = document["cost"]["cpu"]
    assert cost["methods"]["floc"]["ratio"] == 1
    assert cost["methods"].keys() | cost["missing"].keys() == {"divprune", "evs", "floc", "frame_uniform"}
    assert all(record["peak_bytes"] is None or record["peak_bytes"] >= 0 for record in cost["methods"].values())
    found = document["footage"]["floc"]
    assert 0.5 < found["coverage"]["mean"] < 1
    assert found["clip"]["count"] == found["object"]["count"] > 0


@pytest.mark.slow
def test_adds_the_times_on_one_device_to_earlier_results(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    with pytest.raises(Unavailable, match="python -m benchmarks methods"):
        table.run_table(True, print, "cpu")
    earlier = make_document()
    (tmp_path / "methods.json").write_text(json.dumps(earlier))
    document = table.run_table(True, lambda _: None, "cpu")
    assert {name: value for name, value in document.items() if name not in ("cost", "gpu_name")} == {
        name: value for name, value in earlier.items() if name not in ("cost", "gpu_name")
    }
    assert document["cost"]["cpu"]["shape"] == [32, 12, 64]
    assert document["cost"]["cpu"]["methods"]["floc"]["ratio"] == 1
    assert f"torch {document['cost']['cpu']['environment']['versions']['torch']}" in get("methods").views["methods"](
        document | {"footage": dict.fromkeys(document["cost"]["cpu"]["methods"], earlier["footage"]["floc"])}
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures for minutes if there is a GPU")
def test_times_on_a_gpu_need_one():
    with pytest.raises(Unavailable, match="needs a CUDA device"):
        table.run_table(True, print, "cuda")
