"""`floc ask`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import floc
from floc.budget import Budget
from floc.cli.shell import Device, Fps, MaxFrames, app, parsed_fps, parsed_time, progress_bar, require_writable, screen


@app.command(
    epilog="Examples: floc ask talk.mp4 'What is on the table?' --model Qwen/Qwen2.5-VL-7B-Instruct\n\n"
    "floc ask archive 'Who comes in?' --video door.mp4 --from 10:00 --to 20:00 --model Qwen/Qwen2.5-VL-7B-Instruct"
)
def ask(
    source: Annotated[str, typer.Argument(help="A video, a .floc file that was captured from one, or a store.")],
    questions: Annotated[list[str], typer.Argument(help="What to ask; of several, each is asked by itself.")],
    model: Annotated[str, typer.Option(help="A video model of transformers: a folder, or a hub id.")],
    ratio: Annotated[str | None, typer.Option(help="Kept / total. [dim](1/8; all of a .floc file)[/]")] = None,
    budget: Annotated[int | None, typer.Option(help="How many visual tokens to keep.")] = None,
    coverage: Annotated[float | None, typer.Option(help="Mean cosine to reach, with as few as it takes.")] = None,
    method: Annotated[str | None, typer.Option(help="See `floc methods`; with options: floc:detail=1.")] = None,
    name: Annotated[str | None, typer.Option("--video", help="Store: which one, by id, uri or file name.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="Store: from when on: 90, 1:30 or 1:02:30.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="Store: until when.")] = None,
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
    the model's own processor would, from its files, so torchvision is not needed. What `floc ingest` put into a store
    is asked about without the video: a stretch of it, at any smaller budget.
    """
    from floc.encoders.load import MAX_FRAMES
    from floc.integrations.transformers.ask import Session

    video = Path(source)
    in_store = (name, start, end) != (None, None, None)
    captured = in_store or video.suffix == ".floc"
    spec = floc.methods.parse(method or "floc")
    if captured:
        given = {"coverage": coverage, "method": method, "fps": fps, "max-frames": max_frames}
        for option, value in given.items():
            if value is not None:
                raise ValueError(f"{source}: --{option} is for videos; this one is captured already")
        if both:
            raise ValueError(f"{source}: --compare needs the video itself; here is only what was kept of it")
    elif (ratio, budget, coverage) == (None, None, None) and not floc.methods.runs_alone(spec):
        ratio = "1/8"
    if (ratio, budget, coverage) != (None, None, None):
        Budget.parse(ratio, budget, coverage)
    if output is not None:
        require_writable(output, ".floc", video)
    if not captured and (video.is_dir() or "://" in source):
        raise ValueError(f"{source}: not a video; if it is a store, name one of its videos with --video")
    # what is wrong shows before weights are loaded
    kept = _kept(source, name, start, end, ratio, budget) if captured else None
    session = Session(model, device)
    dials: list[dict[str, Any]] = [dict(ratio=ratio, budget=budget, coverage=coverage)]
    if both:
        dials.append(dict(ratio=1))
    told = []
    for dial in dials:
        if kept is not None:
            film = session.reuse(kept)
        else:
            with progress_bar(f"looking at {video.name}") as show:
                film = session.capture(
                    video,
                    **dial,
                    method=spec.method,
                    fps=parsed_fps(fps),
                    max_frames=max_frames or MAX_FRAMES,
                    progress=show,
                    **spec.options,
                )
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


def _kept(
    source: str, name: str | None, start: str | None, end: str | None, ratio: str | None, budget: int | None
) -> floc.Captured:
    """What was captured before, in a file or in a store, at a smaller budget where one is given."""
    if (name, start, end) == (None, None, None):
        video = floc.load(source)
        return video if ratio is None and budget is None else video.at(ratio=ratio, budget=budget)
    if name is None:
        raise ValueError("--from and --to are of a video in a store; name it with --video")
    stretch = {"start_s": parsed_time(start), "end_s": parsed_time(end)}
    return floc.Store(source).open(name, **stretch, ratio=ratio, budget=budget)


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
