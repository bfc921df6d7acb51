"""`floc store`: list, search and maintain a store."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import floc
from floc._text import format_bytes, format_time
from floc.cli.application import Group, app, command
from floc.cli.options import AsJson, check_output
from floc.cli.output import escape_markup, print_note, screen, show_progress

group = typer.Typer(
    cls=Group, help="List, search and maintain a store that `floc ingest` created.", no_args_is_help=True
)
app.add_typer(group, name="store")

StorePath = Annotated[str, typer.Argument(metavar="STORE", help="The store: a folder or a URI.")]
VideoName = Annotated[
    str, typer.Argument(metavar="VIDEO", help="A video: its id or the start of its id, its URI, or its file name.")
]


def _format_name(uri: str) -> str:
    return escape_markup(uri.rsplit("/", 1)[-1])  # names may contain brackets


@command("floc store list archive", name="list", group=group)
def list_videos(store: StorePath, as_json: AsJson = False) -> None:
    """List the videos in a store."""
    videos = floc.Store(store).videos()
    if as_json:
        print(json.dumps([{**asdict(video), "model": str(video.model)} for video in videos]))
        return
    table = Table("id", "video", "length", "tokens", "kept", "coverage", "encoder", box=None, header_style="bold")
    for video in sorted(videos, key=lambda video: video.uri):
        values = ["", "", "", f"[red]{escape_markup(video.error)}[/]"]
        if video.status == "done":
            coverage = "-" if video.coverage is None else f"{video.coverage:.4f}"
            values = [format_time(video.duration_s), f"{video.tokens:,}", f"{video.kept:,}", coverage]
        table.add_row(video.id, _format_name(video.uri), *values, escape_markup(video.encoder))
    Console(highlight=False).print(table)


@command("floc store search archive logo.png -k 5", group=group)
def search(
    store: StorePath,
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image file, such as a patch cut out of a frame.")],
    k: Annotated[int, typer.Option("-k", metavar="N", help="Number of results.", min=1)] = 10,
    video: Annotated[str | None, typer.Option(metavar="VIDEO", help="Search this video only.")] = None,
    encoder: Annotated[str | None, typer.Option(metavar="NAME", help="Search videos of this encoder only.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the parts of videos most similar to an image."""
    results = floc.Store(store).search(image, k, video=video, encoder=encoder)
    if as_json:
        print(json.dumps([asdict(result) for result in results]))
        return
    table = Table("similarity", "time", "from", "to", "row, column", "video", box=None, header_style="bold")
    for result in results:
        times = (format_time(seconds) for seconds in (result.time_s, result.start_s, result.end_s))
        row, column = result.position
        table.add_row(f"{result.similarity:.4f}", *times, f"{row}, {column}", _format_name(result.uri))
    Console(highlight=False).print(table)


@command("floc store check archive", group=group)
def check(store: StorePath, as_json: AsJson = False) -> None:
    """Verify every row against its hash. The exit code is 1 if there are problems."""
    opened = floc.Store(store)
    with show_progress("checking") as update:
        problems = opened.check(update)
    if as_json:
        print(json.dumps([asdict(problem) for problem in problems]))
    for problem in problems:
        screen.print(str(problem), style="red", markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)
    screen.print(f"{len(opened.videos('done'))} videos, no problems found")


@command("floc store compact archive", group=group)
def compact(store: StorePath) -> None:
    """Merge small files, drop unused data, and index the store for fast opening."""
    result = floc.Store(store).compact()
    print_note(
        f"removed  {result.videos} superseded videos, {result.rows} rows without a video, {result.files} files, "
        f"{format_bytes(result.bytes)}"
    )


@command("floc store index archive", group=group)
def index(store: StorePath) -> None:
    """Build or update the vector index for fast `floc store search`."""
    for name, tokens in floc.Store(store).index().items():
        print_note(f"{name}: {tokens:,} tokens")


@command("floc store remove archive talk.mp4", group=group)
def remove(store: StorePath, video: VideoName) -> None:
    """Remove a video from a store."""
    removed = floc.Store(store).remove(video)
    print_note(f"removed  {removed.id}  {removed.uri}")


@command("floc store export archive talk.mp4 -o talk.floc", name="export", group=group)
def export_video(
    store: StorePath,
    video: VideoName,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .floc file to write.")],
) -> None:
    """Write a video of a store as a .floc file."""
    check_output(output, Path(store), ".floc")
    output.parent.mkdir(parents=True, exist_ok=True)
    floc.Store(store).export(video, output)
    print_note(f"written  {output}")


@command("floc store import archive talk.floc", name="import", group=group)
def import_videos(
    store: StorePath,
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help=".floc files, from `floc ask -o`.")],
) -> None:
    """Add .floc files to a store, which is created if it does not exist."""
    opened = floc.Store(store, create=True)
    for file in files:
        video = opened.add(file)
        print_note(f"added  {video.id}  {video.uri}")
