"""`floc methods`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import floc
from floc.cli.shell import app


@app.command(epilog="Example: floc methods")
def methods(
    name: Annotated[str | None, typer.Argument(help="One method, to read all that there is to know of it.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="All of them as the page docs/methods.md.")] = False,
) -> None:
    """List the methods: what each does, and its options."""
    if markdown:
        print(floc.methods.markdown(), end="")
        return
    out = Console(highlight=False)
    if name is not None:
        out.print(floc.methods.manual(name), markup=False)
        return
    table = Table("method", "kind", "budget", "floor", "what it does", box=None, header_style="bold")
    for each in floc.methods.names():
        facts = floc.methods.facts(each)
        budget = "exact" if facts.exact else "at most"
        table.add_row(each, facts.kind, budget, facts.floor or "-", floc.methods.describe(each))
    out.print(table)
    out.print("[dim]floc methods NAME tells the paper, the options and every difference from the published program.[/]")
