"""Table "second-pass": the cost of the second selection over the survivors of all blocks.

Its gain in coverage is in the table "blocks".
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

import floc
from benchmarks import harness
from benchmarks.harness import Contender
from benchmarks.markdown import RATIO_NOTE, show_environment, show_ms, show_ratio, show_records
from benchmarks.quality import count_tokens, normalize
from benchmarks.registry import BenchTable, Echo
from benchmarks.synthetic import Shape

RATIOS = ("1/8", "1/32")
USUAL, SMALL = Shape(784, 6, 10, 3584), Shape(70, 2, 5, 32)
PAPER = "floc-paper"
TIMED: dict[str, dict[str, Any]] = {
    PAPER: {"block": 32, "detail": 1},
    "dedupe=2, detail=1": {"dedupe": 2, "detail": 1},
    "dedupe=2, detail=2": {"dedupe": 2, "detail": 2},
}


def run(small: bool, echo: Echo) -> dict:
    """Measure the time with and without the second pass."""
    return {"time": measure_time(SMALL if small else USUAL, 2 if small else 5, echo)}


def measure_time(shape: Shape, rounds: int, echo: Echo) -> list[dict]:
    """Return records of time, relative to the paper's single pass."""
    tokens = shape.make_tokens()
    records = []
    for ratio in RATIOS:
        coverage = {}
        for name, options in TIMED.items():
            kept = floc.compress(tokens, ratio=ratio, **options)
            _check_kept(tokens, kept, count_tokens(ratio, shape.n))
            coverage[name] = kept.coverage
        contenders = [
            Contender(name, partial(floc.compress, tokens, ratio=ratio, **options)) for name, options in TIMED.items()
        ]
        for timing in harness.compare(contenders, PAPER, rounds=rounds):
            record = {"case": "second pass, time", "n": shape.n, "d": shape.dim, "keep": ratio, **asdict(timing)}
            records.append(record | {"coverage": coverage[timing.contender]})
            echo(f"n={shape.n} {ratio}  {timing.contender}: {timing.ms:.0f} ms, {timing.ratio:.2f}x")
    return records


def _check_kept(tokens: np.ndarray, kept: floc.Kept, count: int) -> None:
    """Raise unless `kept` has `count` tokens and its coverage is the mean cosine of tokens to their representatives."""
    cosines = []
    representatives = np.asarray(kept.indices)[np.asarray(kept.represents)].reshape(len(tokens), -1)
    flat = tokens.reshape(-1, tokens.shape[-1])
    for frame, indices in zip(tokens, representatives, strict=True):
        cosines.append((normalize(frame) * normalize(flat[indices])).sum(1).mean())
    coverage = float(np.mean(cosines))
    if len(kept) != count or abs(coverage - kept.coverage) > 1e-3:
        raise AssertionError(
            f"{len(kept)} tokens kept for a budget of {count}; coverage is {coverage:.5f}, {kept.coverage:.5f} is "
            "reported"
        )


def _show_time(document: dict) -> str:
    records = document["time"]
    columns = {
        f"{records[0]['n']:,} tokens, d = {records[0]['d']}": lambda record: record["contender"],
        "kept": lambda record: record["keep"],
        "time, ms": show_ms,
        f"ratio to {PAPER}": show_ratio,
        "coverage": lambda record: f"{record['coverage']:.4f}",
    }
    environment = show_environment(document, "python", "numpy", "torch", "numba")
    return show_records(records, columns, f"Ratios: {RATIO_NOTE}.", environment)


TABLE = BenchTable("second-pass", run, {"second-pass-time": _show_time})
