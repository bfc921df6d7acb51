"""`floc compare`: run several methods on a video and write an HTML report."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import floc
from floc._checks import require, shorten
from floc._text import format_bytes
from floc.cli import options
from floc.cli.application import command
from floc.cli.options import METHOD, option
from floc.cli.output import escape_markup, format_stages, print_note, print_table, print_warning, show_progress

if TYPE_CHECKING:
    from floc.analysis.compare import Comparison

METHODS = "floc,floc-paper,divprune,frame_uniform,random"
# measures to print, and short names that fit a terminal
COLUMNS = {"coverage": "cover", "worst": "worst", "bound": "bound", "averaged_distance": "dist", "redundancy": "redund"}


@command(
    "floc compare talk.mp4 --methods floc,floc-paper,random -o report.html",
    "floc compare talk.mp4 --ratio 1/8,1/32 --plots figures",
)
def compare(
    video: Path = typer.Argument(help="The video file."),
    output: Path | None = option("FILE", "Write this .html file. (default: NAME.report.html)", None, *options.OUTPUT),
    methods: str = option("NAMES", "Methods, with options: floc,floc:detail=1; or 'all'.", METHOD, default=METHODS),
    ratio: str = option("RATIOS", "Shares of the tokens to keep.", options.BUDGET, default="1/8,1/16,1/32"),
    plots: Path | None = option("FOLDER", "Also write the figures as PNG files to this folder."),
    fps: str | None = options.FPS,
    max_frames: str | None = options.MAX_FRAMES,
    encoder: str | None = options.ENCODER,
    device: str | None = options.DEVICE,
    no_fast_vision: bool = options.NO_FAST_VISION,
    as_json: bool = options.AS_JSON,
) -> None:
    """Compare methods on a video, and write one HTML page that shows which tokens each method keeps."""
    from floc import report
    from floc.analysis.compare import plan_steps

    names = _list_all() if methods == "all" else options.split_list(methods)
    require(names, f"--methods must name at least one method; got {shorten(methods)}")
    for name in names:  # report errors before the video is read, which may take minutes
        floc.methods.parse(name)
    ratios = options.split_list(ratio)
    plan_steps(ratios, n=1)
    options.check_input(video)
    if output is None:
        output = options.check_unused(Path(f"{video.stem}.report.html"))
    options.check_output(output, video, ".html")
    if plots is not None:
        options.check_folder(plots)
    report.require_packages(figures=plots is not None)
    started = time.perf_counter()
    encoded = options.encode_video(
        video, fps, max_frames, encoder, device, with_thumbnails=True, fast_vision=not no_fast_vision
    )
    seconds = {"decode and encode": time.perf_counter() - started}
    line = shlex.join(["floc", *sys.argv[1:]])
    with show_progress("comparing") as update:
        comparison, figures = report.make(
            encoded, names, ratios, output, figures=plots, command=line, progress=lambda task, done: update(done, task)
        )
    seconds["compare and write"] = time.perf_counter() - started - seconds["decode and encode"]
    if as_json:
        print(json.dumps(comparison.rows()))
    else:
        _print_table(comparison)
    print_warning(*comparison.notes)
    print_note(f"{output}  {format_bytes(output.stat().st_size)}; open it in any browser", style="bold")
    for figure in figures:
        print_note(str(figure), style="")
    print_note(format_stages(seconds))


def _list_all() -> list[str]:
    """List all methods, floc first: the report opens with the first two."""
    return sorted(floc.methods.list_methods(), key=lambda name: name.partition("-")[0] != "floc")


def _print_table(comparison: Comparison) -> None:
    rows = []
    for row in comparison.rows():
        numbers = ["-" if row[name] is None else f"{row[name]:.4f}" for name in COLUMNS]
        tokens, seconds = f"{row['tokens']:,}", f"{row['seconds']:.2f}"
        rows.append([escape_markup(row["method"]), row["ratio"], tokens, *numbers, seconds])
    print_table(["method", *(f">{name}" for name in ("kept", "tokens", *COLUMNS.values(), "seconds"))], rows)
