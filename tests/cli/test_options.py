"""Options: how their values are parsed and checked."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest

from tests.cli.helpers import run

ODD = ["nan", "inf", "-inf", "-1", "0", "1e-310", "1e99999999", "1e-99999999", "1/0", "9" * 5000, "", "x"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *product(["--ratio", "--fps", "--block", "--budget"], ODD),
        *product(["--coverage"], sorted({*ODD} - {"1e-310"})),  # one token reaches it
    ],
)
def test_odd_numbers_are_refused_at_once(option: str, value: str, film: Path, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    budget = [] if option in ("--ratio", "--budget", "--coverage") else ["--ratio", "1/8"]
    assert run(monkeypatch, "compress", film, "--encoder", "pixels", f"{option}={value}", *budget) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{option} must be" in line
    assert len(line) < 250
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--segment", "--patience", "--seconds", "--half-life"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "1e-310"])
def test_odd_times_are_refused_at_once(option: str, value: str, film: Path, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "stream", film, "--budget", 5, f"{option}={value}") == 2
    assert f"floc: {option} must be a number of seconds, 0.001 to 1e+09; got" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_outputs_are_checked_before_the_work(npy: Path, monkeypatch, capsys) -> None:
    folder = npy.parent
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "folder.safetensors").mkdir()
    for name, message in {
        "a" * 250 + ".safetensors": "File name too long",
        "new/" + "ä" * 125 + ".safetensors": "is too long; use at most 255 bytes",
        "a" * 300 + "/k.safetensors": "File name too long",
        "pipe.safetensors": "not a regular file",
        "folder.safetensors": "this is a folder; name a file",
        "tokens.npy/k.safetensors": "tokens.npy is a file; name a folder",
        "..": "this is a folder",
    }.items():
        monkeypatch.setattr("floc.files.read_tokens", None)  # the work is not reached
        assert run(monkeypatch, "compress", npy, "--ratio", "1/8", "-o", folder / name) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


@pytest.mark.parametrize(
    "command",
    [
        ["compress", "PIPE", "--ratio", "1/8"],
        ["compare", "PIPE"],
        ["stream", "PIPE", "--ratio", "1/8"],
        ["ask", "PIPE", "What?", "--model", "none"],
        ["store", "search", "store", "PIPE"],
        ["store", "import", "store", "PIPE"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["pipe.npy", "pipe.mp4"])
def test_pipes_as_input_are_refused(command: list[str], name: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(name)
    assert run(monkeypatch, *(name if word == "PIPE" else word for word in command)) == 2
    assert f"floc: {name}: not a regular file" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_addresses_are_for_streams(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "compress", "rtsp://me:secret@camera/main?token=secret", "--ratio", "1/8") == 2
    error = capsys.readouterr().err
    assert error == "floc: rtsp://camera/main: no such file; floc stream reads addresses\n"
