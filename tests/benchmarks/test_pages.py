import json
from pathlib import Path

import pytest

from benchmarks import pages, registry
from benchmarks.registry import BenchTable

RECORD = {"contender": "floc.select", "baseline": "floc.select", "ms": 1.5, "ratio": 1, "ratio_p20": 1, "ratio_p80": 1}
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
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture
def results(tmp_path):
    (tmp_path / "select.json").write_text(json.dumps(DOCUMENT))
    return tmp_path


def test_fill_replaces_only_the_text_between_markers(results):
    page = results / "page.md"
    page.write_text("before\n<!-- bench:select -->\nstale\n<!-- /bench:select -->\nafter\n")
    assert pages.fill(page, results) == ["select"]
    filled = page.read_text()
    assert filled.startswith("before\n<!-- bench:select -->\n\n| selecting 2 of 8")
    assert filled.endswith("\n\n<!-- /bench:select -->\nafter\n")
    assert "stale" not in filled
    assert "| floc.select | 1.50 | 1.00x (1.00 to 1.00) | 1.000000 |" in filled
    assert "| peer | not installed |" in filled
    assert pages.fill(page, results) == ["select"]
    assert page.read_text() == filled


def test_folder_is_replaced_by_its_pages_with_markers(tmp_path):
    for name, text in {"a.md": "<!-- bench:select -->", "b/c.md": "<!-- bench:select -->", "d.md": "no marker"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert pages.find_pages([tmp_path]) == [tmp_path / "a.md", tmp_path / "b" / "c.md"]
    assert pages.find_pages([tmp_path / "d.md"]) == [tmp_path / "d.md"]


def test_fill_rejects_unknown_view(results):
    page = results / "page.md"
    page.write_text("<!-- bench:selekt -->\n<!-- /bench:selekt -->\n")
    with pytest.raises(ValueError, match=r"did you mean 'select'.*second-pass-time"):
        pages.fill(page, results)


def test_fill_without_results_says_what_to_run(results):
    page = results / "page.md"
    page.write_text("<!-- bench:second-pass-time -->\n<!-- /bench:second-pass-time -->\n")
    with pytest.raises(FileNotFoundError, match="python -m benchmarks second-pass"):
        pages.fill(page, results)


def test_fill_rejects_marker_that_is_not_closed(results):
    page = results / "page.md"
    page.write_text("<!-- bench:select -->\n")
    with pytest.raises(ValueError, match="close"):
        pages.fill(page, results)


def test_committed_markdown_is_rendered_from_committed_results(tmp_path):
    for path in RESULTS.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    for rendered in pages.render(tmp_path):
        assert rendered.read_text() == (RESULTS / rendered.name).read_text(), "run: python -m benchmarks render"


def test_committed_tables_have_no_empty_column():
    for path in RESULTS.glob("*.md"):
        for table in path.read_text().split("\n\n"):
            rows = [line.replace("\\|", "").strip("|").split("|") for line in table.splitlines() if line[:1] == "|"]
            columns = list(zip(*rows[2:], strict=True))
            assert all(any(cell.strip() for cell in column) for column in columns[1:]), f"{path.name}: {rows[0]}"


def test_figures_are_drawn_from_results_measured_elsewhere(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure", reason="plots need pip install 'floc-video[report]'")
    documents = []

    def plot(document):
        documents.append(document)
        return figure.Figure()

    tables = {name: BenchTable(name, None, {}, {f"{name}-figure": plot}) for name in ("measured", "missing")}
    monkeypatch.setattr(registry, "load_tables", lambda: tables)
    (tmp_path / "measured.json").write_text('{"a": 1}')
    assert pages.draw(tmp_path) == [tmp_path / "measured-figure.png"]
    assert documents == [{"a": 1}]
