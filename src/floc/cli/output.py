"""What commands print: messages, progress, summaries. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

LINE_EVERY_S = 10.0  # how often progress is printed where there is no terminal
_ALWAYS = Console(stderr=True, highlight=False)  # for errors and warnings, which --quiet does not hide
screen = Console(stderr=True, highlight=False)  # for everything else

_is_verbose = False


def set_verbosity(*, quiet: bool, verbose: bool) -> None:
    """Print less (results, warnings and errors only) or more (log messages, tracebacks)."""
    global _is_verbose
    screen.quiet = quiet
    _is_verbose = verbose
    logger = logging.getLogger("floc")
    logger.handlers.clear()
    if verbose:
        from rich.logging import RichHandler

        logger.addHandler(RichHandler(console=_ALWAYS, show_path=False))
        logger.setLevel(logging.DEBUG)


def is_verbose() -> bool:
    """Return True if --verbose was given."""
    return _is_verbose


def print_error(message: str) -> None:
    """Print an error to stderr."""
    _ALWAYS.print(f"floc: {message}", style="red", markup=False, soft_wrap=True)


def print_warning(message: str) -> None:
    """Print a warning to stderr."""
    _ALWAYS.print(message, style="yellow", markup=False, soft_wrap=True)


def print_note(message: str) -> None:
    """Print a remark to stderr."""
    screen.print(message, style="dim", markup=False, soft_wrap=True)


def print_summary(rows: list[tuple[str, str]]) -> None:
    """Print labels with their values, one row each; values may contain rich markup."""
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="dim")
    for label, value in rows:
        table.add_row(label, value)
    screen.print(table)


def format_stages(seconds: Mapping[str, float]) -> str:
    """Format the time of each stage, and their sum.

    >>> format_stages({"decode": 1.5, "select": 0.25})
    'decode 1.50 s, select 0.25 s; 1.75 s in all'
    """
    stages = ", ".join(f"{stage} {spent:.2f} s" for stage, spent in seconds.items())
    return f"{stages}; {sum(seconds.values()):.2f} s in all"


def escape_markup(text: object) -> str:
    """Quote text that is not rich markup, such as a file name."""
    return escape(str(text))


@contextlib.contextmanager
def show_progress(title: str) -> Iterator[Callable[..., None]]:
    """Yield a function `update(share, title)` that shows the share of the work done, in 0..1.

    On a terminal a bar appears once the work takes more than a second. Elsewhere a line is printed now and then.
    """
    if not screen.is_terminal:
        yield _line_printer(title)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=screen, transient=True)
    task = bar.add_task(title, total=None)  # pulses until the first update: the first call may compile for a while
    timer = threading.Timer(1, bar.start)
    timer.start()
    try:
        yield lambda share, title=title: bar.update(task, total=1.0, completed=share, description=title)
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()


def _line_printer(title: str) -> Callable[..., None]:
    """Return an `update` function for `show_progress` that prints a line every LINE_EVERY_S seconds."""
    started = time.monotonic()
    next_s = started + LINE_EVERY_S

    def update(share: float, title: str = title) -> None:
        nonlocal next_s
        now = time.monotonic()
        if now >= next_s:
            left = f", about {(now - started) * (1 - share) / share:.0f} s left" if share > 0 else ""
            screen.print(f"{title}: {share:.0%}{left}", markup=False, soft_wrap=True)
            next_s = now + LINE_EVERY_S

    return update


@contextlib.contextmanager
def show_status(format_line: Callable[[Any], str]) -> Iterator[Callable[[Any], None]]:
    """Yield a function that shows a status: one line that changes on a terminal, a line now and then elsewhere."""
    if screen.is_terminal:
        from rich.live import Live
        from rich.text import Text

        with Live(console=screen, transient=True) as live:
            yield lambda status: live.update(Text(format_line(status), overflow="ellipsis", no_wrap=True))
        return
    next_s = 0.0

    def show(status: Any) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            screen.print(format_line(status), markup=False, soft_wrap=True)
            next_s = time.monotonic() + LINE_EVERY_S

    yield show


@contextlib.contextmanager
def catch_stop() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C or SIGTERM, so that work in progress ends in order.

    A second signal ends the process at once.
    """
    stop = threading.Event()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def request_stop(number: int, frame: object) -> None:
        stop.set()
        restore()

    for number in handlers:
        signal.signal(number, request_stop)
    try:
        yield stop.is_set
    finally:
        restore()
