"""`python -m floc.bench TABLE [--small]` measures; `--fill PAGE ...` fills tables into pages, `--draw` draws plots."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import RESULTS, names, run
from benchmarks.tables import draw, fill

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        "python -m floc.bench", description="Measure one table, or show results on pages and plots."
    )
    parser.add_argument("table", nargs="?", choices=names())
    parser.add_argument("--small", action="store_true", help="sizes for two cores, kept apart")
    parser.add_argument("--results", type=Path, help="the folder of results")
    parser.add_argument("--fill", type=Path, nargs="+", default=[], metavar="PAGE", help="Markdown files with markers")
    parser.add_argument("--draw", action="store_true", help="draw the plots of the results there are")
    given = parser.parse_args()
    if given.table is None and not given.fill and not given.draw:
        parser.error("name a table, or pages to --fill, or --draw")
    if given.table is not None:
        run(given.table, small=given.small, results=given.results, echo=lambda line: print(line, flush=True))
    for page in given.fill:
        print(f"{page}: {', '.join(fill(page, given.results or RESULTS)) or 'no markers'}")
    if given.draw:
        print("\n".join(map(str, draw(given.results or RESULTS))) or "nothing drawn: it takes results, and matplotlib")
