"""Run the kill suite: `python -m tests.kill`, or a part: `python -m tests.kill --only stream --kind SIGKILL`."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from tests.kill.disk import can_mount
from tests.kill.operations import OPERATIONS
from tests.kill.suite import run_suite


def main() -> int:
    """Run the suite; return 1 if it found a defect."""
    parser = argparse.ArgumentParser("python -m tests.kill", description="Kill commands, fill disks, compare results.")
    parser.add_argument("--scale", type=float, default=1.0, help="1: 200 kills")
    parser.add_argument("--only", action="append", default=[], choices=list(OPERATIONS), help="commands to run")
    parser.add_argument("--kind", action="append", default=[], help="SIGKILL, SIGINT, SIGTERM, full disk, ...")
    parser.add_argument("--lanes", type=int, default=2, help="trials side by side")
    options = parser.parse_args()
    if can_mount() and "FLOC_KILL_MOUNTS" not in os.environ:
        # in a mount namespace of its own, so that no file system stays mounted, whatever ends this process
        os.environ["FLOC_KILL_MOUNTS"] = "private"
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "tests.kill"]
        os.execvp(command[0], [*command, *sys.argv[1:]])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.only or options.kind:  # a part of the suite is no result to keep
        document = run_suite(options.scale, _print, options.kind, options.only, options.lanes)
        for row in document["rows"]:
            _print(f"{row['operation']}, {row['kind']}: {row['stops']} stops, {row['defects']} defects")
    else:
        from benchmarks import run
        from benchmarks.tables import kill

        document = run.run("kill", small=options.scale < kill.FULL, echo=_print)
    return int(bool(document["defects"]))


def _print(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
