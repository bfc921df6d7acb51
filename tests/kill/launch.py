"""Run a floc command in a process that a test kills: `python -m tests.kill.launch SETTINGS -- ARGUMENTS`.

SETTINGS is JSON:

    preload    modules to import before the command starts, so that its work fills the time in which it is killed
    ready      a file that is created when the command starts; at the end it holds the number of writes
    write      kill the process group just before this write: opening, renaming, removing or making a file or folder
    delay_s    with `write`: let the process run on for this long, then end it in the middle of whatever it does
    file_bytes no file may grow larger: the next write fails with "File too large"
    stand_in   seconds for which a stand-in of lmms-eval runs, for `floc eval`
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.truncate"}


def main() -> None:
    """Apply the settings, then run the command."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    sys.argv = ["floc", *sys.argv[3:]]
    for name in settings.get("preload", ()):
        importlib.import_module(name)
    if "stand_in" in settings:
        _replace_lmms_eval(settings["stand_in"])
    if "file_bytes" in settings:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (settings["file_bytes"],) * 2)
    _count_writes(Path(settings["ready"]), settings.get("write"), settings.get("delay_s", 0.0))
    Path(settings["ready"]).touch()
    from floc.cli import main as run

    run()


def _count_writes(ready: Path, kill_at: int | None, delay_s: float) -> None:
    """Count the writes below the current folder; kill this process at one of them."""
    here = os.getcwd()
    count = 0

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "open":
            path, mode, flags = arguments
            writes = any(letter in mode for letter in "wax+") if mode else flags & (os.O_WRONLY | os.O_RDWR)
        elif event in WRITES:
            path, writes = arguments[0], True
        else:
            return
        if not writes or not isinstance(path, (str, os.PathLike)):
            return
        path = os.fspath(path)
        if isinstance(path, bytes) or not (path.startswith(here) or not path.startswith("/")):
            return
        count += 1
        if count == kill_at:
            if delay_s:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, delay_s)
            else:
                os.killpg(0, signal.SIGKILL)

    sys.addaudithook(audit)
    if kill_at is None:
        process = os.getpid()
        atexit.register(lambda: os.getpid() == process and ready.write_text(str(count)))


def _replace_lmms_eval(seconds: float) -> None:
    """Let `floc eval` run a stand-in, which needs no weights."""
    from floc.evaluation import command, preview
    from tests.evaluation import stand_in

    command.check_lmms_eval = lambda: None
    preview.check_downloads = lambda cells: None
    command.build_command = stand_in.create_builder(Path("notes"), seconds=seconds)


if __name__ == "__main__":
    main()
