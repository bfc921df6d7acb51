"""Run a command, and kill it with all its children once standard input is closed.

`floc eval` holds the other end of the pipe. The system closes it however `floc eval` ends, so no process keeps a GPU
after a kill. This file is run as a script, because importing the package takes seconds.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading


def run_command(command: list[str]) -> int:
    """Run a command until it ends or standard input is closed. Returns its exit status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def kill_group() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def wait_for_close() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        kill_group()

    threading.Thread(target=wait_for_close, daemon=True).start()
    status = child.wait()
    kill_group()  # children that outlived the command
    return status


if __name__ == "__main__":
    status = run_command(sys.argv[1:])
    sys.exit(status if status >= 0 else 128 - status)  # a negative status is a signal
