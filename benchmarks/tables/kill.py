"""Table "kill": commands that are killed, interrupted, or run out of disk space, and the result of a second run.

The suite itself is in `tests/kill`; `make test-kill` runs it at full scale and ends with status 1 after a defect.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from benchmarks.markdown import show_environment, show_rows
from benchmarks.registry import BenchTable, Echo

FULL, SMALL = 1.0, 0.01
KINDS = ("SIGKILL", "SIGINT", "SIGTERM", "file limit", "full disk", "read-only folder")


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Run the kill suite."""
    return import_module("tests.kill.suite").run_suite(SMALL if small else FULL, echo)


def _show(document: dict[str, Any]) -> str:
    rows = document["rows"]
    names = list(dict.fromkeys(row["operation"] for row in rows))
    counts = {(row["operation"], row["kind"]): row for row in rows}

    def show_row(name: str, found: list[dict[str, Any]]) -> list[str]:
        by_kind = {kind: sum(row["stops"] for row in found if row["kind"] == kind) for kind in KINDS}
        numbers = [f"{by_kind[kind]:,}" if by_kind[kind] else "" for kind in KINDS]
        return [name, *numbers, str(sum(row["defects"] for row in found))]

    table = [show_row(name, [counts[name, kind] for kind in KINDS if (name, kind) in counts]) for name in names]
    note = (
        "Each number counts stops of a command while it ran. SIGKILL: at a random time, or at a random write; the same "
        "command then runs again, and its outputs must equal those of an uninterrupted run, without leftovers. SIGINT "
        "and SIGTERM: at a random time, imports included; the command must end within 20 s, with status 130 or 143 or "
        "in order, without a traceback, and every output is absent or complete. File limit, full disk and read-only "
        f"folder: one line that says so, status 2, earlier outputs intact. {document['seconds'] / 60:.0f} minutes."
    )
    if document["scale"] != FULL:
        note += f" This was a run at {document['scale']:.0%} of the full scale."
    head = ["command", *KINDS, "defects"]
    return show_rows(head, [*table, show_row("all", rows)], note, show_environment(document, "python", "torch"))


TABLE = BenchTable("kill", run, {"kill": _show})
