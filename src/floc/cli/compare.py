"""`floc compare`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

import floc
from floc.cli.shell import (
    Device,
    EncoderName,
    Fps,
    MaxFrames,
    app,
    filmed,
    listed,
    progress_bar,
    require_folder,
    require_writable,
    screen,
    unused,
)

if TYPE_CHECKING:
    from floc.analysis.compare import Comparison

# what is printed of the measures, under names short enough for a terminal
COLUMNS = {"coverage": "cover", "worst": "worst", "bound": "bound", "averaged_distance": "dist", "redundancy": "redund"}


@app.command(epilog="Example: floc compare talk.mp4 --methods floc,divprune,random -o report.html")
def compare(
    video: Annotated[Path, typer.Argument(help="A video.")],
    methods: Annotated[
        str, typer.Option(help="Names from `floc methods`, with options where wanted (floc:detail=1), or 'all'.")
    ] = "floc,floc-paper,divprune,frame_uniform,random",
    ratios: Annotated[str, typer.Option(help="Kept / total, one or more.")] = "1/8,1/16,1/32",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page to write. [dim](NAME.report.html)[/]")
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="A folder for the figures as PNG.")] = None,
    fps: Fps = None,
    max_frames: MaxFrames = None,
    encoder: EncoderName = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON on stdout.")] = False,
) -> None:
    """Compare methods on a video, and write one HTML page that shows what each kept."""
    from floc import report
    from floc.analysis import compare as comparing

    if output is None:
        output = unused(Path(f"{video.stem}.report.html"))
    require_writable(output, ".html", video)
    if plots is not None:
        require_folder(plots)
    report.require_packages(figures=plots is not None)
    names = floc.methods.names() if methods == "all" else listed(methods)
    for name in names:  # what is wrong with them shows before a long film is read
        floc.methods.parse(name)
    comparing.stops_for(listed(ratios), n=1)
    film = filmed(video, fps, max_frames, encoder, device, with_thumbnails=True)
    with progress_bar("comparing") as show:
        made = report.make(
            film,
            names,
            listed(ratios),
            output,
            figures=plots,
            command=shlex.join(["floc", *sys.argv[1:]]),
            progress=lambda what, share: show(share, what),
        )
    if as_json:
        print(json.dumps(comparing.rows(made.comparison)))
    _show_comparison(made.comparison)
    screen.print(f"[bold]{escape(str(output))}[/]  {made.size_bytes / 1e6:.1f} MB, for any browser", soft_wrap=True)
    for figure in made.figures:
        screen.print(escape(str(figure)), soft_wrap=True)


def _show_comparison(comparison: Comparison) -> None:
    from floc.analysis import compare as comparing

    table = Table(box=None, header_style="bold", padding=(0, 1))
    table.add_column("method", no_wrap=True)
    for name in ("kept", "tokens", *COLUMNS.values(), "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparing.rows(comparison):
        numbers = ["-" if row[name] is None else f"{row[name]:.4f}" for name in COLUMNS]
        table.add_row(escape(row["method"]), row["ratio"], f"{row['tokens']:,}", *numbers, f"{row['seconds']:.2f}")
    screen.print(table)
    for note in comparison.notes:
        screen.print(note, style="yellow", markup=False, soft_wrap=True)
