"""`floc methods`."""

from __future__ import annotations

import typer

import floc
from floc.cli.application import command
from floc.cli.options import complete_method, flag
from floc.cli.output import print_note, print_table, results


@command("floc methods", "floc methods longvu")
def methods(
    name: str | None = typer.Argument(None, help="Describe this method in full.", autocompletion=complete_method),
    markdown: bool = flag("--markdown", "Print the page docs/reference/methods.md."),
) -> None:
    """List the compression methods and their options."""
    if markdown:
        print(floc.methods.format_markdown(), end="")
    elif name is not None:
        results.print(floc.methods.format_manual(name), markup=False)
    else:
        rows = []
        for name in floc.methods.list_methods():
            facts = floc.methods.get_info(name)
            budget = "exact" if facts.exact else "at most"
            rows.append([name, facts.kind, budget, facts.floor or "-", floc.methods.describe(name)])
        print_table(["method", "kind", "budget", "smallest budget", "what it does"], rows)
        print_note("`floc methods NAME` describes its paper, its options and its differences from the original.")
