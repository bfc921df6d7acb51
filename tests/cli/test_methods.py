"""`floc methods`."""

from __future__ import annotations

import floc
from tests.cli.helpers import run


def test_lists(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "methods", "sttm") == 0
    manual = capsys.readouterr().out
    assert "Hyun et al." in manual
    assert "temporal_threshold=0.55" in manual
    assert run(monkeypatch, "methods", "--markdown") == 0
    assert capsys.readouterr().out == floc.methods.format_markdown()
    assert run(monkeypatch, "methods") == 0
    assert "floc-paper" in capsys.readouterr().out
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.strip() == floc.__version__
