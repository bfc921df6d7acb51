"""Time from tokens to kept tokens, against the symmetric product alone, which every exact method needs.

The product starts from what a call has to prepare first: normalised float32 blocks, and allocated memory, since fresh
pages take up to 10% more time. It runs in two ways: all threads on one block after another, and one thread for each
block. Ratios refer to the faster one.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import floc
from benchmarks import harness, memory
from benchmarks.harness import Contender
from benchmarks.oracle import BlockTokens, compute_objective, greedy_float64, sharpen
from benchmarks.quality import normalize
from benchmarks.registry import Echo
from benchmarks.synthetic import Shape
from floc._system import count_threads, single_threaded_blas

ALL_THREADS = "product alone, all threads on a block"
THREAD_EACH = "product alone, one thread per block"
METHODS: dict[str, dict[str, Any]] = {
    "floc-paper": {"method": "floc-paper"},
    "blocks, detail=2": {"detail": 2},
}
IN_FLIGHT = 2  # blocks whose matrix exists at the same time


@dataclass(frozen=True)
class BlockCase:
    """A video of `count` blocks."""

    block: Shape
    count: int


def measure(
    cases: Sequence[BlockCase], ratios: Sequence[str], rounds: int, echo: Echo
) -> tuple[list[dict], list[dict]]:
    """Return records of time and of memory."""
    timed, weighed = [], []
    for case in cases:
        tokens = replace(case.block, frames=case.block.frames * case.count).make_tokens()
        timed += _measure_time(case, tokens, ratios, rounds, echo)
        weighed += _measure_memory(case, tokens, ratios[0], echo)
    return timed, weighed


def _measure_time(case: BlockCase, tokens: np.ndarray, ratios: Sequence[str], rounds: int, echo: Echo) -> list[dict]:
    block = case.block
    unit = [normalize(part) for part in np.split(tokens, case.count)]
    products = [np.empty((block.n, block.n), np.float32) for _ in range(count_threads())]
    contenders = [
        Contender(ALL_THREADS, lambda: [np.matmul(x, x.T, out=products[0]) for x in unit]),
        Contender(THREAD_EACH, lambda: _multiply_in_threads(unit, products)),
    ]
    details: dict[str, dict] = {contender.name: {} for contender in contenders}
    first = BlockTokens(tokens[: block.frames].reshape(-1, block.dim))
    for ratio in ratios:
        for method, options in METHODS.items():
            name = f"{method}, {ratio}"
            call = {"ratio": ratio, "block": block.frames, **options}
            details[name] = {"method": method, "keep": ratio, "objective": _check_objective(tokens, first, call)}
            contenders.append(Contender(name, partial(floc.compress, tokens, **call)))
    records = [
        {"case": "end to end", "n": block.n, "d": block.dim, "blocks": case.count}
        | asdict(timing)
        | details[timing.contender]
        for timing in harness.compare(contenders, (ALL_THREADS, THREAD_EACH), rounds=rounds)
    ]
    for record in records:
        echo(
            f"{case.count} blocks of n={block.n} d={block.dim}  {record['contender']}: "
            f"{record['ms']:.0f} ms, {record['ratio']:.3f}x"
        )
    return records


def _measure_memory(case: BlockCase, tokens: np.ndarray, ratio: str, echo: Echo) -> list[dict]:
    n, d = case.block.n, case.block.dim
    # int16 matrices with 10% to spare, and one block of tokens in float32
    allowance = int(2.2 * IN_FLIGHT * 2 * n * n) + 4 * n * d
    records = []
    for method, options in METHODS.items():
        used = memory.measure_compress(tokens, {"ratio": ratio, "block": case.block.frames, **options})
        share = None if used is None else used / allowance
        record = {"case": "memory", "n": n, "d": d, "blocks": case.count, "method": method, "keep": ratio}
        records.append(record | {"used_bytes": used, "allowance_bytes": allowance, "share": share})
        text = "not measured: needs Linux" if used is None else f"{used / 2**20:.1f} MiB"
        echo(f"memory, n={n} d={d} {method}: {text}, allowance {allowance / 2**20:.1f} MiB")
    return records


def _multiply_in_threads(unit: Sequence[np.ndarray], products: Sequence[np.ndarray]) -> None:
    free = list(products)  # one for each thread, so that a thread always finds one

    def multiply(x: np.ndarray) -> None:
        product = free.pop()
        np.matmul(x, x.T, out=product)
        free.append(product)

    with single_threaded_blas(), ThreadPoolExecutor(len(products)) as pool:
        list(pool.map(multiply, unit))


def _check_objective(tokens: np.ndarray, block: BlockTokens, call: dict) -> float:
    """Return the objective of the first block's picks as a share of float64 greedy's; raise if it is too low."""
    kept = floc.compress(tokens, **call)
    picks = np.asarray(kept.indices)[kept.indices < len(block.tokens)]
    detail = call.get("detail", 1)
    similarity = sharpen(block.cosine, detail)
    best = greedy_float64(similarity, len(picks))
    share = compute_objective(similarity, picks) / compute_objective(similarity, best)
    if not share > 0.999:
        raise AssertionError(f"{call}: the objective is {share:.6f} of float64 greedy's, so its time means nothing")
    return share
