"""`floc bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shell import app


@app.command(epilog="Examples: floc bench profile\n\nfloc bench all --small")
def bench(
    table: Annotated[str, typer.Argument(help="Which table: see `floc bench list`; `all` for all of them.")],
    small: Annotated[bool, typer.Option("--small", help="Sizes that two cores measure in a minute or two.")] = False,
    results: Annotated[
        Path | None, typer.Option(help="Where results go: by default benchmarks/results, or benchmarks/small.")
    ] = None,
) -> None:
    """Measure, and record the result.

    Of `all`, a table that needs what is not here is left out and told, and the exit code is 1 where another one failed.
    """
    from floc import bench as benchmarks

    if table == "list":
        for name in benchmarks.names():
            print(name)
        return
    if table == "all":
        outcomes = benchmarks.run_all(small=small, results=results, echo=print)
        if any(each.state == benchmarks.FAILED for each in outcomes):
            raise typer.Exit(1)
        return
    benchmarks.run(table, small=small, results=results, echo=print)
