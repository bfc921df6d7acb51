"""`floc compare`: run several methods on a video and write an HTML report."""

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

# measures to print, and short names that fit a terminal
COLUMNS = {"coverage": "cover", "worst": "worst", "bound": "bound", "averaged_distance": "dist", "redundancy": "redund"}


@app.command(epilog="Example: floc compare talk.mp4 --methods floc,floc-paper,random --ratios 1/8,1/32 -o report.html")
def compare(
    video: Annotated[Path, typer.Argument(help="The video file.")],
    methods: Annotated[
        str, typer.Option(help="Names from `floc methods`, optionally with options (floc:detail=1), or 'all'.")
    ] = "floc,floc-paper,divprune,frame_uniform,random",
    ratios: Annotated[str, typer.Option(help="Shares of tokens to keep (kept / total).")] = "1/8,1/16,1/32",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The HTML file to write. [dim](NAME.report.html)[/]")
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="Also write the figures as PNG files to this folder.")] = None,
    fps: Fps = None,
    max_frames: MaxFrames = None,
    encoder: EncoderName = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON on stdout.")] = False,
) -> None:
    """Compare methods on a video, and write one HTML page that shows which tokens each method keeps."""
    from floc import report
    from floc.analysis.compare import plan_steps

    if output is None:
        output = unused(Path(f"{video.stem}.report.html"))
    require_writable(output, ".html", video)
    if plots is not None:
        require_folder(plots)
    report.require_packages(figures=plots is not None)
    names = floc.methods.names() if methods == "all" else listed(methods)
    for name in names:  # report errors before the video is read, which may take minutes
        floc.methods.parse(name)
    plan_steps(listed(ratios), n=1)
    encoded = filmed(video, fps, max_frames, encoder, device, with_strip=True)
    with progress_bar("comparing") as show:
        result = report.make(
            encoded,
            names,
            listed(ratios),
            output,
            figures=plots,
            command=shlex.join(["floc", *sys.argv[1:]]),
            progress=lambda task, share: show(share, task),
        )
    if as_json:
        print(json.dumps(result.comparison.rows()))
    _show_table(result.comparison)
    size_mb = result.size_bytes / 1e6
    screen.print(f"[bold]{escape(str(output))}[/]  {size_mb:.1f} MB; open it in any browser", soft_wrap=True)
    for figure in result.figures:
        screen.print(escape(str(figure)), soft_wrap=True)


def _show_table(comparison: Comparison) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 1))
    table.add_column("method", no_wrap=True)
    for name in ("kept", "tokens", *COLUMNS.values(), "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparison.rows():
        numbers = ["-" if row[name] is None else f"{row[name]:.4f}" for name in COLUMNS]
        table.add_row(escape(row["method"]), row["ratio"], f"{row['tokens']:,}", *numbers, f"{row['seconds']:.2f}")
    screen.print(table)
    for note in comparison.notes:
        screen.print(note, style="yellow", markup=False, soft_wrap=True)
