"""Table "horizon": selection within a horizon, against the product of its band alone and against the default.

The product starts from what a call has to prepare first: all tokens normalised in float32, and allocated memory. It
multiplies each slice with itself and with the slices after it, one slice at a time in every thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

import floc
from benchmarks import harness, memory
from benchmarks.harness import Contender
from benchmarks.markdown import RATIO_NOTE, show_environment, show_ms, show_ratio, show_records
from benchmarks.oracle import BlockTokens, compute_objective, greedy_float64, sharpen
from benchmarks.quality import count_tokens, normalize
from benchmarks.registry import BenchTable, Echo
from benchmarks.synthetic import Shape
from floc._system import count_threads, single_threaded_blas
from floc.methods.floc import choose_horizon
from floc.selection import reference
from floc.selection.objective import SCALE

PRODUCT, SECOND_PASS = "product of the band alone", "dedupe=2, detail=2"
OURS: dict[str, dict[str, Any]] = {
    "floc": {},
    "floc, detail=1": {"detail": 1},
}
RATIOS = ("1/8", "1/32")
LONGER = 10  # times as long a video


def run(small: bool, echo: Echo) -> dict:
    """Check picks against the reference, then measure time and memory."""
    usual, checked, weighed = Shape(784, 6, 10, 3584), Shape(64, 6, 10, 3584), Shape(200, 6, 10, 256)
    if small:
        usual = checked = weighed = Shape(40, 2, 5, 32)
    checks = [check_case(checked, ratio, options) for ratio in RATIOS for options in OURS.values()]
    echo(f"objective: at least {min(check['objective'] for check in checks):.6f} of float64 greedy's")
    return {
        "checks": checks,
        "time": measure_time(usual, 2 if small else 5, echo),
        "memory": measure_memory(weighed, echo),
    }


def check_case(shape: Shape, ratio: str, options: dict[str, Any]) -> dict:
    """Raise unless the picks are plain greedy's on the band, and the objective that of float64 greedy."""
    tokens, count = shape.make_tokens(), count_tokens(ratio, shape.n)
    horizon, detail = choose_horizon(shape.n, count), options.get("detail", 3)
    cells = shape.height * shape.width
    cosine = BlockTokens(tokens.reshape(-1, shape.dim)).cosine.clip(0, 1)
    slices = np.arange(shape.n) // cells
    similarity = np.where(np.abs(slices[:, None] - slices) <= horizon, sharpen(cosine, detail), 0)
    kept = floc.compress(tokens, ratio=ratio, **options)
    best = compute_objective(similarity, greedy_float64(similarity, count))
    share = compute_objective(similarity, np.asarray(kept.indices)) / best
    plain = floc.compress(tokens, ratio=ratio, backend="reference", **options) if shape.n <= 1000 else None
    if plain is None:  # plain greedy reads the whole matrix for each pick
        matrix = reference.limit_to_horizon(np.rint(similarity * SCALE).astype(np.int16), cells, horizon)
        _, gains = reference.greedy(matrix, 16)
        same = np.allclose(gains / SCALE, kept.gains[:16], rtol=1e-4)
    else:
        same = np.allclose(plain.gains, kept.gains, rtol=1e-3, atol=1e-3)
    if not (same and share > 0.9999):
        raise AssertionError(f"{options}, {ratio}: objective {share:.6f} of float64 greedy's; its time means nothing")
    return {"keep": ratio, "horizon": horizon, "detail": detail, "n": shape.n, "objective": share}


