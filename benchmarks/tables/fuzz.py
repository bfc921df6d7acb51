"""Table "fuzz": damaged files and clips, odd arguments and command lines, and what floc makes of them.

The suite itself is in `tests/fuzz`; `make fuzz` runs it at full scale and ends with status 1 after a defect.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.markdown import show_environment, show_rows
from benchmarks.registry import BenchTable, Echo

FULL, SMALL = 1.0, 0.01
NAMES = {"files": "file", "clips": "clip", "api": "Python call", "cli": "command line"}
WRONG = {
    "crash": "crash",
    "hang": "hang",
    "memory": "memory",
    "traceback": "traceback",
    "unclear": "unclear error",
    "invalid": "invalid result",
}


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Run the fuzz suite."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.json"
        command = [sys.executable, "-m", "tests.fuzz", "all", "--scale", str(SMALL if small else FULL), "-o", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                echo(line.rstrip())
        return json.loads(path.read_text())


def _show(document: dict[str, Any]) -> str:
    table, totals = [], [0] * (3 + len(WRONG))
    for kind, found in document["kinds"].items():
        for row in sorted(found["rows"], key=lambda row: row["format"]):
            numbers = [row.get(name, 0) for name in ("cases", "refused", "valid", *WRONG)]
            totals = [total + number for total, number in zip(totals, numbers, strict=True)]
            table.append([NAMES[kind], row["format"], *map(_show_count, numbers)])
    table.append(["all", "", *map(_show_count, totals)])
    kinds = document["kinds"].values()
    note = (
        "Refused: an error that floc raises, which names the problem and, for a file, the file; a command line ends "
        "with status 1 or 2 and a line that says why. Valid: accepted, and the result passes every check of "
        "`tests/fuzz/oracles.py`. All other columns are defects. Each case runs in a process of its own or with a few "
        "others, with limits of 10 s and of 1 GiB over the memory before the case. The slowest case took "
        f"{max(kind['slowest_s'] for kind in kinds):.1f} s, the largest "
        f"{max(kind['largest_bytes'] for kind in kinds) / 2**20:,.0f} MiB; seed {document['seed']}, "
        f"{sum(kind['seconds'] for kind in kinds) / 60:.0f} minutes in all."
    )
    head = ["kind", "input", "cases", "refused", "valid", *WRONG.values()]
    return show_rows(head, table, note, show_environment(document, "python", "torch", "av"))


def _show_count(count: int) -> str:
    return f"{count:,}"


TABLE = BenchTable("fuzz", run, {"fuzz": _show})
