"""Run a command, and end it and all that it started when whoever started this is gone.

`floc eval` holds the other end of this program's standard input. However it ends, killed too, the system closes that
end; nobody is then left to hold a GPU. It is run as a file, since importing the package would take seconds.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    """Run a command to its end, or to that of standard input. Returns its status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def end_all() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        end_all()

    threading.Thread(target=watch, daemon=True).start()
    status = child.wait()
    end_all()  # what it left behind
    return status


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # a status below zero is the signal that ended the command
    sys.exit(status if status >= 0 else 128 - status)
