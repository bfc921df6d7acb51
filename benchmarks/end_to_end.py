"""From tokens to kept tokens, against the floor: the symmetric product alone, which no exact method can do without.

The floor is given what a call has to make first: float32 blocks at length 1, and memory to write to, since fresh pages
cost up to a tenth more. It is run in both ways that suggest themselves, one block after the other with all threads and
one thread a block on several at a time, and ratios are taken to the faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

import floc
from benchmarks import blocks, harness, memory
from benchmarks.harness import Contender
from benchmarks.tables import Echo
from floc._system import count_threads, single_threaded_blas

ALL_THREADS = "product alone, all threads on a block"
THREAD_EACH = "product alone, a thread a block"
METHODS: dict[str, dict[str, Any]] = {
    "floc-paper": {"method": "floc-paper"},
    "dedupe=1, detail=2": {"dedupe": 1, "detail": 2},
}
IN_FLIGHT = 2  # blocks whose matrix exists at the same time


@dataclass(frozen=True)
class Film:
    """Blocks of 32 frames."""

    block: blocks.Shape
    count: int

    @property
    def tokens(self) -> np.ndarray:
        """[T, H, W, D] float16 of all blocks."""
        b = self.block
        return blocks.Shape(b.frames * self.count, b.height, b.width, b.dim).tokens()


def measure(films: Sequence[Film], ratios: Sequence[str], rounds: int, echo: Echo) -> tuple[list[dict], list[dict]]:
    """Records of time and of memory."""
    timed, weighed = [], []
    for film in films:
        tokens = film.tokens
        timed += _times(film, tokens, ratios, rounds, echo)
        weighed += _memory(film, tokens, ratios[0], echo)
    return timed, weighed


def _times(film: Film, tokens: np.ndarray, ratios: Sequence[str], rounds: int, echo: Echo) -> list[dict]:
    case = {"n": film.block.n, "d": film.block.dim, "blocks": film.count}
    unit = [_unit(each) for each in np.split(tokens, film.count)]
    products = [np.empty((film.block.n, film.block.n), np.float32) for _ in range(count_threads())]
    contenders = [
        Contender(ALL_THREADS, lambda: [np.matmul(x, x.T, out=products[0]) for x in unit]),
        Contender(THREAD_EACH, lambda: _a_thread_each(unit, products)),
    ]
    details: dict[str, dict] = {each.name: {} for each in contenders}
    first = blocks.BlockTokens(tokens[: film.block.frames].reshape(-1, film.block.dim))
    for ratio in ratios:
        for method, options in METHODS.items():
            name = f"{method}, {ratio}"
            call = {"ratio": ratio, "block": film.block.frames, **options}
            share = _objective_share(tokens, first, call)
            details[name] = {"method": method, "keep": ratio, "objective": share}
            contenders.append(Contender(name, partial(floc.compress, tokens, **call)))
    timings = harness.compare(contenders, (ALL_THREADS, THREAD_EACH), rounds=rounds)
    records = [{"case": "end to end", **case, **asdict(timing), **details[timing.contender]} for timing in timings]
    for record in records:
        echo(
            f"{film.count} blocks of n={film.block.n} d={film.block.dim}  {record['contender']}: "
            f"{record['ms']:.0f} ms, {record['ratio']:.3f}x"
        )
    return records


def _memory(film: Film, tokens: np.ndarray, ratio: str, echo: Echo) -> list[dict]:
    n, d = film.block.n, film.block.dim
    # matrices in int16 with a tenth to spare for each and for all else, and one block of tokens in float32
    allowance = int(2.2 * IN_FLIGHT * 2 * n * n) + 4 * n * d
    records = []
    for method, options in METHODS.items():
        used = memory.peak_growth_bytes(tokens, {"ratio": ratio, "block": film.block.frames, **options})
        record = {"case": "memory", "n": n, "d": d, "blocks": film.count, "method": method, "keep": ratio}
        record |= {
            "used_bytes": used,
            "allowance_bytes": allowance,
            "share": None if used is None else used / allowance,
        }
        records.append(record)
        measured = "not measured: needs Linux" if used is None else f"{used / 2**20:.1f} MiB"
        echo(f"memory, n={n} d={d} {method}: {measured}, allowance {allowance / 2**20:.1f} MiB")
    return records


def _unit(frames: np.ndarray) -> np.ndarray:
    x = frames.reshape(-1, frames.shape[-1]).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _a_thread_each(unit: Sequence[np.ndarray], products: Sequence[np.ndarray]) -> None:
    free = list(products)  # as many as there are threads, so a thread always finds one

    def multiply(x: np.ndarray) -> None:
        product = free.pop()
        np.matmul(x, x.T, out=product)
        free.append(product)

    with single_threaded_blas(), ThreadPoolExecutor(len(products)) as pool:
        list(pool.map(multiply, unit))


def _objective_share(tokens: np.ndarray, block: blocks.BlockTokens, call: dict) -> float:
    """What the picks of the first block are worth, as a share of float64 greedy's; checked before anything is timed."""
    kept = floc.compress(tokens, **call)
    picks = np.asarray(kept.indices)[kept.indices < len(block.tokens)]
    detail = call.get("detail", 1)
    similarity = block.cosine if detail == 1 else 1 - (1 - block.cosine.clip(0, 1)) ** detail
    best = blocks.float64_greedy(similarity, len(picks))
    share = blocks.value(similarity, picks) / blocks.value(similarity, best)
    if not share > 0.999:
        raise AssertionError(f"{call}: the objective is {share:.6f} of float64 greedy's, so its time means nothing")
    return share
