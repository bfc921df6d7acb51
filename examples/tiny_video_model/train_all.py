"""Train all models of the study at once: `python -m examples.tiny_video_model.train_all -o out/models`, nine minutes on one GPU.

Six models: with all tokens or with tokens left out at random, two seeds of each with 24 tokens a slice, and one of each
with 60. One such training leaves most of a large GPU idle, so they run side by side.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from pathlib import Path

# folder and options of `examples.tiny_video_model.train`
MODELS = {
    "all-0": ("--seed", "0"),
    "all-1": ("--seed", "1"),
    "drop-0": ("--seed", "0", "--drop"),
    "drop-1": ("--seed", "1", "--drop"),
    "all-0-60": ("--seed", "0", "--rows", "6", "--columns", "10"),
    "drop-0-60": ("--seed", "0", "--rows", "6", "--columns", "10", "--drop"),
}


def start_training(name: str, folder: Path, minutes: float, processes: int) -> subprocess.Popen[str]:
    """Start the training of a model in a process of its own."""
    command = [sys.executable, "-m", "examples.tiny_video_model.train", "-o", str(folder / name)]
    command += ["--minutes", str(minutes), "--processes", str(processes), *MODELS[name]]
    # with more threads the processes wait for one another
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def show_output(name: str, process: subprocess.Popen[str], log: Path) -> None:
    """Print and keep what a training prints."""
    assert process.stdout is not None
    with log.open("w") as file:
        for line in process.stdout:
            file.write(line)
            print(f"{name:10}{line}", end="", flush=True)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_video_model.train_all", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the checkpoints")
    parser.add_argument("--minutes", type=float, default=8.5, help="time of the training (default: 8.5)")
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help="which to train (default: all)"
    )
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    processes = max(1, min(8, (os.cpu_count() or 1) // len(options.models)))
    running = {name: start_training(name, options.output, options.minutes, processes) for name in options.models}
    threads = [
        threading.Thread(target=show_output, args=(name, process, options.output / f"{name}.log"))
        for name, process in running.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [name for name, process in running.items() if process.wait() != 0]
    if failed:
        sys.exit(f"the training of {', '.join(failed)} failed; see {options.output}/*.log")


if __name__ == "__main__":
    main()
