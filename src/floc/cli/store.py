"""`floc store`: list, search and maintain a store."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer

import floc
from floc._checks import check_count
from floc._text import format_bytes, format_time
from floc.cli.application import Group, app, command
from floc.cli.options import AS_JSON, OUTPUT, check_input, check_output, option
from floc.cli.output import escape_markup, print_line, print_note, print_table, show_progress

group = typer.Typer(cls=Group, no_args_is_help=True)
app.add_typer(group, name="store", help="List, search and maintain a store that `floc ingest` created.")

STORE = typer.Argument(help="The store: a folder or a URI.")
VIDEO = typer.Argument(help="A video: its id or the start of its id, its URI, or its file name.")


def _format_name(uri: str) -> str:
    return escape_markup(uri.rsplit("/", 1)[-1])  # names may contain brackets


@command("floc store list archive", name="list", group=group)
def list_videos(store: str = STORE, as_json: bool = AS_JSON) -> None:
    """List the videos in a store."""
    videos = floc.Store(store).videos()
    if as_json:
        print(json.dumps([{**asdict(video), "model": str(video.model)} for video in videos]))
        return
    rows = []
    for video in sorted(videos, key=lambda video: video.uri):
        values = ["", "", "", f"[red]{escape_markup(video.error)}[/]"]
        if video.status == "done":
            coverage = "-" if video.coverage is None else f"{video.coverage:.4f}"
            values = [format_time(video.duration_s), f"{video.tokens:,}", f"{video.kept:,}", coverage]
        rows.append([escape_markup(video.id), _format_name(video.uri), *values, escape_markup(video.encoder)])
    print_table(["id", "video", "length", "tokens", "kept", "coverage", "encoder"], rows)


@command("floc store search archive logo.png -k 5", group=group)
def search(
    store: str = STORE,
    image: Path = typer.Argument(help="An image file, such as a patch cut out of a frame."),
    k: int = option("N", "Number of results.", None, "-k", default=10),
    video: str | None = option("VIDEO", "Search this video only."),
    encoder: str | None = option("NAME", "Search videos of this encoder only."),
    as_json: bool = AS_JSON,
) -> None:
    """Find the parts of videos most similar to an image."""
    check_input(image)
    check_count("-k", k, "results")
    results = floc.Store(store).search(image, k, video=video, encoder=encoder)
    if as_json:
        print(json.dumps([asdict(result) for result in results]))
        return
    rows = []
    for result in results:
        times = (format_time(seconds) for seconds in (result.time_s, result.start_s, result.end_s))
        row, column = result.position
        rows.append([f"{result.similarity:.4f}", *times, f"{row}, {column}", _format_name(result.uri)])
    print_table(["similarity", "time", "from", "to", "row, column", "video"], rows)


@command("floc store check archive", group=group)
def check(store: str = STORE, as_json: bool = AS_JSON) -> None:
    """Verify every row against its hash. The exit code is 1 if there are problems."""
    opened = floc.Store(store)
    with show_progress("checking") as update:
        problems = opened.check(update)
    if as_json:
        print(json.dumps([asdict(problem) for problem in problems]))
    else:
        for problem in problems:
            print_line(str(problem))
    if problems:
        raise typer.Exit(1)
    print_note(f"{len(opened.videos('done'))} videos, no problems found")


@command("floc store compact archive", group=group)
def compact(store: str = STORE) -> None:
    """Merge small files, drop unused data, and index the store for fast opening."""
    result = floc.Store(store).compact()
    removed = f"{result.videos} superseded videos, {result.rows} rows without a video, {result.files} files"
    print_note(f"removed  {removed}, {format_bytes(result.bytes)}")


@command("floc store index archive", group=group)
def index(store: str = STORE) -> None:
    """Build or update the vector index for fast `floc store search`."""
    for name, tokens in floc.Store(store).index().items():
        print_note(f"{name}: {tokens:,} tokens")


@command("floc store remove archive talk.mp4", group=group)
def remove(store: str = STORE, video: str = VIDEO) -> None:
    """Remove a video from a store."""
    removed = floc.Store(store).remove(video)
    print_note(f"removed  {removed.id}  {removed.uri}")


@command("floc store export archive talk.mp4 -o talk.floc", name="export", group=group)
def export_video(
    store: str = STORE,
    video: str = VIDEO,
    output: Path = option("FILE", "Write this .floc file.", None, *OUTPUT, default=...),
) -> None:
    """Write a video of a store as a .floc file."""
    check_output(output, Path(store), ".floc")
    opened = floc.Store(store)
    output.parent.mkdir(parents=True, exist_ok=True)
    opened.export(video, output)
    print_note(f"written  {output}")


@command("floc store import archive talk.floc", name="import", group=group)
def import_videos(
    store: str = STORE, files: list[Path] = typer.Argument(help=".floc files, from `floc ask -o`.")
) -> None:
    """Add .floc files to a store, which is created if it does not exist."""
    for file in files:
        check_input(file)
    opened = floc.Store(store, create=True)
    for file in files:
        video = opened.add(file)
        print_note(f"added  {video.id}  {video.uri}")
