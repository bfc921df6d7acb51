"""Table "stream": ten hours in bounded memory, the cost of a push, and the loss against selecting from the whole video.

A synthetic camera shows six places in turn, ten minutes each, with fresh noise, one frame of 60 tokens a second. In the
first hour one frame shows an object of four tokens that never returns. Time is compared with selection from plain
blocks in the same run. Coverage is compared with greedy over the whole video as one set, for an hour of 12 tokens a
frame.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

import floc
from benchmarks.markdown import show_environment, show_records
from benchmarks.memory import read_status_bytes
from benchmarks.registry import BenchTable, Echo
from benchmarks.synthetic import Shape
from floc.representatives import find_nearest

HOURS = 10
BUDGET = 4096  # for ten hours
BUDGETS = (1024, 4096)  # for an hour of fewer tokens
DIM = 1280
PLACES = 6
PLACE_FRAMES = 600
BLOCK = 32
PLAIN_EVERY = 8  # plain blocks are timed on one block in this many


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure memory and time over many hours, and coverage over one."""
    scale = 20 if small else 1
    dim = 64 if small else DIM
    _warm_up()
    hours = [_measure_hours(BUDGET // scale, 3600 // scale, dim, echo)]
    return {"hours": hours, "values": [_measure_value(budget // scale, 3600 // scale, dim, echo) for budget in BUDGETS]}


def _make_frames(frames: int, height: int, width: int, dim: int) -> Iterator[np.ndarray]:
    """Yield [height, width, dim] float16 frames."""
    shape = Shape(min(PLACE_FRAMES, frames), height, width, dim)
    places = [shape.make_tokens(seed) for seed in range(PLACES)]
    rng = np.random.default_rng(0)
    for t in range(frames):
        place = places[t // PLACE_FRAMES % PLACES]
        frame = place[t % len(place)].astype(np.float32)
        noise = rng.standard_normal(frame.shape, dtype=np.float32) * (0.1 * np.linalg.norm(frame[0, 0]) / dim**0.5)
        yield (frame + noise).astype(np.float16)


def _add_needle(frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the frame with an object of 2 x 2 cells, and the object's [4, dim] tokens."""
    rng = np.random.default_rng(999)
    frame = frame.astype(np.float32)
    length = np.linalg.norm(frame[0, 0])
    direction = rng.standard_normal((frame.shape[-1],))
    noise = 0.2 * rng.standard_normal((2, 2, len(direction))) / len(direction) ** 0.5
    frame[2:4, 4:6] = 0.5 * frame[2:4, 4:6] + length * (direction / np.linalg.norm(direction) + noise)
    frame = frame.astype(np.float16)
    return frame, frame[2:4, 4:6].reshape(4, -1)


def _warm_up() -> None:
    """Compile what pushes and plain blocks need."""
    tokens = np.stack([*_make_frames(8 * BLOCK, 2, 3, 16)])
    stream = floc.Stream(budget=100, block=BLOCK)
    for frame in tokens:
        stream.push(frame)
    stream.kept()
    floc.compress(tokens[:BLOCK], budget=9, horizon=None)


class _Stopwatch:
    """Add up wall time and CPU time of a `with` block."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = self.slowest_s = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        wall, cpu = self._started
        elapsed = time.perf_counter() - wall
        self.wall_s, self.slowest_s = self.wall_s + elapsed, max(self.slowest_s, elapsed)
        self.cpu_s += time.process_time() - cpu


def _measure_hours(budget: int, hour_frames: int, dim: int, echo: Echo) -> dict[str, Any]:
    """Push frames for HOURS; record memory, time and the needle after each hour."""
    stream = floc.Stream(budget=budget, block=BLOCK)
    needle = np.zeros((1, dim), np.float16)
    hours: list[dict[str, float]] = []
    push, plain = _Stopwatch(), _Stopwatch()
    pending: list[np.ndarray] = []
    for t, frame in enumerate(_make_frames(HOURS * hour_frames, 6, 10, dim)):
        if t == hour_frames // 2:
            frame, needle = _add_needle(frame)
        with push:
            stream.push(frame, time_s=float(t))
        pending.append(frame)
        if len(pending) == BLOCK:
            tokens = np.stack(pending)
            pending = []
            if t // BLOCK % PLAIN_EVERY == 0:
                with plain:
                    floc.compress(tokens, budget=max(1, budget // (t // BLOCK + 1)), horizon=None)
        if (t + 1) % hour_frames == 0:
            hours.append(_record_hour(stream.kept(), needle, push, plain))
            hour = hours[-1]
            echo(
                f"budget {budget}, hour {len(hours)}: {hour['resident_bytes'] / 1e6:.0f} MB, pushes take "
                f"{hour['push_s'] / max(hour['plain_s'], 1e-9):.2f}x the time of plain blocks, in CPU time "
                f"{hour['push_cpu_s'] / max(hour['plain_cpu_s'], 1e-9):.2f}x, needle {hour['needle_mean']:.3f}"
            )
    return {"budget": budget, "dim": dim, "hour_frames": hour_frames, "hours": hours}


def _record_hour(kept: floc.Kept, needle: np.ndarray, push: _Stopwatch, plain: _Stopwatch) -> dict[str, float]:
    cosine, _ = find_nearest(torch.from_numpy(needle), torch.from_numpy(np.asarray(kept.features)))
    return {
        "resident_bytes": read_status_bytes("VmRSS"),
        "push_s": push.wall_s,
        "plain_s": PLAIN_EVERY * plain.wall_s,
        "push_cpu_s": push.cpu_s,
        "plain_cpu_s": PLAIN_EVERY * plain.cpu_s,
        "slowest_push_s": push.slowest_s,
        "coverage": kept.coverage,
        "needle_mean": float(cosine.mean()),
        "needle_best": float(cosine.max()),
    }


def _measure_value(budget: int, frames: int, dim: int, echo: Echo) -> dict[str, Any]:
    """Return the coverage of a stream as a share of greedy's over all tokens at once."""
    tokens = np.stack([*_make_frames(frames, 3, 4, dim)])
    stream = floc.Stream(budget=budget, block=BLOCK, detail=1)
    stream.push(tokens)

    def compress(**options: Any) -> float:
        return _compute_coverage(tokens, floc.compress(tokens, budget=budget, method="floc-paper", **options).features)

    whole = compress(block=None)
    record = {
        "budget": budget,
        "tokens": tokens.shape[0] * 12,
        "stream": _compute_coverage(tokens, stream.kept().features) / whole,
        "blocks": compress() / whole,
        "second pass": compress(dedupe=2) / whole,
        "whole": whole,
    }
    echo(f"budget {budget}: a stream reaches {record['stream']:.4f} of greedy, plain blocks {record['blocks']:.4f}")
    return record


def _compute_coverage(tokens: np.ndarray, kept: Any) -> float:
    flat = torch.from_numpy(tokens).reshape(-1, tokens.shape[-1])
    return float(find_nearest(flat, torch.from_numpy(np.asarray(kept)))[0].double().mean())


def _show_hours(document: dict[str, Any]) -> str:
    records: list[Mapping[str, Any]] = [
        {**hour, "budget": run["budget"], "hour": number, "first": run["hours"][0]["resident_bytes"]}
        for run in document["hours"]
        for number, hour in enumerate(run["hours"], 1)
    ]
    columns = {
        "budget": lambda row: f"{row['budget']:,}",
        "hour": lambda row: str(row["hour"]),
        "resident, MB": lambda row: f"{row['resident_bytes'] / 1e6:.0f}",
        "ratio to hour 1": lambda row: f"{row['resident_bytes'] / row['first']:.2f}x",
        "pushes, ratio to plain blocks": lambda row: f"{row['push_s'] / row['plain_s']:.2f}x",
        "in CPU time": lambda row: f"{row['push_cpu_s'] / row['plain_cpu_s']:.2f}x",
        "slowest push, s": lambda row: f"{row['slowest_push_s']:.2f}",
        "coverage": lambda row: f"{row['coverage']:.4f}",
        "needle": lambda row: f"{row['needle_mean']:.3f}",
    }
    note = (
        f"One frame of 60 tokens a second, {document['hours'][0]['dim']} features, blocks of {BLOCK}. Pushes: the time "
        "of all pushes so far, relative to selection from as many plain blocks; CPU time is disturbed less by other "
        "work on the machine. Needle: mean cosine of the four tokens of an object, shown in one frame of the first "
        "hour, with the closest kept token. Resident memory includes the six places of the camera."
    )
    return show_records(records, columns, note, show_environment(document, "python", "numpy", "torch", "numba"))


def _show_values(document: dict[str, Any]) -> str:
    columns = {
        "kept": lambda row: f"{row['budget']:,} of {row['tokens']:,}",
        "floc-paper": lambda row: f"{row['blocks']:.4f}",
        "floc-paper, dedupe=2": lambda row: f"{row['second pass']:.4f}",
        "stream": lambda row: f"{row['stream']:.4f}",
    }
    note = (
        "Mean cosine of all tokens with the closest kept one, as a share of what greedy over the whole video as one "
        "set reaches; detail=1."
    )
    environment = show_environment(document, "python", "numpy", "torch", "numba")
    return show_records(document["values"], columns, note, environment)


TABLE = BenchTable("stream", run, {"stream": _show_hours, "stream-value": _show_values})
