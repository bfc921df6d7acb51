"""`floc ask`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import floc
from floc.cli import options
from floc.cli.application import command
from floc.cli.output import escape_markup, print_note, print_warning, screen, show_progress

if TYPE_CHECKING:
    from floc import Captured
    from floc.integrations.transformers.ask import Session


@command(
    "floc ask talk.mp4 'What is on the table?' --model Qwen/Qwen2.5-VL-7B-Instruct",
    "floc ask archive 'Who comes in?' --video door.mp4 --from 10:00 --to 20:00 --model Qwen/Qwen2.5-VL-7B-Instruct",
)
def ask(
    source: Annotated[str, typer.Argument(help="A video, a .floc file, or an archive.")],
    questions: Annotated[list[str], typer.Argument(help="One or more questions; each is asked on its own.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="A video model of transformers: a folder or a hub id.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Save the captured video as a .floc file.")
    ] = None,
    ratio: Annotated[
        str | None,
        typer.Option(metavar="RATIO", help="Share of the tokens to keep. [dim](default: 1/8; all of a .floc file)[/]"),
    ] = None,
    budget: options.TokenBudget = None,
    coverage: options.Coverage = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=options.complete_method,
            help="A method, with options: floc:detail=1. [dim](default: floc)[/]",
        ),
    ] = None,
    video: Annotated[
        str | None, typer.Option(metavar="NAME", help="Archive: the video, by id, address or file name.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Archive: start at 90, 1:30 or 1:02:30.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Archive: end at this time.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Ask with all tokens, too.")] = False,
    max_new_tokens: Annotated[int, typer.Option(metavar="N", help="Longest answer, in tokens.", min=1)] = 256,
    fps: options.Fps = None,
    max_frames: options.MaxFrames = None,
    device: options.Device = None,
    as_json: options.AsJson = False,
) -> None:
    """Ask a video model about a video, with a fraction of its tokens.

    The vision encoder runs once for all questions, and once more for --compare. A .floc file or a video in an archive
    is answered without the video and without the vision encoder, at the captured ratio or a smaller one.
    """
    from floc.integrations.transformers.ask import Session

    is_in_archive = (video, start, end) != (None, None, None)
    is_captured = is_in_archive or Path(source).suffix == ".floc"
    spec = floc.methods.parse(method or "floc")
    if is_captured:
        _refuse_video_options(source, coverage=coverage, method=method, fps=fps, max_frames=max_frames, compare=compare)
    elif (ratio, budget, coverage) == (None, None, None) and not floc.methods.runs_alone(spec):
        ratio = options.DEFAULT_RATIO
    if (ratio, budget, coverage) != (None, None, None):
        options.parse_budget(ratio, budget, coverage, names="--ratio, --budget or --coverage")
    if output is not None:
        options.check_output(output, Path(source), ".floc")
    # Errors in the file or archive show before weights are loaded.
    if not is_captured:
        _check_video(source)
    stored = _load_captured(source, video, start, end, ratio, budget) if is_captured else None
    session = Session(model, device)
    sampling: dict[str, Any] = {"fps": options.parse_fps(fps), "max_frames": options.frame_limit(max_frames)}
    settings = {"method": spec.method, **sampling, **spec.options}
    budgets: list[dict[str, Any]] = [{"ratio": ratio, "budget": budget, "coverage": coverage}]
    if compare:
        budgets.append({"ratio": 1})
    answers = []
    for run, limits in enumerate(budgets):
        captured = (
            session.reuse(stored) if stored is not None else _capture(session, Path(source), **limits, **settings)
        )
        if output is not None and run == 0:
            output.parent.mkdir(parents=True, exist_ok=True)
            captured.save(output)
        for question in questions:
            if not as_json and len(budgets) * len(questions) > 1:
                print_note(f"{'all tokens' if run else 'kept tokens'}: {question}")
            answers.append(_answer(session, captured, question, max_new_tokens, as_json))
    if as_json:
        print(json.dumps(answers))
    _print_table(answers)
    if output is not None:
        screen.print(f"written  {escape_markup(output)}", soft_wrap=True)


def _refuse_video_options(source: str, *, compare: bool, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{source}: --{name.replace('_', '-')} is for videos; this one is already captured")
    if compare:
        raise ValueError(f"{source}: --compare needs the video itself; only the kept tokens are here")


def _check_video(source: str) -> None:
    from floc.video import check_file

    if Path(source).is_dir() or "://" in source:
        raise ValueError(f"{source}: not a video; if it is an archive, name one of its videos with --video")
    check_file(Path(source))


def _load_captured(
    source: str, video: str | None, start: str | None, end: str | None, ratio: str | None, budget: int | None
) -> Captured:
    """Load a captured video from a file or an archive, at a smaller budget if one is given."""
    if (video, start, end) == (None, None, None):
        captured = floc.load(source)
        return captured if ratio is None and budget is None else captured.at(ratio=ratio, budget=budget)
    if video is None:
        raise ValueError("--from and --to select a part of a video in an archive; name the video with --video")
    span = {"start_s": options.parse_time(start), "end_s": options.parse_time(end)}
    return floc.Store(source).open(video, **span, ratio=ratio, budget=budget)


def _capture(session: Session, video: Path, **settings: Any) -> Captured:
    with show_progress(f"encoding {video.name}") as update:
        captured = session.capture(video, **settings, progress=update)
    for warning in captured.made["warnings"]:
        print_warning(warning)
    return captured


def _answer(session: Session, captured: Captured, question: str, max_new_tokens: int, as_json: bool) -> dict[str, Any]:
    def print_text(text: str) -> None:
        if not as_json:
            print(text, end="", flush=True)

    answer = session.ask(captured, question, max_new_tokens, print_text)
    if not as_json:
        print(flush=True)
    return answer


def _print_table(answers: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 1))
    table.add_column("")
    for answer in answers:
        table.add_column(
            escape_markup(answer["question"]), justify="right", max_width=24, overflow="ellipsis", no_wrap=True
        )
    table.add_row("visual tokens", *(f"{answer['tokens']:,}" for answer in answers))
    table.add_row("kept", *(f"[bold green]{answer['kept']:,}[/]" for answer in answers))
    for stage in ("decode", "vision", "select", "prefill", "answer"):
        seconds = [answer["seconds"].get(stage) for answer in answers]
        table.add_row(f"{stage}, s", *("-" if value is None else f"{value:.2f}" for value in seconds))
    peaks = [answer["peak_bytes"] for answer in answers]
    table.add_row("peak memory, GB", *("-" if peak is None else f"{peak / 1e9:.2f}" for peak in peaks))
    screen.print(table)
