"""The torch engine: selection by plain torch operations, on any device and without numba.

It is the base of the other engines, which replace the steps they do faster. The `reference` engine uses plain greedy.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from floc._arrays import TILE_BYTES, iterate_tiles, take_rows
from floc.selection import engine, reference
from floc.selection.engine import (
    Band,
    Choice,
    History,
    Job,
    Matrices,
    Raises,
    Reach,
    Solution,
    Targets,
    Tick,
    TokenSets,
    no_tick,
)
from floc.selection.objective import PLAIN, SCALE, Similarity
from floc.selection.torch import band_rounds, greedy, question_rounds

Selected = tuple[torch.Tensor, torch.Tensor]  # int64 picks and gains of all sets, concatenated
_BATCH_BYTES = 1 << 30  # limit of the matrices of one batch of sets
_CLOSEST = 4  # `solve_weighted` reports this many of the picks that are most similar to a target
_NOISE = 1e-6  # relative error of a float32 cosine or length


class TorchEngine:
    """Selects from sets of tokens, and from survivors that represent several tokens."""

    def share_setup(self) -> AbstractContextManager[None]:
        """Enter a context in which several calls share their setup."""
        return nullcontext()

    def solve(
        self, jobs: Iterable[Job], similarity: Similarity, *, with_cosines: bool, tick: Tick = no_tick
    ) -> Iterator[Solution]:
        """Select from each set in turn; `with_cosines` requests the cosines of the history."""
        for batch in _batch_jobs(jobs):
            computed = [compute_symmetric_matrix(job.tokens, similarity) for job in batch]
            choices = self._choose(batch, [matrix for matrix, _ in computed])
            for job, (matrix, sigma), choice in zip(batch, computed, choices, strict=True):
                raises, own = self._trace_history(matrix, choice[0]), matrix.diagonal().cpu().numpy()

                def cosines(i: np.ndarray, j: np.ndarray, tokens: torch.Tensor = job.tokens) -> np.ndarray:
                    return self._compute_cosines(tokens, i, tokens, j)

                tick(job.tokens.numel() * len(job.tokens) / 2)
                solution = engine.build_solution(
                    choice, raises, own, similarity, cosines, with_cosines=with_cosines, job=job
                )
                yield replace(solution, sigma=sigma)

    def _choose(self, jobs: list[Job], matrices: list[torch.Tensor]) -> list[Choice]:
        asked = [
            self._select_budgets([targets], [job.budget], weights)[0]
            for job, matrix in zip(jobs, matrices, strict=True)
            if job.question is not None
            for targets, weights in [engine.join_targets(matrix, job.question)]
        ]
        return asked or self._select_budgets(matrices, [job.budget for job in jobs], None)

    def solve_band(
        self, job: Job, band: Band, similarity: Similarity, *, with_cosines: bool, tick: Tick = no_tick
    ) -> Solution:
        """Select from consecutive slices; tokens represent only those at most `band.horizon` slices away."""
        if similarity.metric != "cosine" or len(job.tokens) != band.n:
            raise ValueError(f"cannot select from {len(job.tokens)} tokens in {band} by {similarity}")
        choice, raises, own = self._select_in_band(job, band, similarity, tick)

        def cosines(i: np.ndarray, j: np.ndarray) -> np.ndarray:
            return self._compute_cosines(job.tokens, i, job.tokens, j)

        return engine.build_solution(choice, raises, own, similarity, cosines, with_cosines=with_cosines, job=job)

    def _select_in_band(
        self, job: Job, band: Band, similarity: Similarity, tick: Tick
    ) -> tuple[Choice, Raises, np.ndarray]:
        """Return the picks, the history, and the [n] int16 similarity of each token to itself."""
        values, picks, gains = self._pick_in_band(job, band, similarity)
        tick(job.tokens.numel() * band.width / 2)
        choice = job.split_choice(picks.cpu().numpy(), gains.cpu().numpy())
        own = values.view(band.frames, band.cells, -1)[..., band.reach : band.reach + band.cells]
        own = own.diagonal(dim1=1, dim2=2).reshape(-1)
        return choice, band_rounds.trace_history(values, band, job.list_returned(picks)), own.cpu().numpy()

    def _pick_in_band(
        self, job: Job, band: Band, similarity: Similarity
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the [n, width] int16 similarities, and int64 picks and gains, one more than the budget if possible."""
        values = compute_band(job.tokens, band, similarity)
        given = torch.from_numpy(job.given).to(values.device)
        depth = min(job.budget + 1, band.n - job.first)
        if job.question is not None:
            return values, *question_rounds.greedy(values, band, depth, job.question)
        return values, *band_rounds.greedy(values, band, depth, given, job.first)

    def sum_by_cluster(self, sets: TokenSets, count: int, *, unit: bool) -> tuple[torch.Tensor, np.ndarray]:
        """Sum the tokens of each of `count` clusters, which sets do not share, normalized first if `unit`.

        Returns [count, D] unit vectors and [count] lengths of the sums.
        """
        for number, (members, cluster) in enumerate(sets):
            engine.check_indices(f"the clusters of set {number}", cluster, (len(members),), count)
            engine.check_width(members, sets[0][0])
        return self._sum_by_cluster(sets, count, unit)

    def _sum_by_cluster(self, sets: TokenSets, count: int, unit: bool) -> tuple[torch.Tensor, np.ndarray]:
        tokens = sets[0][0]
        sums = torch.zeros(count, tokens.shape[1], dtype=torch.float32, device=tokens.device)
        for members, cluster in sets:
            rows = _normalize(members) if unit else members.detach().float()
            sums.index_add_(0, torch.from_numpy(cluster).to(rows.device), rows)
        return _normalize(sums), _compute_lengths(sums).cpu().numpy()

    def solve_weighted(
        self,
        candidates: torch.Tensor,
        targets: Targets,
        budget: int,
        similarity: Similarity,
        *,
        sigma: float | None = None,
        reach: Reach | None = None,
        with_history: bool = True,
        tick: Tick = no_tick,
    ) -> Solution:
        """Select from [M, D] candidates those that cover the targets best, with `reach` only those that are near them.

        The tokens of the history are the targets. `with_history` also finds the picks closest to each target.
        """
        if not 1 <= budget <= len(candidates):
            raise ValueError(f"cannot select {budget} of {len(candidates)} candidates")
        matrix = self._compute_weighted_matrix(candidates, targets, similarity, sigma, tick)
        if reach is not None:
            _limit_to_reach(matrix, reach)
        [(picks, gains, next_gain)] = self._select_budgets([matrix], [budget], targets.weights)
        if not with_history:
            return Solution(picks, gains, next_gain, None, sigma)
        token, rank, _ = self._trace_history(matrix, picks)
        closest = self._find_closest(matrix, picks, min(_CLOSEST, budget))
        return Solution(picks, gains, next_gain, History(token, rank, None), sigma, closest)

    def compute_cosines(self, left: torch.Tensor, i: np.ndarray, right: torch.Tensor, j: np.ndarray) -> np.ndarray:
        """Return [E] float64, the cosine of row i[e] of `left` and row j[e] of `right`."""
        engine.check_indices("i", i, (len(i),), len(left))
        engine.check_indices("j", j, (len(i),), len(right))
        engine.check_width(left, right)
        return self._compute_cosines(left, i, right, j)

    def _compute_cosines(self, left: torch.Tensor, i: np.ndarray, right: torch.Tensor, j: np.ndarray) -> np.ndarray:
        out = np.empty(len(i))
        for part in iterate_tiles(len(i), 4 * left.shape[1]):
            a, b = take_rows(left, i[part]), take_rows(right, j[part])
            out[part] = (_normalize(a) * _normalize(b)).sum(-1).cpu().numpy()
        return out

    def estimate_bytes(self, n: int, dim: int, similarity: Similarity, *, weighted: bool = False) -> int:
        """Return the memory needed to select from a set of `n` tokens, or of `n` weighted survivors."""
        median = 28 * n * n if similarity.metric == "gaussian" else 0  # sorts all distances
        return 2 * n * n + median + 4 * n * dim + 4 * TILE_BYTES

    def estimate_band_bytes(self, band: Band, dim: int) -> int:
        """Return the memory needed to select within a horizon."""
        return 2 * band.n * band.width + 64 * band.n + 12 * TILE_BYTES + 8 * (band.reach + band.cells) * dim

    def limit_survivors(self, sizes: np.ndarray, survivors: int) -> int:
        """Return how many survivors of blocks of these sizes one selection can take together."""
        return int(sizes.sum())  # the matrices of only one or two blocks exist at a time

    def _compute_weighted_matrix(
        self, candidates: torch.Tensor, targets: Targets, similarity: Similarity, sigma: float | None, tick: Tick
    ) -> torch.Tensor:
        """[M, N] int16 similarity of candidates to targets."""
        lengths = torch.from_numpy(targets.lengths).to(candidates.device)
        matrix = _compute_matrix(candidates, targets.directions, lengths, similarity, sigma)
        tick(candidates.numel() * len(lengths))
        return matrix

    def select(self, matrices: Matrices, depths: Sequence[int], weights: np.ndarray | None = None) -> Selected:
        """Make `depths[b]` picks from each [M, N] int16 similarity matrix b.

        Weights, [N] int64, are possible with one matrix only. Returns the int64 picks and gains, concatenated.
        """
        engine.check_matrices(matrices, depths, weights)
        return self._select(matrices, depths, weights)

    def _select(self, matrices: Matrices, depths: Sequence[int], weights: np.ndarray | None) -> Selected:
        sizes = [len(matrix) for matrix in matrices]
        batch = matrices[0][None]
        if len(matrices) > 1:
            padded = [F.pad(matrix, (0, max(sizes) - len(matrix))) for matrix in matrices]
            batch = torch.nn.utils.rnn.pad_sequence(padded, batch_first=True)
        device_weights = None if weights is None else torch.from_numpy(weights).to(batch.device)[None]
        result = greedy.greedy(batch, max(depths), device_weights, torch.tensor(sizes, device=batch.device))
        picks, gains = (torch.cat([row[:n] for row, n in zip(rows, depths, strict=True)]) for rows in result)
        return picks, gains

    def _select_budgets(self, matrices: Matrices, budgets: Sequence[int], weights: np.ndarray | None) -> list[Choice]:
        depths = [min(budget + 1, len(matrix)) for matrix, budget in zip(matrices, budgets, strict=True)]
        ends = np.cumsum(depths)[:-1]
        picks, gains = (np.split(column.cpu().numpy(), ends) for column in self.select(matrices, depths, weights))
        return list(map(engine.split_next_gain, picks, gains, budgets))

    def _trace_history(self, matrix: torch.Tensor, picks: np.ndarray) -> Raises:
        n = matrix.shape[1]
        covered = torch.full((1, n), -32768, dtype=torch.int16, device=matrix.device)
        tokens, ranks, covers = [], [], []
        for part in iterate_tiles(len(picks), 4 * n):
            rows = take_rows(matrix, picks[part])  # [step, N]
            after = torch.cummax(torch.cat([covered, rows]), 0).values
            rank, token = torch.nonzero(rows > after[:-1], as_tuple=True)
            tokens.append(token.cpu().numpy())
            ranks.append(rank.cpu().numpy() + part.start)
            covers.append(rows[rank, token].cpu().numpy())
            covered = after[-1:]
        return np.concatenate(tokens), np.concatenate(ranks), np.concatenate(covers)

    def _find_closest(self, matrix: torch.Tensor, picks: np.ndarray, count: int) -> np.ndarray:
        """[N, count] int64: the ranks of the picks most similar to each token, in any order."""
        return take_rows(matrix, picks).topk(count, 0).indices.T.cpu().numpy()


