"""`floc stream`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floc import files
from floc._format import format_bytes, format_time
from floc.budget import Budget
from floc.cli.shell import (
    Device,
    EncoderName,
    Fps,
    app,
    parsed_block,
    parsed_fps,
    require_folder,
    require_place,
    screen,
    status_line,
    stoppable,
)

if TYPE_CHECKING:
    from floc.streaming.recorder import StreamRecorder, StreamStatus

LINE_EVERY_S = 10.0  # where there is no terminal to show one line that changes


@app.command(
    epilog="Examples: floc stream rtsp://camera/main --budget 4096 --state camera.state\n\n"
    "floc stream recording.ts --follow --ratio 1/32 --segment 60 -o segments"
)
def stream(
    source: Annotated[str, typer.Argument(help="A video, a camera (/dev/video0), or an rtsp:// or http:// address.")],
    ratio: Annotated[str | None, typer.Option(help="Kept / total: what is kept grows with the video.")] = None,
    budget: Annotated[int | None, typer.Option(help="How many tokens to keep of all, in bounded memory.")] = None,
    block: Annotated[str | None, typer.Option(help="Frames chosen from together, or scene. [dim](32)[/]")] = None,
    half_life: Annotated[
        float | None, typer.Option(help="--budget: seconds after which the past weighs half. [dim](never)[/]")
    ] = None,
    encoder: EncoderName = None,
    fps: Fps = None,
    segment: Annotated[float, typer.Option(help="Seconds of video from one segment to the next.")] = 300,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the segments. [dim](floc-stream, made here)[/]")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Where to go on from, and to save it to at every segment.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="A file still grows (MPEG-TS, Matroska): wait.")] = False,
    patience: Annotated[float, typer.Option(help="--follow: seconds without growth that end it.")] = 10,
    seconds: Annotated[float | None, typer.Option(help="Stop after so much of the video. [dim](never)[/]")] = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was kept last as JSON on stdout.")] = False,
) -> None:
    """Watch a video that may not end, and write what is kept of it as time goes by.

    Every segment, segment-000001.safetensors and so on, is what is kept of all that was seen until then, in the format
    of `floc compress`; the newest is latest.safetensors, too. (.floc files are for one model of transformers and are
    made by `floc ask`; here tokens come from an encoder.) Ctrl-C ends it and writes the last segment and the state.
    """
    from floc import encoders
    from floc.streaming.recorder import open_recorder
    from floc.video import live

    dial = Budget.parse(ratio, budget, None)
    for name, value in {"segment": segment, "seconds": seconds, "patience": patience}.items():
        if value is not None and not value > 0:
            raise ValueError(f"--{name} must be a number of seconds above 0, got {value:g}")
    frames_per_s = parsed_fps(fps)
    live.check(source, follow=follow)
    folder = _segment_folder(output)
    if state is not None:
        require_place(state, Path(source))
    network = encoders.get(encoder or "auto", device=device)
    options: dict[str, Any] = dict(fps=frames_per_s, segment_s=segment, folder=folder, state=state, device=device)
    if block is not None:
        options["block"] = parsed_block(block)
    if half_life is not None:
        options["half_life_s"] = half_life
    watched = open_recorder(source, network, dial, **options)
    if encoder in (None, "auto"):
        screen.print(f"encoder: {network.name}", style="dim", markup=False)
    if watched.resumes:
        told = f"going on from {state}: {watched.stream.frames} frames until {format_time(watched.read_s)}"
        screen.print(told, markup=False, soft_wrap=True)
    with stoppable() as stopped, status_line(_in_a_line, LINE_EVERY_S) as show:
        watched.run(
            follow=follow,
            patience_s=patience,
            seconds=math.inf if seconds is None else seconds,
            stopped=stopped,
            show=show,
            wrote=lambda path: screen.print(f"written  {path}", style="dim", markup=False, soft_wrap=True),
            warn=lambda text: screen.print(text, style="yellow", markup=False, soft_wrap=True),
        )
    if as_json:
        about = {} if watched.kept is None else files.summarize(watched.kept)
        written = {"segments": [str(each) for each in watched.written], "warnings": watched.warnings}
        print(json.dumps({**about, "encoder": network.name, **written, "state": None if state is None else str(state)}))
    _show_watched(watched)


def _segment_folder(given: Path | None) -> Path:
    """The folder to write to. One that was named must be there: a disk that is not mounted is no place for days."""
    folder = given or Path("floc-stream")
    require_folder(folder)
    if given is not None and not given.is_dir():
        raise ValueError(f"{given}: this folder does not exist; create it first")
    return folder


def _in_a_line(status: StreamStatus) -> str:
    parts = [
        format_time(status.time_s),
        f"{status.frames:,} {'frame' if status.frames == 1 else 'frames'}",
        f"{status.tokens:,} tokens",
        f"kept {status.kept:,} (1 in {status.tokens / status.kept:.3g})",
        f"{status.pushes_per_s:.1f} pushes/s",
    ]
    if status.memory_bytes is not None:
        parts.append(format_bytes(status.memory_bytes))
    return "  ".join(parts)


def _show_watched(watched: StreamRecorder) -> None:
    if watched.kept is None:
        screen.print("no new frame; nothing was written")
        return
    start_s, end_s = watched.kept.span_s or (0.0, 0.0)
    count = "1 segment" if len(watched.written) == 1 else f"{len(watched.written)} segments"
    state = "" if watched.state is None else f", and the state {watched.state}"
    screen.print(
        f"kept {len(watched.kept):,} of {watched.kept.n:,} tokens, {format_time(start_s)} to {format_time(end_s)}; "
        f"written: {count} to {watched.folder}, the last is {watched.written[-1].name}{state}",
        markup=False,
        soft_wrap=True,
    )
