"""The command line: parse, call, print. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import floc
from floc import store

app = typer.Typer(
    help="Keep the few visual tokens of a long video that best stand in for all the others.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
screen = Console(stderr=True, highlight=False)


@app.command(epilog="Example: floc compress tokens.npy --ratio 1/8 -o kept.safetensors")
def compress(
    tokens: Annotated[Path, typer.Argument(help="A .npy or .safetensors file: [T, H, W, D] or [T, N, D].")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The .safetensors file to write.")] = None,
    ratio: Annotated[str | None, typer.Option(help="Kept / total: 1/8 or 0.125.")] = None,
    budget: Annotated[int | None, typer.Option(help="How many tokens to keep.")] = None,
    coverage: Annotated[float | None, typer.Option(help="Mean cosine to reach, with as few as it takes.")] = None,
    method: Annotated[str, typer.Option(help="See `floc methods`.")] = "floc",
    block: Annotated[str | None, typer.Option(help="Frames chosen from together, or 'none': all. (floc: 32)")] = None,
    dedupe: Annotated[float | None, typer.Option(help="Survivors a kept token, 1: no second pass. (floc: 2)")] = None,
    detail: Annotated[float | None, typer.Option(help="Weight of what is badly covered, 1: none. (floc: 2)")] = None,
    metric: Annotated[str | None, typer.Option(help="cosine or gaussian. (floc: cosine)")] = None,
    allocate: Annotated[str | None, typer.Option(help="uniform or global, over blocks. (floc: uniform)")] = None,
    backend: Annotated[str | None, typer.Option(help="auto, cpu, torch or reference. (floc: auto)")] = None,
    tensor: Annotated[
        str | None, typer.Option(help="Which tensor of a .safetensors file. (tokens, or the only one)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Compress a file of tokens."""
    if output is not None and output.suffix != ".safetensors":
        raise ValueError(f"{output}: the output is a safetensors file; name it {output.with_suffix('.safetensors')}")
    if output is not None and output.exists() and tokens.exists() and output.samefile(tokens):
        raise ValueError(f"{output}: that would overwrite the tokens; name another file")
    if output is not None and output.is_dir():
        raise ValueError(f"{output}: that is a folder; name a file")
    if output is not None and not output.parent.is_dir():
        raise ValueError(f"{output}: the folder {output.parent} does not exist; create it first")
    names = ("dedupe", "detail", "metric", "allocate", "backend")
    options: dict[str, Any] = dict(zip(names, (dedupe, detail, metric, allocate, backend), strict=True))
    given = {name: value for name, value in options.items() if value is not None}
    if block is not None:
        given["block"] = _block(block)
    with _progress(f"compressing {tokens.name}") as show:
        if "progress" in floc.methods.options(method):
            given["progress"] = show
        kept = floc.compress(
            store.read_tokens(tokens, tensor), ratio=ratio, budget=budget, coverage=coverage, method=method, **given
        )
    if output is not None:
        store.write_kept(kept, output, source=tokens.name)
    if as_json:
        print(json.dumps({**store.summary(kept), "output": None if output is None else str(output)}))
    _show(kept, tokens, output)


@app.command(epilog="Example: floc demo --frames 240")
def demo(
    frames: Annotated[int, typer.Option(min=1, help="Length of the made-up film.")] = 240,
    seed: Annotated[int, typer.Option(help="Another seed, another film.")] = 0,
) -> None:
    """Compress the tokens of a made-up film, and show what was kept."""
    from floc.demo import show

    show(screen, frames, seed)


@app.command(epilog="Example: floc methods")
def methods() -> None:
    """List the methods and their options."""
    table = Table("method", "what it does", "options and their defaults", box=None, header_style="bold")
    for name in floc.methods.names():
        defaults = [f"{key}={value!r}" for key, value in floc.methods.defaults(name).items() if key != "progress"]
        table.add_row(name, floc.methods.describe(name), ", ".join(defaults))
    Console(highlight=False).print(table)


@app.command(epilog="Example: floc bench select --quick")
def bench(
    table: Annotated[str, typer.Argument(help="Which table: see `floc bench list`.")],
    quick: Annotated[bool, typer.Option("--quick", help="A few small cases, nothing is recorded.")] = False,
    results: Annotated[Path, typer.Option(help="Where results are kept.")] = Path("benchmarks/results"),
) -> None:
    """Measure, and record the result."""
    from floc import bench as benchmarks

    if table == "list":
        for name in benchmarks.names():
            print(name)
        return
    benchmarks.run(table, quick=quick, results=results, echo=print)


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


def _block(given: str) -> int | None:
    if given.lower() == "none":
        return None
    if not (given.isascii() and given.isdigit()):
        raise ValueError(f"--block must be a number of frames, or 'none' for the whole video; got {given!r}")
    return int(given)


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
def _progress(title: str) -> Iterator[Callable[[float], None]]:
    """A function to call with the share done; a bar appears once the whole takes over a second."""
    columns = (
        TextColumn(title, markup=False),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=screen, transient=True)
    task = bar.add_task(title, total=None)  # it pulses until there is something to tell: the first call compiles
    timer = threading.Timer(1, bar.start)
    timer.start()
    try:
        yield lambda share: bar.update(task, total=1.0, completed=share)
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()
