"""Table "stages": the share of decoding and preprocessing in a capture on a CPU, by the size of the vision encoder.

Qwen2.5-VL with random weights captures the start of a video, one frame a second, in a process for each encoder. On a
busy machine set GOMP_SPINCOUNT=0: threads of torch that wait in loops take the cores from one another.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.markdown import show_environment, show_records
from benchmarks.models import make_processor, make_qwen
from benchmarks.processes import run_module
from benchmarks.registry import BenchTable, Echo
from benchmarks.videos import open_videos, repeat_video

# vision encoders by name; that of a model with 7 billion parameters has 32 layers of 1280 values
TOWERS: dict[str, dict[str, Any] | None] = {
    "2 layers of 16 values": None,
    "12 layers of 384 values": dict(
        depth=12, hidden_size=384, intermediate_size=1536, num_heads=6, fullatt_block_indexes=[2, 5, 8, 11]
    ),
}
FRAMES = 128
STAGES = ("decode", "preprocess", "vision", "select", "other")


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Capture a video with every vision encoder."""
    records = []
    with open_videos(small) as paths, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "short.mkv"
        repeat_video(paths[0], path, 8 if small else FRAMES)
        for name in TOWERS:
            records.append({"tower": name, **run_module("benchmarks.tables.stages", str(path), name)})
            echo(f"{name}: {_read_share(records[-1]):.0%} of {records[-1]['stages']['total']:.1f} s")
        return {"film": paths[0].name, "captures": records}


def _measure_stages(path: Path, tower: str) -> dict[str, Any]:
    """Capture a video in this process; return the seconds of its stages."""
    import floc
    from floc.tokens import Frames

    model = make_qwen(torch.device("cpu"), tiny=True, vision=TOWERS[tower])
    processor = make_processor(max_tokens=80)
    frames = [Frames(np.zeros((4, 224, 280, 3), np.uint8), np.arange(4.0))]
    floc.capture(model, frames, ratio=1 / 8, processor=processor)  # compiles and loads
    video = floc.capture(model, path, ratio=1 / 8, fps=1, max_frames="all", processor=processor)
    return {
        "frames": video.shape[0] * video.frames_per_slice,
        "tokens": video.n,
        "threads": torch.get_num_threads(),
        "stages": dict(video.made["seconds"]),
    }


def _read_share(row: Mapping[str, Any]) -> float:
    """Return the share of decoding and preprocessing in the seconds of a capture."""
    return float((row["stages"]["decode"] + row["stages"]["preprocess"]) / row["stages"]["total"])


def _show_stage(stage: str, row: Mapping[str, Any]) -> str:
    return f"{row['stages'][stage] / row['frames'] * 1e3:.1f}"


def _show(document: dict[str, Any]) -> str:
    rows = document["captures"]
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "vision encoder": lambda row: row["tower"],
        **{f"{stage}, ms a frame": partial(_show_stage, stage) for stage in STAGES},
        "decode and preprocess": lambda row: f"{_read_share(row):.0%}",
    }
    note = (
        f"{rows[0]['frames']} frames of {document['film']}, one a second, with all frames between them decoded, too; "
        f"{rows[0]['tokens']:,} tokens; random weights; {rows[0]['threads']} threads."
    )
    return show_records(rows, columns, note, show_environment(document, "python", "torch", "av"))


TABLE = BenchTable("stages", run, {"stages": _show})

if __name__ == "__main__":
    print(json.dumps(_measure_stages(Path(sys.argv[1]), sys.argv[2])))
