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
    from floc.archive.ingest.ledger import Status

LINE_EVERY_S = 10.0  # where there is no terminal to show one line that changes
SHOWN = 20  # failures and warnings in the summary; all are in the store and in --json


@app.command(
    epilog="Examples: floc ingest footage/ --store archive --encoder hf:Qwen/Qwen2.5-VL-7B-Instruct --ratio 1/32\n\n"
    "floc ingest s3://bucket/cameras --store s3://bucket/archive --ratio 1/32 --engine ray --address auto"
)
def ingest(
    sources: Annotated[list[str], typer.Argument(help="Videos, folders of them, addresses (s3://bucket/folder).")],
    store: Annotated[str, typer.Option(help="The store: a folder or an address, made where there is none.")],
    ratio: Annotated[str | None, typer.Option(help="Kept / total. [dim](1/32)[/]")] = None,
    coverage: Annotated[float | None, typer.Option(help="Mean cosine to reach, in place of a ratio.")] = None,
    encoder: Annotated[
        str, typer.Option(help="pixels, mobilenet, hf:MODEL to ask it later, or auto: the best installed.")
    ] = "auto",
    method: Annotated[str, typer.Option(help="See `floc methods`; with options: floc:detail=1.")] = "floc",
    block: Annotated[str | None, typer.Option(help="Frames chosen from together, scene or none. (floc: 32)")] = None,
    fps: Annotated[str | None, typer.Option(help="Frames a second, or 'all'. [dim](1)[/]")] = None,
    engine: Annotated[str, typer.Option(help="local: processes on this machine; ray: Ray Data.")] = "local",
    workers: Annotated[
        int | None, typer.Option(help="Encoders. [dim](local: one a core, two a GPU; ray: one a GPU, or core)[/]")
    ] = None,
    address: Annotated[str | None, typer.Option(help="--engine ray: the cluster, 'auto' for this machine's.")] = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout.")] = False,
) -> None:
    """Compress many videos once, into a store that is asked later.

    What is in the store is skipped, and what was stopped or killed goes on where it was: give the same command again. A
    video that cannot be read is noted with its reason, and the others go on. The exit code is 1 where there were such.
    """
    from floc.archive.ingest.ingest import ingest as run

    spec = floc.methods.parse(method)
    if ratio is None and coverage is None:
        ratio = "1/32"
    Budget.parse(ratio, None, coverage)
    options: dict[str, Any] = dict(spec.options)
    if block is not None:
        options["block"] = parsed_block(block)
    with status_line(_in_a_line, LINE_EVERY_S) as show:
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
    _show(status, store)
    if status.failed:
        raise typer.Exit(1)


def _in_a_line(status: Status) -> str:
    parts = [f"{status.done + status.skipped} of {status.videos} videos"]
    if status.footage_s:
        parts += [
            f"{format_time(status.footage_s)} of footage",
            f"{status.hours_per_hour:.3g} hours an hour",
            f"{status.tokens:,} tokens",
            f"kept {status.kept:,}",
        ]
    if status.failed:
        parts.append(f"{status.failed} failed")
    return "  ".join(parts)


def _show(status: Status, store: str) -> None:
    for kind, style, told in (("failed", "red", status.failures), ("warning", "yellow", status.warnings)):
        for uri, text in told[:SHOWN]:
            screen.print(f"{kind}  {uri}: {text}", style=style, markup=False, soft_wrap=True)
        if len(told) > SHOWN:
            screen.print(f"and {len(told) - SHOWN} more; --json has all", style=style)
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="dim")
    skipped = f", {status.skipped} there already" if status.skipped else ""
    failed = f", [red]{status.failed} failed[/]" if status.failed else ""
    table.add_row("videos", f"[bold green]{status.done}[/] of {status.videos} taken in{skipped}{failed}")
    if status.done:
        table.add_row("footage", f"{format_time(status.footage_s)}, {status.hours_per_hour:.3g} hours an hour")
        table.add_row("tokens", f"{status.tokens:,}, kept {status.kept:,} (1 in {status.tokens / status.kept:.3g})")
        table.add_row("written", f"{format_bytes(status.bytes)} to {escape(store)}")
        spent = [f"{stage} {seconds:.1f}" for stage, seconds in status.seconds.items()]
        table.add_row("seconds", f"{status.elapsed_s:.1f}; of all workers: {', '.join(spent)}")
    screen.print(table)
