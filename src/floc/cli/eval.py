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
from floc.cli.options import flag, option
from floc.cli.output import escape_markup, print_line, print_note, print_table, print_warning, show_status
from floc.cli.signals import catch_stop

if TYPE_CHECKING:
    from floc.evaluation import Cell, EvalStatus, ResultFolder

COLUMNS = ("model", ">frames", ">tokens", ">16:9", ">kept", ">cells", ">done", ">GPU h", ">read h")
GROUP = ("model", "max_frames", "fps", "ratio", "budget", "limit", "more", "lmms")  # what the cells of a row share
METHODS = "full, floc, floc-paper, frame_uniform, random"
TASKS = "videomme, mlvu_dev, longvideobench_val_v, egoschema_subset"
WHAT = "Models, methods and tasks"  # panel of the help
Text = str | None


def _split(text: str | None) -> list[str] | None:
    return None if text is None else options.split_list(text)


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
    ratio: Text = option("RATIOS", "Shares of the tokens to keep. (default: 1/8,1/16,1/32)", options.BUDGET),
    budget: int | None = option("N", "Number of tokens to keep of a video, instead of --ratio.", options.BUDGET),
    block: Text = option(
        "FRAMES", "Frames per block, 'scene' or 'none'. (default: 32; clusterings: 8)", options.METHOD
    ),
    max_frames: int | None = option("N", "Read at most N frames of a video. (default: as in the paper)", options.VIDEO),
    fps: Text = option("N", "Frames per second. (default: evenly spaced frames)", options.VIDEO),
    gpus: Text = option("GPUS", "One process per entry: 0,1, or 0+1,2+3 for two GPUs each. (default: all)"),
    output: Path = option(
        "FOLDER", "Folder of the results; finished cells stay.", None, *options.OUTPUT, default=Path("floc-eval")
    ),
    retry: bool = flag("--retry", "Run failed cells again."),
    model_args: str = option("ARGS", "For lmms-eval's model: max_pixels=100352,positions=compact.", default=""),
    lmms: str = option("ARGS", "More arguments for lmms-eval, as one text.", default=""),
    dry_run: bool = flag("--dry-run", "Show cells, tokens, hours, downloads; run nothing."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Evaluate models and methods on benchmarks, and compare with the paper's numbers.

    A cell is one model with one method and one ratio on one task: one run of lmms-eval. Run the same command again to
    continue after a stop. Every cell updates report.md and report.json in the folder.
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
        fps=options.parse_fps(fps, default=None),
        limit=limit,
        more=model_args,
        lmms=lmms,
    )
    cells = evaluation.plan_grid(plan_options) if paper is None else evaluation.plan_paper(paper, plan_options)
    options.check_folder(output)
    folder = evaluation.ResultFolder(output)
    workers = evaluation.parse_gpus(gpus)
    if dry_run:
        plan = evaluation.preview.preview_plan(cells, folder, evaluation.build_command, workers[0])
        print(json.dumps(plan)) if as_json else _show_plan(plan)
    else:
        _run_cells(cells, folder, workers, retry=retry, as_json=as_json)


def _run_cells(cells: list[Cell], folder: ResultFolder, gpus: list[str], *, retry: bool, as_json: bool) -> None:
    from floc import evaluation

    if pending := evaluation.list_pending(cells, folder, retry=retry):
        evaluation.preview.check_downloads(pending)
        evaluation.check_lmms_eval()
    format_line = functools.partial(_format_status, workers=len(gpus))
    with catch_stop() as is_stopped, show_status(format_line) as show:
        status = evaluation.run_cells(
            cells,
            folder,
            evaluation.build_command,
            gpus=gpus,
            retry=retry,
            on_poll=show,
            should_stop=is_stopped,
            on_finish=lambda cell: evaluation.report.write_report(folder),
        )
    page, data = evaluation.report.write_report(folder)
    print(data.read_text() if as_json else page.read_text(), end="")
    print_note(format_line(status), style="")
    print_note(f"wrote {page} and {data}")
    if status.failed:
        print_warning("some cells failed: the report says why; --retry runs them again")
    if is_stopped():
        print_warning("stopped: run the same command to continue")
    if status.done < status.cells:
        raise typer.Exit(1)


def _format_status(status: EvalStatus, workers: int) -> str:
    parts = [f"{status.done} of {status.cells} cells done", f"{len(status.running)} running"]
    if status.failed:
        parts.append(f"{status.failed} failed")
    left_s = status.estimate_left(workers)
    if left_s:
        parts.append(f"about {format_time(left_s)} left")
    running = [f"{cell.model} {cell.method} {cell.size} {cell.task}" for cell in list(status.running.values())]
    return "  ".join([*parts, *running])


def _show_plan(plan: dict[str, Any]) -> None:
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for cell in plan["cells"]:
        groups.setdefault(tuple(cell[name] for name in GROUP), []).append(cell)
    rows = [_format_row(cells) for cells in groups.values()]
    print_table(COLUMNS, [*rows, ["all", *[""] * 4, str(len(plan["cells"])), "", *_format_hours(plan["cells"])]])
    methods = [cell["method"] + (f" (T = {cell['block']})" if cell["block"] else "") for cell in plan["cells"]]
    lines = [
        f"methods: {', '.join(dict.fromkeys(methods))}",
        f"tasks: {', '.join(dict.fromkeys(cell['task'] for cell in plan['cells']))}",
        "tokens: of a video, at most; 16:9: of a 1280 x 720 video; kept: of the maximum",
        *(f"assumed: {text}" for text in plan["assumed"]),
        f"hours: {plan['estimate']}",
        *(["", "Download first:"] if plan["missing"] else []),
        *(f"  {download['get']}" for download in plan["missing"]),
    ]
    for line in lines:
        print_line(line)


def _format_row(cells: list[dict[str, Any]]) -> list[str]:
    first = cells[0]
    return [
        escape_markup(first["model"]),
        f"{first['max_frames']:,}" + (f" {first['fps']:g}/s" if first["fps"] else ""),
        f"{first['tokens']:,}",
        f"{first['film_tokens']:,}",
        f"{first['kept']:,}" + (f" ({first['ratio']})" if first["ratio"] else ""),
        str(len(cells)),
        str(sum(cell["state"] == "done" for cell in cells)),
        *_format_hours(cells),
    ]


def _format_hours(cells: list[dict[str, Any]]) -> list[str]:
    columns = ([cell[name] for cell in cells] for name in ("computing_s", "reading_s"))
    return ["-" if None in seconds else f"{sum(seconds) / 3600:.1f}" for seconds in columns]  # -: no estimate