class ReferenceEngine(TorchEngine):
    """Plain greedy on the torch engine's matrices."""

    def estimate_bytes(self, n: int, dim: int, similarity: Similarity, *, weighted: bool = False) -> int:
        return super().estimate_bytes(n, dim, similarity) + 24 * n * n  # plain greedy computes in int64

    def estimate_band_bytes(self, band: Band, dim: int) -> int:
        return self.estimate_bytes(band.n, dim, Similarity())

    def _select_in_band(
        self, job: Job, band: Band, similarity: Similarity, tick: Tick
    ) -> tuple[Choice, Raises, np.ndarray]:
        whole = compute_symmetric_matrix(job.tokens, similarity)[0].cpu().numpy()
        matrix = reference.limit_to_horizon(whole, band.cells, band.horizon).astype(np.int16)
        tick(job.tokens.numel() * band.width / 2)
        covered = matrix[job.given].max(0, initial=0)
        gained = np.maximum(matrix[job.first :] - covered, 0)  # [candidates, n], beyond what is covered already
        weights = None
        if job.question is not None:
            targets, weights = engine.join_targets(torch.from_numpy(gained), job.question)
            gained = targets.numpy()
        picks, gains = reference.greedy(gained, min(job.budget + 1, len(gained)), weights)
        choice = job.split_choice(job.first + picks, gains)
        token, rank, cover = self._trace_history(torch.from_numpy(matrix), np.append(job.given, choice[0]))
        rises = cover > 0  # a pick represents no token that it does not resemble
        return choice, (token[rises], rank[rises], cover[rises]), matrix.diagonal()

    def _select(self, matrices: Matrices, depths: Sequence[int], weights: np.ndarray | None) -> Selected:
        return select_one_by_one(reference.greedy, matrices, depths, weights)


