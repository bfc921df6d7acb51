"""`python -m floc.bench TABLE [--small]` measures; `python -m floc.bench --fill PAGE ...` fills tables into pages."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import RESULTS, names, run
from .tables import fill

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        "python -m floc.bench", description="Measure one table, or fill results into pages."
    )
    parser.add_argument("table", nargs="?", choices=names())
    parser.add_argument("--small", action="store_true", help="sizes for two cores, kept apart")
    parser.add_argument("--results", type=Path, help="the folder of results")
    parser.add_argument("--fill", type=Path, nargs="+", default=[], metavar="PAGE", help="Markdown files with markers")
    given = parser.parse_args()
    if given.table is None and not given.fill:
        parser.error("name a table, or pages to fill")
    if given.table is not None:
        run(given.table, small=given.small, results=given.results, echo=lambda line: print(line, flush=True))
    for page in given.fill:
        print(f"{page}: {', '.join(fill(page, given.results or RESULTS)) or 'no markers'}")
