import sys

import pytest

import floc
from benchmarks import run
from benchmarks.registry import get
from benchmarks.tables import profile
from tests.benchmarks.conftest import ENVIRONMENT, RATIO, parse_rows


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    return run.run("profile", small=True, results=folder, echo=lambda _: None), folder


def test_profiles_every_method_and_the_full_video(profiled):
    document, folder = profiled
    by_method = {record["method"]: record for record in document["methods"]}
    assert set(by_method) == {"full", *floc.methods.list_methods()}
    assert by_method["full"]["kept"] == profile.SMALL.n
    timed = [record for record in document["methods"] if "seconds" in record]
    assert {"floc", "floc-paper", "divprune"} <= {record["method"] for record in timed}
    assert all(record["seconds"] > 0 and record["flop"] >= 0 and record["kept"] < profile.SMALL.n for record in timed)
    assert by_method["floc-paper"]["ratio"] == 1
    assert (folder / "profile.json").exists()


def test_runs_the_llm_once_for_each_number_of_tokens(profiled):
    document, _ = profiled
    if not document["llm"]["readings"]:
        pytest.skip("transformers is not installed: pip install 'floc-video[hf]'")
    counts = [reading["kept"] for reading in document["llm"]["readings"]]
    assert counts == sorted({record["kept"] for record in document["methods"] if "kept" in record})
    assert all(reading["seconds"] > 0 for reading in document["llm"]["readings"])
    assert "tiny" in document["llm"]["model"]


def test_method_with_missing_package_says_why(monkeypatch):
    tokens = profile.SMALL.make_tokens()
    monkeypatch.setitem(sys.modules, "kmedoids", None)
    record = profile._measure_method("kmedoids", lambda: floc.compress(tokens, ratio="1/8", method="kmedoids"), tokens)
    assert set(record) == {"method", "failed"}
    assert "pip install" in record["failed"]


def test_total_adds_compression_and_llm():
    sttm = dict(method="sttm", kept=10, seconds=0.5, flop=2e9, flop_is="counted", peak_bytes=3 << 20)
    kmeans = dict(method="kmeans", kept=10, seconds=0.75, flop=1e9, flop_is="estimated", peak_bytes=None)
    readings = [dict(kept=10, seconds=0.25, peak_bytes=5e9), dict(kept=80, seconds=4.0, peak_bytes=None)]
    document = {
        **ENVIRONMENT,
        **dict(ran_on="CPU", frames=8, dim=4, ratio="1/8"),
        "methods": [
            {"method": "full", "kept": 80},
            {**sttm, **RATIO},
            kmeans,
            {"method": "spectral", "failed": "no scikit-learn"},
        ],
        "llm": {"model": "a model", "readings": readings},
    }
    text = get("profile").views["profile"](document)
    full, *others = parse_rows(text)
    assert full == ["full", "80", "", "", "", "", "", "", "4", "3.22", "", "27.3", "4", "2.69"]
    llm = ["0.25", "1.7", "5", "18"]
    assert others == [
        ["sttm", "10", "0.5", "0.07", "2.00x (1.50 to 3.00)", "2", "0.17", "3", *llm, "0.75", "1.77"],
        ["kmeans", "10", "0.75", "12.3", "", "~1", "82", "", *llm, "1", "14"],
    ]
    assert "Not run: spectral: no scikit-learn." in text


def test_plot_shows_the_paper_beside_ours(profiled):
    pytest.importorskip("matplotlib", reason="plots need pip install 'floc-video[report]'")
    (axes,) = get("profile").plots["profile"](profiled[0]).axes
    _, labels = axes.get_legend_handles_labels()
    assert labels == ["16 frames, CPU", "paper: 784 frames, H100"]
