"""Run a module of the benchmarks in a process of its own, for example to measure its peak memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import floc

ROOT = Path(__file__).resolve().parents[1]


def child_environment() -> dict[str, str]:
    """Return environment variables with which a process finds `benchmarks`, `examples` and the same `floc`."""
    paths = [str(ROOT), str(Path(floc.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_module(module: str, *arguments: str) -> Any:
    """Run `python -m module arguments` and parse the last line it prints as JSON."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`python -m {module}` failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
