"""Long runs: memory stays flat, and the numbers of threads and open files stay constant.

Three runs, each in a process of its own, which this process watches from outside through /proc:

    compress   many calls of `floc.compress`: sizes, dtypes, arrays and tensors, ratios, budgets and coverage in turn
    push       hours of frames pushed into a `floc.Stream` with a budget, saved and loaded now and then
    command    `floc stream` on a long, small video, with segments and a state
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import child_environment
from benchmarks.registry import Echo

LIMIT_BYTES = 24 << 20  # of growth after the warm-up: noise of the allocator, less than a byte per token of two hours
WARM_UP = 0.25  # share of the samples
TIMEOUT_S = 3600


@dataclass
class Samples:
    """What /proc shows about a process, again and again."""

    progress: list[float] = field(default_factory=list)  # in 0..1
    resident: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)

    def add(self, pid: int, progress: float) -> None:
        """Take a sample; ignored if the process has ended."""
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            handles = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:
            return
        facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "VmRSS" not in facts:
            return
        self.progress.append(progress)
        self.resident.append(int(facts["VmRSS"].split()[0]) * 1024)
        self.threads.append(int(facts["Threads"]))
        self.handles.append(handles)

    def summarize(self) -> dict[str, Any]:
        """Fit a line through the samples after the warm-up; return the facts."""
        first = next((i for i, value in enumerate(self.progress) if value >= WARM_UP), 0)
        progress, resident = np.array(self.progress[first:]), np.array(self.resident[first:], float)
        slope = float(np.polyfit(progress, resident, 1)[0]) if len(progress) > 2 else 0.0
        threads, handles = (np.array(values[first:]) for values in (self.threads, self.handles))
        middle = max(1, len(threads) // 2)
        growing = [
            name
            for name, values in (("threads", threads), ("open files", handles))
            if np.median(values[middle:]) > np.median(values[:middle])
        ]
        growth = slope * (1 - WARM_UP)
        return {
            "samples": len(progress),
            "start_bytes": int(np.median(resident[: max(1, len(resident) // 10)])),
            "end_bytes": int(np.median(resident[-max(1, len(resident) // 10) :])),
            "growth_bytes": int(growth),
            "threads": [int(threads.min()), int(threads.max())],
            "handles": [int(handles.min()), int(handles.max())],
            "defects": ([f"memory grows by {growth / 1e6:.0f} MB"] if growth > LIMIT_BYTES else [])
            + [f"the number of {name} grows" for name in growing],
        }


def watch(cwd: Path, kind: str, total: int, *arguments: str) -> dict[str, Any]:
    """Run `tests.soak.work`, which prints its progress as numbers, and take a sample at each."""
    started = time.monotonic()
    samples = Samples()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.work", kind, str(total), *arguments],
            cwd=cwd,
            env={**child_environment(), "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            samples.add(process.pid, float(line) / total)
        process.stdout.close()
        process.wait()
        timer.cancel()
        if process.returncode:
            errors.seek(0)
            text = errors.read().decode(errors="replace")[-1500:]
            raise RuntimeError(f"the soak test of {kind} ended with status {process.returncode}: {text}")
    return {**samples.summarize(), "seconds": time.monotonic() - started}


def _soak_compress(calls: int, folder: Path) -> dict[str, Any]:
    return {"what": "`floc.compress`", "work": f"{calls:,} calls", **watch(folder, "compress", calls)}


def _soak_push(seconds: int, folder: Path) -> dict[str, Any]:
    work = f"{seconds / 3600:.2g} hours at 4 frames a second"
    return {"what": "`floc.Stream.push`", "work": work, **watch(folder, "push", seconds)}


def _soak_command(seconds: int, folder: Path) -> dict[str, Any]:
    from tests.archive.films import make_film

    film = make_film(folder / "film.mkv", seconds, seed=1, rate=4)
    facts = watch(folder, "command", seconds, str(film))
    if segments := len(list((folder / "segments").glob("segment-*.safetensors"))):
        return {"what": "`floc stream`", "work": f"{seconds / 3600:.2g} hours, {segments} segments", **facts}
    raise RuntimeError("floc stream wrote no segment")


def run_soak(small: bool, echo: Echo) -> dict[str, Any]:
    """Run all, one after the other; return the figures."""
    rows = []
    calls, seconds = (40, 20) if small else (10_000, 7200)
    for soak in (_soak_compress, _soak_push, _soak_command):
        with tempfile.TemporaryDirectory(prefix="floc-soak-") as folder:
            row = soak(calls if soak is _soak_compress else seconds, Path(folder))
        if small:  # too short for a slope
            row["defects"] = [text for text in row["defects"] if "open files" in text]
        rows.append(row)
        echo(json.dumps(row))
    return {"rows": rows, "limit_bytes": LIMIT_BYTES, "defects": [text for row in rows for text in row["defects"]]}
