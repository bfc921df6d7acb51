"""What all commands share: the application, the screen, options, progress, and complaints."""

from __future__ import annotations

import contextlib
import math
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
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

import floc

if TYPE_CHECKING:
    from floc.blocks import BlockSpec
    from floc.encoders.load import EncodedVideo

app = typer.Typer(
    help="Keep the few visual tokens of a long video that best stand in for all the others.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
screen = Console(stderr=True, highlight=False)


Fps = Annotated[str | None, typer.Option(help="Video: frames a second, or 'all'. [dim](1)[/]")]
MaxFrames = Annotated[int | None, typer.Option(help="Video: at most so many, spread evenly. [dim](7200)[/]")]
EncoderName = Annotated[
    str | None, typer.Option(help="Video: pixels, mobilenet, hf:MODEL, or auto: the best installed. [dim](auto)[/]")
]
Device = Annotated[str | None, typer.Option(help="Where an encoder runs: cpu, cuda:0. [dim](a GPU, if any)[/]")]


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


def parsed_block(given: str) -> BlockSpec:
    """What --block says."""
    if given.lower() == "none":
        return None
    if given.lower() == "scene":
        return "scene"
    if not (given.isascii() and given.isdigit()):
        raise ValueError(f"--block must be a number of frames, 'scene', or 'none' for the whole video; got {given!r}")
    return int(given)


def parsed_time(given: str | None) -> float | None:
    """Seconds, from a number of them or from what a clock shows.

    >>> parsed_time("90"), parsed_time("1:30"), parsed_time("1:02:30.5"), parsed_time(None)
    (90.0, 90.0, 3750.5, None)
    """
    if given is None:
        return None
    try:
        *larger, last = (float(each) for each in given.split(":"))
    except ValueError:
        larger, last = [], math.nan
    if not (last >= 0 and len(larger) <= 2 and all(each >= 0 and each.is_integer() for each in larger)):
        raise ValueError(f"a time must be seconds, or like 1:30 or 1:02:30; got {given!r}")
    return last + sum(each * 60**power for power, each in enumerate(reversed(larger), 1))


def listed(text: str) -> list[str]:
    """What stands between commas."""
    return [each.strip() for each in text.split(",") if each.strip()]


def maybe_listed(text: str | None) -> list[str] | None:
    """The same, where something is given."""
    return None if text is None else listed(text)


def unused(output: Path) -> Path:
    """A name that was not given must not cost anyone a file."""
    if output.exists():
        raise ValueError(f"{output} is there already; name the file to write with -o")
    return output


def require_folder(folder: Path) -> None:
    """Complain of a folder that cannot be made or written to."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: that is a file; name a folder")
    require_writable_folder(next(each for each in (folder, *folder.absolute().parents) if each.is_dir()), folder)


def require_writable(output: Path, suffix: str, source: Path) -> None:
    """Complain now of what would fail, or destroy the input, after minutes of work."""
    if output.suffix != suffix:
        raise ValueError(f"{output}: the output is a {suffix} file; name it {output.with_suffix(suffix)}")
    require_place(output, source)


def require_place(output: Path, source: Path) -> None:
    """Complain of where no file can be written, or only over the input."""
    if output.exists() and source.exists() and output.samefile(source):
        raise ValueError(f"{output}: that would overwrite the input; name another file")
    if output.is_dir():
        raise ValueError(f"{output}: that is a folder; name a file")
    if not output.parent.is_dir():
        raise ValueError(f"{output}: the folder {output.parent} does not exist; create it first")
    require_writable_folder(output.parent, output)


def require_writable_folder(folder: Path, wanted: Path) -> None:
    """Complain of a folder that nothing can be written to."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"{wanted}: nothing can be written to {folder} ({error.strerror}); name another folder") from None


def filmed(
    source: Path,
    fps: str | None,
    max_frames: int | None,
    encoder: str | None,
    device: str | None,
    *,
    with_thumbnails: bool = False,
) -> EncodedVideo:
    """Read and encode a video, with a bar, and say what was found."""
    from floc.encoders.load import MAX_FRAMES, load_tokens

    with progress_bar(f"reading {source.name}") as show:
        film = load_tokens(
            source,
            fps=parsed_fps(fps),
            max_frames=MAX_FRAMES if max_frames is None else max_frames,
            encoder=encoder or "auto",
            device=device,
            with_thumbnails=with_thumbnails,
            progress=show,
        )
    if encoder in (None, "auto"):
        screen.print(f"encoder: {film.encoder.name}", style="dim", markup=False)
    for warning in film.video.warnings:
        screen.print(warning, style="yellow", markup=False, soft_wrap=True)
    return film


def parsed_fps(given: str | None) -> float | None:
    """What --fps says."""
    from floc.encoders.load import FPS

    if given is None:
        return FPS
    if given.lower() == "all":
        return None
    try:
        return float(Fraction(given))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(f"--fps must be a number of frames a second, or 'all'; got {given!r}") from None


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Callable[..., None]]:
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


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
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
def status_line(in_a_line: Callable[[Any], str], every_s: float) -> Iterator[Callable[[Any], None]]:
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
