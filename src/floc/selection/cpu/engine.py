"""The CPU engine: BLAS tiles, compiled kernels, and one pool of threads that the sets flow through.

All threads share the tiles of one set's matrix. When it is complete one of them picks from it, which is sequential,
while the others have gone on to the next set. So the cores stay busy, and only one set at a time exists in float32.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from floc._system import count_threads, single_threaded_blas
from floc.selection.cpu import gaussian, greedy, rows, tiles
from floc.selection.engine import (
    CLOSEST,
    History,
    Job,
    Solution,
    Targets,
    Tick,
    build_solution,
    no_tick,
    split_next_gain,
)
from floc.selection.objective import Similarity

_ROWS_A_TASK = 256
_VALUES_A_TASK = 1 << 20  # a task of less is done in the time that handing it out takes
_scratch = tiles.Scratch()


class CpuEngine:
    """See `Engine`."""

    name = "cpu"

    def at_work(self) -> contextlib.AbstractContextManager[None]:
        return single_threaded_blas()

    def solve(
        self, jobs: Iterable[Job], similarity: Similarity, *, with_cosines: bool, tick: Tick = no_tick
    ) -> Iterator[Solution]:
        with _workers() as pool:
            choosing: deque[Future[Solution]] = deque()
            for job in jobs:
                source = rows.bits(job.tokens)
                matrix, sigma = _symmetric(pool, source, similarity, tick)
                choosing.append(pool.submit(_choose, matrix, source, job.budget, similarity, with_cosines, sigma))
                del matrix  # the task alone holds it now, and lets it go when the picks are made
                while len(choosing) > 1:  # picking takes a small part of the time that multiplying takes
                    yield choosing.popleft().result()
            while choosing:
                yield choosing.popleft().result()

    def sum_by_cluster(
        self, sets: Sequence[tuple[torch.Tensor, np.ndarray]], count: int, *, unit: bool
    ) -> tuple[torch.Tensor, np.ndarray]:
        sums = np.zeros((count, sets[0][0].shape[1]), np.float32)
        with _workers() as pool:
            _run(pool, lambda one: rows.sum_by_cluster(rows.bits(one[0]), one[1], unit, sums), sets)
            _, lengths = _normalised(pool, sums, out=sums)
        return torch.from_numpy(sums), lengths

    def solve_weighted(
        self,
        candidates: torch.Tensor,
        targets: Targets,
        budget: int,
        similarity: Similarity,
        *,
        sigma: float | None = None,
        with_history: bool = True,
        tick: Tick = no_tick,
    ) -> Solution:
        source = rows.bits(candidates)
        with _workers() as pool:
            matrix = _rectangular(pool, source, targets, similarity, sigma, tick)
        chosen = greedy.lazily(matrix, min(budget + 1, len(matrix)), targets.weights)
        picks, gains, next_gain = split_next_gain(*chosen, budget)
        if not with_history:
            return Solution(picks, gains, next_gain, None, sigma)
        token, rank, _ = greedy.history(matrix, picks)
        closest = greedy.closest(matrix, picks, min(CLOSEST, budget))
        return Solution(picks, gains, next_gain, History(token, rank, None), sigma, closest)

    def cosines(self, left: torch.Tensor, i: np.ndarray, right: torch.Tensor, j: np.ndarray) -> np.ndarray:
        a, b, out = rows.bits(left), rows.bits(right), np.empty(len(i))
        with _workers() as pool:
            _run(
                pool,
                lambda part: rows.cosines(a, i[part], b, j[part], out[part]),
                _parts(len(i), a.shape[1]),
            )
        return out

    def bytes_needed(self, n: int, dim: int, similarity: Similarity, *, weighted: bool = False) -> int:
        triangle = 2 * n * n if similarity.metric == "gaussian" else 0  # of distances in float32
        return (
            2 * n * n
            + triangle
            + 4 * n * dim
            + count_threads() * 4 * tiles.RECTANGLE_SIDE * (tiles.RECTANGLE_SIDE + dim)
        )

    def survivors_together(self, sizes: np.ndarray, survivors: int) -> int:
        return int(sizes.sum())  # two blocks' matrices exist at a time


@contextlib.contextmanager
def _workers() -> Iterator[Executor]:
    """As many threads as torch would use, with BLAS held to one each; an exception drops what is still queued.

    Where that is one, it is the thread that asks.
    """
    with single_threaded_blas():
        if count_threads() == 1:
            yield _Caller()
            return
        pool = ThreadPoolExecutor(count_threads(), "floc", initializer=single_threaded_blas.limit_this_thread)
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


class _Caller(Executor):
    """Does at once what it is given."""

    def submit(self, task: Callable, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        try:
            future.set_result(task(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def _run(pool: Executor, task: Callable, items: Iterable) -> None:
    """Run a task on each item, wait for all, and raise what any of them raised."""
    for future in [pool.submit(task, item) for item in items]:
        future.result()


def _parts(count: int, dim: int) -> Iterator[slice]:
    """0..count rows of so many values, in pieces that are worth a task each."""
    return tiles.slices(count, max(_ROWS_A_TASK, _VALUES_A_TASK // dim))


def _normalised(pool: Executor, source: np.ndarray, out: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """[n, D] float32 rows at length 1, and [n] float64 the lengths they had."""
    unit = np.empty(source.shape, np.float32) if out is None else out
    lengths = np.empty(len(source))
    _run(
        pool,
        lambda part: rows.normalise(source, unit, lengths, part.start, part.stop),
        _parts(*source.shape),
    )
    return unit, lengths


def _symmetric(
    pool: Executor, source: np.ndarray, similarity: Similarity, tick: Tick
) -> tuple[np.ndarray, float | None]:
    """[n, n] int16 similarity of every token to every other, and sigma where the metric has one."""
    unit, lengths = _normalised(pool, source)
    n, dim = unit.shape
    matrix = np.empty((n, n), np.int16)
    pieces = tiles.triangle(n)

    def fill_cosine(tile: tiles.Tile) -> None:
        piece = _scratch.array("tile", (tile.rows.stop - tile.rows.start, tile.columns.stop - tile.columns.start))
        np.matmul(unit[tile.rows], unit[tile.columns].T, out=piece)
        _store(piece, similarity.detail, matrix, tile)
        tick(_triangle_work(tile) * dim)

    if similarity.metric == "cosine":
        _run(pool, fill_cosine, pieces)
        return matrix, None

    longest = float(lengths.max()) or 1.0  # all is measured in it, which float32 can always hold
    relative = (lengths / longest).astype(np.float32)
    distances: dict[int, np.ndarray] = {}  # by the tile's number

    def find_distances(numbered: tuple[int, tiles.Tile]) -> None:
        number, tile = numbered
        piece = unit[tile.rows] @ unit[tile.columns].T
        gaussian.square_distances(piece, relative[tile.rows], relative[tile.columns])
        distances[number] = piece
        tick(_triangle_work(tile) * dim)

    def fill_gaussian(numbered: tuple[int, tiles.Tile]) -> None:
        number, tile = numbered
        piece = distances.pop(number)
        gaussian.similarities(piece, sigma)
        _store(piece, similarity.detail, matrix, tile)

    _run(pool, find_distances, enumerate(pieces))
    sigma = gaussian.median_distance(
        [distances[number] for number in range(len(pieces))],
        [not tile.mirror for tile in pieces],
        n * (n - 1) // 2,
    )
    _run(pool, fill_gaussian, enumerate(pieces))
    return matrix, sigma * longest


def _rectangular(
    pool: Executor,
    candidates: np.ndarray,
    targets: Targets,
    similarity: Similarity,
    sigma: float | None,
    tick: Tick,
) -> np.ndarray:
    """[M, N] int16 similarity of candidates, in their own format, to the targets."""
    directions = rows.bits(targets.directions)
    matrix = np.empty((len(candidates), len(directions)), np.int16)
    dim = directions.shape[1]

    longest = float(targets.lengths.max()) or 1.0

    def fill(tile: tiles.Tile) -> None:
        # rows are normalised again for each tile of theirs: 1% of the product, and no float32 copy of all candidates
        few = candidates[tile.rows]
        unit, lengths = _scratch.array("rows", few.shape), np.empty(len(few))
        rows.normalise(few, unit, lengths, 0, len(few))
        piece = _scratch.array("tile", (len(few), tile.columns.stop - tile.columns.start))
        np.matmul(unit, directions[tile.columns].T, out=piece)
        if sigma is not None:
            relative = [(each / longest).astype(np.float32) for each in (lengths, targets.lengths[tile.columns])]
            gaussian.square_distances(piece, *relative)
            gaussian.similarities(piece, sigma / longest)
        _store(piece, similarity.detail, matrix, tile)
        tick(tiles.area(tile) * dim)

    _run(pool, fill, tiles.rectangle(*matrix.shape))
    return matrix


def _triangle_work(tile: tiles.Tile) -> float:
    """Cells of the product that are computed: on the diagonal SYRK computes half."""
    return tiles.area(tile) if tile.mirror else tiles.area(tile) / 2


def _store(piece: np.ndarray, detail: float, matrix: np.ndarray, tile: tiles.Tile) -> None:
    if detail not in (1, 2):  # 1 and 2 are done by `store` itself, in one pass
        np.clip(piece, 0, 1, out=piece)
        np.subtract(1, piece, out=piece)
        np.power(piece, np.float32(detail), out=piece)
        np.subtract(1, piece, out=piece)
    tiles.store(piece, detail == 2, matrix, tile.rows.start, tile.columns.start, tile.mirror)


def _choose(
    matrix: np.ndarray,
    source: np.ndarray,
    budget: int,
    similarity: Similarity,
    with_cosines: bool,
    sigma: float | None,
) -> Solution:
    def cosines(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        out = np.empty(len(i))
        rows.cosines(source, i, source, j, out)
        return out

    picks, gains, raises = greedy.from_symmetric(matrix, min(budget + 1, len(matrix)), traced=budget)
    choice = split_next_gain(picks, gains, budget)
    return build_solution(choice, raises, matrix.diagonal(), similarity, sigma, cosines, with_cosines=with_cosines)
