"""Train the models of the study: `python -m examples.tiny_video_model.train_all -o out/models`, nine minutes on a GPU.

The model of the repository, `all-0`, trains all the time. Beside it, one after the other, train a model with tokens
left out at random, a model with another seed, and one with 60 tokens a slice instead of 24.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

# folder and options of `examples.tiny_video_model.train`
MODELS = {
    "all-0": ("--seed", "0"),
    "drop-0": ("--seed", "0", "--drop"),
    "all-1": ("--seed", "1"),
    "all-0-60": ("--seed", "0", "--rows", "6", "--columns", "10"),
}
LANES = (("all-0",), ("drop-0", "all-1", "all-0-60"))  # lanes run side by side, the models of a lane in turn
START_MINUTES = 0.4  # to load the libraries and to compile, for each model of a lane but the first


def train_lane(names: tuple[str, ...], folder: Path, minutes: float, processes: int, failed: list[str]) -> None:
    """Train models one after the other, each in a process of its own; print and keep what they print."""
    each = (minutes - START_MINUTES * (len(names) - 1)) / len(names)
    # with more threads the processes wait for one another
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    for name in names:
        command = [sys.executable, "-m", "examples.tiny_video_model.train", "-o", str(folder / name)]
        command += ["--minutes", f"{each:.3f}", "--processes", str(processes), *MODELS[name]]
        with (
            (folder / f"{name}.log").open("w") as log,
            Popen(command, env=environment, stdout=PIPE, stderr=STDOUT, encoding="utf-8") as process,
        ):
            assert process.stdout is not None
            for text in process.stdout:
                log.write(text)
                print(f"{name:10}{text}", end="", flush=True)
        if process.returncode:
            failed.append(name)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_video_model.train_all", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the checkpoints")
    parser.add_argument("--minutes", type=float, default=9, help="time of the training (default: 9)")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    processes = max(1, ((os.cpu_count() or 1) - len(LANES)) // len(LANES))
    failed: list[str] = []
    threads = [
        threading.Thread(target=train_lane, args=(names, options.output, options.minutes, processes, failed))
        for names in LANES
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        sys.exit(f"the training of {', '.join(failed)} failed; see {options.output}/*.log")


if __name__ == "__main__":
    main()
