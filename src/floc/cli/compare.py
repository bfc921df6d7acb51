"""`floc compare`: run several methods on a video and write an HTML report."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import floc
from floc.cli import options
from floc.cli.application import command
from floc.cli.encoding import encode_video
from floc.cli.output import escape_markup, print_warning, screen, show_progress

if TYPE_CHECKING:
    from floc.analysis.compare import Comparison

# measures to print, and short names that fit a terminal
COLUMNS = {"coverage": "cover", "worst": "worst", "bound": "bound", "averaged_distance": "dist", "redundancy": "redund"}


@command(
    "floc compare talk.mp4 --methods floc,floc-paper,random -o report.html",
    "floc compare talk.mp4 --ratio 1/8,1/32 --plots figures",
)
def compare(
    video: Annotated[Path, typer.Argument(help="The video file.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write this .html file. [dim](default: NAME.report.html)[/]"
        ),
    ] = None,
    methods: Annotated[
        str, typer.Option(metavar="NAMES", help="Methods, with options: floc,floc:detail=1; or 'all'.")
    ] = "floc,floc-paper,divprune,frame_uniform,random",
    ratio: Annotated[
        str, typer.Option(metavar="RATIOS", help="Shares of the tokens to keep.", rich_help_panel=options.BUDGET)
    ] = "1/8,1/16,1/32",
    plots: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write the figures as PNG files to this folder.")
    ] = None,
    fps: options.Fps = None,
    max_frames: options.MaxFrames = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare methods on a video, and write one HTML page that shows which tokens each method keeps."""
    from floc import report
    from floc.analysis.compare import plan_steps

    if output is None:
        output = options.check_unused(Path(f"{video.stem}.report.html"))
    options.check_output(output, video, ".html")
    if plots is not None:
        options.check_folder(plots)
    report.require_packages(figures=plots is not None)
    names = floc.methods.list_methods() if methods == "all" else options.split_list(methods)
    for name in names:  # report errors before the video is read, which may take minutes
        floc.methods.parse(name)
    plan_steps(options.split_list(ratio), n=1)
    encoded = encode_video(video, fps, max_frames, encoder, device, with_thumbnails=True)
    with show_progress("comparing") as update:
        comparison, figures = report.make(
            encoded,
            names,
            options.split_list(ratio),
            output,
            figures=plots,
            command=shlex.join(["floc", *sys.argv[1:]]),
            progress=lambda task, share: update(share, task),
        )
    if as_json:
        print(json.dumps(comparison.rows()))
    _print_table(comparison)
    size_mb = output.stat().st_size / 1e6
    screen.print(f"[bold]{escape_markup(output)}[/]  {size_mb:.1f} MB; open it in any browser", soft_wrap=True)
    for figure in figures:
        screen.print(escape_markup(figure), soft_wrap=True)


def _print_table(comparison: Comparison) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 1))
    table.add_column("method", no_wrap=True)
    for name in ("kept", "tokens", *COLUMNS.values(), "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparison.rows():
        numbers = ["-" if row[name] is None else f"{row[name]:.4f}" for name in COLUMNS]
        tokens, seconds = f"{row['tokens']:,}", f"{row['seconds']:.2f}"
        table.add_row(escape_markup(row["method"]), row["ratio"], tokens, *numbers, seconds)
    screen.print(table)
    for note in comparison.notes:
        print_warning(note)
