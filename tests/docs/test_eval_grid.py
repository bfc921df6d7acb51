"""What the page on `floc eval` shows, runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from floc.evaluation.plan import PAPER
from tests.cli.test_cli import run

PAGE = (Path(__file__).parents[2] / "docs" / "eval-grid.md").read_text()


def commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    return [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("command", commands())
def test_commands_make_a_plan(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = [each for each in shlex.split(command)[1:] if each != "--dry-run"]
    assert run(monkeypatch, *given, "--dry-run") == 0


def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for snippet in snippets:
        exec(snippet, names)
    assert len(names["cells"]) == 6  # two models, three ratios
    assert not list(tmp_path.iterdir())


def test_every_table_that_can_be_asked_for_is_told() -> None:
    assert {name for name in PAPER if f"`{name}`" in PAGE} == set(PAPER)
