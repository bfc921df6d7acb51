"""`python -m benchmarks`: one file per table, its cases and how one is run.

Every contender of a case runs in one process on the same inputs, in turn, and what counts is the ratio of their times:
milliseconds change with the machine and with what else runs on it, ratios hardly do.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness, tables
from benchmarks.tables import Unavailable, names

__all__ = ["DONE", "FAILED", "LEFT_OUT", "RESULTS", "SMALL_RESULTS", "Outcome", "names", "run", "run_all"]

DONE, LEFT_OUT, FAILED = "done", "left out", "failed"

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
    drawn = list(tables.plot(chosen, document, folder))
    for path in drawn:
        echo(f"drawn in {path}")
    if chosen.plots and not drawn:
        echo("not drawn: plots need matplotlib, pip install 'floc-video[report]'")
    return document


@dataclass(frozen=True)
class Outcome:
    """What became of one table."""

    table: str
    state: str  # DONE, LEFT_OUT or FAILED
    seconds: float
    why: str = ""


def run_all(
    wanted: Sequence[str] | None = None,
    *,
    small: bool = False,
    results: Path | None = None,
    echo: Callable[[str], object] = print,
) -> list[Outcome]:
    """Measure many tables, one after the other, whatever becomes of each.

    Args:
        wanted: their names; where not given, all there are.
        small: as for `run`.
        results: as for `run`.
        echo: called with each line to show, of which the last ones tell what became of the tables.
    """
    outcomes = []
    for table in names() if wanted is None else wanted:
        echo(f"\n== {table}")
        outcomes.append(_attempt(table, small, results, echo))
    echo("")
    for each in outcomes:
        echo(f"{each.table}: {each.state} in {each.seconds:.0f} s{f', {each.why}' if each.why else ''}")
    echo(f"{len(outcomes)} tables in {sum(each.seconds for each in outcomes):.0f} s")
    return outcomes


def _attempt(table: str, small: bool, results: Path | None, echo: Callable[[str], object]) -> Outcome:
    started = time.perf_counter()
    state, why = DONE, ""
    try:
        run(table, small=small, results=results, echo=echo)
    except Exception as error:
        state, why = (LEFT_OUT if _is_missing(error) else FAILED), str(error) or type(error).__name__
        echo(why if state == LEFT_OUT else traceback.format_exc())
    return Outcome(table, state, time.perf_counter() - started, why)


def _is_missing(error: Exception) -> bool:
    """Whether a device or a package is not there; a part of floc itself that is not there is a fault."""
    if isinstance(error, ImportError):
        return not (error.name or "").startswith("floc")
    return isinstance(error, Unavailable)
