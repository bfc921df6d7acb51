"""Print results to stdout, and messages, progress and summaries to stderr."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from floc._checks import shorten
from floc._text import hide_secrets, redact_source
from floc.cli import signals

LINE_EVERY_S = 10.0  # how often progress is printed where there is no terminal
results = Console(highlight=False)
screen = Console(stderr=True, highlight=False)  # for what --quiet hides
_ALWAYS = Console(stderr=True, highlight=False)  # for errors and warnings

# Characters that move the cursor, color the screen or reverse text, and bytes of names that are not Unicode.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_addresses: dict[str, str] = {}  # the command line's, in each form that messages have, with what is shown instead


def set_verbosity(*, quiet: bool, verbose: bool) -> None:
    """Print less (results, warnings and errors only) or more (log messages, tracebacks)."""
    screen.quiet = quiet
    signals.is_verbose = verbose
    logger = logging.getLogger("floc")
    logger.handlers.clear()
    if verbose:
        from rich.logging import RichHandler

        logger.addHandler(RichHandler(console=_ALWAYS, show_path=False))
        logger.setLevel(logging.DEBUG)


def hide_arguments(arguments: Iterable[str]) -> None:
    """Redact these arguments wherever they are printed: a password may contain quotes and spaces."""
    _addresses.clear()
    for argument in arguments:
        value = argument.partition("=")[2] if argument.startswith("-") and "=" in argument else argument
        if ":/" in value:
            for form in (value, str(Path(value))):  # pathlib drops the second slash
                _addresses.update({form: redact_source(value), repr(form)[1:-1]: redact_source(value)})
                _addresses[shorten(form)] = shorten(redact_source(value))


def clean_text(text: object) -> str:
    r"""Make text of strangers, such as file names, safe to print in a line: escape control characters, hide secrets.

    >>> clean_text("a\x1b[31m\n.mp4"), clean_text("rtsp://admin:secret@10.0.0.7/main?token=1")
    ('a\\x1b[31m\\n.mp4', 'rtsp://10.0.0.7/main')
    """
    return escape_controls(redact_text(str(text))).replace("\n", "\\n").replace("\t", "\\t")


def redact_text(text: str) -> str:
    """Hide the secrets of the addresses in a text."""
    for address in sorted(_addresses, key=len, reverse=True):
        text = text.replace(address, _addresses[address])
    return hide_secrets(text)


def escape_controls(text: str) -> str:
    """Show control characters, except line breaks and tabs, instead of sending them to the terminal."""
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def escape_markup(text: object) -> str:
    """Make text that is not rich markup, such as a file name, safe to print among markup."""
    return escape(clean_text(text))


def print_error(message: str) -> None:
    """Print an error to stderr, in one line."""
    _print(_ALWAYS, f"floc: {message}", "red")


def print_warning(*messages: str) -> None:
    """Print warnings to stderr, each in one line."""
    for message in messages:
        _print(_ALWAYS, message, "yellow")


@contextlib.contextmanager
def show_warnings() -> Iterator[None]:
    """Print Python warnings of floc as warnings of the command."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        shown, warnings.showwarning = warnings.showwarning, lambda message, *_: print_warning(str(message))
        try:
            yield
        finally:
            warnings.showwarning = shown


def print_note(message: str, style: str = "dim") -> None:
    """Print a remark to stderr."""
    _print(screen, message, style)


def print_line(message: str) -> None:
    """Print a line of a result to stdout."""
    _print(results, message, "")


def _print(console: Console, message: str, style: str) -> None:
    console.print(clean_text(message), style=style, markup=False, soft_wrap=True)


def print_summary(rows: Iterable[tuple[str, str]]) -> None:
    """Print labels with their values to stderr, one row each; values may contain rich markup."""
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="dim")
    for label, value in rows:
        table.add_row(escape_markup(label), value)
    screen.print(table)


def print_table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table to stdout.

    Args:
        columns: the header of each column; ">tokens" aligns it to the right.
        rows: the cells of each row, which may contain rich markup.
    """
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        right = name.startswith(">")
        table.add_column(name.removeprefix(">"), justify="right" if right else "left", no_wrap=right)
    for row in rows:
        table.add_row(*row)
    results.print(table)


def format_stages(seconds: Mapping[str, float]) -> str:
    """Format the time of each stage, and their sum.

    >>> format_stages({"decode": 1.5, "select": 0.25})
    'decode 1.50 s, select 0.25 s; 1.75 s in all'
    """
    stages = ", ".join(f"{stage} {spent:.2f} s" for stage, spent in seconds.items())
    return f"{stages}; {sum(seconds.values()):.2f} s in all"


@contextlib.contextmanager
def show_progress(title: str) -> Iterator[Callable[..., None]]:
    """Yield a function `update(share, title)` that shows the share of the work done, in 0..1.

    On a terminal a bar appears once the work takes more than a second. Elsewhere a line is printed now and then.
    """
    if not screen.is_terminal:
        started = time.monotonic()

        def format_share(share: float, title: str = title) -> str:
            left = f", about {(time.monotonic() - started) * (1 - share) / share:.0f} s left" if share > 0 else ""
            return f"{title}: {share:.0%}{left}"

        yield _limit_rate(format_share, started + LINE_EVERY_S)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    name, percent = TextColumn("{task.description}", markup=False), TextColumn("{task.percentage:3.0f}%")
    bar = Progress(name, BarColumn(), percent, TimeRemainingColumn(), console=screen, transient=True)
    # pulses until the first update: the first call may compile for a while
    task = bar.add_task(clean_text(title), total=None)
    timer = threading.Timer(1, bar.start)
    timer.start()
    try:
        yield lambda share, title=title: bar.update(task, total=1.0, completed=share, description=clean_text(title))
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()


def _limit_rate(format_line: Callable[..., str], next_s: float = 0.0) -> Callable[..., None]:
    """Return a function that prints a line from `next_s` on, at most every LINE_EVERY_S seconds."""

    def show(*arguments: Any) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            print_note(format_line(*arguments), style="")
            next_s = time.monotonic() + LINE_EVERY_S

    return show


@contextlib.contextmanager
def show_status(format_line: Callable[[Any], str]) -> Iterator[Callable[[Any], None]]:
    """Yield a function that shows a status: one line that changes on a terminal, a line now and then elsewhere."""
    if not screen.is_terminal:
        yield _limit_rate(format_line)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=screen, transient=True) as live:
        yield lambda status: live.update(Text(clean_text(format_line(status)), overflow="ellipsis", no_wrap=True))
