"""`floc eval`."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from floc._text import format_time
from floc.cli import options
from floc.cli.application import command
from floc.cli.options import BUDGET, METHOD, OUTPUT, VIDEO, Text, flag, option
from floc.cli.output import escape_markup, print_line, print_note, print_table, print_warning, show_status
from floc.cli.signals import catch_stop

if TYPE_CHECKING:
    from floc.evaluation.plan import EvalRun
    from floc.evaluation.results import ResultFolder
    from floc.evaluation.runner import EvalStatus

COLUMNS = ("model", ">frames", ">tokens", ">16:9", ">kept", ">runs", ">done", ">GPU h", ">read h")
GROUP = ("model", "max_frames", "fps", "ratio", "budget", "limit", "more", "lmms")  # what the runs of a row share
METHODS = "full, floc, floc-paper, frame_uniform, random"
TASKS = "videomme, mlvu_dev, longvideobench_val_v, egoschema_subset"
WHAT = "Models, methods and tasks"  # panel of the help
FOLDER = Path("floc-eval")


@command(
    "floc eval --paper table1 --dry-run",
    "floc eval --models qwen2.5-vl-7b --methods full,floc,divprune --ratio 1/8 --limit 100 --gpus 0,1",
    name="eval",
)
def evaluate(
    models: Text = option("NAMES", "Names, or NAME=FOLDER for other weights. (default: qwen2.5-vl-7b)", WHAT),
    methods: Text = option("NAMES", f"Methods; full: all tokens. (default: {METHODS})", WHAT),
    tasks: Text = option("NAMES", f"Tasks of lmms-eval. (default: {TASKS})", WHAT),
    paper: Text = option("NAME", "A table and its settings: table1, table2, supp, table4-6, table8.", WHAT),
    limit: int | None = option("N", "Questions per task, to try it out. (default: all)", WHAT),
    ratio: Text = option("RATIOS", "Shares of the tokens to keep. (default: 1/8,1/16,1/32)", BUDGET),
    budget: int | None = option("N", "Number of tokens to keep of a video, instead of --ratio.", BUDGET),
    block: Text = option("FRAMES", "Frames per block, 'scene' or 'none'. (default: 32; clusterings: 8)", METHOD),
    max_frames: int | None = option("N", "Read at most N frames of a video. (default: as in the paper)", VIDEO),
    fps: Text = option("N", "Frames per second. (default: evenly spaced frames)", VIDEO),
    gpus: Text = option("GPUS", "One process per entry: 0,1, or 0+1,2+3 for two GPUs each. (default: all)"),
    output: Path = option("FOLDER", "Folder of the results; finished runs stay.", None, *OUTPUT, default=FOLDER),
    retry: bool = flag("--retry", "Repeat failed runs."),
    model_args: str = option("ARGS", "For lmms-eval's model: max_pixels=100352,positions=compact.", default=""),
    lmms: str = option("ARGS", "More arguments for lmms-eval, as one text.", default=""),
    dry_run: bool = flag("--dry-run", "Show runs, tokens, hours, downloads; start nothing."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Evaluate models and methods on benchmarks, and compare with the paper's numbers.

    A run is one model with one method and one ratio on one task, in lmms-eval. Give the same command again to continue
    after a stop. Every run updates report.md and report.json in the folder.
    """
    from floc.evaluation.command import build_command, parse_gpus
    from floc.evaluation.plan import PlanOptions, plan_grid, plan_paper
    from floc.evaluation.preview import preview_plan
    from floc.evaluation.results import ResultFolder

    options.parse_block(block)
    texts = {"models": models, "methods": methods, "ratios": ratio, "tasks": tasks}
    lists: dict[str, Any] = {name: None if text is None else options.split_list(text) for name, text in texts.items()}
    counts: dict[str, Any] = {"budget": budget, "max_frames": max_frames, "limit": limit}
    rate = options.parse_fps(fps)
    plan_options = PlanOptions(
        **lists, **counts, block=block, fps=None if rate == "all" else rate, more=model_args, lmms=lmms
    )
    runs = plan_grid(plan_options) if paper is None else plan_paper(paper, plan_options)
    options.check_folder(output)
    folder = ResultFolder(output)
    workers = parse_gpus(gpus)
    if dry_run:
        plan = preview_plan(runs, folder, build_command, workers[0])
        print(json.dumps(plan)) if as_json else _show_plan(plan)
    else:
        _execute_runs(runs, folder, workers, retry=retry, as_json=as_json)


def _execute_runs(runs: list[EvalRun], folder: ResultFolder, gpus: list[str], *, retry: bool, as_json: bool) -> None:
    from floc.evaluation.command import build_command, check_lmms_eval
    from floc.evaluation.preview import check_downloads
    from floc.evaluation.report import write_report
    from floc.evaluation.runner import execute_runs, list_pending

    if pending := list_pending(runs, folder, retry=retry):
        check_downloads(pending)
        check_lmms_eval()
    format_line = functools.partial(_format_status, workers=len(gpus))
    with catch_stop() as is_stopped, show_status(format_line) as show:
        hooks: dict[str, Any] = dict(on_poll=show, should_stop=is_stopped, on_finish=lambda run: write_report(folder))
        status = execute_runs(runs, folder, build_command, gpus=gpus, retry=retry, **hooks)
    page, data = write_report(folder)
    print(data.read_text() if as_json else page.read_text(), end="")
    print_note(format_line(status), style="")
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
    if left_s := status.estimate_left(workers):
        parts.append(f"about {format_time(left_s)} left")
    running = [f"{run.model} {run.method} {run.size} {run.task}" for run in list(status.running.values())]
    return "  ".join([*parts, *running])


def _show_plan(plan: dict[str, Any]) -> None:
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for run in plan["runs"]:
        groups.setdefault(tuple(run[name] for name in GROUP), []).append(run)
    rows = [_format_row(runs) for runs in groups.values()]
    print_table(COLUMNS, [*rows, ["all", *[""] * 4, str(len(plan["runs"])), "", *_format_hours(plan["runs"])]])
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
        print_line(line)


def _format_row(runs: list[dict[str, Any]]) -> list[str]:
    first = runs[0]
    return [
        escape_markup(first["model"]),
        f"{first['max_frames']:,}" + (f" {first['fps']:g}/s" if first["fps"] else ""),
        f"{first['tokens']:,}",
        f"{first['video_tokens']:,}",
        f"{first['kept']:,}" + (f" ({first['ratio']})" if first["ratio"] else ""),
        str(len(runs)),
        str(sum(run["state"] == "done" for run in runs)),
        *_format_hours(runs),
    ]


def _format_hours(runs: list[dict[str, Any]]) -> list[str]:
    columns = ([run[name] for run in runs] for name in ("computing_s", "reading_s"))
    return ["-" if None in seconds else f"{sum(seconds) / 3600:.1f}" for seconds in columns]  # -: no estimate
