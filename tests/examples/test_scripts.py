"""The short scripts in examples/ run, and print what they say."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, render_video, use_tiny_model


def run_script(name: str, *arguments: str) -> None:
    sys.argv = [name, *arguments]
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


@pytest.fixture(autouse=True)
def _keep_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.chdir(tmp_path)


def test_compress_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    run_script("compress_tokens.py")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("kept 480 of 3840 tokens, coverage 1.000")
    assert lines[-1].startswith("at 1/32: 120 tokens")


def test_follow_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    render_video(tmp_path / "talk.mp4")
    run_script("follow_stream.py", "talk.mp4")
    assert "kept 256 of " in capsys.readouterr().out.splitlines()[-1]


def test_ask_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="needs pip install 'floc-video[hf]'")
    render_video(tmp_path / "talk.mp4")
    use_tiny_model(tmp_path, monkeypatch)
    run_script("ask_model.py", "Qwen/Qwen2.5-VL-7B-Instruct", "talk.mp4", "What is on the table?")
    kept, total = capsys.readouterr().out.split(" tokens")[0].removeprefix("kept ").split(" of ")
    assert int(kept) == round(int(total) / 8)
