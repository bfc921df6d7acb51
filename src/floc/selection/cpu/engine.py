"""The CPU engine: BLAS for matrix tiles, compiled greedy, and threads that share the work.

All threads share the tiles of one set's matrix. Once it is complete, one thread selects from it, which is sequential,
while the others start on the next set. So all cores stay busy, and only one set at a time is held in float32. With a
horizon the threads share the selection, too. The Gaussian metric, an ablation, uses the matrices of the torch engine.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from floc._arrays import iterate_tiles
from floc._system import count_threads, run_in_threads, single_threaded_blas
from floc.selection import engine
from floc.selection.cpu import greedy, matrix_tiles, question, rows
from floc.selection.engine import Band, Choice, Job, Matrices, Raises, Solution, Targets, Tick, TokenSets, no_tick
from floc.selection.objective import LARGEST_DETAIL, PLAIN, Similarity
from floc.selection.torch.engine import Selected, TorchEngine, select_one_by_one

_NO_RAISES: Raises = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int16))


class CpuEngine(TorchEngine):
    """The torch engine with compiled kernels and threads; see `TorchEngine`."""

    def share_setup(self) -> contextlib.AbstractContextManager[None]:
        return single_threaded_blas()

    def solve(
        self, jobs: Iterable[Job], similarity: Similarity, *, with_cosines: bool, tick: Tick = no_tick
    ) -> Iterator[Solution]:
        if similarity.metric == "gaussian":
            yield from super().solve(jobs, similarity, with_cosines=with_cosines, tick=tick)
            return
        solved: list[Solution] = []

        def select(matrix: np.ndarray, source: np.ndarray, job: Job) -> None:
            solved.append(_solve_set(matrix, source, job, similarity, with_cosines))

        last: list[Callable[[], None]] = []  # the selection from the last matrix, to which it holds the only reference
        with single_threaded_blas():
            for job in jobs:
                source = rows.view_bits(job.tokens)
                last = [partial(select, _compute_cosine_matrix(source, similarity.detail, tick, last), source, job)]
                if solved:
                    yield solved.pop()
            for task in last:
                task()
                yield solved.pop()

    def _select_in_band(
        self, job: Job, band: Band, similarity: Similarity, tick: Tick
    ) -> tuple[Choice, Raises, np.ndarray]:
        if band.width >= greedy.MAX_INT32_TOKENS or job.question is not None:
            return super()._select_in_band(job, band, similarity, tick)
        with single_threaded_blas():
            values = _compute_cosine_band(rows.view_bits(job.tokens), band, similarity.detail, tick)
        picks, gains = greedy.band_greedy(values, band, min(job.budget + 1, band.n - job.first), job.given, job.first)
        choice = job.split_choice(picks, gains)
        if not job.with_history:
            return choice, _NO_RAISES, values[0, :0]
        raises = greedy.trace_history(values, job.list_returned(torch.from_numpy(picks)).numpy(), band.cells)
        own = values[np.arange(band.n), band.reach + np.arange(band.n) % band.cells]
        return choice, raises, own

    def _pick_in_band(
        self, job: Job, band: Band, similarity: Similarity
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if job.question is None or band.width >= greedy.MAX_INT32_TOKENS:
            return super()._pick_in_band(job, band, similarity)
        with single_threaded_blas():
            values = _compute_cosine_band(rows.view_bits(job.tokens), band, similarity.detail, no_tick)
        picks, gains = question.band_greedy(values, band, min(job.budget + 1, band.n), job.question)
        return torch.from_numpy(values), torch.from_numpy(picks), torch.from_numpy(gains)

    def _sum_by_cluster(self, sets: TokenSets, count: int, unit: bool) -> tuple[torch.Tensor, np.ndarray]:
        sums = np.zeros((count, sets[0][0].shape[1]), np.float32)
        run_in_threads(lambda members: rows.sum_by_cluster(rows.view_bits(members[0]), members[1], unit, sums), sets)
        return torch.from_numpy(sums), _normalize(sums, out=sums)

    def _compute_cosines(self, left: torch.Tensor, i: np.ndarray, right: torch.Tensor, j: np.ndarray) -> np.ndarray:
        a, b, out = rows.view_bits(left), rows.view_bits(right), np.empty(len(i))
        by_pick = np.argsort(j)  # near tokens one after the other, so that they stay in the cache

        def compute(part: slice) -> None:
            some = by_pick[part]
            cosines = np.empty(len(some))
            rows.compute_cosines(a, i[some], b, j[some], cosines)
            out[some] = cosines

        run_in_threads(compute, _split_rows(len(i), a.shape[1]))
        return out

    def estimate_bytes(self, n: int, dim: int, similarity: Similarity, *, weighted: bool = False) -> int:
        if similarity.metric == "gaussian":
            return super().estimate_bytes(n, dim, similarity)
        tile_bytes = 4 * matrix_tiles.RECTANGLE_SIDE * (matrix_tiles.RECTANGLE_SIDE + dim)
        return 2 * n * n + 4 * n * dim + count_threads() * tile_bytes

    def estimate_band_bytes(self, band: Band, dim: int) -> int:
        # each thread has some slices in float32, and one tile; the history has about four entries for each token
        slices = matrix_tiles.count_band_slices(band) + band.horizon
        tile = 4 * matrix_tiles.BAND_ROWS * (band.reach + matrix_tiles.BAND_ROWS)
        return 2 * band.n * band.width + 128 * band.n + count_threads() * (4 * slices * band.cells * dim + tile)

    def _compute_weighted_matrix(
        self, candidates: torch.Tensor, targets: Targets, similarity: Similarity, sigma: float | None, tick: Tick
    ) -> torch.Tensor:
        if sigma is not None:
            return super()._compute_weighted_matrix(candidates, targets, similarity, sigma, tick)
        source, directions = rows.view_bits(candidates), rows.view_bits(targets.directions)
        matrix = np.empty((len(source), len(directions)), np.int16)

        def fill(tile: matrix_tiles.Tile) -> None:
            # normalizing rows again for each tile costs 1% of the product and saves a float32 copy of all candidates
            block = source[tile.rows]
            unit = matrix_tiles.borrow_scratch("rows", block.shape)
            rows.normalize(block, unit, np.empty(len(block)), 0, len(block))
            _fill_tile(unit, directions[tile.columns], similarity.detail, matrix, tile)
            tick(matrix_tiles.count_cells(tile) * directions.shape[1])

        with single_threaded_blas():
            run_in_threads(fill, matrix_tiles.split_rectangle(*matrix.shape))
        return torch.from_numpy(matrix)

    def _select(self, matrices: Matrices, depths: Sequence[int], weights: np.ndarray | None) -> Selected:
        return select_one_by_one(greedy.lazy_greedy, matrices, depths, weights)

    def _trace_history(self, matrix: torch.Tensor, picks: np.ndarray) -> Raises:
        return greedy.trace_history(matrix.cpu().numpy(), picks)

    def _find_closest(self, matrix: torch.Tensor, picks: np.ndarray, count: int) -> np.ndarray:
        return greedy.find_closest(matrix.cpu().numpy(), picks, count)


def _split_rows(count: int, dim: int) -> Iterator[slice]:
    """Split `count` rows of `dim` values into slices that take longer than starting a task."""
    return iterate_tiles(count, dim, max(1 << 20, 256 * dim))


def _normalize(source: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Write the [n, D] rows of `source`, scaled to length 1, to `out`, and return their [n] float64 lengths."""
    lengths = np.empty(len(source))
    parts = _split_rows(*source.shape)
    run_in_threads(lambda part: rows.normalize(source, out, lengths, part.start, part.stop), parts)
    return lengths


