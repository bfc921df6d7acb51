"""Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from floc.cli import signals

# Runs a command, and sends itself a signal after a time.
SCRIPT = """
import os, signal, sys, threading
def send():
    os.kill(os.getpid(), {number})
from floc.cli import main  # imports little; handlers are installed first thing in main
sys.argv = ["floc", *{arguments}]
threading.Timer({after}, send).start()
main()
"""


@pytest.mark.parametrize("number", signals.SIGNALS, ids=lambda number: number.name)
def test_a_signal_at_any_moment_is_no_traceback(number: int, npy: Path) -> None:
    arguments = ["compress", str(npy), "--ratio", "1/8", "-o", str(npy.with_name("kept.safetensors"))]
    for after in random.sample([0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 1.6], 2):
        script = SCRIPT.format(number=int(number), after=after, arguments=arguments)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        assert done.returncode in (0, 128 + number), done.stderr
        if done.returncode == 0:
            assert "floc: stopped" not in done.stderr
        else:  # a signal after the last line has nothing left to stop
            assert "floc: stopped" in done.stderr or "written" in done.stderr
        assert {path.name for path in npy.parent.iterdir()} <= {"tokens.npy", "kept.safetensors"}


LOST = """
import os, signal, sys, time
import floc
from floc import cli
class Odd:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
def wait():
    Odd()
    time.sleep(30)
floc.methods.list_methods = wait
sys.argv = ["floc", "methods"]
cli.main()
"""
REPLACED = """
import os, signal, sys, time
import floc
from floc import cli
def replace():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    except KeyboardInterrupt:
        raise SystemError("returned a result with an exception set") from None
floc.methods.list_methods = replace
sys.argv = ["floc", "methods"]
cli.main()
"""


@pytest.mark.parametrize(("script", "code"), [(LOST, 130), (REPLACED, 143)], ids=["lost", "replaced"])
def test_interrupts_that_libraries_change_still_stop(script: str, code: int) -> None:
    """An interrupt in a destructor is ignored by Python; compiled code replaces it by a SystemError."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=25)
    assert (done.stderr, done.returncode) == ("floc: stopped\n", code)


def test_work_in_progress_can_end_in_order() -> None:
    with signals.catch_stop() as is_stopped:
        assert not is_stopped()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert is_stopped()
