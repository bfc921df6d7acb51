import json
import sys

import pytest

from benchmarks import registry, run
from benchmarks.registry import BenchTable, Unavailable


def make_failing(error):
    def fail(small, echo):
        raise error

    return fail


@pytest.fixture
def use_tables(monkeypatch, tmp_path):
    """Replace all tables by three, the last of which runs the given function."""

    def use(last, plots=None):
        tables = {
            "first": BenchTable("first", lambda small, echo: {"small_too": small}, {}),
            "no-gpu": BenchTable("no-gpu", make_failing(Unavailable("needs a GPU")), {}),
            "last": BenchTable("last", last, {}, plots or {}),
        }
        monkeypatch.setattr(registry, "load_tables", lambda: tables)
        monkeypatch.chdir(tmp_path)
        return tmp_path / "benchmarks" / "small"

    return use


def get_states(outcomes):
    return {outcome.table: (outcome.state, outcome.reason) for outcome in outcomes}


def test_skipped_table_does_not_stop_the_others(use_tables):
    folder = use_tables(lambda small, echo: {})
    lines = []
    outcomes = run.run_all(small=True, echo=lines.append)
    assert get_states(outcomes) == {
        "first": (run.DONE, ""),
        "no-gpu": (run.SKIPPED, "needs a GPU"),
        "last": (run.DONE, ""),
    }
    assert sorted(path.name for path in folder.iterdir()) == ["first.json", "last.json"]
    assert json.loads((folder / "first.json").read_text())["small_too"] is True
    assert any(line.startswith("no-gpu: skipped") and "needs a GPU" in line for line in lines)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (Unavailable("no GPU"), run.SKIPPED),
        (ImportError("video needs PyAV"), run.SKIPPED),
        (ModuleNotFoundError("No module named 'av'", name="av"), run.SKIPPED),
        (ModuleNotFoundError("No module named 'floc.gone'", name="floc.gone"), run.FAILED),
        (ModuleNotFoundError("No module named 'benchmarks'", name="benchmarks"), run.FAILED),
        (AssertionError("wrong picks"), run.FAILED),
        (RuntimeError("out of memory"), run.FAILED),
    ],
    ids=repr,
)
def test_missing_package_or_device_is_skipped_and_anything_else_fails(use_tables, error, state):
    use_tables(make_failing(error))
    outcomes = run.run_all(small=True, echo=lambda _: None)
    assert get_states(outcomes)["last"] == (state, str(error))


def test_says_why_nothing_is_drawn_without_matplotlib(use_tables, monkeypatch):
    use_tables(lambda small, echo: {}, plots={"last": None})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    reason = "not drawn: plots need matplotlib, pip install 'floc-video[report]'"
    for table, expected in (("first", []), ("last", [reason])):
        lines = []
        run.run(table, small=True, echo=lines.append)
        assert [line for line in lines if "drawn" in line] == expected


def test_interrupt_ends_the_run(use_tables):
    use_tables(make_failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run.run_all(small=True, echo=lambda _: None)


def test_results_are_replaced_and_nothing_is_left_beside_them(use_tables, tmp_path):
    use_tables(lambda small, echo: {})
    folder = tmp_path / "results"
    for small in (True, False):
        run.run("first", small=small, results=folder, echo=lambda _: None)
        assert json.loads((folder / "first.json").read_text())["small_too"] is small
    assert [path.name for path in folder.iterdir()] == ["first.json"]


def test_small_results_never_replace_real_ones(use_tables, tmp_path):
    use_tables(lambda small, echo: {})
    run.run("last", small=True, echo=lambda _: None)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")] == ["benchmarks/small/last.json"]
