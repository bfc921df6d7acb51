"""`floc bench`: one file per table, its cases and how one is run.

Every contender of a case runs in one process on the same inputs, in turn, and what counts is the ratio of their times:
milliseconds change with the machine and with what else runs on it, ratios hardly do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import harness, tables
from .tables import names

__all__ = ["names", "run"]


def run(
    table: str,
    *,
    quick: bool = False,
    results: Path = Path("benchmarks/results"),
    echo: Callable[[str], object] = print,
) -> dict:
    """Measure one table, show it, and put it into `results` as JSON in place of what was measured before.

    Args:
        table: see `names()`.
        quick: tiny sizes, to see that all works. Nothing is written then: such numbers say nothing.
        results: the folder to write to.
        echo: called with each line to show.

    Returns:
        What was measured, as it stands in the JSON.
    """
    chosen = tables.get(table)
    document = {"table": table, "quick": quick, **harness.environment(), **chosen.run(quick, echo)}
    for name, view in chosen.views.items():
        echo(f"\n{name}\n\n{view(document)}")
    if quick:
        echo("\na quick run: nothing was written")
    else:
        echo(f"\nwritten to {harness.write(document, results / f'{table}.json')}")
    return document
