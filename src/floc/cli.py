"""The command line: parse, call, print. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

import floc
from floc import store
from floc.dials import Dial

if TYPE_CHECKING:
    from floc.blocks import Block
    from floc.compare import Comparison
    from floc.evaluation import Status as EvaluationStatus
    from floc.footage import Film
    from floc.watch import Status, Watch

app = typer.Typer(
    help="Keep the few visual tokens of a long video that best stand in for all the others.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
screen = Console(stderr=True, highlight=False)
LINE_EVERY_S = 10.0  # of `floc stream`, where there is no terminal to show one line that changes
CELLS_EVERY_S = 60.0  # the same of `floc eval`
# what `floc compare` prints of its measures, under names short enough for a terminal
COLUMNS = {"coverage": "cover", "worst": "worst", "bound": "bound", "averaged_distance": "dist", "redundancy": "redund"}


Fps = Annotated[str | None, typer.Option(help="Video: frames a second, or 'all'. [dim](1)[/]")]
MaxFrames = Annotated[int | None, typer.Option(help="Video: at most so many, spread evenly. [dim](7200)[/]")]
EncoderName = Annotated[
    str | None, typer.Option(help="Video: pixels, mobilenet, hf:MODEL, or auto: the best installed. [dim](auto)[/]")
]
Device = Annotated[str | None, typer.Option(help="Where an encoder runs: cpu, cuda:0. [dim](a GPU, if any)[/]")]


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
    allocate: Annotated[str | None, typer.Option(help="uniform or global, over blocks. (floc: uniform)")] = None,
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
        Dial.of(ratio, budget, coverage)
    is_video = source.suffix not in store.TOKENS
    if is_video and output is None:
        output = _unused(Path(f"{source.stem}.kept.safetensors"))
    if output is not None:
        _require_writable(output, ".safetensors", source)
    names = ("dedupe", "detail", "metric", "allocate", "backend")
    options: dict[str, Any] = dict(zip(names, (dedupe, detail, metric, allocate, backend), strict=True))
    given = {name: value for name, value in options.items() if value is not None}
    if block is not None:
        given["block"] = _block(block)
    floc.methods.make(spec.method, {**spec.options, **given})
    about: dict[str, Any] = {}
    if is_video:
        if tensor is not None:
            raise ValueError(f"{source}: --tensor is for .safetensors files; a video has none to choose from")
        film = _filmed(source, fps, max_frames, encoder, device)
        tokens, about = film.footage.tokens, {"times_s": film.footage.times_s, "made_from": film.about()}
    else:
        for name, value in {"fps": fps, "max-frames": max_frames, "encoder": encoder, "device": device}.items():
            if value is not None:
                raise ValueError(f"{source}: --{name} is for videos; the tokens in this file are made already")
        tokens = store.read_tokens(source, tensor)
    with _progress(f"compressing {source.name}") as show:
        if "progress" in floc.methods.options(spec.method):
            given["progress"] = show
        given = {**spec.options, **given}
        kept = floc.compress(tokens, ratio=ratio, budget=budget, coverage=coverage, method=spec.method, **given)
    if output is not None:
        store.write_kept(kept, output, source=source.name, **about)
    if as_json:
        made_from = about.get("made_from", {})
        print(json.dumps({**store.summary(kept), **made_from, "output": None if output is None else str(output)}))
    _show(kept, source, output)


@app.command(epilog="Example: floc compare talk.mp4 --methods floc,divprune,random -o report.html")
def compare(
    video: Annotated[Path, typer.Argument(help="A video.")],
    methods: Annotated[
        str, typer.Option(help="Names from `floc methods`, with options where wanted (floc:detail=1), or 'all'.")
    ] = "floc,floc-paper,divprune,frame_uniform,random",
    ratios: Annotated[str, typer.Option(help="Kept / total, one or more.")] = "1/8,1/16,1/32",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page to write. [dim](NAME.report.html)[/]")
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="A folder for the figures as PNG.")] = None,
    fps: Fps = None,
    max_frames: MaxFrames = None,
    encoder: EncoderName = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON on stdout.")] = False,
) -> None:
    """Compare methods on a video, and write one HTML page that shows what each kept."""
    from floc import compare as comparing
    from floc import report

    if output is None:
        output = _unused(Path(f"{video.stem}.report.html"))
    _require_writable(output, ".html", video)
    if plots is not None:
        _require_folder(plots)
    report.require_packages(figures=plots is not None)
    names = floc.methods.names() if methods == "all" else _listed(methods)
    for name in names:  # what is wrong with them shows before a long film is read
        floc.methods.parse(name)
    comparing.stops_for(_listed(ratios), n=1)
    film = _filmed(video, fps, max_frames, encoder, device, with_strip=True)
    with _progress("comparing") as show:
        made = report.make(
            film,
            names,
            _listed(ratios),
            output,
            figures=plots,
            command=shlex.join(["floc", *sys.argv[1:]]),
            progress=lambda what, share: show(share, what),
        )
    if as_json:
        print(json.dumps(comparing.rows(made.comparison)))
    _show_comparison(made.comparison)
    screen.print(f"[bold]{escape(str(output))}[/]  {made.size_bytes / 1e6:.1f} MB, for any browser", soft_wrap=True)
    for figure in made.figures:
        screen.print(escape(str(figure)), soft_wrap=True)


@app.command(epilog="Example: floc ask talk.mp4 'What is on the table?' --model Qwen/Qwen2.5-VL-7B-Instruct")
def ask(
    video: Annotated[Path, typer.Argument(help="A video, or a .floc file that was captured from one.")],
    questions: Annotated[list[str], typer.Argument(help="What to ask; of several, each is asked by itself.")],
    model: Annotated[str, typer.Option(help="A video model of transformers: a folder, or a hub id.")],
    ratio: Annotated[str | None, typer.Option(help="Kept / total. [dim](1/8; all of a .floc file)[/]")] = None,
    budget: Annotated[int | None, typer.Option(help="How many visual tokens to keep.")] = None,
    coverage: Annotated[float | None, typer.Option(help="Mean cosine to reach, with as few as it takes.")] = None,
    method: Annotated[str | None, typer.Option(help="See `floc methods`; with options: floc:detail=1.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Keep what was captured: a .floc file.")] = None,
    both: Annotated[bool, typer.Option("--compare", help="Ask without compression too.")] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Where an answer ends at the latest.", min=1)] = 256,
    fps: Fps = None,
    max_frames: MaxFrames = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print answers and figures as JSON on stdout.")] = False,
) -> None:
    """Ask a video model about a video, with a fraction of its tokens.

    The vision tower runs once for all questions (and once more to --compare). Frames and prompts are prepared here as
    the model's own processor would, from its files, so torchvision is not needed.
    """
    from floc import footage
    from floc.integrations.transformers.ask import Session

    captured = video.suffix == ".floc"
    spec = floc.methods.parse(method or "floc")
    if captured:
        for name, value in {"coverage": coverage, "method": method, "fps": fps, "max-frames": max_frames}.items():
            if value is not None:
                raise ValueError(f"{video}: --{name} is for videos; this one is captured already")
        if both:
            raise ValueError(f"{video}: --compare needs the video itself; a .floc file has only what was kept of it")
    elif (ratio, budget, coverage) == (None, None, None) and not floc.methods.runs_alone(spec):
        ratio = "1/8"
    if (ratio, budget, coverage) != (None, None, None):
        Dial.of(ratio, budget, coverage)
    if output is not None:
        _require_writable(output, ".floc", video)
    session = Session(model, device)
    dials: list[dict[str, Any]] = [dict(ratio=ratio, budget=budget, coverage=coverage)]
    if both:
        dials.append(dict(ratio=1))
    told = []
    for dial in dials:
        if captured:
            film = session.load(video, ratio=ratio, budget=budget)
        else:
            with _progress(f"looking at {video.name}") as show:
                film = session.capture(video, dial, spec, _fps(fps), max_frames or footage.MAX_FRAMES, show)
            for warning in film.made["warnings"]:
                screen.print(warning, style="yellow", markup=False, soft_wrap=True)
        if output is not None and dial is dials[0]:
            film.save(output)
        for question in questions:
            if not as_json and len(dials) * len(questions) > 1:
                screen.print(
                    f"{'all tokens' if dial is not dials[0] else 'kept'}: {question}", style="dim", markup=False
                )
            shown = (lambda text: None) if as_json else _say
            told.append(session.ask(film, question, max_new_tokens, shown))
            if not as_json:
                print(flush=True)
    if as_json:
        print(json.dumps(told))
    _show_answers(told)
    if output is not None:
        screen.print(f"written  {escape(str(output))}", soft_wrap=True)


def _say(text: str) -> None:
    print(text, end="", flush=True)


def _show_answers(told: list[dict[str, Any]]) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 1))
    table.add_column("")
    for each in told:
        table.add_column(escape(each["question"]), justify="right", max_width=24, overflow="ellipsis", no_wrap=True)
    table.add_row("visual tokens", *(f"{each['tokens']:,}" for each in told))
    table.add_row("kept", *(f"[bold green]{each['kept']:,}[/]" for each in told))
    for stage in ("decode", "vision", "select", "prefill", "answer"):
        spent = [f"{each['seconds'][stage]:.2f}" if stage in each["seconds"] else "-" for each in told]
        table.add_row(f"{stage}, s", *spent)
    table.add_row("peak memory, GB", *(f"{each['peak_bytes'] / 1e9:.2f}" for each in told))
    screen.print(table)


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
    from floc import encoders, watch
    from floc.video import live

    dial = Dial.of(ratio, budget, None)
    for name, value in {"segment": segment, "seconds": seconds, "patience": patience}.items():
        if value is not None and not value > 0:
            raise ValueError(f"--{name} must be a number of seconds above 0, got {value:g}")
    frames_per_s = _fps(fps)
    live.check(source, follow=follow)
    folder = _segment_folder(output)
    if state is not None:
        _require_place(state, Path(source))
    network = encoders.get(encoder or "auto", device=device)
    options: dict[str, Any] = dict(fps=frames_per_s, segment_s=segment, folder=folder, state=state, device=device)
    if block is not None:
        options["block"] = _block(block)
    if half_life is not None:
        options["half_life_s"] = half_life
    watched = watch.begin(source, network, dial, **options)
    if encoder in (None, "auto"):
        screen.print(f"encoder: {network.name}", style="dim", markup=False)
    if watched.resumes:
        told = f"going on from {state}: {watched.stream.frames} frames until {_clock(watched.read_s)}"
        screen.print(told, markup=False, soft_wrap=True)
    with _stoppable() as stopped, _status_line(_in_a_line, LINE_EVERY_S) as show:
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
        about = {} if watched.kept is None else store.summary(watched.kept)
        files = {"segments": [str(each) for each in watched.written], "warnings": watched.warnings}
        print(json.dumps({**about, "encoder": network.name, **files, "state": None if state is None else str(state)}))
    _show_watched(watched)


def _segment_folder(given: Path | None) -> Path:
    """The folder to write to. One that was named must be there: a disk that is not mounted is no place for days."""
    folder = given or Path("floc-stream")
    _require_folder(folder)
    if given is not None and not given.is_dir():
        raise ValueError(f"{given}: this folder does not exist; create it first")
    return folder


@contextlib.contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, or the system asked to end: work in hand is finished first. Twice is at once."""
    asked = threading.Event()
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: object) -> None:
        asked.set()
        restore()

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        restore()


