"""The command line application: how commands are registered, run, and how their errors are shown."""

from __future__ import annotations

import functools
import inspect
import logging
import re
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from floc._version import __version__
from floc.cli.output import is_verbose, print_error, set_verbosity

_option_names: set[str] = set()  # of the command that runs: errors name options as the command line does


class _Command(TyperCommand):
    """A command whose flags show no value in the help."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for param in self.params:
            _hide_flag_value(param)

    def get_help_option(self, ctx: Any) -> Any:
        return _hide_flag_value(super().get_help_option(ctx))


class Group(TyperGroup):
    """A group of commands whose flags show no value in the help."""

    def get_params(self, ctx: Any) -> Any:
        return [_hide_flag_value(param) for param in super().get_params(ctx)]


def _hide_flag_value(param: Any) -> Any:
    if getattr(param, "is_flag", False) and param.metavar is None:
        param.metavar = ""
    return param


app = typer.Typer(
    cls=Group,
    help="Keep the few visual tokens of a long video that best represent all the others.",
    epilog="Example: floc compress talk.mp4 --ratio 1/8 -o talk.safetensors",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _show_version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def command(
    *examples: str, name: str | None = None, group: typer.Typer = app
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command, with -q and -v.

    Args:
        examples: command lines that the help shows.
        name: the command's name; the function's name by default.
        group: the application, or a group of commands in it.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        hints["quiet"] = Annotated[
            bool, typer.Option("--quiet", "-q", help="Print only JSON, answers, warnings and errors.")
        ]
        hints["verbose"] = Annotated[bool, typer.Option("--verbose", "-v", help="Print log messages and tracebacks.")]

        @functools.wraps(function)
        def run(*, quiet: bool = False, verbose: bool = False, **arguments: Any) -> None:
            if quiet and verbose:
                raise typer.BadParameter("give --quiet or --verbose, not both")
            set_verbosity(quiet=quiet, verbose=verbose)
            _option_names.clear()
            _option_names.update(arguments)
            function(**arguments)

        parameters = list(inspect.signature(function).parameters.values())
        parameters += [
            inspect.Parameter(flag, inspect.Parameter.KEYWORD_ONLY, default=False) for flag in ("quiet", "verbose")
        ]
        run.__annotations__ = hints
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters]
        )
        epilog = "\n\n".join([f"Example{'s' * (len(examples) > 1)}: {examples[0]}", *examples[1:]])
        paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        help_text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)  # the terminal wraps lines
        group.command(name, cls=_Command, help=help_text, epilog=epilog)(run)
        return function

    return register


def main() -> None:
    """Run the command line; print an error that a user can fix in one line, without a traceback."""
    try:
        app()
    except SystemExit as stopped:
        if stopped.code == 130:  # Ctrl-C
            print_error("stopped")
        raise
    except (ValueError, TypeError, ImportError, MemoryError, OSError) as error:
        if is_verbose():
            traceback.print_exc()
        logging.getLogger("floc").debug("failed", exc_info=True)
        print_error(_name_options(str(error)))
        sys.exit(2)


def _name_options(message: str) -> str:
    """Write `ratio=1/8`, as Python does, the way that the command line does: `--ratio 1/8`."""
    if not _option_names:
        return message
    names = "|".join(sorted(_option_names, key=len, reverse=True))

    def rewrite(match: re.Match[str]) -> str:
        value = match["quoted"] or match["plain"] or ""
        return f"--{match['name'].replace('_', '-')}{' ' if value else ''}{value}"

    return re.sub(rf"(?<![\w-])(?P<name>{names})=(?:'(?P<quoted>[^']*)'|(?P<plain>[\w./]*\w)?)", rewrite, message)
