"""Table "video": time from a video file to kept tokens, and memory against the length of the video.

Long videos repeat one video, copied packet by packet. Memory is the peak of a process of its own, without the features,
which are the result. Videos are those in `$FLOC_DATA`, or the demo's film.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import floc
from benchmarks.markdown import show_environment, show_records
from benchmarks.memory import read_status_bytes
from benchmarks.processes import run_module
from benchmarks.registry import BenchTable, Echo
from benchmarks.videos import open_videos, repeat_video
from floc import encoders
from floc.encoders.load import load_tokens

ENCODERS = ("pixels", "mobilenet")
RATIO = "1/8"
MINUTES = (1, 60)
STAGES = READ, COMPRESS = ("read and encode", "and compress to 1/32")


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure speed on every video, and memory on one of them."""
    with open_videos(small) as paths:
        speed = [_measure_speed(path, encoder, echo) for path in paths for encoder in ENCODERS[: 1 if small else None]]
        memory = []
        with tempfile.TemporaryDirectory() as folder:
            for minutes in (0.05, 0.2) if small else MINUTES:
                path = Path(folder) / f"{minutes}.mkv"
                repeat_video(paths[0], path, 60 * minutes)
                memory += [_measure_memory(path, minutes, stage, echo) for stage in STAGES]
                path.unlink()
    return {"speed": speed, "memory": memory, "ratio": RATIO}


def _measure_speed(path: Path, encoder: str, echo: Echo) -> dict[str, Any]:
    """Return seconds of reading alone, of reading and encoding, and of selecting, from the second of two runs."""
    from floc.video import read

    network = encoders.get(encoder)
    for _ in range(2):  # the first run compiles and loads
        started = time.perf_counter()
        for _frames in read(path, size=network.frame_size):
            pass
        read_s = time.perf_counter() - started
        started = time.perf_counter()
        loaded = load_tokens(path, encoder=encoder)
        encode_s = time.perf_counter() - started
        started = time.perf_counter()
        kept = floc.compress(loaded.tokens, ratio=RATIO)
        select_s = time.perf_counter() - started
    record = {
        "film": path.name,
        "duration_s": loaded.video.duration_s,
        "native_fps": loaded.video.native_fps,
        "encoder": encoder,
        "frames": loaded.video.frames,
        "tokens": kept.n,
        "read_s": read_s,
        "read_and_encode_s": encode_s,
        "choose_s": select_s,
        "times_real_time": loaded.video.duration_s / (encode_s + select_s),
    }
    echo(f"{path.name}, {encoder}: {record['times_real_time']:.0f}x real time")
    return record


def _measure_memory(path: Path, minutes: float, stage: str, echo: Echo) -> dict[str, Any]:
    record = {"minutes": minutes, "stage": stage, **run_module("benchmarks.tables.video", str(path), stage)}
    echo(f"{minutes} minutes, {stage}: {(record['peak_bytes'] - record['feature_bytes']) / 1e6:.0f} MB")
    return record


def _measure_peak(path: str, stage: str) -> dict[str, int]:
    """Return the peak memory of this process, and the bytes of the features."""
    tokens = load_tokens(Path(path), encoder="pixels").tokens
    if stage == COMPRESS:
        floc.compress(tokens, ratio="1/32")
    features = np.asarray(tokens)
    return {"peak_bytes": read_status_bytes("VmHWM"), "feature_bytes": features.nbytes, "frames": len(features)}


def _show_speed(document: dict[str, Any]) -> str:
    columns = {
        "video": lambda row: f"{row['film']}, {row['duration_s']:.0f} s at {row['native_fps']:.0f} fps",
        "encoder": lambda row: row["encoder"],
        "tokens": lambda row: f"{row['tokens']:,}",
        "reading, s": lambda row: f"{row['read_s']:.2f}",
        "reading and encoding, s": lambda row: f"{row['read_and_encode_s']:.2f}",
        "selection, s": lambda row: f"{row['choose_s']:.2f}",
        "real time": lambda row: f"{row['times_real_time']:.0f}x",
    }
    note = (
        f"One frame a second, kept {document['ratio']}. Reading: decoding and scaling alone. Real time: the video's "
        "length over the time of reading, encoding and selection."
    )
    environment = show_environment(document, "python", "numpy", "torch", "numba", "av")
    return show_records(document["speed"], columns, note, environment)


def _show_memory(document: dict[str, Any]) -> str:
    def compute_net(record: dict[str, Any]) -> float:
        return record["peak_bytes"] - record["feature_bytes"]

    shortest: dict[str, float] = {}
    for record in document["memory"]:
        shortest.setdefault(record["stage"], compute_net(record))
    columns = {
        "video": lambda row: f"{row['minutes']:g} min, {row['frames']:,} frames",
        "stage": lambda row: row["stage"],
        "peak, MB": lambda row: f"{row['peak_bytes'] / 1e6:.0f}",
        "features, MB": lambda row: f"{row['feature_bytes'] / 1e6:.0f}",
        "peak less features, MB": lambda row: f"{compute_net(row) / 1e6:.0f}",
        "ratio to the short video": lambda row: f"{compute_net(row) / shortest[row['stage']]:.2f}x",
    }
    records = sorted(document["memory"], key=lambda record: STAGES.index(record["stage"]))
    note = "One frame a second, encoder pixels, each in a process of its own."
    return show_records(records, columns, note, show_environment(document, "python", "torch", "av"))


TABLE = BenchTable("video", run, {"video": _show_speed, "video-memory": _show_memory})

if __name__ == "__main__":
    print(json.dumps(_measure_peak(sys.argv[1], sys.argv[2])))