@contextlib.contextmanager
def _status_line(in_a_line: Callable[[Any], str], every_s: float) -> Iterator[Callable[[Any], None]]:
    """A function that shows where work stands: a line that changes on a terminal, now and then one elsewhere."""
    if screen.is_terminal:
        with Live(console=screen, transient=True) as line:
            yield lambda status: line.update(Text(in_a_line(status), overflow="ellipsis", no_wrap=True))
        return
    next_s = 0.0

    def show(status: Any) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            screen.print(in_a_line(status), markup=False, soft_wrap=True)
            next_s = time.monotonic() + every_s

    yield show


def _in_a_line(status: Status) -> str:
    from floc.machine import in_words

    parts = [
        _clock(status.time_s),
        f"{status.frames:,} {'frame' if status.frames == 1 else 'frames'}",
        f"{status.tokens:,} tokens",
        f"kept {status.kept:,} (1 in {status.tokens / status.kept:.3g})",
        f"{status.pushes_per_s:.1f} pushes/s",
    ]
    if status.memory_bytes is not None:
        parts.append(in_words(status.memory_bytes))
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    from floc.footage import clock

    return clock(seconds)


def _show_watched(watched: Watch) -> None:
    if watched.kept is None:
        screen.print("no new frame; nothing was written")
        return
    start_s, end_s = watched.kept.span_s or (0.0, 0.0)
    count = "1 segment" if len(watched.written) == 1 else f"{len(watched.written)} segments"
    state = "" if watched.state is None else f", and the state {watched.state}"
    screen.print(
        f"kept {len(watched.kept):,} of {watched.kept.n:,} tokens, {_clock(start_s)} to {_clock(end_s)}; "
        f"written: {count} to {watched.folder}, the last is {watched.written[-1].name}{state}",
        markup=False,
        soft_wrap=True,
    )