def select_one_by_one(
    greedy: Callable[..., tuple], matrices: Matrices, depths: Sequence[int], weights: np.ndarray | None
) -> Selected:
    """Select from each matrix in turn by a function for numpy arrays; see `TorchEngine.select`."""
    arrays = [matrix.cpu().contiguous().numpy() for matrix in matrices]
    choices = [greedy(array, depth, weights)[:2] for array, depth in zip(arrays, depths, strict=True)]
    picks, gains = (torch.from_numpy(np.concatenate(column)) for column in zip(*choices, strict=True))
    return picks, gains


def _batch_jobs(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """Group consecutive jobs whose padded matrices fit _BATCH_BYTES. On a CPU one job at a time is as fast."""
    batch: list[Job] = []
    largest = 0
    for job in jobs:
        largest = max(largest, len(job.tokens))
        if batch and (job.tokens.device.type == "cpu" or 2 * (len(batch) + 1) * largest**2 > _BATCH_BYTES):
            yield batch
            batch, largest = [], len(job.tokens)
        batch.append(job)
    if batch:
        yield batch


def _normalize(tokens: torch.Tensor) -> torch.Tensor:
    """[n, D] float32, scaled to length 1; a zero token stays zero."""
    tokens = tokens.detach().float()
    # divide by the largest element first: squares of very large or small values overflow or underflow float32
    peak = tokens.abs().amax(-1, keepdim=True)
    tokens = tokens / torch.where(peak > 0, peak, 1)
    return tokens / tokens.norm(dim=-1, keepdim=True).clamp_min(1e-30)


def _compute_lengths(tokens: torch.Tensor) -> torch.Tensor:
    """[n] float64, or float32 on devices without float64."""
    return tokens.detach().to(torch.float32 if tokens.device.type == "mps" else torch.float64).norm(dim=-1)


def compute_symmetric_matrix(tokens: torch.Tensor, similarity: Similarity) -> tuple[torch.Tensor, float | None]:
    """Return the [n, n] int16 similarity of every token to every other, and sigma for the Gaussian metric."""
    unit, lengths = _normalize(tokens), _compute_lengths(tokens)
    sigma = _find_median_distance(unit, lengths) if similarity.metric == "gaussian" else None
    return _compute_matrix(tokens, unit, lengths, similarity, sigma), sigma


def compute_band(tokens: torch.Tensor, band: Band, similarity: Similarity) -> torch.Tensor:
    """Return the [n, width] int16 cosines of the tokens of a band, after `detail`; exactly symmetric.

    Only the similarities to the same and to later slices are computed; the others are copies.
    """
    frames, cells, horizon, dim = band.frames, band.cells, band.horizon, tokens.shape[1]
    values = torch.zeros(frames, cells, 2 * horizon + 1, cells, dtype=torch.int16, device=tokens.device)
    step = max(1, TILE_BYTES // (4 * cells * max(dim, band.reach + cells)))
    for start in range(0, frames, max(step, horizon)):
        stop = min(start + max(step, horizon), frames)
        unit = _normalize(tokens[start * cells : (stop + horizon) * cells])
        missing = (stop - start + horizon) * cells - len(unit)  # after the end of the video
        unit = F.pad(unit, (0, 0, 0, missing)) if missing else unit
        for first in range(start, stop, step):
            count = min(step, stop - first)
            rows = unit[(first - start) * cells :]
            # [count, cells, D] and [count, later, D]: each slice with itself and the `horizon` slices after it
            left = rows.as_strided((count, cells, dim), (cells * dim, dim, 1))
            right = rows.as_strided((count, cells + band.reach, dim), (cells * dim, dim, 1))
            s = _sharpen(torch.bmm(left, right.mT).clamp_(0, 1), similarity.detail)
            snapped = (s * SCALE).round().to(torch.int16).view(count, cells, horizon + 1, cells)
            values[first : first + count, :, horizon:] = snapped
    own = values[:, :, horizon]  # [T, cells, cells]
    own.copy_(own.triu() + own.triu(1).mT)
    for ahead in range(1, min(horizon, frames - 1) + 1):
        values[ahead:, :, horizon - ahead] = values[:-ahead, :, horizon + ahead].mT
    return values.view(band.n, band.width)


def _compute_matrix(
    candidates: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor, similarity: Similarity, sigma: float | None
) -> torch.Tensor:
    """[M, N] int16 similarity of [M, D] candidates to targets of [N, D] directions and [N] lengths.

    With `sigma` it is the Gaussian exp(-distance^2 / 2 sigma^2), otherwise the cosine.
    """
    matrix = torch.empty(len(candidates), len(targets), dtype=torch.int16, device=candidates.device)
    longest = float(lengths.max()) or 1.0  # the unit of all lengths, so that they fit float32
    for part in iterate_tiles(len(candidates), 4 * len(targets)):
        rows = candidates[part]
        s = _normalize(rows) @ targets.T
        if sigma is not None:
            squares = _square_distances(s, _compute_lengths(rows) / longest, lengths / longest)
            # if more than half of the pairs coincide, sigma is 0 and only coinciding tokens are similar
            s = torch.exp(squares * (-0.5 / max((sigma / longest) ** 2, 1e-30)))
        s = s.clamp(-1, 1)
        s = _sharpen(s, similarity.detail)
        matrix[part] = (s * SCALE).round().to(torch.int16)
    return matrix


def _sharpen(s: torch.Tensor, detail: float) -> torch.Tensor:
    """Apply `detail` to similarities of at most 1; see `Similarity`."""
    if detail == 1:
        return s
    gap = 1 - s.clamp_min(0)
    return 1 - gap * (PLAIN + (1 - PLAIN) * gap ** (detail - 1))


def _limit_to_reach(matrix: torch.Tensor, reach: Reach) -> None:
    """Set the similarities of candidates and targets that are too far apart, and negative ones, to 0."""
    frames = torch.from_numpy(reach.frames).to(matrix.device)
    for part in iterate_tiles(len(matrix), 16 * len(matrix)):
        is_far = (frames[part, None] - frames).abs() > reach.horizon
        matrix[part] = matrix[part].clamp_min(0).masked_fill(is_far, 0)


def _square_distances(cosine: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[M, N] |x - y|^2 = (|x| - |y|)^2 + 2 |x| |y| (1 - cos), from [M, N] cosines and the [M] and [N] lengths.

    Differences below float32 precision count as 0, so tokens closer than 0.0014 of their length are the same.
    """
    a, b = a.float()[:, None], b.float()
    length_gap = torch.where((a - b).abs() <= _NOISE * (a + b), 0, a - b)
    cosine_gap = torch.where(1 - cosine < _NOISE, 0, 1 - cosine)
    return length_gap**2 + 2 * a * b * cosine_gap


def _find_median_distance(unit: torch.Tensor, lengths: torch.Tensor) -> float:
    """Return the median distance of all pairs of tokens, given as unit directions and lengths."""
    n = len(unit)
    if n < 2:
        return 1.0
    longest = float(lengths.max()) or 1.0
    above = torch.triu_indices(n, n, 1, device=unit.device)
    squares = _square_distances(unit @ unit.T, lengths / longest, lengths / longest)[above[0], above[1]]
    ordered = squares.sort().values
    middle = ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]].double().sqrt().mean()
    return float(middle) * longest
