"""The table "stream": ten hours in bounded memory, what a push costs, and how much is lost against one look at it all.

A made-up camera shows six places in turn, ten minutes each, with noise of its own every time, a frame a second of 60
tokens. In the first hour one frame has a thing in it, four tokens large, that never comes back. Time is compared with
that of choosing from plain blocks, in the same run. The value is compared with that of greedy over the whole film as
one set, which can be computed for an hour of 12 tokens a frame.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.memory import status_bytes
from benchmarks.tables import Echo, Table, where
from floc._format import markdown_table
from floc.representatives import find_nearest
from floc.synthetic import film

HOURS = 10
BUDGET = 4096  # for hours
BUDGETS = (1024, 4096)  # for an hour of fewer tokens
DIM = 1280
PLACES = 6
CHUNK = 600  # frames at a place
BLOCK = 32


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure memory and time over many hours, and value over one."""
    scale = 20 if small else 1
    dim = 64 if small else DIM
    _warm_up()
    hours = [_endless(BUDGET // scale, HOURS, 3600 // scale, dim, echo)]
    values = [_value(budget // scale, 3600 // scale, dim, echo) for budget in BUDGETS]
    return {"hours": hours, "values": values}


def _camera(frames: int, height: int, width: int, dim: int) -> Iterator[np.ndarray]:
    """[height, width, dim] float16, one after another."""
    places = [film(min(CHUNK, frames), height, width, dim, seed=seed) for seed in range(PLACES)]
    rng = np.random.default_rng(0)
    for t in range(frames):
        place = places[t // CHUNK % PLACES]
        frame = place[t % len(place)].astype(np.float32)
        grain = rng.standard_normal(frame.shape, dtype=np.float32) * (0.1 * np.linalg.norm(frame[0, 0]) / dim**0.5)
        yield (frame + grain).astype(np.float16)


def _with_needle(frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same frame with a thing in it that covers two cells by two, and the [4, dim] tokens of that thing."""
    rng = np.random.default_rng(999)
    frame = frame.astype(np.float32)
    length = np.linalg.norm(frame[0, 0])
    look = rng.standard_normal((frame.shape[-1],))
    cells = look / np.linalg.norm(look) + 0.2 * rng.standard_normal((2, 2, len(look))) / len(look) ** 0.5
    frame[2:4, 4:6] = 0.5 * frame[2:4, 4:6] + length * cells
    frame = frame.astype(np.float16)
    return frame, frame[2:4, 4:6].reshape(4, -1)


def _warm_up() -> None:
    """Compile all that pushes and plain blocks need."""
    import floc

    tokens = np.stack([*_camera(8 * BLOCK, 2, 3, 16)])
    stream = floc.Stream(budget=100, block=BLOCK)
    for frame in tokens:
        stream.push(frame)
    stream.kept()
    floc.compress(tokens[:BLOCK], budget=9, dedupe=1, block=None)


class _Watch:
    """Adds up how long something takes, by the clock and in processor time."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = self.slowest_s = 0.0

    def __enter__(self) -> None:
        self._since = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        wall, cpu = self._since
        took = time.perf_counter() - wall
        self.wall_s, self.slowest_s = self.wall_s + took, max(self.slowest_s, took)
        self.cpu_s += time.process_time() - cpu


def _endless(budget: int, hours: int, hour: int, dim: int, echo: Echo) -> dict[str, Any]:
    """Push for hours; note memory, time and the needle after each."""
    import floc

    stream = floc.Stream(budget=budget, block=BLOCK)
    needle = np.zeros((1, dim), np.float16)
    record: dict[str, Any] = {"budget": budget, "dim": dim, "hour_frames": hour, "hours": []}
    push, plain = _Watch(), _Watch()
    pending: list[np.ndarray] = []
    for t, frame in enumerate(_camera(hours * hour, 6, 10, dim)):
        if t == hour // 2:
            frame, needle = _with_needle(frame)
        with push:
            stream.push(frame, time_s=float(t))
        pending.append(frame)
        if len(pending) == BLOCK:
            tokens = np.stack(pending)
            pending = []
            if t // BLOCK % 8 == 0:  # one block in eight tells what plain blocks cost
                with plain:
                    floc.compress(tokens, budget=max(1, budget // (t // BLOCK + 1)), dedupe=1, block=None)
        if (t + 1) % hour == 0:
            kept = stream.kept()
            cosine, _ = find_nearest(torch.from_numpy(needle), torch.from_numpy(np.asarray(kept.features)))
            record["hours"].append(
                {
                    "resident_bytes": status_bytes("VmRSS"),
                    "push_s": push.wall_s,
                    "plain_s": 8 * plain.wall_s,
                    "push_cpu_s": push.cpu_s,
                    "plain_cpu_s": 8 * plain.cpu_s,
                    "slowest_push_s": push.slowest_s,
                    "coverage": kept.coverage,
                    "needle_mean": float(cosine.mean()),
                    "needle_best": float(cosine.max()),
                }
            )
            last = record["hours"][-1]
            echo(
                f"budget {budget}, hour {len(record['hours'])}: {last['resident_bytes'] / 1e6:.0f} MB, pushes "
                f"{last['push_s'] / max(last['plain_s'], 1e-9):.2f}x of plain blocks, in processor time "
                f"{last['push_cpu_s'] / max(last['plain_cpu_s'], 1e-9):.2f}x, needle {last['needle_mean']:.3f}"
            )
    return record


def _value(budget: int, frames: int, dim: int, echo: Echo) -> dict[str, Any]:
    """The plain objective of a stream, as a share of what greedy over all tokens at once reaches."""
    import floc

    tokens = np.stack([*_camera(frames, 3, 4, dim)])
    stream = floc.Stream(budget=budget, block=BLOCK, detail=1)
    stream.push(tokens)
    streamed = _objective(tokens, stream.kept().features)
    plain = _objective(tokens, floc.compress(tokens, budget=budget, method="floc-paper").features)
    twice = _objective(tokens, floc.compress(tokens, budget=budget, method="floc-paper", dedupe=2).features)
    whole = _objective(tokens, floc.compress(tokens, budget=budget, method="floc-paper", block=None).features)
    record = {
        "budget": budget,
        "tokens": tokens.shape[0] * 12,
        "stream": streamed / whole,
        "blocks": plain / whole,
        "second pass": twice / whole,
        "whole": whole,
    }
    echo(f"budget {budget}: a stream has {record['stream']:.4f} of greedy's value, plain blocks {record['blocks']:.4f}")
    return record


def _objective(tokens: np.ndarray, kept: Any) -> float:
    flat = torch.from_numpy(tokens).reshape(-1, tokens.shape[-1])
    return float(find_nearest(flat, torch.from_numpy(np.asarray(kept)))[0].double().mean())


def _hours_view(document: dict[str, Any]) -> str:
    rows = []
    for each in document["hours"]:
        first = each["hours"][0]
        rows += [
            (
                f"{each['budget']:,}",
                str(hour),
                f"{now['resident_bytes'] / 1e6:.0f}",
                f"{now['resident_bytes'] / first['resident_bytes']:.2f}x",
                f"{now['push_s'] / now['plain_s']:.2f}x",
                f"{now['push_cpu_s'] / now['plain_cpu_s']:.2f}x",
                f"{now['slowest_push_s']:.2f}",
                f"{now['coverage']:.4f}",
                f"{now['needle_mean']:.3f}",
            )
            for hour, now in enumerate(each["hours"], 1)
        ]
    head = (
        "budget",
        "hour",
        "resident, MB",
        "against hour 1",
        "pushes against plain blocks",
        "in processor time",
        "slowest push, s",
        "coverage",
        "needle",
    )
    note = (
        f"A frame a second of 60 tokens, {document['hours'][0]['dim']} features, blocks of {BLOCK}. Pushes: all there "
        "were until then, against choosing from as many plain blocks, by the clock and in processor time, which other "
        "work on the machine disturbs less. Needle: mean cosine of the four tokens of a thing "
        "in one frame of the first hour with the closest kept token. The resident memory has the six places of the "
        "camera in it. "
        f"{where(document, 'python', 'numpy', 'torch', 'numba')}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


def _value_view(document: dict[str, Any]) -> str:
    rows = [
        (
            f"{each['budget']:,} of {each['tokens']:,}",
            *(f"{each[name]:.4f}" for name in ("blocks", "second pass", "stream")),
        )
        for each in document["values"]
    ]
    head = ("kept", "plain blocks", "second pass, all survivors", "stream")
    note = (
        "Mean cosine of all tokens with the closest kept one, as a share of what greedy over the whole film as one set "
        f"reaches; detail 1. {where(document, 'python', 'numpy', 'torch', 'numba')}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


TABLE = Table("stream", run, {"stream": _hours_view, "stream-value": _value_view})