def measure_time(shape: Shape, rounds: int, echo: Echo) -> list[dict]:
    """Return records of time, relative to the product of the band alone."""
    tokens = shape.make_tokens()
    records = []
    for ratio in RATIOS:
        horizon = choose_horizon(shape.n, count_tokens(ratio, shape.n))
        contenders = [Contender(PRODUCT, prepare_product(tokens, horizon))]
        for name, options in {**OURS, SECOND_PASS: {"dedupe": 2, "detail": 2}}.items():
            contenders.append(Contender(name, partial(floc.compress, tokens, ratio=ratio, **options)))
        timings = harness.compare(contenders, PRODUCT, rounds=rounds)
        slowest = next(timing.ms for timing in timings if timing.contender == SECOND_PASS)
        for timing in timings:
            record = {"n": shape.n, "d": shape.dim, "keep": ratio, "horizon": horizon, **asdict(timing)}
            records.append(record | {"faster": slowest / timing.ms})
            echo(f"n={shape.n} {ratio}  {timing.contender}: {timing.ms:.0f} ms, {timing.ratio:.2f}x")
    return records


def prepare_product(tokens: np.ndarray, horizon: int) -> Callable[[], None]:
    """Return a function that computes the product of the band alone."""
    frames, threads = len(tokens), count_threads()
    unit = normalize(tokens).astype(np.float32)
    cells = len(unit) // frames
    free = [np.empty((cells, (horizon + 1) * cells), np.float32) for _ in range(threads)]  # one for each thread

    def multiply(t: int) -> None:
        product, rows = free.pop(), unit[t * cells : (t + 1) * cells]
        later = unit[t * cells : (t + 1 + horizon) * cells]
        np.matmul(rows, later.T, out=product[:, : len(later)])
        free.append(product)

    def run_all() -> None:
        with single_threaded_blas(), ThreadPoolExecutor(threads) as pool:
            list(pool.map(multiply, range(frames)))

    return run_all


def measure_memory(shape: Shape, echo: Echo) -> list[dict]:
    """Return records of peak memory above the tokens, of a video and of one that is LONGER times as long."""
    records = []
    for times in (1, LONGER):
        video = replace(shape, frames=shape.frames * times)
        cells = shape.height * shape.width
        band = 2 * video.n * (2 * choose_horizon(video.n, video.n // 8) + 1) * cells
        used = memory.measure_compress(video.make_tokens(), {"ratio": "1/8", "horizon": "auto"})
        records.append({"frames": video.frames, "n": video.n, "d": video.dim, "band_bytes": band, "used_bytes": used})
        text = "not measured: needs Linux" if used is None else f"{used / 2**20:.1f} MiB"
        echo(f"memory, {video.frames} frames: {text}, band {band / 2**20:.1f} MiB")
    return records


def _show_time(document: dict) -> str:
    columns: dict[str, Callable[[Any], str]] = {
        "from float16 tokens": lambda record: record["contender"],
        "kept": lambda record: record["keep"],
        "horizon": lambda record: str(record["horizon"]),
        "time, ms": show_ms,
        "ratio to the product": show_ratio,
        "times as fast as the second pass": lambda record: f"{record['faster']:.1f}",
    }
    first = document["time"][0]
    least = min(check["objective"] for check in document["checks"])
    note = (
        f"{first['n']:,} tokens of {first['d']:,} features. Ratios: {RATIO_NOTE}. The product is float32, each slice "
        "with itself and those after it in its horizon, with tokens normalised and memory allocated before. Objective: "
        f"at least {least:.6f} of float64 greedy's on the same band."
    )
    return show_records(
        document["time"], columns, note, show_environment(document, "python", "numpy", "torch", "numba")
    )


def _show_memory(document: dict) -> str:
    columns: dict[str, Callable[[Any], str]] = {
        "frames": lambda record: str(record["frames"]),
        "n": lambda record: f"{record['n']:,}",
        "band, MiB": lambda record: f"{record['band_bytes'] / 2**20:.1f}",
        "peak above the tokens, MiB": lambda record: (
            "not measured" if record["used_bytes"] is None else f"{record['used_bytes'] / 2**20:.1f}"
        ),
    }
    return show_records(document["memory"], columns, f"{document['memory'][0]['d']} features, 1/8 kept, horizon 4.")


TABLE = BenchTable("horizon", run, {"horizon": _show_time, "horizon-memory": _show_memory})
