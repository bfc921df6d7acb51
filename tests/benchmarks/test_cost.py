"""The tables of cost, time and profile, run small, and their views on results that are easy to check."""

import sys

import pytest
import torch

import benchmarks
import floc
from benchmarks import computation, profile
from benchmarks.tables import get
from floc.evaluation import paper

PLACE = {
    "device": {"cpu": "a processor", "cores": 2},
    "versions": {"torch": "2.0"},
    "commit": None,
    "date": "2026-01-01T00:00:00+00:00",
}
TURN = {"ratio": 2.0, "ratio_p20": 1.5, "ratio_p80": 3.0}


def rows_of(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    return benchmarks.run("profile", small=True, results=folder, echo=lambda _: None), folder


def test_profile_has_every_method_and_none(profiled):
    document, folder = profiled
    by = {each["method"]: each for each in document["methods"]}
    assert set(by) == {"full", *floc.methods.names()}
    assert by["full"]["kept"] == 2400
    ran = [each for each in document["methods"] if "seconds" in each]
    assert {"floc", "floc-paper", "divprune"} <= {each["method"] for each in ran}
    assert all(each["seconds"] > 0 and each["flop"] >= 0 and each["kept"] < 2400 for each in ran)
    assert by["floc-paper"]["ratio"] == 1
    assert (folder / "profile.json").exists()


def test_profile_reads_each_count_of_tokens_once(profiled):
    document, _ = profiled
    if not document["llm"]["readings"]:
        pytest.skip("transformers is not installed: pip install 'floc-video[hf]'")
    counts = [each["kept"] for each in document["llm"]["readings"]]
    assert counts == sorted({each["kept"] for each in document["methods"] if "kept" in each})
    assert all(each["seconds"] > 0 for each in document["llm"]["readings"])
    assert "tiny" in document["llm"]["model"]


def test_the_profile_of_a_method_that_does_not_run_says_why(monkeypatch):
    tokens = profile.SMALL.tokens()
    monkeypatch.setitem(sys.modules, "kmedoids", None)
    record = profile._tried("kmedoids", lambda: floc.compress(tokens, ratio="1/8", method="kmedoids"), tokens)
    assert set(record) == {"method", "failed"}
    assert "pip install" in record["failed"]


def test_the_profile_adds_compression_and_llm():
    document = {
        **PLACE,
        **dict(ran_on="CPU", frames=8, dim=4, ratio="1/8", textbook={"n": 60, **TURN}),
        "methods": [
            {"method": "full", "kept": 80},
            {
                "method": "sttm",
                "kept": 10,
                "seconds": 0.5,
                "flop": 2e9,
                "flop_is": "counted",
                "peak_bytes": 3 << 20,
                **TURN,
            },
            {"method": "kmeans", "kept": 10, "seconds": 0.75, "flop": 1e9, "flop_is": "estimated", "peak_bytes": None},
            {"method": "spectral", "failed": "no scikit-learn"},
        ],
        "llm": {
            "model": "a model",
            "readings": [dict(kept=10, seconds=0.25, peak_bytes=5e9), dict(kept=80, seconds=4.0, peak_bytes=None)],
        },
    }
    text = get("profile").views["profile"](document)
    assert rows_of(text) == [
        ["full", "80", "", "", "", "", "", "", "4", "3.22", "", "27.3", "4", "2.69"],
        [
            "sttm",
            "10",
            "0.5",
            "0.07",
            "2.00x (1.50 to 3.00)",
            "2",
            "0.17",
            "3",
            "0.25",
            "1.7",
            "5",
            "18",
            "0.75",
            "1.77",
        ],
        ["kmeans", "10", "0.75", "12.3", "", "~1", "82", "", "0.25", "1.7", "5", "18", "1", "14"],
        ["spectral", "not run", "", "8.12", "", "", "82", "", "", "1.7", "", "18", "", "9.82"],
    ]
    assert "Not run: spectral: no scikit-learn." in text


def test_time_has_all_lengths_and_ratios(tmp_path):
    document = benchmarks.run("time", small=True, results=tmp_path, echo=lambda _: None)
    ran = [method for method in computation.METHODS if method not in document["missing"]]
    timed = {(each["contender"], each["keep"], each["block"]) for each in document["times"]}
    assert timed == {
        (method, ratio, length) for method in ran for ratio in computation.RATIOS for length in computation.LENGTHS
    }
    assert all(each["ratio"] == 1 for each in document["times"] if each["contender"] == computation.BASELINE)
    if (tmp_path / "time.png").exists():
        assert (tmp_path / "time.png").read_bytes().startswith(b"\x89PNG")


def test_time_leaves_out_what_was_slow_but_never_the_baseline(monkeypatch):
    monkeypatch.setattr(computation, "PATIENCE_S", 0.0)
    tokens = torch.from_numpy(computation.SMALL.tokens())
    records = list(computation._at("1/8", tokens, {"kmeans": "", "kmedoids": "", "spectral": ""}, True, lambda _: None))
    timed = [(each["contender"], each["block"]) for each in records]
    assert timed == [("floc-paper", 2), ("floc", 2), ("floc-paper", 8), ("floc-paper", 32)]


def test_time_names_what_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "kmedoids", None)
    tokens = torch.from_numpy(computation.SMALL.tokens())
    assert "pip install" in computation._why_not("kmedoids", tokens)
    assert computation._why_not("floc", tokens) is None