@app.command(epilog="Example: floc demo -o floc-demo")
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the film and the report.")] = Path(
        "floc-demo"
    ),
    seed: Annotated[int, typer.Option(help="Another seed, another film.")] = 0,
    seconds: Annotated[float, typer.Option(help="Length of the film.")] = 120,
    ratio: Annotated[str, typer.Option(help="Kept / total.")] = "1/32",
    encoder: Annotated[str, typer.Option(help="pixels, mobilenet or hf:MODEL.")] = "pixels",
) -> None:
    """Render a film in which keys lie on a table for a second; see which methods keep them."""
    from floc import encoders, report
    from floc.demo import show

    _require_folder(output)
    report.require_packages()
    network = encoders.get(encoder)  # what is wrong with it shows before a film is rendered
    show(screen, output, seed=seed, seconds=seconds, ratio=ratio, encoder=network, progress=_progress)


@app.command(epilog="Example: floc methods")
def methods(
    name: Annotated[str | None, typer.Argument(help="One method, to read all that there is to know of it.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="All of them as the page docs/methods.md.")] = False,
) -> None:
    """List the methods: what each does, and its options."""
    if markdown:
        print(floc.methods.markdown(), end="")
        return
    out = Console(highlight=False)
    if name is not None:
        out.print(floc.methods.manual(name), markup=False)
        return
    table = Table("method", "kind", "budget", "floor", "what it does", box=None, header_style="bold")
    for each in floc.methods.names():
        facts = floc.methods.facts(each)
        budget = "exact" if facts.exact else "at most"
        table.add_row(each, facts.kind, budget, facts.floor or "-", floc.methods.describe(each))
    out.print(table)
    out.print("[dim]floc methods NAME tells the paper, the options and every difference from the published program.[/]")


@app.command(epilog="Examples: floc bench profile\n\nfloc bench all --small")
def bench(
    table: Annotated[str, typer.Argument(help="Which table: see `floc bench list`; `all` for all of them.")],
    small: Annotated[bool, typer.Option("--small", help="Sizes that two cores measure in a minute or two.")] = False,
    results: Annotated[
        Path | None, typer.Option(help="Where results go: by default benchmarks/results, or benchmarks/small.")
    ] = None,
) -> None:
    """Measure, and record the result.

    Of `all`, a table that needs what is not here is left out and told, and the exit code is 1 where another one failed.
    """
    from floc import bench as benchmarks

    if table == "list":
        for name in benchmarks.names():
            print(name)
        return
    if table == "all":
        outcomes = benchmarks.run_all(small=small, results=results, echo=print)
        if any(each.state == benchmarks.FAILED for each in outcomes):
            raise typer.Exit(1)
        return
    benchmarks.run(table, small=small, results=results, echo=print)


@app.command(
    "eval",
    epilog="Examples: floc eval --paper table1 --dry-run\n\n"
    "floc eval --models qwen2.5-vl-7b --methods full,floc,divprune --ratios 1/8 --limit 100 --gpus 0,1",
)
def evaluate(
    models: Annotated[
        str | None, typer.Option(help="Names, or NAME=FOLDER for weights there. [dim](qwen2.5-vl-7b)[/]")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="See `floc methods`; full: all tokens. [dim](full,floc,floc-paper,frame_uniform,random)[/]"),
    ] = None,
    ratios: Annotated[str | None, typer.Option(help="Kept / total. [dim](1/8,1/16,1/32)[/]")] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="Of lmms-eval. [dim](videomme,mlvu_dev,longvideobench_val_v,egoschema_subset)[/]"),
    ] = None,
    paper: Annotated[
        str | None, typer.Option(help="A table of the paper with its settings: table1, table2, supp, table4-6, table8.")
    ] = None,
    max_frames: Annotated[int | None, typer.Option(help="Of a video. [dim](as the paper for each model)[/]")] = None,
    fps: Annotated[float | None, typer.Option(help="Frames a second. [dim](spread evenly)[/]")] = None,
    budget: Annotated[int | None, typer.Option(help="Tokens to keep of a video, in place of ratios.")] = None,
    block: Annotated[
        str | None, typer.Option(help="Of methods with blocks: frames, scene or none. [dim](32; clusterings: 8)[/]")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only so many questions of a task, to try it out.")] = None,
    gpus: Annotated[
        str | None, typer.Option(help="A process for each: 0,1; 0+1,2+3: two for each process. [dim](all)[/]")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results: finished cells there are never run again.")] = Path(
        "floc-eval"
    ),
    retry: Annotated[bool, typer.Option("--retry", help="Run cells again that failed.")] = False,
    model_args: Annotated[
        str, typer.Option(help="For the model of lmms-eval: max_pixels=100352,positions=compact.")
    ] = "",
    lmms: Annotated[str, typer.Option(help="Further arguments for lmms-eval, as one text.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, its tokens, its time; run nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report, or the plan, as JSON on stdout.")] = False,
) -> None:
    """Evaluate models and methods on benchmarks, each number beside the paper's.

    A cell is a model with a method and a ratio on a task: one run of lmms-eval, on one GPU. What was stopped or killed
    goes on where it was. The report is report.md and report.json in the folder, brought up to date by every cell.
    """
    from floc import evaluation
    from floc.evaluation import downloads, preview

    if block is not None:
        _block(block)
    wish = evaluation.Wish(
        models=_maybe_listed(models),
        methods=_maybe_listed(methods),
        ratios=_maybe_listed(ratios),
        tasks=_maybe_listed(tasks),
        budget=budget,
        block=block,
        max_frames=max_frames,
        fps=fps,
        limit=limit,
        more=model_args,
        lmms=lmms,
    )
    cells = evaluation.grid(wish) if paper is None else evaluation.from_paper(paper, wish)
    _require_folder(out)
    folder = evaluation.Folder(out)
    workers = evaluation.processes(gpus)
    if dry_run:
        plan = preview.preview(cells, folder, evaluation.lmms, workers[0])
        print(json.dumps(plan)) if as_json else _show_plan(plan)
        return
    if waiting := evaluation.pending(cells, folder, retry=retry):
        if needed := downloads.missing(waiting):
            raise ValueError(downloads.explain(needed))
        evaluation.require_lmms_eval()
    line = functools.partial(_cells_in_a_line, workers=len(workers))
    with _stoppable() as stopped, _status_line(line, CELLS_EVERY_S) as show:
        status = evaluation.run(
            cells,
            folder,
            evaluation.lmms,
            gpus=workers,
            retry=retry,
            show=show,
            stopped=stopped,
            finished=lambda cell: evaluation.report.write(folder),
        )
    page, data = evaluation.report.write(folder)
    print(data.read_text() if as_json else page.read_text(), end="")
    screen.print(line(status), markup=False, soft_wrap=True)
    screen.print(f"written  {page}, {data}", markup=False, soft_wrap=True)
    if status.failed:
        screen.print("cells failed: see the report for why; --retry runs them again", style="red", markup=False)
    if stopped():
        screen.print("stopped: the same command goes on from here")
    if status.done < status.cells:
        raise typer.Exit(1)


