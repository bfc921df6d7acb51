"""Run the command line in this process."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from floc import cli
from floc.cli.application import load_app


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run a command as `floc` does, and return its exit code; capsys captures what it prints."""
    monkeypatch.setattr(sys, "argv", ["floc", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


def invoke(*arguments: object) -> Any:
    """Run a command, and return its exit code, output and exception."""
    return CliRunner().invoke(load_app(), [*map(str, arguments)])
