"""`floc store`: look into a store and look after it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from floc._format import format_time
from floc.cli.shell import app, progress_bar, require_writable, screen

if TYPE_CHECKING:
    from floc.archive import Moment, Store, Video

archive = typer.Typer(help="Look into a store that `floc ingest` made, and look after it.", no_args_is_help=True)
app.add_typer(archive, name="store")

StorePath = Annotated[str, typer.Argument(help="The store: a folder or an address.")]
VideoName = Annotated[str, typer.Argument(help="A video: its id or the start of it, its uri, or its file name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON on stdout.")]


def _opened(path: str) -> Store:
    from floc.archive import Store

    return Store(path)


def _name(video: Video | Moment) -> str:
    """The file's; many have brackets, which are no markup."""
    return escape(video.uri.rsplit("/", 1)[-1])


@archive.command("list", epilog="Example: floc store list archive")
def list_videos(store: StorePath, as_json: AsJson = False) -> None:
    """List the videos in a store."""
    videos = _opened(store).videos()
    if as_json:
        print(json.dumps([{**asdict(video), "model": str(video.model)} for video in videos]))
        return
    table = Table("id", "video", "length", "tokens", "kept", "coverage", "encoder", box=None, header_style="bold")
    for video in sorted(videos, key=lambda each: each.uri):
        if video.status == "failed":
            table.add_row(video.id, _name(video), "", "", "", f"[red]{escape(video.error)}[/]", escape(video.encoder))
            continue
        coverage = "-" if video.coverage is None else f"{video.coverage:.4f}"
        counts = f"{video.tokens:,}", f"{video.kept:,}"
        table.add_row(video.id, _name(video), format_time(video.duration_s), *counts, coverage, escape(video.encoder))
    Console(highlight=False).print(table)


@archive.command(epilog="Example: floc store search archive logo.png -k 5")
def search(
    store: StorePath,
    picture: Annotated[Path, typer.Argument(help="A picture file; a patch cut out of a frame.")],
    k: Annotated[int, typer.Option("-k", help="How many moments.", min=1)] = 10,
    video: Annotated[str | None, typer.Option(help="Only in this one.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Of several that made the store, the one to search with.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the moments most like a picture."""
    moments = _opened(store).search(picture, k, video=video, encoder=encoder)
    if as_json:
        print(json.dumps([asdict(each) for each in moments]))
        return
    table = Table("similarity", "when", "from", "to", "row, column", "video", box=None, header_style="bold")
    for each in moments:
        when, start, end = (format_time(seconds) for seconds in (each.time_s, each.start_s, each.end_s))
        place = f"{each.position[0]}, {each.position[1]}"
        table.add_row(f"{each.similarity:.4f}", when, start, end, place, _name(each))
    Console(highlight=False).print(table)


@archive.command(epilog="Example: floc store check archive")
def check(store: StorePath, as_json: AsJson = False) -> None:
    """Verify every row against its hash; the exit code is 1 where something is wrong."""
    found = _opened(store)
    with progress_bar("checking") as show:
        faults = found.check(progress=show)
    if as_json:
        print(json.dumps([asdict(fault) for fault in faults]))
    for fault in faults:
        screen.print(str(fault), style="red", markup=False, soft_wrap=True)
    if faults:
        raise typer.Exit(1)
    screen.print(f"{len(found.videos('done'))} videos, and every row is what was written")


@archive.command(epilog="Example: floc store compact archive")
def compact(store: StorePath) -> None:
    """Merge small files, drop what nothing refers to, and make the store quick to open."""
    screen.print(str(_opened(store).compact()), markup=False, soft_wrap=True)


@archive.command(epilog="Example: floc store index archive")
def index(store: StorePath) -> None:
    """Make or renew the index that `floc store search` is fast with."""
    for name, tokens in _opened(store).index().items():
        screen.print(f"{name}: {tokens:,} tokens", markup=False, soft_wrap=True)


@archive.command(epilog="Example: floc store remove archive talk.mp4")
def remove(store: StorePath, video: VideoName) -> None:
    """Take a video out of a store."""
    removed = _opened(store).remove(video)
    screen.print(f"removed  {removed.id}  {removed.uri}", markup=False, soft_wrap=True)


@archive.command("export", epilog="Example: floc store export archive talk.mp4 -o talk.floc")
def export_video(
    store: StorePath,
    video: VideoName,
    output: Annotated[Path, typer.Option("--output", "-o", help="The .floc file to write.")],
) -> None:
    """Write a video of a store as a .floc file."""
    require_writable(output, ".floc", Path(store))
    _opened(store).export(video, output)
    screen.print(f"written  {output}", markup=False, soft_wrap=True)


@archive.command("import", epilog="Example: floc store import archive talk.floc")
def import_videos(
    store: StorePath, files: Annotated[list[Path], typer.Argument(help=".floc files, from `floc ask -o`.")]
) -> None:
    """Take .floc files into a store, which is made where there is none."""
    from floc.archive import Store

    opened = Store(store, create=True)
    for each in files:
        video = opened.add(each)
        screen.print(f"added  {video.id}  {video.uri}", markup=False, soft_wrap=True)