def _compute_cosine_matrix(
    source: np.ndarray, detail: float, tick: Tick, beside: Sequence[Callable[[], None]] = ()
) -> np.ndarray:
    """[n, n] int16 similarity of every token to every other, from the cosine; other tasks run beside the tiles."""
    unit = np.empty_like(source, np.float32)
    _normalize(source, out=unit)
    n, dim = unit.shape
    matrix = np.empty((n, n), np.int16)

    def fill(tile: matrix_tiles.Tile) -> None:
        _fill_tile(unit[tile.rows], unit[tile.columns], detail, matrix, tile)
        # on the diagonal SYRK computes half of the cells
        tick(matrix_tiles.count_cells(tile) * dim * (1 if tile.mirror else 0.5))

    tasks: list[Callable[[], None]] = [*beside, *(partial(fill, tile) for tile in matrix_tiles.split_triangle(n))]
    run_in_threads(lambda task: task(), tasks)
    return matrix


def _compute_cosine_band(source: np.ndarray, band: Band, detail: float, tick: Tick) -> np.ndarray:
    """[n, width] int16 similarities of a band, from the cosine.

    A task normalizes some slices and those in their horizon, so that there is no float32 copy of all tokens.
    """
    values = np.empty((band.n, band.width), np.int16)
    cells, horizon, rows_at_once = band.cells, band.horizon, max(1, matrix_tiles.BAND_ROWS // band.cells)

    def fill(span: slice) -> None:
        start, stop = span.start, min(span.stop + horizon, band.frames)
        block = source[start * cells : stop * cells]
        unit, lengths = matrix_tiles.borrow_scratch("rows", block.shape), np.empty(len(block))
        normalized = 0
        for first in range(start, span.stop, rows_at_once):
            last = min(first + rows_at_once, span.stop)
            end = (min(last + horizon, stop) - start) * cells
            rows.normalize(block, unit, lengths, normalized, end)  # in the cache when the product reads it
            normalized = end
            left, right = unit[(first - start) * cells : (last - start) * cells], unit[(first - start) * cells : end]
            product = matrix_tiles.borrow_scratch("tile", (len(left), len(right)))
            np.matmul(left, right.T, out=product)
            matrix_tiles.store_band(product, _sharpen(product, detail), values, cells, first)
        tick((span.stop - start) * cells * band.width * source.shape[1] / 2)

    ends = values.reshape(band.frames, cells, -1, cells)
    for beyond in range(min(horizon, band.frames)):
        ends[beyond, :, : horizon - beyond] = 0
        ends[band.frames - 1 - beyond, :, horizon + beyond + 1 :] = 0
    run_in_threads(fill, iterate_tiles(band.frames, 1, matrix_tiles.count_band_slices(band)))
    return values


def _fill_tile(left: np.ndarray, right: np.ndarray, detail: float, matrix: np.ndarray, tile: matrix_tiles.Tile) -> None:
    """Fill one tile of the int16 matrix with the similarities of unit rows `left` to unit rows `right`."""
    product = matrix_tiles.borrow_scratch("tile", (len(left), len(right)))
    np.matmul(left, right.T, out=product)
    power = _sharpen(product, detail)
    matrix_tiles.store_tile(product, power, matrix, tile.rows.start, tile.columns.start, tile.mirror)


def _sharpen(product: np.ndarray, detail: float) -> int:
    """Apply `detail` to a tile, unless `store_tile` does it in its own pass; returns the power that is left to that."""
    if detail not in (1, 2, 3):
        np.clip(product, 0, 1, out=product)
        gap = 1 - product
        part = np.power(gap, np.float32(min(detail, LARGEST_DETAIL) - 1))
        part *= np.float32(1 - PLAIN)
        part += np.float32(PLAIN)
        np.subtract(1, gap * part, out=product)
        return 1
    return int(detail)


def _solve_set(
    matrix: np.ndarray, source: np.ndarray, job: Job, similarity: Similarity, with_cosines: bool
) -> Solution:
    def cosines(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        out = np.empty(len(i))
        rows.compute_cosines(source, i, source, j, out)
        return out

    depth = min(job.budget + 1, len(matrix))
    if job.question is None:
        picks, gains = greedy.symmetric_greedy(matrix, depth)
    else:
        targets, weights = engine.join_targets(torch.from_numpy(matrix), job.question)
        engine.check_matrices([targets], [depth], weights)
        picks, gains, _ = greedy.lazy_greedy(targets.numpy(), depth, weights)
    choice = engine.split_next_gain(picks, gains, job.budget)
    raises = greedy.trace_history(matrix, choice[0])
    own = matrix.diagonal()
    return engine.build_solution(choice, raises, own, similarity, cosines, with_cosines=with_cosines, job=job)
