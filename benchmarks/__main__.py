"""The command line of the benchmarks: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import pages, registry, run

# tables that take checkpoints, and the tables of their results
WITH_CHECKPOINTS = {"accuracy": "accuracy-models", "horizon-answers": "horizon-answers"}
OPTIONS_OF = {"processes": "accuracy", "films": "accuracy", "device": "methods"}  # option -> the table that takes it
COMMANDS = ("list", "all", "render")
EPILOG = """commands in place of a table:
  list      list the tables
  all       measure all tables; skip those whose device or package is missing
  render    write each table's results as Markdown beside its JSON (part of --fill)

examples:
  python -m benchmarks select                   measure one table into benchmarks/results
  python -m benchmarks all --small              check within minutes that every table works
  python -m benchmarks --fill README.md docs    refill the marked tables of pages
  python -m benchmarks --draw                   redraw the plots
  python -m benchmarks accuracy --checkpoint out/models/all-1.tar --checkpoint out/models/drop-0.tar
                                                measure other trained models, into the table accuracy-models

The exit code is 1 if a table failed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description="Measure the tables of README and docs, or show their results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("table", nargs="?", metavar="TABLE", help="table to measure, or a command below")
    parser.add_argument("--small", action="store_true", help="use small sizes; results go to benchmarks/small")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="folder of the results")
    parser.add_argument(
        "--fill",
        type=Path,
        nargs="+",
        default=[],
        metavar="PAGE",
        help="refill the tables of pages, or of all in a folder",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        action="append",
        metavar="FILE",
        help="with accuracy and horizon-answers: measure this trained model, a folder or .tar file; may be repeated",
    )
    parser.add_argument(
        "--processes", type=int, metavar="N", help="with accuracy: measure methods side by side (default: 1)"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="with methods: measure time and memory on this device only"
    )
    parser.add_argument("--films", type=int, metavar="N", help="with accuracy: films to ask about (default: 100)")
    parser.add_argument("--draw", action="store_true", help="draw the plots of existing results")
    options = parser.parse_args(arguments)
    if options.table is None and not options.fill and not options.draw:
        parser.error("name a table or a command, pages to --fill, or --draw")
    if options.table is not None and options.table not in (*COMMANDS, *registry.load_tables()):
        parser.error(f"unknown table {options.table!r}: `python -m benchmarks list` shows all")
    if options.checkpoint and options.table not in WITH_CHECKPOINTS:
        parser.error(f"--checkpoint is for the tables {' and '.join(WITH_CHECKPOINTS)}, which measure trained models")
    given = {"processes": options.processes, "films": options.films, "device": options.device}
    table, more = options.table, {name: value for name, value in given.items() if value is not None}
    for name, value in more.items():
        if table != OPTIONS_OF[name]:
            parser.error(f"--{name} is for the table {OPTIONS_OF[name]}")
        if isinstance(value, int) and value < 1:
            parser.error(f"--{name} must be at least 1; got {value}")
    if options.checkpoint:
        table, more["checkpoints"] = WITH_CHECKPOINTS[table], options.checkpoint
    failed = False
    folder = options.results or run.RESULTS
    if options.table == "list":
        print("\n".join(registry.load_tables()))
    elif options.table == "all":
        outcomes = run.run_all(small=options.small, results=options.results, echo=_print)
        failed = any(outcome.state == run.FAILED for outcome in outcomes)
    elif options.table not in (None, "render"):
        try:
            run.run(table, small=options.small, results=options.results, echo=_print, **more)
        except Exception as error:
            if not run.is_missing(error):
                raise
            print(f"{table}: {error}", file=sys.stderr)
            failed = True
    if options.table == "render" or options.fill:
        print(f"{folder}: {len(pages.render(folder))} tables rendered")
    for page in pages.find_pages(options.fill):
        print(f"{page}: {', '.join(pages.fill(page, folder)) or 'no markers'}")
    if options.draw:
        print("\n".join(map(str, pages.draw(folder))) or "nothing drawn: needs results and matplotlib")
    return int(failed)


def _print(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
