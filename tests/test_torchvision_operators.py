"""Tests of the module that lets torchvision load in the development environment."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "torchvision_operators.py"
# run the tool in place of the installed one
START = f"""
import runpy, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "OperatorFinder"]
runpy.run_path({str(TOOL)!r})
"""


def run(code: str) -> str:
    process = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_python_starts_without_torch() -> None:
    assert run("print('torch' in sys.modules)") == "False"


def test_torchvision_loads_and_has_its_operators() -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed: pip install 'floc-video[hf]'")
    assert run("import torch, torchvision\nprint(torch.ops.torchvision.nms, torch.ops.torchvision.qnms)")


def test_leaves_loaded_operators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [])
    tool = runpy.run_path(str(TOOL))
    defined: list[Any] = []
    library = SimpleNamespace(define=defined.append)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(library=SimpleNamespace(Library=lambda *args: library)))
    for has_operators, count in ((True, 0), (False, 2)):
        extension = SimpleNamespace(_has_ops=lambda has_operators=has_operators: has_operators)
        monkeypatch.setitem(sys.modules, "torchvision.extension", extension)
        assert tool["OperatorFinder"]().find_spec(tool["FIRST_USE"]) is None
        assert len(defined) == count
