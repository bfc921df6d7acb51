"""`python -m examples.demo`: render a film in which keys lie on a table for a second; show which methods keep them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from examples.demo.demo import run_demo
from floc import encoders, report
from floc.cli.options import check_folder
from floc.cli.output import screen, show_progress


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, render the film and write the report."""
    parser = argparse.ArgumentParser("python -m examples.demo", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("out/demo"), help="folder of the film and the report")
    parser.add_argument("--seed", type=int, default=0, help="another seed renders another film")
    parser.add_argument("--seconds", type=float, default=120, help="length of the film")
    parser.add_argument("--ratio", default="1/32", help="kept / total")
    parser.add_argument("--encoder", default="pixels", help="pixels, mobilenet or hf:MODEL")
    options = parser.parse_args(arguments)
    check_folder(options.output)
    report.require_packages()
    run_demo(
        screen,
        options.output,
        seed=options.seed,
        seconds=options.seconds,
        ratio=options.ratio,
        encoder=encoders.get(options.encoder),  # fails before the film is rendered
        progress=show_progress,
    )


if __name__ == "__main__":
    main()
