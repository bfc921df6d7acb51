"""`floc ask`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import floc
from floc._checks import check_count, parse_time
from floc._text import format_bytes
from floc.cli import options
from floc.cli.application import command
from floc.cli.options import BUDGET, METHOD, Text, flag, option
from floc.cli.output import (
    escape_controls,
    format_stages,
    print_note,
    print_summary,
    print_warning,
    show_progress,
    show_warnings,
)

if TYPE_CHECKING:
    from floc import Captured
    from floc.integrations.transformers.ask import Session

ARCHIVE = "Video in an archive"  # panel of the help


@command(
    "floc ask talk.mp4 'What is on the table?' --model Qwen/Qwen2.5-VL-7B-Instruct",
    "floc ask talk.floc 'What is on the table?' --ratio 1/32 --query-weight 0.25 --model Qwen/Qwen2.5-VL-7B-Instruct",
    "floc ask door.mp4 'Who comes in?' --model Qwen/Qwen2.5-VL-7B-Instruct --reuse 8",
    "floc ask walk.mp4 'What is in the park?' --model Qwen/Qwen2.5-VL-7B-Instruct --encode 1/2",
    "floc ask archive 'Who comes in?' --video door.mp4 --from 10:00 --to 20:00 --model Qwen/Qwen2.5-VL-7B-Instruct",
)
def ask(
    source: str = typer.Argument(help="A video, a .floc file, or an archive."),
    questions: list[str] = typer.Argument(help="One or more questions; each is asked on its own."),
    model: str = option("MODEL", "A video model of transformers: a folder or a hub id.", default=...),
    output: Path | None = option("FILE", "Save the captured video as a .floc file.", None, *options.OUTPUT),
    compare: bool = flag("--compare", "Ask with all tokens, too."),
    max_new_tokens: int = option("N", "Longest answer, in tokens.", default=256),
    ratio: str | None = option("RATIO", "Share of the tokens to keep. (default: 1/8; all of a .floc file)", BUDGET),
    budget: int | None = options.TOKEN_BUDGET,
    coverage: float | None = options.COVERAGE,
    query_weight: float = option("WEIGHT", "Select --ratio or --budget per question: 0.25.", BUDGET, default=0),
    method: str | None = option(
        "NAME", "A method, with options: floc:detail=1. (default: floc)", METHOD, complete=options.complete_method
    ),
    video: str | None = option("NAME", "The video, by id, address or file name.", ARCHIVE),
    start: str | None = option("TIME", "Start at 90, 1:30 or 1:02:30.", ARCHIVE, "--from"),
    end: str | None = option("TIME", "End at this time.", ARCHIVE, "--to"),
    fps: str | None = options.FPS,
    max_frames: str | None = options.MAX_FRAMES,
    frame_tokens: int | None = options.FRAME_TOKENS,
    more_frames: bool = options.MORE_FRAMES,
    reuse: float | None = options.REUSE,
    encode: str | None = options.ENCODE,
    device: str | None = options.DEVICE,
    no_fast_vision: bool = options.NO_FAST_VISION,
    as_json: bool = options.AS_JSON,
) -> None:
    """Ask a video model about a video, with a fraction of its tokens.

    The vision encoder runs once for all questions, and once more for --compare. A .floc file or a video in an archive
    is answered without the video and without the vision encoder, at the captured ratio or a smaller one.

    With --query-weight, a video is captured at 1/8, and each question selects --ratio or --budget of these tokens.
    """
    from floc.integrations.transformers.ask import Session

    slices = {"reuse": reuse, "encode": encode}
    _check_numbers(max_new_tokens, slices, query_weight, ratio, budget)
    is_captured = Path(source).suffix == ".floc" or (video, start, end) != (None, None, None)
    spec = floc.methods.parse(method or "floc")
    frames = dict(fps=fps, max_frames=max_frames, frame_tokens=frame_tokens)
    if is_captured:
        before, after = f"{source}:", " is for videos; this one is already captured, so leave it out"
        refused = dict(coverage=coverage, method=method, **frames, compare=compare, more_frames=more_frames)
        options.refuse_options(before, after, **refused, **slices, no_fast_vision=no_fast_vision)
    elif more_frames:
        before = "--more-frames chooses the frames and the budget; leave out"
        options.refuse_options(before, "", ratio=ratio, budget=budget, coverage=coverage, **frames, compare=compare)
    elif (ratio, budget, coverage) == (None, None, None) and not floc.methods.runs_alone(spec):
        ratio = options.DEFAULT_RATIO
    # errors show before weights are loaded
    if (ratio, budget, coverage) != (None, None, None):
        options.parse_budget(ratio, budget, coverage, names="--ratio, --budget or --coverage")
    options.check_output(output, Path(source), ".floc")
    if not is_captured:
        _check_video(source)
    later = (ratio, budget)  # of each question, with --query-weight
    if query_weight:
        ratio, budget = None if is_captured else options.DEFAULT_RATIO, None
    stored = _load_captured(source, video, start, end, ratio, budget) if is_captured else None
    settings: dict[str, Any] = {"fps": options.parse_fps(fps), "max_frames": options.parse_limit(max_frames), **slices}
    settings |= {"frame_tokens": frame_tokens, "more_frames": more_frames, "fast_vision": not no_fast_vision}
    settings |= {"method": spec.method, **spec.options}
    session = Session(model, device)
    limits: dict[str, Any] = {"ratio": ratio, "budget": budget, "coverage": coverage}
    budgets = [limits, *[{"ratio": 1, "reuse": None, "encode": None}] * compare]
    answers = []
    for run, limits in enumerate(budgets):
        captured = _capture(session, Path(source), stored, **settings | limits)
        _save(captured, None if run else output)
        for question in questions:
            if not as_json and len(budgets) * len(questions) > 1:
                print_note(f"{'all tokens' if run else 'kept tokens'}: {question}")
            read = session.steer(captured, question, query_weight, *later) if query_weight and not run else captured
            answers.append(_answer(session, read, question, max_new_tokens, as_json))
    if as_json:
        print(json.dumps(answers))
    _print_measures(answers)
    if output is not None:
        print_note(f"written  {output}", style="")


def _check_numbers(max_new_tokens: int, slices: dict[str, Any], weight: float, ratio: Text, budget: int | None) -> None:
    """Check numbers before anything is loaded; a --query-weight of 0 is for no steering."""
    from floc.encoders.slice_choice import SliceOptions
    from floc.methods.shared.question import check_question

    check_count("--max-new-tokens", max_new_tokens, "tokens")
    SliceOptions(**slices)
    check_question(weight != 0, weight)
    if weight and (ratio, budget) == (None, None):
        raise ValueError("--query-weight chooses among the captured tokens: give --ratio or --budget, such as 1/32")


def _check_video(source: str) -> None:
    from floc.video import check_file

    if Path(source).is_dir() or "://" in source:
        raise ValueError(f"{source}: not a video; if it is an archive, name one of its videos with --video")
    check_file(Path(source))


def _load_captured(source: str, video: Text, start: Text, end: Text, ratio: Text, budget: int | None) -> Captured:
    """Load a captured video from a file or an archive, at a smaller budget if one is given."""
    if (video, start, end) == (None, None, None):
        captured = floc.load(source)
        return captured if ratio is None and budget is None else captured.at(ratio=ratio, budget=budget)
    if video is None:
        raise ValueError("--from and --to select a part of a video in an archive; name the video with --video")
    span = {"start_s": parse_time(start), "end_s": parse_time(end)}
    return floc.Store(source).open(video, **span, ratio=ratio, budget=budget)


def _capture(session: Session, video: Path, stored: Captured | None, **settings: Any) -> Captured:
    """Capture a video, or take one that is stored, without the seconds that its capture took."""
    if stored is not None:
        return replace(stored, made={**stored.made, "seconds": {}})
    with show_progress(f"encoding {video.name}") as update, show_warnings():
        captured = session.capture(video, **settings, progress=update)
    print_warning(*captured.made["warnings"])
    return captured


def _save(captured: Captured, output: Path | None) -> None:
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        captured.save(output)


def _answer(session: Session, captured: Captured, question: str, max_new_tokens: int, as_json: bool) -> dict[str, Any]:
    def print_text(text: str, end: str = "") -> None:
        if not as_json:
            print(escape_controls(text), end=end, flush=True)

    answer = session.ask(captured, question, max_new_tokens, print_text)
    print_text("", end="\n")
    return answer


def _print_measures(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        peak = "" if answer["peak_bytes"] is None else f"; peak memory {format_bytes(answer['peak_bytes'])}"
        kept = f"kept [bold green]{answer['kept']:,}[/] of {answer['tokens']:,} visual tokens"
        print_summary([(answer["question"], f"{kept}{peak}"), ("", format_stages(answer["seconds"]))])