def test_a_method_that_misses_its_budget_is_not_timed(monkeypatch):
    tokens = torch.from_numpy(computation.SMALL.tokens())
    fewer = floc.compress(tokens, budget=3)
    monkeypatch.setattr(floc, "compress", lambda *_, **__: fewer)
    with pytest.raises(AssertionError, match="kept 3 of 384 tokens for 1/8, blocks of 2"):
        computation._kept("floc", tokens, "1/8", 2)


def test_the_view_of_time_has_the_papers_seconds_and_ratios():
    slow = {"keep": "1/8", "block": 32, "contender": "kmeans", "ms": 1500.0, **TURN}
    document = {
        **PLACE,
        "ran_on": "CPU",
        "shape": [8, 4, 2],
        "missing": {"spectral": "no scikit-learn"},
        "times": [slow],
    }
    text = get("time").views["time"](document)
    by = {(row[0], row[1]): row[2:] for row in rows_of(text)}
    assert len(by) == len(computation.METHODS) * len(computation.RATIOS)
    assert by["1/8", "kmeans"][8:] == ["1.5", "218", "2.00x (1.50 to 3.00)", "414x"]
    assert by["1/32", "kmedoids"][:4] == ["", "0.022", "", "2.2x"]
    assert set(by["1/16", "floc"]) == {""}  # not in the paper
    printed = [float(cell) for cells in by.values() for cell in cells[1::4] if cell]
    assert sum(printed) == pytest.approx(
        sum(
            value for row in paper.table("table3").rows for times in row["seconds"].values() for value in times.values()
        )
    )
    assert "spectral: no scikit-learn" in text


def test_plots_show_the_paper_beside_ours(profiled):
    pytest.importorskip("matplotlib", reason="plots need pip install 'floc-video[report]'")
    (axes,) = get("profile").plots["profile"](profiled[0]).axes
    _, labels = axes.get_legend_handles_labels()
    assert labels == ["40 frames, CPU", "paper: 784 frames, H100"]
    timed = [{"keep": "1/8", "block": length, "contender": "floc", "ms": 1.0} for length in (2, 8, 32)]
    panels = get("time").plots["time"]({"times": timed}).axes
    assert len(panels) == 3
    assert {"floc", "floc-paper, paper", "kmeans, paper"} <= {line.get_label() for line in panels[2].lines}
