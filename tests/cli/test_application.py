"""How commands are run, and how their errors are shown."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import floc
from floc.cli import application
from tests.cli.helpers import run


def list_commands() -> list[tuple[str, ...]]:
    """List every command, and the commands of groups."""
    from typer.main import get_command

    root: Any = get_command(application.load_app())
    groups = {name: getattr(command, "commands", None) for name, command in root.commands.items()}
    return [
        path for name, group in groups.items() for path in ([(name, child) for child in group] if group else [(name,)])
    ]


@pytest.mark.parametrize("command", list_commands(), ids=" ".join)
def test_every_help_has_an_example_and_no_bool(command: tuple[str, ...], monkeypatch, capsys) -> None:
    assert run(monkeypatch, *command, "--help") == 0
    text = capsys.readouterr().out
    assert re.search(f"Examples?: floc {' '.join(command)}", text)
    assert "<bool>" not in text
    assert "--quiet" in text
    assert "--verbose" in text


def test_help_does_not_import_torch() -> None:
    code = "import sys; sys.argv = ['floc', '--help']\nfrom floc.cli import main\n"
    code += "try:\n    main()\nexcept SystemExit:\n    pass\n"
    code += "print(sorted(name for name in ('torch', 'numpy', 'numba') if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_completion_lists_methods() -> None:
    environment = {
        **os.environ,
        "_FLOC_COMPLETE": "complete_bash",
        "COMP_WORDS": "floc compress --method flo",
        "COMP_CWORD": "3",
    }
    code = "import sys; sys.argv = ['floc']\nfrom floc.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["floc", "floc-paper"]


def test_quiet_prints_results_only(npy: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "compress", npy, "--ratio", "1/8", "--json", "-q") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert json.loads(printed.out)["stage_seconds"].keys() == {"read", "select"}
    assert run(monkeypatch, "compress", npy, "--ratio", "1/8", "-q", "-v") == 2


def test_verbose_prints_tracebacks(npy: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "compress", npy, "--ratio", "2", "-v") == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("pass block=32, or fewer frames", "pass --block 32, or fewer frames"),
        ("pass backend='auto'", "pass --backend auto"),
        ("give ratio= or budget=", "give --ratio or --budget"),
        ("got n=3 and max_frames=7", "got n=3 and --max-frames 7"),
        ("ratio must be in (0, 1]; got '2'", "--ratio must be in (0, 1]; got '2'"),
        ("a.mp4: half_life_s must be above 0", "a.mp4: --half-life must be above 0"),
        ("end must be after start", "--to must be after start"),
        ("the ratio must be a number", "the ratio must be a number"),
    ],
)
def test_errors_name_options(message: str, expected: str, monkeypatch) -> None:
    names = {name: f"--{name.replace('_', '-')}" for name in ("block", "backend", "ratio", "max_frames", "half_life")}
    monkeypatch.setattr(application, "_option_names", {**names, "budget": "--budget", "end": "--to"})
    assert application._name_options(message) == expected


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a.floc"), 2, "floc: a.floc: No space left on device\n"),
        (MemoryError(), 2, "floc: out of memory; "),
        (ModuleNotFoundError("No module named 'av'"), 2, "floc: No module named 'av'\n"),
        (RecursionError("maximum recursion depth exceeded"), 1, "floc: unexpected RecursionError: maximum recursion"),
        (SystemError("CPUDispatcher\nreturned"), 1, "floc: unexpected SystemError: CPUDispatcher returned; this is"),
        (KeyError("shape"), 1, "floc: unexpected KeyError: 'shape'; this is a defect of floc: run it again with -v"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 2, "floc: 'utf-8' codec can't decode"),
        (BrokenPipeError(), 1, ""),
        (KeyboardInterrupt(), 130, "floc: stopped\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_errors_are_one_line_without_a_traceback(
    error: BaseException, code: int, message: str, monkeypatch, capsys
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(floc.methods, "list_methods", fail)
    assert run(monkeypatch, "methods") == code
    printed = capsys.readouterr()
    assert printed.err.startswith(message)
    assert len(printed.err.splitlines()) == (message != "")
    assert printed.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compress"], "floc: missing argument 'SOURCE'; see floc compress --help"),
        (["compress", "a.npy", "--rato", "1"], "floc: no such option: --rato"),
        (["compress", "a.npy", "--budget", "many"], "floc: --budget must be a valid integer; got 'many'"),
        (["compress", "a.npy", "b\x1b[31m.npy"], "(b\\x1b[31m.npy); see floc compress --help"),
        (["compress", "a.npy", "--metric", "dot"], "floc: invalid value for '--metric': 'dot' is not one of 'cosine'"),
        (["compres"], "floc: no such command 'compres'"),
        (["methods", "-q", "-v"], "floc: invalid value: give --quiet or --verbose, not both"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], message: str, monkeypatch, capsys) -> None:
    assert run(monkeypatch, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("target", ["pipe", "full"])
def test_output_that_cannot_be_written_is_no_traceback(target: str) -> None:
    command = [sys.executable, "-m", "floc", "--version"]
    if target == "pipe":
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 1)
        process.stderr.close()
        return
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.stderr, done.returncode) == ("floc: No space left on device\n", 2)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m floc methods divprune {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("arguments", [[], ["store"]])
def test_no_arguments_print_the_help_alone(arguments: list[str], monkeypatch, capsys) -> None:
    assert run(monkeypatch, *arguments) == 2
    printed = capsys.readouterr()
    assert "Usage: floc" in printed.out + printed.err
    assert "floc: ;" not in printed.err


def test_a_misspelt_command_gets_a_suggestion(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "compres") == 2
    assert capsys.readouterr().err == "floc: no such command 'compres'; did you mean 'compress', 'compare'?\n"


def test_errors_do_not_offer_none(npy: Path, monkeypatch, capsys) -> None:
    """The command line has no None: an option is left out instead."""
    assert run(monkeypatch, "ask", npy, "What?", "--model", "m", "--reuse", "-1") == 2
    printed = capsys.readouterr().err
    assert "--reuse must be a number of levels of a pixel, 0 to 255; got -1" in printed
