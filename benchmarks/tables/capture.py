"""Table "capture": peak memory of capturing a video, against its length.

A tiny Qwen2.5-VL with random weights captures one video repeated to several lengths, one frame a second, with the same
budget, each length in a process of its own. Frames are decoded as they are needed, so neither the pixels nor the tokens
of the whole video are in memory at once.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.markdown import show_environment, show_records
from benchmarks.memory import read_status_bytes
from benchmarks.models import make_processor, make_qwen
from benchmarks.processes import run_module
from benchmarks.registry import BenchTable, Echo
from benchmarks.videos import open_videos, repeat_video

FRAMES = (256, 1024, 7200)
BUDGET = 4096
STAGES = ("decode", "preprocess", "vision", "select")


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Capture videos of several lengths."""
    budget = 40 if small else BUDGET
    records = []
    with open_videos(small) as paths, tempfile.TemporaryDirectory() as folder:
        for frames in (8, 16) if small else FRAMES:
            path = Path(folder) / f"{frames}.mkv"
            repeat_video(paths[0], path, frames)
            records.append({"film": paths[0].name, **run_module("benchmarks.tables.capture", str(path), str(budget))})
            path.unlink()
            echo(f"{records[-1]['frames']} frames: {records[-1]['peak_bytes'] / 1e6:.0f} MB")
    return {"films": records}


def _measure_peak(path: Path, budget: int) -> dict[str, Any]:
    """Capture a video in this process; return its peak memory and the size of the result."""
    import floc
    from floc.tokens import Frames

    model = make_qwen(torch.device("cpu"), tiny=True)
    processor = make_processor(max_tokens=80)
    frames = [Frames(np.zeros((64, 224, 280, 3), np.uint8), np.arange(64.0))]
    floc.capture(model, frames, ratio=1 / 8, processor=processor)  # compiles and loads
    before = read_status_bytes("VmRSS")
    started = time.perf_counter()
    video = floc.capture(model, path, budget=budget, fps=1, max_frames="all", processor=processor)
    seconds = time.perf_counter() - started
    return {
        "frames": video.shape[0] * video.frames_per_slice,
        "tokens": video.n,
        "kept": len(video),
        "before_bytes": before,
        "peak_bytes": read_status_bytes("VmHWM"),
        "seconds": seconds,
        "stages": dict(video.made["seconds"]),
    }


def _show_stage(stage: str, row: Mapping[str, Any]) -> str:
    return f"{row.get('stages', {}).get(stage, math.nan) / row['frames'] * 1e3:.1f}"


def _show(document: dict[str, Any]) -> str:
    first = document["films"][0]
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "frames": lambda row: f"{row['frames']:,}",
        "tokens": lambda row: f"{row['tokens']:,}",
        "kept": lambda row: f"{row['kept']:,}",
        "before, MB": lambda row: f"{row['before_bytes'] / 1e6:.0f}",
        "peak, MB": lambda row: f"{row['peak_bytes'] / 1e6:.0f}",
        "ratio to the shortest": lambda row: f"{row['peak_bytes'] / first['peak_bytes']:.2f}x",
        "seconds": lambda row: f"{row['seconds']:.0f}",
        **{f"{stage}, ms a frame": partial(_show_stage, stage) for stage in STAGES},
    }
    note = (
        f"{first['film']} repeated, one frame a second, a tiny model with random weights, the same budget, each in a "
        "process of its own."
    )
    return show_records(document["films"], columns, note, show_environment(document, "python", "torch", "av"))


TABLE = BenchTable("capture", run, {"capture": _show})

if __name__ == "__main__":
    print(json.dumps(_measure_peak(Path(sys.argv[1]), int(sys.argv[2]))))
