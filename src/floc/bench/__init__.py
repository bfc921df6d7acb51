"""`floc bench`: one file per table, its cases and how one is run.

Every contender of a case runs in one process on the same inputs, in turn, and what counts is the ratio of their times:
milliseconds change with the machine and with what else runs on it, ratios hardly do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import harness, tables
from .tables import names

__all__ = ["RESULTS", "SMALL_RESULTS", "names", "run"]

RESULTS = Path("benchmarks/results")
SMALL_RESULTS = Path("benchmarks/small")  # never kept: such numbers only say that all works


def run(
    table: str,
    *,
    small: bool = False,
    results: Path | None = None,
    echo: Callable[[str], object] = print,
) -> dict:
    """Measure one table, show it, and put it into `results` as JSON, with its plots, in place of what was there.

    Args:
        table: see `names()`.
        small: sizes that two cores measure within a minute or two.
        results: the folder to write to; where not given, RESULTS, or SMALL_RESULTS for a small run.
        echo: called with each line to show.

    Returns:
        What was measured, as it stands in the JSON.
    """
    chosen = tables.get(table)
    folder = results if results is not None else SMALL_RESULTS if small else RESULTS
    document = {"table": table, "small": small, **harness.environment(), **chosen.run(small, echo)}
    for name, view in chosen.views.items():
        echo(f"\n{name}\n\n{view(document)}")
    echo(f"\nwritten to {harness.write(document, folder / f'{table}.json')}")
    for path in tables.plot(chosen, document, folder):
        echo(f"drawn in {path}")
    return document
