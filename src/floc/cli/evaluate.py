"""`floc eval`."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from floc._format import format_time
from floc.cli.shell import app, maybe_listed, parsed_block, require_folder, screen, status_line, stoppable

if TYPE_CHECKING:
    from floc.evaluation import Status

LINE_EVERY_S = 60.0  # where there is no terminal to show one line that changes


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
        parsed_block(block)
    wish = evaluation.Wish(
        models=maybe_listed(models),
        methods=maybe_listed(methods),
        ratios=maybe_listed(ratios),
        tasks=maybe_listed(tasks),
        budget=budget,
        block=block,
        max_frames=max_frames,
        fps=fps,
        limit=limit,
        more=model_args,
        lmms=lmms,
    )
    cells = evaluation.grid(wish) if paper is None else evaluation.from_paper(paper, wish)
    require_folder(out)
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
    with stoppable() as stopped, status_line(line, LINE_EVERY_S) as show:
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


def _cells_in_a_line(status: Status, workers: int) -> str:
    parts = [f"{status.done} of {status.cells} cells done", f"{len(status.running)} running"]
    if status.failed:
        parts.append(f"{status.failed} failed")
    left_s = status.left_s(workers)
    if left_s is not None and status.to_do + len(status.running):
        parts.append(f"about {format_time(left_s)} left")
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
