"""Timing by turns: all contenders alternate on the same inputs in one process, and ratios are taken round by round.

A machine that slows down for a second slows all of a round alike, so the ratios of a round hold where its times do not.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import torch

from floc._system import count_threads
from floc.files import write_atomic

# what is over sooner is repeated within a round: a clock and a scheduler are no finer than this
SHORTEST_S = 0.02
MEASURED_PACKAGES = (
    "floc",
    "numpy",
    "torch",
    "triton",
    "transformers",
    "numba",
    "apricot-select",
    "submodlib-py",
    "kmedoids",
    "scikit-learn",
    "av",
)


@dataclass(frozen=True)
class Contender:
    """One way to do what all contenders of a case do."""

    name: str
    run: Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """How long a contender took, and how many times as long as the baseline did in the same round."""

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
    """Time contenders by turns.

    Args:
        contenders: what to time, each warmed up once first.
        baseline: the one that ratios are taken to; of several, the one that turns out the fastest.
        rounds: how often each has its turn.
        allowance_s: a contender slower than this / rounds has fewer turns, at least two. Never a baseline.
        patience_s: a contender that takes longer to warm up has no more turns: that was its only one. Never a baseline.
        clock: seconds.
    """
    baselines = [baseline] if isinstance(baseline, str) else list(baseline)
    warm = {each.name: _seconds(each, 1, clock) for each in contenders}
    turns = {name: max(2, int(min(rounds, allowance_s / max(warm[name], 1e-9)))) for name in warm}
    once = {name for name in warm if warm[name] > patience_s and name not in baselines}
    turns |= dict.fromkeys(once, 0) | dict.fromkeys(baselines, rounds)
    repeats = {name: max(1, math.ceil(SHORTEST_S / max(warm[name], 1e-6))) for name in warm}
    times: dict[str, list[float]] = {name: [warm[name]] if name in once else [] for name in warm}
    for turn in range(rounds):
        first = turn % len(contenders)  # nobody always runs in the cache that the same neighbour left
        for each in (*contenders[first:], *contenders[:first]):
            if turn < turns[each.name]:
                times[each.name].append(_seconds(each, repeats[each.name], clock))
    fastest = min(baselines, key=lambda name: float(np.median(times[name])))
    return [_timing(each.name, fastest, times) for each in contenders]


def _seconds(contender: Contender, repeats: int, clock: Callable[[], float]) -> float:
    started = clock()
    for _ in range(repeats):
        contender.run()
    return (clock() - started) / repeats


def _timing(name: str, baseline: str, times: dict[str, list[float]]) -> Timing:
    mine = np.array(times[name])
    ratios = mine / np.array(times[baseline][: len(mine)])
    low, middle, high = (float(each) for each in np.percentile(ratios, (20, 50, 80)))
    return Timing(name, baseline, float(np.median(mine)) * 1e3, middle, low, high, len(mine))


def device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def gpu_name() -> str | None:
    """The GPU's name, where there is one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def wait(device: torch.device) -> None:
    """Until all is done that a device was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def environment() -> dict:
    """Where and with what it was measured."""
    return {
        "device": {"cpu": _cpu_model(), "cores": count_threads(), "gpu": gpu_name()},
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in MEASURED_PACKAGES},
        "commit": _commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def write(document: dict, path: Path) -> Path:
    """Put a document in place of a file, which is never there by half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda temporary: temporary.write_text(json.dumps(document, indent=1) + "\n"))
    return path


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(distribution: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def _commit() -> str | None:
    """The commit of the checkout this package is part of, marked where the package was changed since."""
    package = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    with suppress(OSError, subprocess.CalledProcessError):
        git("ls-files", "--error-unmatch", "__init__.py")  # an installed copy may lie inside someone else's checkout
        return git("rev-parse", "HEAD") + ("-changed" if git("status", "--porcelain", ".") else "")
    return None
