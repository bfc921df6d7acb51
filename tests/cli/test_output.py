"""What commands print."""

from __future__ import annotations

import io
import os
import time
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
        ("open 'rtsp://u:pa'ss@h/x': no", "open 'rtsp://h/x': no"),
        ("file:///etc and file:/etc", "file:///etc and file:/etc"),
        ("tabs\tand\nlines; \u200e\u061c; é, 日本 stay", "tabs\\tand\\nlines; \\u200e\\u061c; é, 日本 stay"),
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


@pytest.mark.parametrize("text", ["y", "pass", "a:/", "a:/'", "ab://", "@", "ab:/@'", "y.", ":", "ab:/;"])
def test_long_text_is_cleaned_in_linear_time(text: str) -> None:
    started = time.perf_counter()
    output.clean_text(text * (100_000 // len(text)))
    output.clean_text("rtsp://h/" + text * (100_000 // len(text)))
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("quote", ["'", '"', " ", "'\"", "\n", ")", ";", "\\"])
@pytest.mark.parametrize("form", ["rtsp://u:{}@127.0.0.1:9/x.mp4", "rtsp:/u:{}@h/", "http://127.0.0.1:9/x?sig={}"])
def test_passwords_of_arguments_are_hidden(quote: str, form: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.ones((2, 2, 2, 4), np.float32))
    address = form.format(f"pa{quote}secret{'x' * 60}")
    for arguments in (
        ("compress", address, "--ratio", "1/8"),
        ("compress", "a.npy", "--ratio", "1/8", "-o", address),
        ("compress", "a.npy", "--ratio", address),
        ("compress", "a.npy", f"--method={address}", "--ratio", "1/8"),
        ("compare", address),
        ("eval", address),
        ("stream", address, "--budget", 9, "-o", address),
        ("store", "export", "none", "x", "-o", address),
    ):
        assert run(monkeypatch, *arguments) == 2
        printed = capsys.readouterr()
        assert "secret" not in printed.out + printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]
