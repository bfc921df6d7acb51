"""`python -m floc.bench TABLE [--quick]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import names, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m floc.bench", description="Measure one table.")
    parser.add_argument("table", choices=names())
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing is written")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), help="the folder to write to")
    given = parser.parse_args()
    run(given.table, quick=given.quick, results=given.results, echo=lambda line: print(line, flush=True))