def _cells_in_a_line(status: EvaluationStatus, workers: int) -> str:
    parts = [f"{status.done} of {status.cells} cells done", f"{len(status.running)} running"]
    if status.failed:
        parts.append(f"{status.failed} failed")
    left_s = status.left_s(workers)
    if left_s is not None and status.to_do + len(status.running):
        parts.append(f"about {_clock(left_s)} left")
    running = [f"{cell.model} {cell.method} {cell.dial} {cell.task}" for cell in list(status.running.values())]
    return "  ".join([*parts, *running])


def _show_plan(plan: dict[str, Any]) -> None:
    from floc.evaluation import preview

    out = Console(highlight=False)
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("model", "frames", "tokens", "16:9", "kept", "cells", "done", "GPU h", "read h"):
        table.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for cells in preview.groups(plan["cells"]):
        first = cells[0]
        table.add_row(
            first["model"],
            f"{first['max_frames']:,}" + (f" {first['fps']:g}/s" if first["fps"] else ""),
            f"{first['tokens']:,}",
            f"{first['film_tokens']:,}",
            f"{first['kept']:,}" + (f" ({first['ratio']})" if first["ratio"] else ""),
            str(len(cells)),
            str(sum(each["state"] == "done" for each in cells)),
            *_hours(cells),
        )
    table.add_row("all", *[""] * 4, str(len(plan["cells"])), "", *_hours(plan["cells"]))
    out.print(table)
    for line in _plan_in_words(plan):
        out.print(line, markup=False, soft_wrap=True)
    if plan["missing"]:
        out.print("\nTo download first:", style="bold")
        for each in plan["missing"]:
            out.print(f"  {each['get']}", markup=False, soft_wrap=True)


