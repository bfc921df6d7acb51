"""The command line. One file a command, named as the command."""

import signal
import sys

from floc.cli import signals


def main() -> None:
    """Run the command line. Typer and the commands are imported here, so that Ctrl-C meanwhile is no traceback."""
    try:
        signals.install_handlers()
        from floc.cli.application import run

        code = run()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(signals.end(code))
