"""`floc plan`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import floc
from floc._text import format_bytes, format_time
from floc.cli import options
from floc.cli.application import command
from floc.cli.options import BUDGET, option
from floc.cli.output import print_line, print_warning

if TYPE_CHECKING:
    from floc.planning import Plan


@command(
    "floc plan talk.mp4 --model Qwen/Qwen2.5-VL-7B-Instruct",
    "floc plan talk.mp4 --model Qwen/Qwen2.5-VL-7B-Instruct --more-frames",
)
def plan(
    video: Path = typer.Argument(help="A video."),
    model: str = option("MODEL", "A video model of transformers: a folder or a hub id.", default=...),
    ratio: str | None = option("RATIO", "Share of the tokens to keep. (default: 1/8)", BUDGET),
    budget: int | None = options.TOKEN_BUDGET,
    more_frames: bool = options.MORE_FRAMES,
    fps: str | None = options.FPS,
    max_frames: str | None = options.MAX_FRAMES,
    frame_tokens: int | None = options.FRAME_TOKENS,
    device: str | None = options.DEVICE,
    as_json: bool = options.AS_JSON,
) -> None:
    """Show the frames, tokens, memory and time of a video in a model, without loading the model's weights.

    Frames and tokens are those of the model's processor. Memory and time are estimates for this machine.
    """
    from floc.planning import check_plan

    if ratio is not None or budget is not None:
        options.parse_budget(ratio, budget, names="--ratio or --budget")
    result = floc.plan(
        video,
        model,
        ratio=ratio,
        budget=budget,
        fps=options.parse_fps(fps),
        max_frames=options.parse_limit(max_frames),
        frame_tokens=frame_tokens,
        more_frames=more_frames,
        device=device,
    )
    if as_json:
        print(json.dumps(result.describe()))
        return
    for label, value in _list_rows(result):
        print_line(f"{label:<19}{value}")
    print_warning(*check_plan(result, attach=True))


def _list_rows(result: Plan) -> list[tuple[str, str]]:
    facts, work = result.facts, result.work
    context = "" if result.context is None else f" of {result.context:,}"
    free = "" if result.free_bytes is None else f", of {format_bytes(result.free_bytes)} free"
    beside = f", and {format_bytes(result.attach_host_bytes)} on the host" if result.attach_host_bytes else ""
    stages = ", ".join(f"{name} {_round(seconds)} s" for name, seconds in result.seconds.items())
    per_slice = math.ceil(work.frames / work.slices)
    joined = f", {work.tokens // work.slices:,} for each {per_slice} frames" if per_slice > 1 else ""
    return [
        ("video", f"{format_time(facts.frames / facts.fps)}, {facts.width} x {facts.height}, {facts.frames:,} frames"),
        ("frames", f"{work.frames:,}, {result.fps:.3g} per second"),
        ("tokens a frame", f"{result.tokens_per_frame:,.4g}{joined}"),
        ("tokens", f"{work.tokens:,}"),
        ("kept", f"{work.kept:,}, 1/{work.tokens / work.kept:.3g}"),
        ("prompt", f"{work.prompt:,}{context} tokens, before the question"),
        ("KV cache", f"{format_bytes(result.kv_bytes)}; with all tokens {format_bytes(result.all_kv_bytes)}"),
        ("weights", format_bytes(result.weights_bytes)),
        ("memory of attach", f"about {format_bytes(result.attach_bytes)} on {result.device}{free}{beside}"),
        ("memory of capture", f"about {format_bytes(result.capture_bytes)} on {result.device}{free}"),
        ("time", f"about {_round(sum(result.seconds.values()))} s: {stages}"),
    ]


def _round(seconds: float) -> str:
    """Format seconds with the digits that an estimate deserves.

    >>> _round(0.0123), _round(1234.5)
    ('0.012', '1,200')
    """
    return f"{float(f'{seconds:.2g}'):,.{0 if seconds >= 10 else 2 if seconds >= 0.1 else 3}f}"
