"""`floc compress`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import typer

import floc
from floc.cli import options
from floc.cli.application import command
from floc.cli.options import METHOD, option
from floc.cli.output import escape_markup, format_stages, print_summary, show_progress

Metric = Literal["cosine", "gaussian"]
Backend = Literal["auto", "cpu", "gpu", "torch", "reference"]


@command(
    "floc compress talk.mp4 --ratio 1/8 -o talk.safetensors",
    "floc compress tokens.npy --budget 4096 --horizon none -o kept.safetensors",
)
def compress(
    source: Path = typer.Argument(help="A video, or tokens [T, H, W, D] or [T, N, D]: .npy, .safetensors."),
    output: Path | None = option("FILE", "Write this .safetensors file.", None, *options.OUTPUT),
    ratio: str | None = options.RATIO,
    budget: int | None = options.TOKEN_BUDGET,
    coverage: float | None = options.COVERAGE,
    method: str = options.METHOD_NAME,
    block: str | None = options.BLOCK,
    dedupe: float | None = option("N", "With blocks: survivors per kept token of a second pass.", METHOD),
    horizon: str | None = options.HORIZON,
    detail: float | None = option("P", "Weight of badly covered tokens; 1: none. (floc: 3)", METHOD),
    metric: Metric | None = option("NAME", "cosine or gaussian. (floc: cosine)", METHOD),
    backend: Backend | None = option("NAME", "auto, cpu, gpu, torch or reference. (floc: auto)", METHOD),
    fps: str | None = options.FPS,
    max_frames: str | None = options.MAX_FRAMES,
    encoder: str | None = options.ENCODER,
    device: str | None = options.DEVICE,
    no_fast_vision: bool = options.NO_FAST_VISION,
    tensor: str | None = option("NAME", "Tensor of a .safetensors file. (default: tokens, or the only one)"),
    as_json: bool = options.AS_JSON,
) -> None:
    """Compress a video, or a file of tokens.

    The kept tokens of a video are written to NAME.kept.safetensors in the current folder, unless -o names a file.
    """
    from floc import files

    spec = floc.methods.parse(method)
    if (ratio, budget, coverage) != (None, None, None) or not floc.methods.runs_alone(spec):
        options.parse_budget(ratio, budget, coverage, names="--ratio, --budget or --coverage")
    given: dict[str, Any] = {"dedupe": dedupe, "detail": detail, "metric": metric, "backend": backend}
    given = {name: value for name, value in given.items() if value is not None}
    given |= options.parse_block(block) | options.parse_horizon(horizon)
    method_options = options.join_method_options(spec.options, given)
    floc.methods.make(spec.method, method_options)  # checks the options before a long video is read
    options.check_input(source)
    is_video = source.suffix not in files.TOKENS
    if source.suffix in (".npz", ".pt", ".pth", ".pkl"):
        raise ValueError(f"{source}: tokens are read from .npy and .safetensors files; save them as one of these")
    if is_video and output is None:
        output = options.check_unused(Path(f"{source.stem}.kept.safetensors"))
    options.check_output(output, source, ".safetensors")
    seconds: dict[str, float] = {}
    started = time.perf_counter()
    details: dict[str, Any] = {}
    if is_video:
        if tensor is not None:
            raise ValueError(f"{source}: --tensor is for .safetensors files; this is a video")
        video = options.encode_video(source, fps, max_frames, encoder, device, fast_vision=not no_fast_vision)
        tokens = video.tokens
        details = {"times_s": video.times_s, "made_from": video.describe()}
    else:
        refused: dict[str, Any] = dict(fps=fps, max_frames=max_frames, encoder=encoder, device=device)
        refused["no_fast_vision"] = no_fast_vision
        options.refuse_options(f"{source}:", " is for videos; this file holds tokens, so leave it out", **refused)
        tokens = files.read_tokens(source, tensor)
    seconds["decode and encode" if is_video else "read"] = time.perf_counter() - started
    limits: dict[str, Any] = {"ratio": ratio, "budget": budget, "coverage": coverage}
    with show_progress(f"compressing {source.name}") as update:
        if "progress" in floc.methods.list_options(spec.method):
            method_options["progress"] = update
        kept = floc.compress(tokens, method=spec.method, **limits, **method_options)
    seconds["select"] = kept.seconds
    if output is not None:
        started = time.perf_counter()
        output.parent.mkdir(parents=True, exist_ok=True)
        files.write_kept(kept, output, source=source.name, **details)
        seconds["write"] = time.perf_counter() - started
    if as_json:
        summary = {**files.summarize(kept), **details.get("made_from", {}), "stage_seconds": seconds}
        print(json.dumps({**summary, "output": None if output is None else str(output)}))
    _print_kept(kept, source, output, seconds)


def _print_kept(kept: floc.Kept, source: Path, output: Path | None, seconds: Mapping[str, float]) -> None:
    frames, rows, columns = kept.shape
    size = f"{frames} frame{'s' * (frames > 1)} of {rows} x {columns}, {kept.features.shape[-1]} features"
    summary = [
        ("tokens", f"{escape_markup(source)}: {size}"),
        ("kept", f"[bold green]{len(kept)}[/] of {kept.n}  (1 in {1 / kept.ratio:.3g})"),
        ("coverage", f"{kept.coverage:.4f}  mean cosine between a token and its representative"),
    ]
    if kept.bound is not None:
        summary.append(("bound", f"{kept.bound:.4f}  at least this share of the best possible selection"))
    backend = kept.settings.get("backend")
    summary.append(("method", kept.method if backend is None else f"{kept.method}, backend {backend}"))
    summary.append(("time", format_stages(seconds)))
    if output is not None:
        summary.append(("written", escape_markup(output)))
    print_summary(summary)
