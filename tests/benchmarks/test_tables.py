import json
import subprocess
import sys

import pytest

from benchmarks import tables

RECORD = {"contender": "floc", "baseline": "floc", "ms": 1.5, "ratio": 1, "ratio_p20": 1, "ratio_p80": 1}
DOCUMENT = {
    "device": {"cpu": "a processor", "cores": 2},
    "versions": {"numpy": "2.0", "kmedoids": None},
    "commit": None,
    "date": "2026-01-01T00:00:00+00:00",
    "select": [
        {"n": 8, "d": 4, "k": 2, "objective": 1.0, "matrix_bytes": 128, "evaluations": 20, **RECORD},
        {"n": 8, "d": 4, "k": 2, "contender": "peer", "skipped": "not installed"},
    ],
}


@pytest.fixture
def results(tmp_path):
    (tmp_path / "select.json").write_text(json.dumps(DOCUMENT))
    return tmp_path


def test_fill_replaces_what_is_between_the_markers_and_nothing_else(results):
    page = results / "page.md"
    page.write_text("before\n<!-- bench:select -->\nstale\n<!-- /bench:select -->\nafter\n")
    assert tables.fill(page, results) == ["select"]
    filled = page.read_text()
    assert filled.startswith("before\n<!-- bench:select -->\n\n| choosing 2 of 8")
    assert filled.endswith("\n\n<!-- /bench:select -->\nafter\n")
    assert "stale" not in filled
    assert "| floc | 1.50 | 1.00x (1.00 to 1.00) | 1.000000 |" in filled
    assert "| peer | not installed |" in filled
    assert tables.fill(page, results) == ["select"]
    assert page.read_text() == filled


def test_fill_knows_every_view_by_name(results):
    page = results / "page.md"
    page.write_text("<!-- bench:selekt -->\n<!-- /bench:selekt -->\n")
    with pytest.raises(ValueError, match=r"did you mean 'select'.*second-pass-quality"):
        tables.fill(page, results)


def test_fill_without_results_says_what_to_run(results):
    page = results / "page.md"
    page.write_text("<!-- bench:second-pass-time -->\n<!-- /bench:second-pass-time -->\n")
    with pytest.raises(FileNotFoundError, match="python -m benchmarks second-pass"):
        tables.fill(page, results)


def test_a_marker_that_is_not_closed_is_an_error(results):
    page = results / "page.md"
    page.write_text("<!-- bench:select -->\n")
    with pytest.raises(ValueError, match="closed"):
        tables.fill(page, results)


def test_tables_are_found_by_file():
    assert {"answer", "capture", "profile", "scenes", "second-pass", "select", "stream", "time", "video"} <= set(
        tables.names()
    )
    with pytest.raises(ValueError, match="unknown table"):
        tables.get("nothing")


@pytest.mark.parametrize("name", ["time", "profile", "spread", "blocks", "metric", "needle"])
def test_what_the_paper_shows_has_a_plot(name):
    assert tables.get(name).plots


def test_tables_are_listed_without_any_optional_package():
    missing = ("numba", "triton", "transformers", "av", "PIL", "sklearn", "kmedoids", "matplotlib")
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); from floc import bench; print(*bench.names())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == tables.names()


def test_figures_are_drawn_from_results_measured_elsewhere(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure", reason="plots need pip install 'floc-video[report]'")
    seen = []

    def draw(document):
        seen.append(document)
        return figure.Figure()

    found = [tables.Table(name, None, {}, {f"{name}-figure": draw}) for name in ("here", "elsewhere")]
    monkeypatch.setattr(tables, "tables", lambda: {table.name: table for table in found})
    (tmp_path / "here.json").write_text('{"a": 1}')
    assert tables.draw(tmp_path) == [tmp_path / "here-figure.png"]
    assert seen == [{"a": 1}]
