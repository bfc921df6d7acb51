"""The work of a soak test, in a process of its own: `python -m tests.soak.work KIND AMOUNT`. Prints its progress."""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import floc

SHAPES = [(8, 4, 4, 32), (16, 6, 6, 24), (33, 5, 7, 16), (1, 2, 2, 8), (64, 3, 3, 48), (20, 49, 12), (7, 8, 8, 64)]
BUDGETS = [
    {"ratio": "1/8"},
    {"budget": 9},
    {"ratio": 0.25, "block": None},
    {"coverage": 0.8},
    {"ratio": "1/4", "dedupe": 1},
]
DTYPES = [np.float32, np.float16, torch.float32, torch.bfloat16]


def compress(calls: int) -> None:
    """Call `floc.compress` with every mix of shape, dtype and budget in turn."""
    rng = np.random.default_rng(0)
    mixes = itertools.cycle(itertools.product(SHAPES, DTYPES, BUDGETS))
    for call, (shape, dtype, budget) in zip(range(calls), mixes, strict=False):
        values = rng.standard_normal(shape, dtype=np.float32)
        is_torch = isinstance(dtype, torch.dtype)
        tokens = torch.from_numpy(values).to(dtype) if is_torch else values.astype(dtype)
        kept = floc.compress(tokens, **budget)
        if call % 3 == 0:
            kept.at(budget=max(1, len(kept) // 2))
        if call % max(1, calls // 400) == 0:
            print(call, flush=True)
    print(calls, flush=True)


def push(seconds: int) -> None:
    """Push four frames a second into a stream with a budget; save it and load it every ten minutes."""
    rng = np.random.default_rng(0)
    places = rng.standard_normal((6, 4, 5, 64), dtype=np.float32)
    stream = floc.Stream(budget=256, block=32)
    with tempfile.TemporaryDirectory() as folder:
        for frame in range(4 * seconds):
            tokens = places[frame // 400 % 6] + 0.3 * rng.standard_normal(places.shape[1:], dtype=np.float32)
            stream.push(tokens[None], time_s=[frame / 4])
            if frame % 2400 == 2399:
                stream.kept()
                stream.save(Path(folder) / "state")
                stream = floc.Stream.load(Path(folder) / "state")
            if frame % max(1, seconds // 100) == 0:
                print(frame / 4, flush=True)
    print(seconds, flush=True)


def command(seconds: int, film: str) -> None:
    """Run `floc stream` on a film; print how far it is."""
    from floc.cli import main
    from floc.streaming import recorder

    get_status = recorder.StreamRecorder._get_status
    count = itertools.count()

    def report(self, *arguments):  # type: ignore[no-untyped-def]
        status = get_status(self, *arguments)
        if next(count) % max(1, seconds // 100) == 0:
            print(status.time_s, flush=True)
        return status

    recorder.StreamRecorder._get_status = report  # type: ignore[method-assign]
    sys.argv = ["floc", "stream", film, "--encoder", "pixels", "--fps", "4", "--budget", "512", "--segment", "60"]
    sys.argv += ["--state", "film.state", "-o", "segments", "-q"]
    main()


if __name__ == "__main__":
    kind, amount, *rest = sys.argv[1:]
    {"compress": compress, "push": push, "command": command}[kind](int(amount), *rest)
