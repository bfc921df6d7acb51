"""The table "towers": how fast encoders are on this device, and how many tokens an hour of film has by each.

Qwen2.5-VL-7B's vision tower has random weights, which cost what trained ones do. On a CPU it is a tiny one, which says
nothing but that the table works. Frames are those of a wide film, as each encoder takes them.
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

from benchmarks import answer, harness
from benchmarks.tables import Echo, Table, number, where
from floc import encoders
from floc._format import markdown_table
from floc.encoders.vision_tower import PatchLayout, VisionTower

FILM = (1920, 1080)
BATCH = 16
ROUNDS = 5
# pixels of a frame, at most: what Qwen's own tools take by default, and about what the FLoC paper takes
QWEN_PIXELS = {"Qwen2.5-VL-7B, large": 768 * 28 * 28, "Qwen2.5-VL-7B, small": 120 * 28 * 28}
HOUR_FRAMES = 3600  # at one a second


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Time encoders on frames of noise."""
    device = harness.device()
    found: dict[str, Any] = {"pixels": encoders.get("pixels")}
    if has_mobilenet():
        found["mobilenet"] = encoders.get("mobilenet", device=str(device))
    if importlib.util.find_spec("transformers") is not None:
        found |= _qwen(device, small or device.type == "cpu")
    records = [_timed(name, encoder, device, 1 if small else ROUNDS, echo) for name, encoder in found.items()]
    return {"ran_on": harness.gpu_name() or "CPU", "tiny": small or device.type == "cpu", "encoders": records}


def has_mobilenet() -> bool:
    """Whether its weights are here."""
    from floc.encoders.mobilenet import weights_path

    return weights_path() is not None


def _qwen(device: torch.device, tiny: bool) -> dict[str, VisionTower]:
    model = answer.qwen(device, tiny).model
    del model.language_model
    mean, std = (torch.full((3,), value, device=device) for value in (123.0, 70.0))
    return {
        name: VisionTower(name, model, PatchLayout(14, 2, 2, 4 * 28 * 28, most), mean, std)
        for name, most in QWEN_PIXELS.items()
    }


def _timed(name: str, encoder: Any, device: torch.device, rounds: int, echo: Echo) -> dict[str, Any]:
    width, height = encoder.frame_size(*FILM)
    pixels = np.random.default_rng(0).integers(0, 255, (BATCH, height, width, 3), np.uint8)
    spent = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        tokens = encoder(pixels)
        harness.wait(device)
        spent.append(time.perf_counter() - started)
    seconds = statistics.median(spent[1:])
    record = {
        "encoder": name,
        "size": [width, height],
        "frames_s": BATCH / seconds,
        "tokens_a_frame": tokens.shape[0] * tokens.shape[1] * tokens.shape[2] / BATCH,
        "dim": tokens.shape[3],
        "bytes": tokens.dtype.itemsize,
    }
    echo(f"{name}: {record['frames_s']:.1f} frames/s")
    return record


def hour_bytes(record: dict[str, Any], ratio: float) -> float:
    """Of the features of an hour of film, at a frame a second."""
    return HOUR_FRAMES * record["tokens_a_frame"] * ratio * record["dim"] * record["bytes"]


def _view(document: dict[str, Any]) -> str:
    head = ["encoder", "frame", "tokens a frame", "features", "frames/s", "seconds an hour of film"]
    head += ["GB an hour, all", "MB an hour, 1/8", "MB an hour, 1/32"]
    rows = [
        [
            each["encoder"],
            f"{each['size'][0]} x {each['size'][1]}",
            number(each["tokens_a_frame"]),
            f"{each['dim']:,}",
            number(each["frames_s"]),
            number(HOUR_FRAMES / each["frames_s"]),
            number(hour_bytes(each, 1) / 1e9),
            number(hour_bytes(each, 1 / 8) / 1e6),
            number(hour_bytes(each, 1 / 32) / 1e6),
        ]
        for each in document["encoders"]
    ]
    tiny = " Qwen's tower is a tiny one here: its times say nothing." if document["tiny"] else ""
    note = (
        f"A film of {FILM[0]} x {FILM[1]}, a frame a second, on {document['ran_on']}, {BATCH} frames at a time, pixels "
        "from the host's memory, decoding not counted. Two frames make one slice of Qwen's tokens. Qwen2.5-VL-7B has "
        f"random weights.{tiny} Bytes are those of features. {where(document, 'python', 'torch', 'transformers')}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


# what is asked of an archive: hours of film, in hours
TASKS = {"1,000 cameras, live": (1000.0, 1.0), "1,000,000 hours, in 30 days": (1e6, 720.0)}
RATIO = 1 / 32


def _scale_view(document: dict[str, Any]) -> str:
    """Machines and bytes for large archives, from these times and those of `python -m benchmarks ingest`."""
    decoding = _decoding()
    rows = []
    for task, (film_h, hours) in TASKS.items():
        for each in document["encoders"]:
            pace = film_h / hours
            total = "" if hours == 1 else number(film_h * hour_bytes(each, RATIO) / 1e12)
            daily = number(pace * 24 * hour_bytes(each, RATIO) / 1e12)
            cores = [number(pace * seconds / 3600) for seconds in decoding.values()]
            rows.append([task, each["encoder"], number(pace / each["frames_s"]), *cores, daily, total])
    head = ["task", "encoder", f"encoders ({document['ran_on']})", *(f"cores to decode {film}" for film in decoding)]
    note = (
        "A frame a second, 1/32 kept. Encoders: devices that do nothing else, all of the time. Cores: those that `floc "
        f"bench ingest` ran on. {where(document, 'torch')}"
    )
    return f"{markdown_table([*head, 'TB a day', 'TB in all'], rows)}\n\n{note}"


def _decoding() -> dict[str, float]:
    """Seconds of a core for an hour of film, by kind of film, where that was measured."""
    try:
        measured = json.loads(Path("benchmarks/results/ingest.json").read_text())["decode"]
    except (OSError, LookupError):
        return {}
    return {each["film"]: each["seconds"] * 3600 / each["footage_s"] for each in measured}


TABLE = Table("towers", run, {"towers": _view, "towers-scale": _scale_view})
