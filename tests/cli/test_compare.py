"""`floc compare`: a report and plots."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("av", reason="video needs PyAV: pip install 'floc-video[video]'")
pytest.importorskip("PIL", reason="pictures need Pillow: pip install 'floc-video[report]'")

import floc
from floc.encoders.load import load_tokens
from tests.cli.helpers import run


def test_writes_a_report_and_plots(film: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    page, plots = tmp_path / "report.html", tmp_path / "plots"
    command = ("compare", film, "--fps", 2, "--encoder", "pixels", "--methods", "floc,random,frame_uniform")
    assert run(monkeypatch, *command, "--ratio", "1/8,1/32", "-o", page, "--plots", plots, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["method"], row["ratio"]) for row in rows] == [
        (method, ratio) for method in ("floc", "random", "frame_uniform") for ratio in ("1/8", "1/32")
    ]
    tokens = load_tokens(film, fps=2, encoder="pixels").tokens
    assert rows[0]["tokens"] == len(floc.compress(tokens, ratio="1/8"))
    assert sorted(path.name for path in plots.iterdir()) == ["frames.png", "scatter.png", "timeline.png", "tsne.png"]
    text = page.read_text()
    assert "my film.mp4" in text
    assert "http://" not in text.replace("http://www.w3.org/", "")
    assert "https://" not in text
    assert page.stat().st_size < 15e6


def test_missing_packages_fail_before_the_video_is_read(film: Path, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("floc.report.find_spec", lambda name: None)
    assert run(monkeypatch, "compare", film) == 2
    assert "a report needs scikit-learn: pip install 'floc-video[report]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_file_names_that_are_not_unicode(film: Path, tmp_path: Path, monkeypatch) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9 <b>.mp4")
    odd.write_bytes(film.read_bytes())
    page = tmp_path / "r.html"
    command = ("compare", odd, "--encoder", "pixels", "--max-frames", 4, "--methods", "random", "-o", page)
    assert run(monkeypatch, *command) == 0
    assert "<b>" not in page.read_text().replace("<body>", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--methods", ",,,"], "--methods must name at least one method; got ',,,'"), (["--ratio", "1/0"], "got '1/0'")],
)
def test_options_are_checked_before_files(arguments: list[str], message: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.mp4").touch()
    (tmp_path / "a.report.html").touch()
    assert run(monkeypatch, "compare", "a.mp4", *arguments) == 2
    assert message in capsys.readouterr().err


def test_all_methods_begin_with_floc() -> None:
    from floc.cli.compare import _list_all

    assert _list_all()[:2] == ["floc", "floc-paper"]  # what the report opens with
    assert sorted(_list_all()) == floc.methods.list_methods()
