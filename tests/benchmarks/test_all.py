import json
import sys

import pytest
from typer.testing import CliRunner

import benchmarks
from benchmarks import tables
from benchmarks.tables import Table, Unavailable
from floc.cli import app


def raising(error):
    def run(small, echo):
        raise error

    return run


@pytest.fixture
def few(monkeypatch, tmp_path):
    """Three tables, of which the last is given, in place of all."""

    def use(last):
        found = {
            "first": Table("first", lambda small, echo: {"small_too": small}, {}),
            "no-gpu": Table("no-gpu", raising(Unavailable("needs a GPU")), {}),
            "last": Table("last", last, {}),
        }
        monkeypatch.setattr(tables, "tables", lambda: found)
        monkeypatch.setattr(benchmarks, "names", lambda: list(found))
        monkeypatch.chdir(tmp_path)
        return tmp_path / "benchmarks" / "small"

    return use


def states(outcomes):
    return {each.table: (each.state, each.why) for each in outcomes}


def test_a_table_that_cannot_run_here_stops_no_other(few):
    folder = few(lambda small, echo: {})
    lines = []
    outcomes = benchmarks.run_all(small=True, echo=lines.append)
    assert states(outcomes) == {
        "first": (benchmarks.DONE, ""),
        "no-gpu": (benchmarks.LEFT_OUT, "needs a GPU"),
        "last": (benchmarks.DONE, ""),
    }
    assert sorted(path.name for path in folder.iterdir()) == ["first.json", "last.json"]
    assert json.loads((folder / "first.json").read_text())["small_too"] is True
    assert any(line.startswith("no-gpu: left out") and "needs a GPU" in line for line in lines)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (Unavailable("no GPU"), benchmarks.LEFT_OUT),
        (ImportError("video needs PyAV"), benchmarks.LEFT_OUT),
        (ModuleNotFoundError("No module named 'av'", name="av"), benchmarks.LEFT_OUT),
        (ModuleNotFoundError("No module named 'floc.gone'", name="floc.gone"), benchmarks.FAILED),
        (AssertionError("wrong picks"), benchmarks.FAILED),
        (RuntimeError("out of luck"), benchmarks.FAILED),
    ],
    ids=repr,
)
def test_what_is_missing_is_told_from_what_is_wrong(few, error, state):
    few(raising(error))
    outcomes = benchmarks.run_all(small=True, echo=lambda _: None)
    assert states(outcomes)["last"] == (state, str(error))


def test_without_matplotlib_it_says_why_nothing_is_drawn(few, monkeypatch):
    few(lambda small, echo: {})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(tables.tables(), "last", Table("last", lambda small, echo: {}, {}, {"last": None}))
    for table, told in (
        ("first", []),
        ("last", ["not drawn: plots need matplotlib, pip install 'floc-video[report]'"]),
    ):
        lines = []
        benchmarks.run(table, small=True, echo=lines.append)
        assert [line for line in lines if "drawn" in line] == told


def test_an_interrupt_ends_it(few):
    few(raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        benchmarks.run_all(small=True, echo=lambda _: None)


@pytest.mark.parametrize(("error", "code"), [(Unavailable("no GPU"), 0), (AssertionError("wrong picks"), 1)], ids=repr)
def test_the_exit_code_tells_whether_any_failed(few, error, code):
    few(raising(error))
    done = CliRunner().invoke(app, ["bench", "all", "--small"])
    assert done.exit_code == code
    assert f"last: {'failed' if code else 'left out'}" in done.stdout
