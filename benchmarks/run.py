"""Measure one table or many, and write the results."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness, pages, registry
from benchmarks.registry import Echo, Unavailable
from floc._atomic import write_atomic

DONE, SKIPPED, FAILED = "done", "skipped", "failed"

RESULTS = Path("benchmarks/results")
SMALL_RESULTS = Path("benchmarks/small")  # ignored by git: small runs only show that a table works


@dataclass(frozen=True)
class Outcome:
    """The state of one table after `run_all`."""

    table: str
    state: str  # DONE, SKIPPED or FAILED
    seconds: float
    reason: str = ""


def run(table: str, *, small: bool = False, results: Path | None = None, echo: Echo = print, **options: object) -> dict:
    """Measure one table, show it, and write its JSON and plots. Earlier results are replaced.

    Args:
        table: Name of the table; see `registry.load_tables`.
        small: Use sizes that two cores measure within a minute or two.
        results: Output folder. Default: RESULTS, or SMALL_RESULTS for a small run.
        echo: Called with each line to show.
        **options: Of the table.

    Returns:
        The results as written to the JSON file.
    """
    bench = registry.get(table)
    folder = results if results is not None else SMALL_RESULTS if small else RESULTS
    document = {"table": table, "small": small, **harness.describe_environment(), **bench.run(small, echo, **options)}
    for name, view in bench.views.items():
        echo(f"\n{name}\n\n{view(document)}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{table}.json"
    write_atomic(path, lambda temporary: temporary.write_text(json.dumps(document, indent=1) + "\n"))
    echo(f"\nwritten to {path}")
    drawn = pages.draw_table(bench, document, folder)
    for figure in drawn:
        echo(f"drawn in {figure}")
    if bench.plots and not drawn:
        echo("not drawn: plots need matplotlib, pip install 'floc-video[report]'")
    return document


def run_all(
    tables: Sequence[str] | None = None, *, small: bool = False, results: Path | None = None, echo: Echo = print
) -> list[Outcome]:
    """Measure tables one after the other; a table that fails or is skipped does not stop the others.

    Args:
        tables: Names of the tables. Default: all.
        small, results: As for `run`.
        echo: Called with each line to show. The last lines summarise the outcomes.
    """
    outcomes = []
    for table in registry.load_tables() if tables is None else tables:
        echo(f"\n== {table}")
        outcomes.append(_try_run(table, small, results, echo))
    echo("")
    for outcome in outcomes:
        reason = f": {outcome.reason}" if outcome.reason else ""
        echo(f"{outcome.table}: {outcome.state} in {outcome.seconds:.0f} s{reason}")
    echo(f"{len(outcomes)} tables in {sum(outcome.seconds for outcome in outcomes):.0f} s")
    return outcomes


def _try_run(table: str, small: bool, results: Path | None, echo: Echo) -> Outcome:
    started = time.perf_counter()
    state, reason = DONE, ""
    try:
        run(table, small=small, results=results, echo=echo)
    except Exception as error:
        state, reason = (SKIPPED if is_missing(error) else FAILED), str(error) or type(error).__name__
        echo(reason if state == SKIPPED else traceback.format_exc())
    return Outcome(table, state, time.perf_counter() - started, reason)


def is_missing(error: Exception) -> bool:
    """Return whether a device or package is missing. A missing module of this project is a failure instead."""
    if isinstance(error, ImportError):
        return (error.name or "").split(".")[0] not in ("floc", "benchmarks", "examples")
    return isinstance(error, Unavailable)
