"""The table "capture": how much memory it takes to capture a film, against its length.

A tiny Qwen2.5-VL with random weights looks at one film over and over, a frame a second, each length in a process of its
own, with the same budget. Frames are decoded as they are looked at, so neither pixels nor tokens of the whole film are
ever there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.memory import status_bytes
from benchmarks.tables import Echo, Table, where
from benchmarks.video import films, loop
from floc._format import markdown_table

FRAMES = (256, 1024, 7200)
BUDGET = 4096


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Capture films of several lengths."""
    records = []
    with films(small) as paths, tempfile.TemporaryDirectory() as folder:
        for frames in (8, 16) if small else FRAMES:
            film = Path(folder) / f"{frames}.mkv"
            loop(paths[0], film, frames)
            command = [sys.executable, "-m", __name__, str(film), str(BUDGET if not small else 40)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            film.unlink()
            if done.returncode:
                raise RuntimeError(f"measuring memory failed:\n{done.stderr}")
            records.append({"film": paths[0].name, **json.loads(done.stdout)})
            echo(f"{records[-1]['frames']} frames: {records[-1]['peak_bytes'] / 1e6:.0f} MB")
    return {"films": records}


def _peak(path: Path, budget: int) -> dict[str, Any]:
    """In a process of its own: the most memory it held, and what was captured."""
    import numpy as np
    import torch

    import floc
    from benchmarks.answer import qwen
    from floc.tokens import Frames

    model = qwen(torch.device("cpu"), small=True)
    with tempfile.TemporaryDirectory() as folder:
        values = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3, min_pixels=28 * 28, max_pixels=80 * 28 * 28)
        (Path(folder) / "preprocessor_config.json").write_text(json.dumps(values))
        few = [Frames(np.zeros((64, 224, 280, 3), np.uint8), np.arange(64.0))]
        floc.capture(model, few, ratio=1 / 8, source=folder)  # compiles and loads
        before = status_bytes("VmRSS")
        started = time.perf_counter()
        video = floc.capture(model, path, budget=budget, fps=1, source=folder)
        seconds = time.perf_counter() - started
    return {
        "frames": video.shape[0] * video.frames_per_slice,
        "tokens": video.n,
        "kept": len(video),
        "before_bytes": before,
        "peak_bytes": status_bytes("VmHWM"),
        "seconds": seconds,
    }


def _view(document: dict[str, Any]) -> str:
    first = document["films"][0]
    rows = [
        (
            f"{each['frames']:,}",
            f"{each['tokens']:,}",
            f"{each['kept']:,}",
            f"{each['before_bytes'] / 1e6:.0f}",
            f"{each['peak_bytes'] / 1e6:.0f}",
            f"{each['peak_bytes'] / first['peak_bytes']:.2f}x",
            f"{each['seconds']:.0f}",
        )
        for each in document["films"]
    ]
    head = ("frames", "tokens", "kept", "before, MB", "peak, MB", "against the shortest", "seconds")
    note = (
        f"{first['film']} over and over, a frame a second, a tiny model with random weights, the same budget, each in "
        f"a process of its own. {where(document, 'python', 'torch', 'av')}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


TABLE = Table("capture", run, {"capture": _view})

if __name__ == "__main__":
    print(json.dumps(_peak(Path(sys.argv[1]), int(sys.argv[2]))))
