"""`floc stream` on the command line; tests/streaming/test_recorder.py checks what it keeps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.helpers import run


def test_prints_the_time_of_each_stage(film: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    command = ("stream", film, "--encoder", "pixels", "--ratio", "1/8", "--seconds", 4)
    assert run(monkeypatch, *command, "-o", tmp_path / "notes") == 0
    stages = r"read \d+\.\d\d s, encode .* s, select .* s, write .* s; .* s in all"
    assert re.search(stages, capsys.readouterr().err)
    assert run(monkeypatch, *command, "-o", tmp_path / "quiet", "-q", "--json") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert json.loads(printed.out)["stage_seconds"].keys() == {"read", "encode", "select", "write"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --ratio or --budget"),
        (["--ratio", "1/8", "--block", "0"], "--block must be a number of frames, at least 1"),
        (["--ratio", "1/8", "--half-life", "5"], "--half-life"),
        (["--ratio", "1/8", "--horizon", "-1"], "--horizon must be a number of frames, at least 0, 'auto' or 'none'"),
        (["--ratio", "1/8", "--horizon", "near"], "--horizon must be a number of frames"),
        (["--ratio", "1/8", "--horizon", "4", "--block", "8"], "--horizon 4 excludes blocks of a stream with a ratio"),
        (["--ratio", "1/8", "--state", "FILM"], "this would overwrite the input"),
        (["--ratio", "1/8", "-o", "FILM"], "is a file; name a folder"),
    ],
)
def test_bad_arguments_are_one_line(film: Path, arguments, message: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [film if argument == "FILM" else argument for argument in arguments]
    assert run(monkeypatch, "stream", film, "--encoder", "pixels", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert "half_life" not in line
    assert not list(tmp_path.iterdir())


def test_a_horizon_is_kept_in_the_state(film: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    command = ("stream", film, "--encoder", "pixels", "--ratio", "1/8", "--state", tmp_path / "state", "--json")
    assert run(monkeypatch, *command, "-o", tmp_path / "first", "--horizon", "2", "--seconds", 8) == 0
    capsys.readouterr()
    assert run(monkeypatch, *command, "-o", tmp_path / "other", "--horizon", "auto") == 2
    assert "saved with --horizon 2, and cannot resume with --horizon 4" in capsys.readouterr().err
    assert run(monkeypatch, *command, "-o", tmp_path / "rest", "--horizon", "2") == 0
    resumed = json.loads(capsys.readouterr().out)
    straight = ("stream", film, "--encoder", "pixels", "--ratio", "1/8", "--horizon", "2", "-o", tmp_path / "straight")
    assert run(monkeypatch, *straight, "--json") == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["settings"]["horizon"] == 2
    assert (resumed["kept"], resumed["coverage"]) == (whole["kept"], whole["coverage"])


def test_addresses_cannot_be_followed(monkeypatch, capsys) -> None:
    address = "rtsp://me:secret@camera/main?token=secret"
    assert run(monkeypatch, "stream", address, "--follow", "--ratio", "1/8") == 2
    error = capsys.readouterr().err
    assert error.startswith("floc: rtsp://camera/main: --follow is for files; remove it")
    assert "addresss" not in error
