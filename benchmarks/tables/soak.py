"""Table "soak": memory, threads and open files over two hours of video and 10,000 calls of `floc.compress`.

The measurements are in `tests/soak`; `make soak` runs them and ends with status 1 if something grows.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from benchmarks.markdown import show_environment, show_records
from benchmarks.registry import BenchTable, Echo


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Run the soak tests."""
    return import_module("tests.soak.soak").run_soak(small, echo)


def _show(document: dict[str, Any]) -> str:
    columns = {
        "what": lambda row: row["what"],
        "work": lambda row: row["work"],
        "resident after warm-up, MB": lambda row: f"{row['start_bytes'] / 1e6:.0f}",
        "at the end, MB": lambda row: f"{row['end_bytes'] / 1e6:.0f}",
        "fitted growth, MB": lambda row: f"{row['growth_bytes'] / 1e6:+.1f}",
        "threads": lambda row: _show_range(row["threads"]),
        "open files": lambda row: _show_range(row["handles"]),
        "seconds": lambda row: f"{row['seconds']:,.0f}",
    }
    note = (
        "Fitted growth: the slope of a line through the samples after the warm-up (the first quarter), times their "
        "span. A row fails above a growth of "
        f"{document['limit_bytes'] / 1e6:.0f} MB, or if the number of threads or open files grows."
    )
    return show_records(document["rows"], columns, note, show_environment(document, "python", "numpy", "torch"))


def _show_range(values: list[int]) -> str:
    low, high = values
    return str(low) if low == high else f"{low} to {high}"


TABLE = BenchTable("soak", run, {"soak": _show})
