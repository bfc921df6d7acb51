"""The command line `python -m benchmarks`."""

import subprocess
import sys

import pytest

from benchmarks import pages, registry, run
from benchmarks.__main__ import main
from benchmarks.processes import child_environment
from benchmarks.registry import BenchTable, Unavailable


@pytest.fixture
def use_table(monkeypatch, tmp_path):
    """Replace all tables by one that raises the given error, or measures nothing."""

    def use(error=None):
        def measure(small, echo):
            if error is not None:
                raise error
            return {}

        monkeypatch.setattr(registry, "load_tables", lambda: {"only": BenchTable("only", measure, {})})
        monkeypatch.chdir(tmp_path)

    return use


@pytest.mark.parametrize(("error", "code"), [(Unavailable("no GPU"), 0), (AssertionError("wrong picks"), 1)], ids=repr)
def test_exit_code_is_1_if_a_table_failed(use_table, error, code, capsys):
    use_table(error)
    assert main(["all", "--small"]) == code
    assert f"only: {'failed' if code else 'skipped'}" in capsys.readouterr().out


def test_measures_one_table_into_a_folder(use_table, tmp_path):
    use_table()
    assert main(["only", "--results", str(tmp_path / "mine")]) == 0
    assert (tmp_path / "mine" / "only.json").exists()


def test_table_that_cannot_run_here_says_why_in_one_line(use_table, capsys):
    use_table(Unavailable("needs a GPU"))
    assert main(["only"]) == 1
    assert capsys.readouterr().err == "only: needs a GPU\n"


@pytest.mark.parametrize(
    ("arguments", "message"), [(["nothing"], "unknown table 'nothing'"), ([], "name a table or a command")]
)
def test_rejects_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_fill_render_and_draw_use_the_folder_of_results(monkeypatch, tmp_path, capsys):
    calls = []
    monkeypatch.setattr(pages, "fill", lambda page, folder: calls.append((page.name, folder)) or ["view"])
    monkeypatch.setattr(pages, "render", lambda folder: calls.append(("render", folder)) or [])
    monkeypatch.setattr(pages, "draw", lambda folder: calls.append(("draw", folder)) or [])
    assert main(["render", "--results", str(tmp_path), "--fill", "a.md", "b.md", "--draw"]) == 0
    assert calls == [("render", tmp_path), ("a.md", tmp_path), ("b.md", tmp_path), ("draw", tmp_path)]
    assert "a.md: view" in capsys.readouterr().out
    main(["render"])
    assert calls[-1] == ("render", run.RESULTS)


def test_lists_tables_from_another_folder(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "list"]
    done = subprocess.run(command, cwd=tmp_path, env=child_environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(registry.load_tables())


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    assert "python -m benchmarks all --small" in capsys.readouterr().out
