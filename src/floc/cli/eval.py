"""`floc eval`."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from floc._text import format_time
from floc.cli import options
from floc.cli.application import command
from floc.cli.output import catch_stop, print_note, print_warning, screen, show_status

if TYPE_CHECKING:
    from floc.evaluation import EvalRun, EvalStatus, ResultFolder

COLUMNS = ("model", "frames", "tokens", "16:9", "kept", "runs", "done", "GPU h", "read h")
GROUP = ("model", "max_frames", "fps", "ratio", "budget", "limit", "more", "lmms")  # what the runs of a row share
Text = str | None


def _option(metavar: str | None, text: str, default: str = "", *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=f"{text} [dim](default: {default})[/]" if default else text)


def _split(text: str | None) -> list[str] | None:
    return None if text is None else options.split_list(text)


@command(
    "floc eval --paper table1 --dry-run",
    "floc eval --models qwen2.5-vl-7b --methods full,floc,divprune --ratio 1/8 --limit 100 --gpus 0,1",
    name="eval",
)
def evaluate(
    models: Annotated[Text, _option("NAMES", "Names, or NAME=FOLDER for other weights.", "qwen2.5-vl-7b")] = None,
    methods: Annotated[
        Text, _option("NAMES", "Names; full: all tokens.", "full,floc,floc-paper,frame_uniform,random")
    ] = None,
    ratio: Annotated[Text, _option("RATIOS", "Shares of the tokens to keep.", "1/8,1/16,1/32", "--ratio")] = None,
    tasks: Annotated[
        Text, _option("NAMES", "Of lmms-eval.", "videomme,mlvu_dev,longvideobench_val_v,egoschema_subset")
    ] = None,
    paper: Annotated[Text, _option("NAME", "A table and its settings: table1, table2, supp, table4-6, table8.")] = None,
    max_frames: Annotated[int | None, _option("N", "Read at most N frames of a video.", "as in the paper")] = None,
    fps: Annotated[float | None, _option("N", "Frames per second.", "evenly spaced frames")] = None,
    budget: Annotated[int | None, _option("N", "Number of tokens to keep of a video, instead of --ratio.")] = None,
    block: Annotated[Text, _option("FRAMES", "Frames per block, 'scene' or 'none'.", "32; clusterings: 8")] = None,
    limit: Annotated[int | None, _option("N", "Questions per task, to try it out.", "all")] = None,
    gpus: Annotated[Text, _option("GPUS", "One process per entry: 0,1, or 0+1,2+3 for two GPUs each.", "all")] = None,
    output: Annotated[
        Path, _option("FOLDER", "Folder of the results; finished runs are not repeated.", "", "--output", "-o")
    ] = Path("floc-eval"),
    retry: Annotated[bool, _option(None, "Repeat failed runs.", "", "--retry")] = False,
    model_args: Annotated[str, _option("ARGS", "For lmms-eval's model: max_pixels=100352,positions=compact.")] = "",
    lmms: Annotated[str, _option("ARGS", "More arguments for lmms-eval, as one text.")] = "",
    dry_run: Annotated[
        bool, _option(None, "Show runs, tokens, hours, downloads; start nothing.", "", "--dry-run")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Evaluate models and methods on benchmarks, and compare with the paper's numbers.

    A run is one model with one method and one ratio on one task, in lmms-eval. Give the same command again to continue
    after a stop. Every run updates report.md and report.json in the folder.
    """
    from floc import evaluation

    if block is not None:
        options.parse_block(block)
    plan_options = evaluation.PlanOptions(
        models=_split(models),
        methods=_split(methods),
        ratios=_split(ratio),
        tasks=_split(tasks),
        budget=budget,
        block=block,
        max_frames=max_frames,
        fps=fps,
        limit=limit,
        more=model_args,
        lmms=lmms,
    )
    runs = evaluation.plan_grid(plan_options) if paper is None else evaluation.plan_paper(paper, plan_options)
    options.check_folder(output)
    folder = evaluation.ResultFolder(output)
    workers = evaluation.parse_gpus(gpus)
    if dry_run:
        plan = evaluation.preview.preview_plan(runs, folder, evaluation.build_command, workers[0])
        print(json.dumps(plan)) if as_json else _show_plan(plan)
    else:
        _execute_runs(runs, folder, workers, retry=retry, as_json=as_json)


