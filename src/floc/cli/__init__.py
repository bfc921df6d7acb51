"""The command line. One file a command, named as the command."""

import signal
import sys
from typing import Any

from floc.cli import signals

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line. Typer and the commands are imported here, so that Ctrl-C meanwhile is no traceback."""
    try:
        signals.install_handlers()
        from floc.cli.application import run

        code = run()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(signals.end(code))


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from floc.cli.application import load_app

    return load_app()
