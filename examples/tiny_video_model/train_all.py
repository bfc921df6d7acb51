"""Train the models of the study: `python -m examples.tiny_video_model.train_all -o out/models`, nine minutes on a GPU.

The models train side by side, each in a process of its own: that of the repository, a model with tokens left out at
random, one with another seed, and one with 60 tokens a slice instead of 24. Each is one file, `NAME.tar`, written after
every stage, so that a model that fails or is late loses neither the others nor what it had learned. `log.json` has what
they printed, and how they ended.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import Any

# file name and options of `examples.tiny_video_model.train`
MODELS = {
    "all-0": ("--seed", "0"),
    "drop-0": ("--seed", "0", "--drop"),
    "all-1": ("--seed", "1"),
    "all-0-60": ("--seed", "0", "--rows", "6", "--columns", "10"),
}
GRACE_SECONDS = 45  # for the last exam, after which a model is stopped


class Training:
    """One training in a process of its own, which prints what it prints."""

    def __init__(self, name: str, folder: Path, until: float, options: list[str]) -> None:
        command = [sys.executable, "-m", "examples.tiny_video_model.train", "-o", str(folder / f"{name}.tar")]
        command += ["--until", f"{until:.1f}", *options, *MODELS[name]]
        # with more threads the processes wait for one another
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
        self.name, self.lines, self._state, self._started = name, list[str](), "failed", time.monotonic()
        self.process = Popen(
            command,
            env=environment,
            stdout=PIPE,
            stderr=STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # so that the processes that make batches end with it
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self.lines.append(text.rstrip())
            print(f"{self.name:10}{text}", end="", flush=True)
        self._seconds = round(time.monotonic() - self._started, 1)

    def wait(self, until: float) -> None:
        """Wait until it ends, or until a time; stop it then."""
        self._reader.join(max(0.0, until - time.time()))
        if self._reader.is_alive():
            self._state = "stopped, as it was late"
        elif self.process.wait() == 0:
            self._state = "finished"
        self.stop()

    def stop(self) -> None:
        """End its processes."""
        if self._reader.is_alive():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def describe(self) -> dict[str, Any]:
        """Return how it ended, and what it printed."""
        return {"state": self._state, "seconds": self._seconds, "options": MODELS[self.name], "printed": self.lines}

    @property
    def is_finished(self) -> bool:
        return self._state == "finished"


def train_models(names: list[str], folder: Path, until: float, options: list[str]) -> list[str]:
    """Train models side by side until a time; return the names of those that did not finish.

    Args:
        names: Keys of MODELS.
        folder: Where to write.
        until: Seconds since 1970.
        options: Further ones of `examples.tiny_video_model.train`.
    """
    trainings: list[Training] = []
    ended: dict[str, dict[str, Any]] = {}
    try:
        trainings += (Training(name, folder, until, options) for name in names)
        from examples.tiny_video_model.train import warn_without_gpu  # loads torch while the others do

        warn_without_gpu()
        for training in trainings:
            training.wait(until + GRACE_SECONDS)
            ended[training.name] = training.describe()
            (folder / "log.json").write_text(json.dumps(ended, indent=1) + "\n")
    finally:
        for training in trainings:
            training.stop()
    return [training.name for training in trainings if not training.is_finished]


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_video_model.train_all", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the checkpoints, NAME.tar")
    parser.add_argument(
        "--minutes",
        type=float,
        default=9,
        help="time of the training with its start; the last exam follows (default: 9)",
    )
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=[*MODELS], help="models to train side by side (default: all)"
    )
    parser.add_argument("--exam-films", type=int, default=40, help="films of an exam (default: %(default)s)")
    parser.add_argument("--start", type=Path, metavar="CHECKPOINT", help="train this model further, in each way")
    options = parser.parse_args(arguments)
    until = time.time() + 60 * options.minutes
    options.output.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(options.models))
    processes = max(1, (os.cpu_count() or 1) // len(names) - 1)  # beside the one that trains
    given = ["--processes", str(processes), "--exam-films", str(options.exam_films)]
    if options.start is not None:
        given += ["--start", str(options.start)]
    failed = train_models(names, options.output, until, given)
    if failed:
        sys.exit(f"the training of {', '.join(failed)} did not finish; see {options.output}/log.json")


if __name__ == "__main__":
    main()
