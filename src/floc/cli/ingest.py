"""`floc ingest`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.markup import escape
from rich.table import Table

import floc
from floc._format import format_bytes, format_time
from floc.budget import Budget
from floc.cli.shell import Device, app, parsed_block, parsed_fps, screen, status_line

if TYPE_CHECKING:
    from floc.archive.ingest.ingest import EngineName
    from floc.archive.ingest.ledger import IngestStatus

LINE_INTERVAL_S = 10.0  # between status lines, without a terminal
MAX_MESSAGES = 20  # failures and warnings in the summary; the store and --json have all


@app.command(
    epilog="Examples: floc ingest footage/ --store archive --encoder hf:Qwen/Qwen2.5-VL-7B-Instruct --ratio 1/32\n\n"
    "floc ingest s3://bucket/cameras --store s3://bucket/archive --ratio 1/32 --engine ray --address auto"
)
def ingest(
    sources: Annotated[list[str], typer.Argument(help="Videos, folders, or URIs such as s3://bucket/folder.")],
    store: Annotated[str, typer.Option(help="The store: a folder or a URI, created if it does not exist.")],
    ratio: Annotated[str | None, typer.Option(help="Kept / total. [dim](1/32)[/]")] = None,
    coverage: Annotated[float | None, typer.Option(help="Mean cosine to reach, instead of a ratio.")] = None,
    encoder: Annotated[
        str, typer.Option(help="pixels, mobilenet, hf:MODEL to ask it later, or auto: the best installed.")
    ] = "auto",
    method: Annotated[str, typer.Option(help="See `floc methods`; with options: floc:detail=1.")] = "floc",
    block: Annotated[str | None, typer.Option(help="Frames in a block, 'scene', or 'none'. [dim](floc: 32)[/]")] = None,
    fps: Annotated[str | None, typer.Option(help="Sampled frames per second, or 'all'. [dim](1)[/]")] = None,
    engine: Annotated[str, typer.Option(help="local: processes on this machine; ray: Ray Data.")] = "local",
    workers: Annotated[
        int | None, typer.Option(help="Encoders. [dim](local: 1 per core or 2 per GPU; ray: 1 per GPU or core)[/]")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster, 'auto' for the one of this machine.")] = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout.")] = False,
) -> None:
    """Compress many videos once, into a store that can be asked later.

    Videos in the store are skipped, so an ingest that was stopped or killed
    resumes with the same command. A video that cannot be read is recorded with
    the reason, and the others continue; the exit code is then 1.
    """
    from floc.archive.ingest.ingest import ingest as run

    spec = floc.methods.parse(method)
    if ratio is None and coverage is None:
        ratio = "1/32"
    Budget.parse(ratio, None, coverage)
    options: dict[str, Any] = dict(spec.options)
    if block is not None:
        options["block"] = parsed_block(block)
    with status_line(_format_line, LINE_INTERVAL_S) as show:
        status = run(
            sources,
            store,
            encoder=encoder,
            ratio=ratio,
            coverage=coverage,
            method=spec.method,
            fps=parsed_fps(fps),
            device=device,
            engine=cast("EngineName", engine),
            workers=workers,
            address=address,
            show=show,
            **options,
        )
    if as_json:
        print(json.dumps({**status.summary(), "store": store}))
    _show_summary(status, store)
    if status.failed:
        raise typer.Exit(1)


def _format_line(status: IngestStatus) -> str:
    parts = [f"{status.done + status.skipped} of {status.videos} videos"]
    if status.footage_s:
        parts.append(f"{format_time(status.footage_s)} of footage")
        parts.append(f"{status.hours_per_hour:.3g} hours per hour")
        parts.append(f"{status.tokens:,} tokens  kept {status.kept:,}")
    if status.failed:
        parts.append(f"{status.failed} failed")
    return "  ".join(parts)


def _show_summary(status: IngestStatus, store: str) -> None:
    for kind, style, messages in (("failed", "red", status.failures), ("warning", "yellow", status.warnings)):
        for uri, text in messages[:MAX_MESSAGES]:
            screen.print(f"{kind}  {uri}: {text}", style=style, markup=False, soft_wrap=True)
        if len(messages) > MAX_MESSAGES:
            screen.print(f"and {len(messages) - MAX_MESSAGES} more; --json lists all", style=style)
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="dim")
    skipped = f", {status.skipped} in the store already" if status.skipped else ""
    failed = f", [red]{status.failed} failed[/]" if status.failed else ""
    table.add_row("videos", f"[bold green]{status.done}[/] of {status.videos} ingested{skipped}{failed}")
    if status.done:
        table.add_row("footage", f"{format_time(status.footage_s)}, {status.hours_per_hour:.3g} hours per hour")
        table.add_row("tokens", f"{status.tokens:,}, kept {status.kept:,} (1 in {status.tokens / status.kept:.3g})")
        table.add_row("written", f"{format_bytes(status.bytes)} to {escape(store)}")
        stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in status.seconds.items())
        table.add_row("seconds", f"{status.elapsed_s:.1f}; summed over workers: {stages}")
    screen.print(table)
