"""`floc compress`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import floc
from floc import files
from floc.budget import Budget
from floc.cli.shell import (
    Device,
    EncoderName,
    Fps,
    MaxFrames,
    app,
    filmed,
    parsed_block,
    progress_bar,
    require_writable,
    screen,
    unused,
)


@app.command(epilog="Example: floc compress talk.mp4 --ratio 1/8 -o talk.safetensors")
def compress(
    source: Annotated[Path, typer.Argument(help="A video, or tokens [T, H, W, D] or [T, N, D]: .npy, .safetensors.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The .safetensors file to write.")] = None,
    ratio: Annotated[str | None, typer.Option(help="Kept / total: 1/8 or 0.125.")] = None,
    budget: Annotated[int | None, typer.Option(help="How many tokens to keep.")] = None,
    coverage: Annotated[float | None, typer.Option(help="Mean cosine to reach, with as few as it takes.")] = None,
    method: Annotated[str, typer.Option(help="See `floc methods`; with options: longvu:threshold=0.8.")] = "floc",
    block: Annotated[str | None, typer.Option(help="Frames chosen from together, scene or none. (floc: 32)")] = None,
    dedupe: Annotated[float | None, typer.Option(help="Survivors a kept token, 1: no second pass. (floc: 2)")] = None,
    detail: Annotated[float | None, typer.Option(help="Weight of what is badly covered, 1: none. (floc: 2)")] = None,
    metric: Annotated[str | None, typer.Option(help="cosine or gaussian. (floc: cosine)")] = None,
    backend: Annotated[str | None, typer.Option(help="auto, cpu, gpu, torch or reference. (floc: auto)")] = None,
    fps: Fps = None,
    max_frames: MaxFrames = None,
    encoder: EncoderName = None,
    device: Device = None,
    tensor: Annotated[
        str | None, typer.Option(help="Which tensor of a .safetensors file. (tokens, or the only one)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Compress a video, or a file of tokens.

    A video's kept tokens are written to NAME.kept.safetensors here, unless -o names another file.
    """
    spec = floc.methods.parse(method)  # what is wrong shows before a long film is read
    if (ratio, budget, coverage) != (None, None, None) or not floc.methods.runs_alone(spec):
        Budget.parse(ratio, budget, coverage)
    is_video = source.suffix not in files.TOKENS
    if is_video and output is None:
        output = unused(Path(f"{source.stem}.kept.safetensors"))
    if output is not None:
        require_writable(output, ".safetensors", source)
    names = ("dedupe", "detail", "metric", "backend")
    options: dict[str, Any] = dict(zip(names, (dedupe, detail, metric, backend), strict=True))
    given = {name: value for name, value in options.items() if value is not None}
    if block is not None:
        given["block"] = parsed_block(block)
    floc.methods.make(spec.method, {**spec.options, **given})
    about: dict[str, Any] = {}
    if is_video:
        if tensor is not None:
            raise ValueError(f"{source}: --tensor is for .safetensors files; a video has none to choose from")
        film = filmed(source, fps, max_frames, encoder, device)
        tokens, about = film.footage.tokens, {"times_s": film.footage.times_s, "made_from": film.about()}
    else:
        for name, value in {"fps": fps, "max-frames": max_frames, "encoder": encoder, "device": device}.items():
            if value is not None:
                raise ValueError(f"{source}: --{name} is for videos; the tokens in this file are made already")
        tokens = files.read_tokens(source, tensor)
    with progress_bar(f"compressing {source.name}") as show:
        if "progress" in floc.methods.options(spec.method):
            given["progress"] = show
        given = {**spec.options, **given}
        kept = floc.compress(tokens, ratio=ratio, budget=budget, coverage=coverage, method=spec.method, **given)
    if output is not None:
        files.write_kept(kept, output, source=source.name, **about)
    if as_json:
        made_from = about.get("made_from", {})
        print(json.dumps({**files.summarize(kept), **made_from, "output": None if output is None else str(output)}))
    _show(kept, source, output)


def _show(kept: floc.Kept, source: Path, output: Path | None) -> None:
    t, h, w = kept.shape
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="dim")
    table.add_row("tokens", f"{escape(str(source))}: {t} frames of {h} x {w}, {kept.features.shape[-1]} features")
    table.add_row("kept", f"[bold green]{len(kept)}[/] of {kept.n}  (1 in {1 / kept.ratio:.3g})")
    table.add_row("coverage", f"{kept.coverage:.4f}  mean cosine of a token with the one that stands for it")
    if kept.bound is not None:
        table.add_row("bound", f"{kept.bound:.4f}  of the best choice from the same candidates, at least")
    table.add_row("time", f"{kept.seconds:.2f} s  ({kept.method}, backend {kept.settings.get('backend', 'none')})")
    if output is not None:
        table.add_row("written", escape(str(output)))
    screen.print(table)
