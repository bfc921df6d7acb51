"""Time contenders in turn on the same inputs in one process, and take ratios round by round.

A machine that slows down for a second slows a whole round, so the ratios of a round hold even if its times do not.
"""

from __future__ import annotations

import importlib.metadata
import math
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from floc._system import count_threads

T = TypeVar("T")

# a shorter call is repeated within a round: clock and scheduler are no finer than this
SHORTEST_S = 0.02
# distributions whose versions are recorded with the results
_OURS = ("floc-video", "numpy", "torch", "triton", "transformers", "numba", "av")
PACKAGES = (*_OURS, "apricot-select", "submodlib-py", "kmedoids", "scikit-learn")


@dataclass(frozen=True)
class Contender:
    """One way to solve a case."""

    name: str
    run: Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """The time of a contender, and its ratio to the baseline's time in the same round."""

    contender: str
    baseline: str
    ms: float  # median
    ratio: float  # median
    ratio_p20: float
    ratio_p80: float
    rounds: int


def compare(
    contenders: Sequence[Contender],
    baseline: str | Sequence[str],
    *,
    rounds: int = 5,
    allowance_s: float = math.inf,
    patience_s: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time contenders in turn.

    Args:
        contenders: What to time. Each runs once first to warm up.
        baseline: The contender that ratios refer to; of several, the fastest one.
        rounds: Number of turns of each contender.
        allowance_s: A contender slower than this / rounds has fewer turns, but at least two. Not applied to baselines.
        patience_s: A contender that warms up for longer has no further turn: its warm-up counts. Not for baselines.
        clock: Returns seconds.
    """
    baselines = [baseline] if isinstance(baseline, str) else list(baseline)
    warm_s = {contender.name: _time_call(contender, 1, clock) for contender in contenders}
    turns = {name: max(2, int(min(rounds, allowance_s / max(warm_s[name], 1e-9)))) for name in warm_s}
    once = {name for name in warm_s if warm_s[name] > patience_s and name not in baselines}
    turns |= dict.fromkeys(once, 0) | dict.fromkeys(baselines, rounds)
    repeats = {name: max(1, math.ceil(SHORTEST_S / max(warm_s[name], 1e-6))) for name in warm_s}
    times: dict[str, list[float]] = {name: [warm_s[name]] if name in once else [] for name in warm_s}
    for turn in range(rounds):
        first = turn % len(contenders)  # rotate, so that nobody always runs after the same contender
        for contender in (*contenders[first:], *contenders[:first]):
            if turn < turns[contender.name]:
                times[contender.name].append(_time_call(contender, repeats[contender.name], clock))
    fastest = min(baselines, key=lambda name: float(np.median(times[name])))
    return [_summarize(contender.name, fastest, times) for contender in contenders]


def _time_call(contender: Contender, repeats: int, clock: Callable[[], float]) -> float:
    started = clock()
    for _ in range(repeats):
        contender.run()
    return (clock() - started) / repeats


def _summarize(name: str, baseline: str, times: dict[str, list[float]]) -> Timing:
    seconds = np.array(times[name])
    ratios = seconds / np.array(times[baseline][: len(seconds)])
    low, middle, high = np.percentile(ratios, (20, 50, 80)).tolist()
    return Timing(name, baseline, float(np.median(seconds)) * 1e3, middle, low, high, len(seconds))


class Failures:
    """Collects the errors of measurements, so that the others are kept if one fails."""

    def __init__(self, echo: Callable[[str], object]) -> None:
        self.reasons: list[str] = []
        self._echo = echo

    def attempt(self, what: str, measure: Callable[[], T]) -> T | None:
        """Return what a measurement returns, or None if it fails."""
        try:
            return measure()
        except Exception as error:
            self.reasons.append(f"{what}: {type(error).__name__}: {error}"[:500])
            self._echo(f"failed: {self.reasons[-1]}")
            return None


def get_device() -> torch.device:
    """Return the current GPU, or the CPU if there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def get_gpu_name() -> str | None:
    """Return the name of the GPU, or None if there is none."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def synchronize(device: torch.device) -> None:
    """Wait until all work queued on a device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def describe_environment() -> dict:
    """Return the machine, package versions, commit and date, JSON-serialisable."""
    return {
        "device": {"cpu": _get_cpu_name(), "cores": count_threads(), "gpu": get_gpu_name()},
        "versions": {"python": platform.python_version()} | {name: _get_version(name) for name in PACKAGES},
        "commit": _get_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _get_cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _get_version(distribution: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def _get_commit() -> str | None:
    """Return the commit of this checkout, with `-changed` if the package or the benchmarks have local changes."""
    root = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    with suppress(OSError, subprocess.CalledProcessError):
        git("ls-files", "--error-unmatch", "benchmarks/__init__.py")  # a copy may lie inside another checkout
        return git("rev-parse", "HEAD") + ("-changed" if git("status", "--porcelain", "src", "benchmarks/*.py") else "")
    return None
