"""Run the soak tests: `python -m tests.soak`, or within seconds: `python -m tests.soak --small`."""

from __future__ import annotations

import argparse
import sys

from benchmarks import run


def main() -> int:
    """Run the soak tests; return 1 if something grows."""
    parser = argparse.ArgumentParser("python -m tests.soak", description="Measure memory, threads and open files.")
    parser.add_argument("--small", action="store_true", help="20 seconds of video, 40 calls")
    options = parser.parse_args()
    document = run.run("soak", small=options.small)
    print(*document["defects"], sep="\n")
    return int(bool(document["defects"]))


if __name__ == "__main__":
    sys.exit(main())
