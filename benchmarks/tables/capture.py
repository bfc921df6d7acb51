"""Table "capture": peak memory of capturing a video, against its length, and the share of decoding and preprocessing.

A tiny Qwen2.5-VL with random weights captures one video repeated to several lengths, one frame a second, with the same
budget, each length in a process of its own. Frames are decoded as they are needed, so neither the pixels nor the tokens
of the whole video are in memory at once. A short video is also captured with a larger vision encoder.
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
# vision encoders by name; those of models with 7 billion parameters have 32 layers of 1280 values
TOWERS: dict[str, dict[str, Any]] = {
    "2 layers of 16 values": {},
    "12 layers of 384 values": dict(
        depth=12, hidden_size=384, intermediate_size=1536, num_heads=6, fullatt_block_indexes=[2, 5, 8, 11]
    ),
}
TOWER_FRAMES = 128


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
        towers = []
        for name in TOWERS:
            path = Path(folder) / "short.mkv"
            repeat_video(paths[0], path, 8 if small else TOWER_FRAMES)
            found = run_module("benchmarks.tables.capture", str(path), str(budget // 4), name)
            towers.append({"film": paths[0].name, "tower": name, **found})
            echo(f"{name}: {_read_share(towers[-1]):.0%} of {found['seconds']:.1f} s before the vision encoder")
    return {"films": records, "towers": towers}


def _measure_peak(path: Path, budget: int, tower: str = next(iter(TOWERS))) -> dict[str, Any]:
    """Capture a video in this process; return its peak memory, the seconds and the size of the result."""
    import floc
    from floc.tokens import Frames

    model = make_qwen(torch.device("cpu"), tiny=True, vision=TOWERS[tower])
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
        "threads": torch.get_num_threads(),
    }


def _read_share(row: Mapping[str, Any]) -> float:
    """Return the share of decoding and preprocessing in the seconds of a capture."""
    return (row["stages"]["decode"] + row["stages"]["preprocess"]) / row["stages"]["total"]


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


def _show_towers(document: dict[str, Any]) -> str:
    rows = document["towers"]
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "vision encoder": lambda row: row["tower"],
        **{f"{stage}, ms a frame": partial(_show_stage, stage) for stage in STAGES},
        "decode and preprocess, share": lambda row: f"{_read_share(row):.0%}",
    }
    note = (
        f"{rows[0]['film']}, {rows[0]['frames']} frames, one a second, {rows[0]['tokens']:,} tokens, random weights, "
        f"{rows[0]['threads']} threads. All frames between are decoded, too."
    )
    return show_records(rows, columns, note, show_environment(document, "python", "torch", "av"))


TABLE = BenchTable("capture", run, {"capture": _show, "capture-stages": _show_towers})

if __name__ == "__main__":
    print(json.dumps(_measure_peak(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])))
