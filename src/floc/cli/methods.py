"""`floc methods`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import floc
from floc.cli.application import command
from floc.cli.options import complete_method


@command("floc methods", "floc methods longvu")
def methods(
    name: Annotated[
        str | None, typer.Argument(help="Describe this method in full.", autocompletion=complete_method)
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/reference/methods.md.")] = False,
) -> None:
    """List the compression methods and their options."""
    if markdown:
        print(floc.methods.format_markdown(), end="")
        return
    out = Console(highlight=False)
    if name is not None:
        out.print(floc.methods.format_manual(name), markup=False)
        return
    table = Table("method", "kind", "budget", "smallest budget", "what it does", box=None, header_style="bold")
    for method in floc.methods.list_methods():
        info = floc.methods.get_info(method)
        budget = "exact" if info.exact else "at most"
        table.add_row(method, info.kind, budget, info.floor or "-", floc.methods.describe(method))
    out.print(table)
    out.print("[dim]`floc methods NAME` describes its paper, its options and its differences from the original.[/]")
