"""`floc ingest`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import typer

import floc
from floc._text import format_bytes, format_time
from floc.cli import options
from floc.cli.application import command
from floc.cli.options import option
from floc.cli.output import clean_text, escape_markup, format_stages, print_summary, print_warning, show_status

if TYPE_CHECKING:
    from floc.archive.ingest import IngestStatus

Engine = Literal["local", "ray"]
DEFAULT_RATIO = "1/32"
WORKERS = "Workers"  # panel of the help
MAX_MESSAGES = 20  # failures and warnings in the summary; the store and --json have all


@command(
    "floc ingest footage/ --store archive --encoder hf:Qwen/Qwen2.5-VL-7B-Instruct --horizon 8",
    "floc ingest door.mp4 --store archive --encoder hf:Qwen/Qwen2.5-VL-7B-Instruct --reuse 8",
    "floc ingest walk.mp4 --store archive --encoder hf:Qwen/Qwen2.5-VL-7B-Instruct --encode 1/2",
    "floc ingest s3://bucket/cameras --store s3://bucket/archive --engine ray --address auto",
)
def ingest(
    sources: list[str] = typer.Argument(help="Videos, folders, or URIs (s3://bucket/dir)."),
    store: str = option("STORE", "A folder or a URI, created if it does not exist.", default=...),
    ratio: str | None = option("RATIO", f"Share of the tokens to keep. (default: {DEFAULT_RATIO})", options.BUDGET),
    coverage: float | None = options.COVERAGE,
    method: str = options.METHOD_NAME,
    block: str | None = options.BLOCK,
    horizon: str | None = options.HORIZON,
    encoder: str | None = options.ENCODER,
    fps: str | None = options.FPS,
    max_frames: str | None = options.MAX_FRAMES,
    reuse: float | None = options.REUSE,
    encode: str | None = options.ENCODE,
    device: str | None = options.DEVICE,
    no_fast_vision: bool = options.NO_FAST_VISION,
    engine: Engine = option("NAME", "local: processes on this machine; ray: Ray Data.", WORKERS, default="local"),
    workers: int | None = option("N", "Number of encoders. (default: 1 per core; per GPU 2, or 1 on Ray)", WORKERS),
    address: str | None = option("ADDRESS", "Ray: the cluster, or auto. (default: a new one)", WORKERS),
    as_json: bool = options.AS_JSON,
) -> None:
    """Compress many videos into a store.

    Videos in the store are skipped, so the same command resumes an ingest that was stopped or killed. A video that
    cannot be read is recorded with the reason, and the others continue; the exit code is then 1.
    """
    if ratio is None and coverage is None:
        ratio = DEFAULT_RATIO
    options.parse_budget(ratio, None, coverage, names="--ratio or --coverage")
    spec = floc.methods.parse(method)
    given = options.parse_block(block) | options.parse_horizon(horizon)
    method_options = {"method": spec.method, **options.join_method_options(spec.options, given)}
    reading: dict[str, Any] = {"encoder": encoder or "auto", "fps": options.parse_fps(fps), "device": device}
    reading |= {"max_frames": options.parse_limit(max_frames), "fast_vision": not no_fast_vision}
    reading |= {"reuse": reuse, "encode": encode}
    settings: dict[str, Any] = {"ratio": ratio, "coverage": coverage, **method_options, **reading}
    settings |= {"engine": engine, "workers": workers, "address": address}
    from floc.archive.ingest import ingest as ingest_videos

    with show_status(_format_line) as show:
        status = ingest_videos(sources, store, show=show, **settings)
    if as_json:
        print(json.dumps({**status.summary(), "store": clean_text(store)}))
    _print_result(status, store)
    if status.failed:
        raise typer.Exit(1)


def _format_line(status: IngestStatus) -> str:
    parts = [f"{status.done + status.skipped} of {status.videos} videos"]
    if status.footage_s:
        parts.append(f"{format_time(status.footage_s)} of footage  {status.hours_per_hour:.3g} hours per hour")
        parts.append(f"{status.tokens:,} tokens  kept {status.kept:,}")
    if status.failed:
        parts.append(f"{status.failed} failed")
    return "  ".join(parts)


def _print_result(status: IngestStatus, store: str) -> None:
    for kind, messages in (("failed", status.failures), ("warning", status.warnings)):
        for uri, text in messages[:MAX_MESSAGES]:
            print_warning(f"{kind}  {uri}: {text}")
        if len(messages) > MAX_MESSAGES:
            print_warning(f"and {len(messages) - MAX_MESSAGES} more; --json lists all")
    skipped = f", {status.skipped} in the store already" if status.skipped else ""
    failed = f", [red]{status.failed} failed[/]" if status.failed else ""
    rows = [("videos", f"[bold green]{status.done}[/] of {status.videos} ingested{skipped}{failed}")]
    if status.done:
        rows += [
            ("footage", f"{format_time(status.footage_s)}, {status.hours_per_hour:.3g} hours per hour"),
            ("tokens", f"{status.tokens:,}, kept {status.kept:,} (1 in {status.tokens / status.kept:.3g})"),
            ("written", f"{format_bytes(status.bytes)} to {escape_markup(store)}"),
            ("time", f"{status.elapsed_s:.2f} s; of the workers: {format_stages(status.seconds)}"),
        ]
    print_summary(rows)
