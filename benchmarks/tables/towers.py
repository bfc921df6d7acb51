"""Table "towers": the speed of encoders on this device, and the size of an hour of their tokens.

Qwen2.5-VL-7B's vision tower has random weights, which cost the same time as trained ones. On a CPU it is a tiny one,
which only shows that the table works.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import harness, models
from benchmarks.markdown import show_environment, show_number, show_records, show_rows
from benchmarks.registry import BenchTable, Echo
from floc import encoders
from floc.encoders.mobilenet import weights_path
from floc.encoders.vision_tower import VisionTower
from floc.families.processing import VideoPreparer

SIZE = (1920, 1080)  # of the video
BATCH = 16
ROUNDS = 5
# maximum pixels of a frame: the default of Qwen's own tools, and about what the FLoC paper uses
QWEN_TOKENS = {"Qwen2.5-VL-7B, large": 768, "Qwen2.5-VL-7B, small": 120}  # of two frames
HOUR_FRAMES = 3600  # one a second
# archives to estimate: hours of video, and the hours available
TASKS = {"1,000 cameras, live": (1000.0, 1.0), "1,000,000 hours, in 30 days": (1e6, 720.0)}
RATIO = 1 / 32
INGEST = Path(__file__).resolve().parents[1] / "results" / "ingest.json"


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Time encoders on frames of noise."""
    device = harness.get_device()
    tiny = small or device.type == "cpu"
    networks: dict[str, Any] = {"pixels": encoders.get("pixels")}
    if weights_path() is not None:
        networks["mobilenet"] = encoders.get("mobilenet", device=str(device))
    if importlib.util.find_spec("transformers") is not None:
        networks |= _make_towers(device, tiny)
    records = [_measure(name, network, device, 1 if small else ROUNDS, echo) for name, network in networks.items()]
    return {"ran_on": harness.get_gpu_name() or "CPU", "tiny": tiny, "encoders": records}


def _make_towers(device: torch.device, tiny: bool) -> dict[str, VisionTower]:
    model = models.make_qwen(device, tiny).model
    del model.language_model
    return {
        name: VisionTower(name, VideoPreparer(models.make_processor(tokens)), model=model)
        for name, tokens in QWEN_TOKENS.items()
    }


def _measure(name: str, encoder: Any, device: torch.device, rounds: int, echo: Echo) -> dict[str, Any]:
    width, height = encoder.frame_size(*SIZE)
    pixels = np.random.default_rng(0).integers(0, 255, (BATCH, height, width, 3), np.uint8)
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        tokens = encoder(pixels)
        harness.synchronize(device)
        times.append(time.perf_counter() - started)
    record = {
        "encoder": name,
        "size": [width, height],
        "frames_s": BATCH / statistics.median(times[1:]),
        "tokens_a_frame": tokens.shape[0] * tokens.shape[1] * tokens.shape[2] / BATCH,
        "dim": tokens.shape[3],
        "bytes": tokens.dtype.itemsize,
    }
    echo(f"{name}: {record['frames_s']:.1f} frames/s")
    return record


def compute_hour_bytes(record: dict[str, Any], ratio: float) -> float:
    """Return the bytes of an hour of features at one frame a second."""
    return HOUR_FRAMES * record["tokens_a_frame"] * ratio * record["dim"] * record["bytes"]


def _show(document: dict[str, Any]) -> str:
    columns = {
        "encoder": lambda row: row["encoder"],
        "frame": lambda row: f"{row['size'][0]} x {row['size'][1]}",
        "tokens a frame": lambda row: show_number(row["tokens_a_frame"]),
        "features": lambda row: f"{row['dim']:,}",
        "frames/s": lambda row: show_number(row["frames_s"]),
        "seconds for an hour": lambda row: show_number(HOUR_FRAMES / row["frames_s"]),
        "GB an hour, all": lambda row: show_number(compute_hour_bytes(row, 1) / 1e9),
        "MB an hour, 1/8": lambda row: show_number(compute_hour_bytes(row, 1 / 8) / 1e6),
        "MB an hour, 1/32": lambda row: show_number(compute_hour_bytes(row, 1 / 32) / 1e6),
    }
    note = (
        f"A video of {SIZE[0]} x {SIZE[1]}, one frame a second, on {document['ran_on']}, {BATCH} frames at a time, "
        "pixels in host memory, decoding not included. Two frames make one slice of Qwen's tokens. Qwen2.5-VL-7B has "
        "random weights. Sizes are those of the features."
    )
    tiny = "Qwen's tower is a tiny one here: its times say nothing." if document["tiny"] else ""
    return show_records(
        document["encoders"], columns, note, tiny, show_environment(document, "python", "torch", "transformers")
    )


def _show_scale(document: dict[str, Any]) -> str:
    """Estimate machines and bytes of large archives, from these times and those of the table "ingest"."""
    decoding = _read_decoding()
    rows = []
    for task, (video_h, hours) in TASKS.items():
        pace = video_h / hours
        for record in document["encoders"]:
            hour_tb = compute_hour_bytes(record, RATIO) / 1e12
            cores = [show_number(pace * seconds / 3600) for seconds in decoding.values()]
            total = "" if hours == 1 else show_number(video_h * hour_tb)
            devices = show_number(pace / record["frames_s"])
            rows.append([task, record["encoder"], devices, *cores, show_number(pace * 24 * hour_tb), total])
    head = ["task", "encoder", f"encoders ({document['ran_on']})", *(f"cores to decode {kind}" for kind in decoding)]
    note = (
        "One frame a second, 1/32 kept. Encoders: number of devices that encode all of the time. Cores: those on which "
        "`python -m benchmarks ingest` ran."
    )
    return show_rows([*head, "TB a day", "TB in total"], rows, note, show_environment(document, "torch"))


def _read_decoding() -> dict[str, float]:
    """Return the CPU seconds to decode an hour, by kind of video, if the table "ingest" was measured."""
    try:
        measured = json.loads(INGEST.read_text())["decode"]
    except (OSError, LookupError):
        return {}
    return {record["film"]: record["seconds"] * 3600 / record["footage_s"] for record in measured}


TABLE = BenchTable("towers", run, {"towers": _show, "towers-scale": _show_scale})
