"""The command line application: how commands are registered, run, and how their errors are shown."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

from floc._checks import shorten
from floc._version import __version__
from floc.cli import signals
from floc.cli.output import hide_arguments, print_error, print_warning, redact_text, set_verbosity

UsageError: Any = typer.BadParameter.__base__
MAX_UNEXPECTED = 300  # characters of an unexpected error
REPORT = "this is a defect of floc: run it again with -v, and report what it prints as an issue of the project"

QUIET = typer.Option(False, "--quiet", "-q", help="Print no notes; results go to stdout, all else to stderr.")
VERBOSE = typer.Option(False, "--verbose", "-v", help="Print log messages and tracebacks.")

Function = Callable[..., None]
_option_names: dict[str, str] = {}  # of the command that runs: errors name options as the command line does


class _Command(TyperCommand):
    """A command whose help shows no type names."""

    def get_params(self, ctx: Any) -> Any:
        return [_hide_type(param) for param in super().get_params(ctx)]


class Group(TyperGroup):
    """A group of commands whose help shows no type names."""

    def get_params(self, ctx: Any) -> Any:
        return [_hide_type(param) for param in super().get_params(ctx)]


def _hide_type(param: Any) -> Any:
    """Show a parameter as `--ratio RATIO`, `--json` or `SOURCE`, without `<str>` or `[x>=1]`."""
    param._get_number_range_help_str = lambda: ""
    if param.param_type_name == "argument":
        param.metavar = param.metavar or param.name.upper()
        param.display_type_rich = lambda ctx: None
    elif getattr(param, "is_flag", False) and param.metavar is None:
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
def _show_version(version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def command(*examples: str, name: str | None = None, group: typer.Typer = app) -> Callable[[Function], Function]:
    """Register a function as a command, with -q and -v.

    Args:
        examples: command lines that the help shows.
        name: the command's name; the function's name by default.
        group: the application, or a group of commands in it.
    """

    def register(function: Function) -> Function:
        hints = get_type_hints(function)
        flags = {"quiet": QUIET, "verbose": VERBOSE}
        parameters = [
            *inspect.signature(function).parameters.values(),
            *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=info) for name, info in flags.items()),
        ]
        names = {
            parameter.name: max(parameter.default.param_decls or [f"--{parameter.name.replace('_', '-')}"], key=len)
            for parameter in parameters
            if isinstance(parameter.default, OptionInfo)
        }

        @functools.wraps(function)
        def run(*, quiet: bool = False, verbose: bool = False, **arguments: Any) -> None:
            if quiet and verbose:
                raise typer.BadParameter("give --quiet or --verbose, not both")
            set_verbosity(quiet=quiet, verbose=verbose)
            _option_names.clear()
            _option_names.update(names)
            function(**arguments)

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(annotation=hints.get(parameter.name, bool)) for parameter in parameters]
        )
        run.__annotations__ = {**hints, **dict.fromkeys(flags, bool)}
        epilog = "\n\n".join([f"Example{'s' * (len(examples) > 1)}: {examples[0]}", *examples[1:]])
        paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        help_text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)  # the terminal wraps lines
        group.command(name, cls=_Command, help=help_text, epilog=epilog)(run)
        return function

    return register


def load_app() -> typer.Typer:
    """Return the application with all commands, in the order of `floc --help`."""
    for name in ("compress", "compare", "plan", "ask", "stream", "ingest", "store", "methods", "eval"):
        import_module(f"floc.cli.{name}")
    return app


def run() -> int:
    """Run the command line, and return its exit code; print an error in one line, without a traceback.

    The code is 1 if a part failed or the error is a defect of floc, and 2 for errors that a user can fix.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a file name may have characters that the terminal does not know
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    hide_arguments(sys.argv[1:])
    try:
        code = load_app()(standalone_mode=False, prog_name="floc")
        if sys.stdout is not None:  # None if it was closed before Python started
            sys.stdout.flush()
        return int(code or 0)
    except SystemExit as exited:
        return exited.code if isinstance(exited.code, int) else 1
    except BrokenPipeError:  # as in `floc methods | head -1`
        return 1
    except Exception as error:
        if signals.is_stopped():  # libraries replace KeyboardInterrupt with errors of their own
            return 1
        if signals.is_verbose:
            print_warning(*traceback.format_exc().splitlines())
        message, code = _describe_error(error)
        if message:
            print_error(message)
        return code


def _describe_error(error: Exception) -> tuple[str, int]:
    """Return the message for an error and the exit code."""
    if isinstance(error, UsageError):
        return _describe_usage(error), error.exit_code
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror, 2
    if isinstance(error, MemoryError) and not str(error):
        return "out of memory; read fewer frames with --max-frames, or run it on a larger machine", 2
    if isinstance(error, (ValueError, TypeError, ImportError, MemoryError, OSError)):
        return _name_options(str(error)), 2
    if type(error).__module__.startswith("floc."):
        return str(error), 1
    text = " ".join(redact_text(str(error)).split())[:MAX_UNEXPECTED]
    return f"unexpected {type(error).__name__}: {text}; {REPORT}", 1


def _describe_usage(error: Any) -> str:
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    if not message:  # no arguments: the help was printed instead
        return ""
    pattern = r"Invalid value for '(.*)': (?:Input should be|Unable to parse input string as) ([^,]*).*"  # pydantic's
    if match := re.fullmatch(pattern, message):
        message = f"{match[1]} must be {match[2]}; got {shorten(error.__cause__.errors()[0]['input'])}"
    help_hint = "" if error.ctx is None else f"; see {error.ctx.command_path} --help"
    if message.endswith("?"):  # ". Did you mean 'compress'?"
        return f"{message[:1].lower()}{message[1:]}".replace(". Did you", "; did you")
    return f"{message[:1].lower()}{message[1:]}{help_hint}"


def _name_options(message: str) -> str:
    """Write `ratio=1/8` and `ratio must`, as Python does, the way that the command line does: `--ratio 1/8`."""
    if not _option_names:
        return message
    message = re.sub(r",? or None (?:to|for) [^;,]*(?=; got )", "", message)  # the command line has no None
    names = "|".join(sorted(_option_names, key=len, reverse=True))

    def rewrite(match: re.Match[str]) -> str:
        value = match["quoted"] or match["plain"] or ""
        if value == "None":
            return f"no {_option_names[match['name']]}"
        return f"{_option_names[match['name']]}{' ' if value else ''}{value}"

    subject = rf"(?:^|(?<=: ))(?P<name>{names})(?:_s)?(?= (?:must|needs|cannot|is an empty) )"
    message = re.sub(subject, lambda match: _option_names[match["name"]], message)
    pattern = rf"(?<![\w-])(?P<name>{names})(?:_s)?=(?:'(?P<quoted>[^']*)'|(?P<plain>[\w./]*\w)?)"
    return re.sub(pattern, rewrite, message)
