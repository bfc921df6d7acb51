"""`floc demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shell import app, progress_bar, require_folder, screen


@app.command(epilog="Example: floc demo -o floc-demo")
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the film and the report.")] = Path(
        "floc-demo"
    ),
    seed: Annotated[int, typer.Option(help="Another seed, another film.")] = 0,
    seconds: Annotated[float, typer.Option(help="Length of the film.")] = 120,
    ratio: Annotated[str, typer.Option(help="Kept / total.")] = "1/32",
    encoder: Annotated[str, typer.Option(help="pixels, mobilenet or hf:MODEL.")] = "pixels",
) -> None:
    """Render a film in which keys lie on a table for a second; see which methods keep them."""
    from floc import encoders, report
    from floc.demo import show

    require_folder(output)
    report.require_packages()
    network = encoders.get(encoder)  # what is wrong with it shows before a film is rendered
    show(screen, output, seed=seed, seconds=seconds, ratio=ratio, encoder=network, progress=progress_bar)
