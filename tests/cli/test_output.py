"""What commands print."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from floc.cli import output
from tests.cli.helpers import run

EVIL = "a\x1b]0;title\x07\x1b[31m\u202e.npy"
SHOWN = r"a\x1b]0;title\x07\x1b[31m\u202e.npy"


def test_progress_is_printed_as_lines_without_a_terminal(monkeypatch, capsys) -> None:
    monkeypatch.setattr(output, "LINE_EVERY_S", 0.0)
    with output.show_progress("reading talk.mp4") as update:
        update(0.25)
        update(0.5, "encoding talk.mp4")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("reading talk.mp4: 25%, about")
    assert lines[1].startswith("encoding talk.mp4: 50%")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_escape_sequences_of_names_do_not_reach_the_terminal(is_terminal: bool, monkeypatch) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=is_terminal, no_color=True, highlight=False, width=200)
    monkeypatch.setattr(output, "screen", console)
    monkeypatch.setattr(output, "_ALWAYS", console)
    monkeypatch.setattr(output, "LINE_EVERY_S", 0.0)
    with output.show_status(str) as show:
        show(EVIL)
    with output.show_progress(EVIL) as update:
        update(0.5, EVIL)
    for print_text in (output.print_note, output.print_warning, output.print_error):
        print_text(EVIL)
    output.print_summary([("written", output.escape_markup(EVIL))])
    printed = text.getvalue()
    assert printed.count(SHOWN) >= 4
    assert "\x07" not in printed
    assert "\x1b]0" not in printed
    assert "\x1b[31m\u202e" not in printed


def test_names_of_files_are_escaped_everywhere(tmp_path: Path, tokens: np.ndarray, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    odd = os.fsdecode(b"caf\xe9.npy")
    for name in (EVIL, odd):
        np.save(name, tokens)
        assert run(monkeypatch, "compress", name, "--budget", 5, "-o", f"{name}.safetensors", "--json") == 0
        assert run(monkeypatch, "compress", name, "--budget", 0) == 2
        assert run(monkeypatch, "compress", f"no{name}", "--budget", 5) == 2
        assert run(monkeypatch, "compress", "a.npy", name, "--budget", 5) == 2
        printed = capsys.readouterr()
        assert "\x1b" not in printed.out + printed.err
        printed.err.encode()


def test_line_breaks_in_names_are_escaped(tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "compress", tmp_path / "a\nfloc: done.npy", "--budget", 5) == 2
    assert capsys.readouterr().err == f"floc: {tmp_path}/a\\nfloc: done.npy: no such file\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://KEY:SECRET@bucket/a: no", "s3://bucket/a: no"),
        ("RTSP://u:p@ss@[::1]:554/main: no", "rtsp://[::1]:554/main: no"),
        ("cannot open 'http://host/a?token=1&b=2'", "cannot open 'http://host/a'"),
        ("tabs\tand\nlines stay; é, 日本 too", "tabs\tand\nlines stay; é, 日本 too"),
    ],
)
def test_secrets_are_hidden(text: str, shown: str) -> None:
    assert output.clean_text(text) == shown


def test_tracebacks_hide_secrets(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "compare", "rtsp://admin:secret@127.0.0.1:9/x", "-v") == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert "secret" not in error


def test_an_error_is_one_line(capsys) -> None:
    output.print_error("two\nlines.floc: no such file")
    assert capsys.readouterr().err == "floc: two\\nlines.floc: no such file\n"
