"""`floc stream`."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from floc._text import format_bytes, format_time
from floc.cli import options
from floc.cli.application import command
from floc.cli.options import BUDGET, OUTPUT, VIDEO, flag, option
from floc.cli.output import format_stages, print_note, print_warning, show_status
from floc.cli.signals import catch_stop

if TYPE_CHECKING:
    from floc.streaming.recorder import StreamRecorder, StreamStatus

FOLDER = Path("floc-stream")
Seconds = float | None


@command(
    "floc stream rtsp://camera/main --budget 4096 --state camera.state",
    "floc stream recording.ts --follow --ratio 1/32 --segment 60 -o segments",
    "floc stream /dev/video0 --ratio 1/32 --horizon 16 --state camera.state",
    "floc stream /dev/video0 --ratio 1/32 --encoder hf:Qwen/Qwen2.5-VL-7B-Instruct --reuse 8",
)
def stream(
    source: str = typer.Argument(help="A video, a camera (/dev/video0), or an rtsp:// or http:// address."),
    output: Path = option("FOLDER", "Folder of the segments; created if missing.", None, *OUTPUT, default=FOLDER),
    ratio: str | None = option("RATIO", "Share of the tokens to keep; grows with the video.", BUDGET),
    budget: int | None = option("N", "Number of tokens to keep of the whole video, in bounded memory.", BUDGET),
    half_life: Seconds = option("SECONDS", "With --budget: halve the weight of the past. (default: never)", BUDGET),
    block: str | None = options.BLOCK,
    horizon: str | None = options.HORIZON,
    encoder: str | None = options.ENCODER,
    fps: str | None = options.FPS,
    segment: float = option("SECONDS", "Write a segment this often.", default=300),
    state: Path | None = option("FILE", "Save the stream here; resume from it if it exists."),
    follow: bool = flag("--follow", "Wait for more of a file that still grows (MPEG-TS, Matroska).", VIDEO),
    patience: float = option("SECONDS", "With --follow: stop after this long without growth.", VIDEO, default=10),
    seconds: Seconds = option("SECONDS", "Stop after this much video. (default: never)", VIDEO),
    reuse: float | None = options.REUSE,
    encode: str | None = options.ENCODE,
    device: str | None = options.DEVICE,
    no_fast_vision: bool = options.NO_FAST_VISION,
    as_json: bool = options.AS_JSON,
) -> None:
    """Compress a video that may never end.

    Each segment (segment-000000.safetensors and so on) holds the tokens kept of everything seen so far, in the format
    of `floc compress`. latest.safetensors is a copy of the newest one. Ctrl-C writes the last segment and the state.
    """
    from floc import encoders, files
    from floc.streaming.recorder import open_recorder
    from floc.video import live

    target = options.parse_budget(ratio, budget, names="--ratio or --budget")
    options.check_seconds(segment=segment, seconds=seconds, patience=patience, half_life=half_life)
    rate, _ = encoders.base.resolve_sampling(options.parse_fps(fps), None)
    stream_options: dict[str, Any] = {"fps": rate, "segment_s": segment, "folder": output}
    stream_options |= options.parse_block(block) | options.parse_horizon(horizon)
    if half_life is not None:
        stream_options["half_life_s"] = half_life
    live.check_source(source, follow=follow)
    options.check_folder(output)
    if state is not None:
        options.check_output(state, Path(source))
        state.parent.mkdir(parents=True, exist_ok=True)
    slices: dict[str, Any] = {"reuse": reuse, "encode": encode}
    network = encoders.get(encoder or "auto", device=device, **slices, fast_vision=not no_fast_vision)
    recorder = open_recorder(source, network, target, state=state, device=device, **stream_options)
    if encoder in (None, "auto"):
        print_note(f"encoder: {network.name}")
    if recorder.resumes:
        print_note(f"resuming {state}: {recorder.stream.frames} frames until {format_time(recorder.read_s)}")
    started = time.perf_counter()
    with catch_stop() as is_stopped, show_status(_format_status) as show:
        limits: dict[str, Any] = {"patience_s": patience, "seconds": math.inf if seconds is None else seconds}
        note: dict[str, Any] = {"wrote": lambda path: print_note(f"written  {path}"), "warn": print_warning}
        recorder.run(follow=follow, stopped=is_stopped, show=show, **limits, **note)
    stages = {"read": time.perf_counter() - started - sum(recorder.seconds.values()), **recorder.seconds}
    if as_json:
        summary = {} if recorder.kept is None else files.summarize(recorder.kept)
        written = {"segments": [str(path) for path in recorder.written], "warnings": recorder.warnings}
        settings = {"encoder": network.name, "stage_seconds": stages, "state": state and str(state)}
        print(json.dumps({**summary, **settings, **written}))
    _print_summary(recorder)
    print_note(format_stages(stages))


def _format_status(status: StreamStatus) -> str:
    read = f"{format_time(status.time_s)}  {status.frames:,} {'frame' if status.frames == 1 else 'frames'}"
    kept = f"{status.tokens:,} tokens  kept {status.kept:,} (1 in {status.tokens / status.kept:.3g})"
    memory = "" if status.memory_bytes is None else f"  {format_bytes(status.memory_bytes)}"
    return f"{read}  {kept}  {status.pushes_per_s:.1f} pushes/s{memory}"


def _print_summary(recorder: StreamRecorder) -> None:
    if recorder.kept is None:
        print_note("no new frame; nothing was written")
        return
    start_s, end_s = recorder.kept.span_s or (0.0, 0.0)
    count = "1 segment" if len(recorder.written) == 1 else f"{len(recorder.written)} segments"
    state = "" if recorder.state is None else f", and the state {recorder.state}"
    print_note(
        f"kept {len(recorder.kept):,} of {recorder.kept.n:,} tokens, {format_time(start_s)} to {format_time(end_s)}; "
        f"written: {count} to {recorder.folder}, the last is {recorder.written[-1].name}{state}",
        style="",
    )