def _execute_runs(runs: list[EvalRun], folder: ResultFolder, gpus: list[str], *, retry: bool, as_json: bool) -> None:
    from floc import evaluation

    if pending := evaluation.list_pending(runs, folder, retry=retry):
        evaluation.preview.check_downloads(pending)
        evaluation.check_lmms_eval()
    format_line = functools.partial(_format_status, workers=len(gpus))
    with catch_stop() as is_stopped, show_status(format_line) as show:
        status = evaluation.execute_runs(
            runs,
            folder,
            evaluation.build_command,
            gpus=gpus,
            retry=retry,
            on_poll=show,
            should_stop=is_stopped,
            on_finish=lambda run: evaluation.report.write_report(folder),
        )
    page, data = evaluation.report.write_report(folder)
    print(data.read_text() if as_json else page.read_text(), end="")
    screen.print(format_line(status), markup=False, soft_wrap=True)
    print_note(f"wrote {page} and {data}")
    if status.failed:
        print_warning("some runs failed: the report says why; --retry repeats them")
    if is_stopped():
        print_warning("stopped: run the same command to continue")
    if status.done < status.runs:
        raise typer.Exit(1)


def _format_status(status: EvalStatus, workers: int) -> str:
    parts = [f"{status.done} of {status.runs} runs done", f"{len(status.running)} running"]
    if status.failed:
        parts.append(f"{status.failed} failed")
    left_s = status.estimate_left(workers)
    if left_s:
        parts.append(f"about {format_time(left_s)} left")
    running = [f"{run.model} {run.method} {run.size} {run.task}" for run in list(status.running.values())]
    return "  ".join([*parts, *running])


def _show_plan(plan: dict[str, Any]) -> None:
    out = Console(highlight=False)
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for run in plan["runs"]:
        groups.setdefault(tuple(run[name] for name in GROUP), []).append(run)
    for runs in groups.values():
        first = runs[0]
        table.add_row(
            first["model"],
            f"{first['max_frames']:,}" + (f" {first['fps']:g}/s" if first["fps"] else ""),
            f"{first['tokens']:,}",
            f"{first['video_tokens']:,}",
            f"{first['kept']:,}" + (f" ({first['ratio']})" if first["ratio"] else ""),
            str(len(runs)),
            str(sum(run["state"] == "done" for run in runs)),
            *_format_hours(runs),
        )
    table.add_row("all", *[""] * 4, str(len(plan["runs"])), "", *_format_hours(plan["runs"]))
    out.print(table)
    methods = [run["method"] + (f" (T = {run['block']})" if run["block"] else "") for run in plan["runs"]]
    lines = [
        f"methods: {', '.join(dict.fromkeys(methods))}",
        f"tasks: {', '.join(dict.fromkeys(run['task'] for run in plan['runs']))}",
        "tokens: of a video, at most; 16:9: of a 1280 x 720 video; kept: of the maximum",
        *(f"assumed: {text}" for text in plan["assumed"]),
        f"hours: {plan['estimate']}",
        *(["", "Download first:"] if plan["missing"] else []),
        *(f"  {download['get']}" for download in plan["missing"]),
    ]
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


def _format_hours(runs: list[dict[str, Any]]) -> list[str]:
    columns = ([run[name] for run in runs] for name in ("computing_s", "reading_s"))
    return ["-" if None in seconds else f"{sum(seconds) / 3600:.1f}" for seconds in columns]  # -: no estimate