def _hours(cells: list[dict[str, Any]]) -> list[str]:
    """What cells take together, of the GPU and of reading, where it is known of all of them."""
    times = ([each[name] for each in cells] for name in ("computing_s", "reading_s"))
    return ["-" if None in each else f"{sum(each) / 3600:.1f}" for each in times]


def _plan_in_words(plan: dict[str, Any]) -> list[str]:
    methods = dict.fromkeys(
        each["method"] + (f" (T = {each['block']})" if each["block"] else "") for each in plan["cells"]
    )
    time_from = plan["estimate"] or "not known: the measured seconds are in benchmarks/results of a checkout"
    return [
        f"methods: {', '.join(methods)}",
        f"tasks: {', '.join(dict.fromkeys(each['task'] for each in plan['cells']))}",
        "tokens: the most that a video has; 16:9: what a long film of that shape has; kept: of the most",
        *(f"assumed of {each}" for each in plan["assumed"]),
        f"time: {time_from}",
    ]


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        print(floc.__version__)
        raise typer.Exit


def main() -> None:
    """The entry point: errors that a user can mend are one line, not a traceback."""
    try:
        app()
    except SystemExit as stopped:
        if stopped.code == 130:  # what an interrupt ends in
            screen.print("floc: stopped", style="red")
        raise
    except (ValueError, TypeError, ImportError, MemoryError, OSError) as error:
        screen.print(f"floc: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)


def _block(given: str) -> Block:
    if given.lower() == "none":
        return None
    if given.lower() == "scene":
        return "scene"
    if not (given.isascii() and given.isdigit()):
        raise ValueError(f"--block must be a number of frames, 'scene', or 'none' for the whole video; got {given!r}")
    return int(given)


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _maybe_listed(text: str | None) -> list[str] | None:
    return None if text is None else _listed(text)


def _unused(output: Path) -> Path:
    """A name that was not given must not cost anyone a file."""
    if output.exists():
        raise ValueError(f"{output} is there already; name the file to write with -o")
    return output


def _require_folder(folder: Path) -> None:
    """Complain of a folder that cannot be made or written to."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: that is a file; name a folder")
    _require_writable_folder(next(each for each in (folder, *folder.absolute().parents) if each.is_dir()), folder)


def _require_writable(output: Path, suffix: str, source: Path) -> None:
    """Complain now of what would fail, or destroy the input, after minutes of work."""
    if output.suffix != suffix:
        raise ValueError(f"{output}: the output is a {suffix} file; name it {output.with_suffix(suffix)}")
    _require_place(output, source)


def _require_place(output: Path, source: Path) -> None:
    """Complain of where no file can be written, or only over the input."""
    if output.exists() and source.exists() and output.samefile(source):
        raise ValueError(f"{output}: that would overwrite the input; name another file")
    if output.is_dir():
        raise ValueError(f"{output}: that is a folder; name a file")
    if not output.parent.is_dir():
        raise ValueError(f"{output}: the folder {output.parent} does not exist; create it first")
    _require_writable_folder(output.parent, output)


def _require_writable_folder(folder: Path, wanted: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"{wanted}: nothing can be written to {folder} ({error.strerror}); name another folder") from None


def _filmed(
    source: Path,
    fps: str | None,
    max_frames: int | None,
    encoder: str | None,
    device: str | None,
    *,
    with_strip: bool = False,
) -> Film:
    """Read and encode a video, with a bar, and say what was found."""
    from floc import footage

    with _progress(f"reading {source.name}") as show:
        film = footage.load(
            source,
            fps=_fps(fps),
            max_frames=footage.MAX_FRAMES if max_frames is None else max_frames,
            encoder=encoder or "auto",
            device=device,
            with_strip=with_strip,
            progress=show,
        )
    if encoder in (None, "auto"):
        screen.print(f"encoder: {film.encoder.name}", style="dim", markup=False)
    for warning in film.video.warnings:
        screen.print(warning, style="yellow", markup=False, soft_wrap=True)
    return film


def _fps(given: str | None) -> float | None:
    from floc.footage import FPS

    if given is None:
        return FPS
    if given.lower() == "all":
        return None
    try:
        return float(Fraction(given))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(f"--fps must be a number of frames a second, or 'all'; got {given!r}") from None


def _show_comparison(comparison: Comparison) -> None:
    from floc import compare as comparing

    table = Table(box=None, header_style="bold", padding=(0, 1))
    table.add_column("method", no_wrap=True)
    for name in ("kept", "tokens", *COLUMNS.values(), "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparing.rows(comparison):
        numbers = ["-" if row[name] is None else f"{row[name]:.4f}" for name in COLUMNS]
        table.add_row(escape(row["method"]), row["ratio"], f"{row['tokens']:,}", *numbers, f"{row['seconds']:.2f}")
    screen.print(table)
    for note in comparison.notes:
        screen.print(note, style="yellow", markup=False, soft_wrap=True)


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


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Callable[..., None]]:
    """A function to call with the share done, and with what is being done where that changes.

    A bar appears once the whole takes over a second, on a terminal: elsewhere it would leave an empty line.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=screen, transient=True)
    task = bar.add_task(title, total=None)  # it pulses until there is something to tell: the first call compiles
    timer = threading.Timer(1, bar.start)
    if screen.is_terminal:
        timer.start()
    try:
        yield lambda share, what=title: bar.update(task, total=1.0, completed=share, description=what)
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        if bar.live.is_started:
            bar.stop()
