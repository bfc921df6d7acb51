"""`floc store`: list, search and maintain a store."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from floc._format import format_bytes, format_time
from floc.cli.shell import app, progress_bar, require_writable, screen

if TYPE_CHECKING:
    from floc.archive import Store

commands = typer.Typer(help="List, search and maintain a store that `floc ingest` created.", no_args_is_help=True)
app.add_typer(commands, name="store")

StorePath = Annotated[str, typer.Argument(help="The store: a folder or a URI.")]
VideoName = Annotated[str, typer.Argument(help="A video: its id or the start of its id, its URI, or its file name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]


def _open_store(path: str, *, create: bool = False) -> Store:
    from floc.archive import Store

    return Store(path, create=create)


def _file_name(uri: str) -> str:
    return escape(uri.rsplit("/", 1)[-1])  # brackets in a name are not markup


@commands.command("list", epilog="Example: floc store list archive")
def list_videos(store: StorePath, as_json: AsJson = False) -> None:
    """List the videos in a store."""
    videos = _open_store(store).videos()
    if as_json:
        print(json.dumps([{**asdict(video), "model": str(video.model)} for video in videos]))
        return
    table = Table("id", "video", "length", "tokens", "kept", "coverage", "encoder", box=None, header_style="bold")
    for video in sorted(videos, key=lambda video: video.uri):
        values = [""] * 3 + [f"[red]{escape(video.error)}[/]"]
        if video.status == "done":
            coverage = "-" if video.coverage is None else f"{video.coverage:.4f}"
            values = [format_time(video.duration_s), f"{video.tokens:,}", f"{video.kept:,}", coverage]
        table.add_row(video.id, _file_name(video.uri), *values, escape(video.encoder))
    Console(highlight=False).print(table)


@commands.command(epilog="Example: floc store search archive logo.png -k 5")
def search(
    store: StorePath,
    picture: Annotated[Path, typer.Argument(help="A picture file, such as a patch cut out of a frame.")],
    k: Annotated[int, typer.Option("-k", help="Number of results.", min=1)] = 10,
    video: Annotated[str | None, typer.Option(help="Search this video only.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Search videos of this encoder only.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the time ranges most similar to a picture."""
    results = _open_store(store).search(picture, k, video=video, encoder=encoder)
    if as_json:
        print(json.dumps([asdict(result) for result in results]))
        return
    table = Table("similarity", "time", "from", "to", "row, column", "video", box=None, header_style="bold")
    for result in results:
        times = (format_time(seconds) for seconds in (result.time_s, result.start_s, result.end_s))
        row, column = result.position
        table.add_row(f"{result.similarity:.4f}", *times, f"{row}, {column}", _file_name(result.uri))
    Console(highlight=False).print(table)


@commands.command(epilog="Example: floc store check archive")
def check(store: StorePath, as_json: AsJson = False) -> None:
    """Verify every row against its hash. The exit code is 1 if there are problems."""
    opened = _open_store(store)
    with progress_bar("checking") as show:
        problems = opened.check(progress=show)
    if as_json:
        print(json.dumps([asdict(problem) for problem in problems]))
    for problem in problems:
        screen.print(str(problem), style="red", markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)
    screen.print(f"{len(opened.videos('done'))} videos, no problems found")


@commands.command(epilog="Example: floc store compact archive")
def compact(store: StorePath) -> None:
    """Merge small files, drop data that nothing refers to, and index the store for fast opening."""
    result = _open_store(store).compact()
    screen.print(
        f"removed  {result.videos} superseded videos, {result.rows} rows without a video, {result.files} files, "
        f"{format_bytes(result.bytes)}"
    )


@commands.command(epilog="Example: floc store index archive")
def index(store: StorePath) -> None:
    """Build or update the vector index for fast `floc store search`."""
    for name, tokens in _open_store(store).index().items():
        screen.print(f"{name}: {tokens:,} tokens", markup=False, soft_wrap=True)


@commands.command(epilog="Example: floc store remove archive talk.mp4")
def remove(store: StorePath, video: VideoName) -> None:
    """Remove a video from a store."""
    removed = _open_store(store).remove(video)
    screen.print(f"removed  {removed.id}  {removed.uri}", markup=False, soft_wrap=True)


@commands.command("export", epilog="Example: floc store export archive talk.mp4 -o talk.floc")
def export_video(
    store: StorePath,
    video: VideoName,
    output: Annotated[Path, typer.Option("--output", "-o", help="The .floc file to write.")],
) -> None:
    """Write a video of a store as a .floc file."""
    require_writable(output, ".floc", Path(store))
    _open_store(store).export(video, output)
    screen.print(f"written  {output}", markup=False, soft_wrap=True)


@commands.command("import", epilog="Example: floc store import archive talk.floc")
def import_videos(
    store: StorePath, files: Annotated[list[Path], typer.Argument(help=".floc files, from `floc ask -o`.")]
) -> None:
    """Add .floc files to a store, which is created if it does not exist."""
    opened = _open_store(store, create=True)
    for file in files:
        video = opened.add(file)
        screen.print(f"added  {video.id}  {video.uri}", markup=False, soft_wrap=True)
