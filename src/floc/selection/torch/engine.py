"""The torch engine: the same choices from plain torch operations, on any device and without numba.

With `greedy` exchanged it is also the `reference` engine, whose parts are all meant to be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from floc.selection import reference
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
from floc.selection.objective import SCALE, Similarity
from floc.selection.torch import greedy

# matrices of sets that are chosen from together; on a CPU one set at a time is as fast and stays in cache
_TOGETHER_BYTES = 1 << 30
# elements of a float32 temporary
_PIECE = 1 << 24


class TorchEngine:
    """See `Engine`."""

    name = "torch"

    def at_work(self) -> AbstractContextManager[None]:
        return nullcontext()

    def solve(
        self, jobs: Iterable[Job], similarity: Similarity, *, with_cosines: bool, tick: Tick = no_tick
    ) -> Iterator[Solution]:
        for group in _together(jobs):
            made = [_symmetric(job.tokens, similarity) for job in group]
            matrices = [matrix for matrix, _ in made]
            chosen = self._choose(matrices, [job.budget for job in group])
            for job, (matrix, sigma), choice in zip(group, made, chosen, strict=True):
                own = matrix.diagonal().cpu().numpy()
                raises = _history(matrix, choice[0])
                cosines = partial(self._cosines_within, job.tokens)
                tick(job.tokens.numel() * len(job.tokens) / 2)
                yield build_solution(choice, raises, own, similarity, sigma, cosines, with_cosines=with_cosines)

    def _cosines_within(self, tokens: torch.Tensor, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        return self.cosines(tokens, i, tokens, j)

    def sum_by_cluster(
        self, sets: Sequence[tuple[torch.Tensor, np.ndarray]], count: int, *, unit: bool
    ) -> tuple[torch.Tensor, np.ndarray]:
        tokens = sets[0][0]
        sums = torch.zeros(count, tokens.shape[1], dtype=torch.float32, device=tokens.device)
        for members, cluster in sets:
            rows = _unit(members) if unit else members.detach().float()
            sums.index_add_(0, torch.from_numpy(cluster).to(rows.device), rows)
        return _unit(sums), _lengths(sums).cpu().numpy()

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
        lengths = torch.from_numpy(targets.lengths).to(candidates.device)
        matrix = _matrix(candidates, targets.directions, lengths, similarity, sigma)
        tick(candidates.numel() * len(lengths))
        [(picks, gains, next_gain)] = self._choose([matrix], [budget], targets.weights)
        if not with_history:
            return Solution(picks, gains, next_gain, None, sigma)
        token, rank, _ = _history(matrix, picks)
        rows = matrix[torch.from_numpy(picks).to(matrix.device)]  # [k, N]
        closest = rows.topk(min(CLOSEST, budget), 0).indices.T.cpu().numpy()
        return Solution(picks, gains, next_gain, History(token, rank, None), sigma, closest)

    def cosines(self, left: torch.Tensor, i: np.ndarray, right: torch.Tensor, j: np.ndarray) -> np.ndarray:
        out = []
        step = max(1, _PIECE // left.shape[1])
        for start in range(0, len(i), step):
            a = left[torch.from_numpy(i[start : start + step]).to(left.device)]
            b = right[torch.from_numpy(j[start : start + step]).to(right.device)]
            out.append((_unit(a) * _unit(b)).sum(-1).double().cpu().numpy())
        return np.concatenate(out) if out else np.zeros(0)

    def bytes_needed(self, n: int, dim: int, similarity: Similarity, *, weighted: bool = False) -> int:
        median = 28 * n * n if similarity.metric == "gaussian" else 0  # it sorts all distances
        return 2 * n * n + median + 4 * n * dim + 16 * _PIECE

    def survivors_together(self, sizes: np.ndarray, survivors: int) -> int:
        return int(sizes.sum())  # one block's matrix exists at a time

    def _choose(
        self, matrices: Sequence[torch.Tensor], budgets: Sequence[int], weights: np.ndarray | None = None
    ) -> list[tuple[np.ndarray, np.ndarray, int]]:
        """Picks, gains and the next gain for each matrix."""
        sizes = [len(matrix) for matrix in matrices]
        if len(matrices) == 1:
            together = matrices[0][None]
        else:
            together = torch.nn.utils.rnn.pad_sequence(
                [F.pad(matrix, (0, max(sizes) - len(matrix))) for matrix in matrices], batch_first=True
            )
        device = together.device
        k = min(max(budgets) + 1, max(sizes))
        picks, gains = greedy.greedy(
            together,
            k,
            None if weights is None else torch.from_numpy(weights).to(device)[None],
            torch.tensor(sizes, device=device),
        )
        picks_all, gains_all = picks.cpu().numpy(), gains.cpu().numpy()
        return [
            split_next_gain(picks_all[b, :size], gains_all[b, :size], budget)
            for b, (budget, size) in enumerate(zip(budgets, sizes, strict=True))
        ]


class ReferenceEngine(TorchEngine):
    """Plain greedy on the torch engine's matrices."""

    name = "reference"

    def bytes_needed(self, n: int, dim: int, similarity: Similarity, *, weighted: bool = False) -> int:
        return super().bytes_needed(n, dim, similarity) + 24 * n * n  # plain greedy computes in int64

    def _choose(
        self, matrices: Sequence[torch.Tensor], budgets: Sequence[int], weights: np.ndarray | None = None
    ) -> list[tuple[np.ndarray, np.ndarray, int]]:
        hosted = [matrix.cpu().numpy() for matrix in matrices]
        return [
            split_next_gain(*reference.greedy(matrix, min(budget + 1, len(matrix)), weights), budget)
            for matrix, budget in zip(hosted, budgets, strict=True)
        ]


def _together(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """Consecutive jobs whose matrices, padded to the largest, fit the limit."""
    group: list[Job] = []
    largest = 0
    for job in jobs:
        grown = max(largest, len(job.tokens))
        on_cpu = job.tokens.device.type == "cpu"
        if group and (on_cpu or 2 * (len(group) + 1) * grown * grown > _TOGETHER_BYTES):
            yield group
            group, grown = [], len(job.tokens)
        group.append(job)
        largest = grown
    if group:
        yield group


def _unit(tokens: torch.Tensor) -> torch.Tensor:
    """[n, D] float32 at length 1; a zero token stays zero."""
    tokens = tokens.detach().float()
    # by the largest element first: squares of very large or small values leave float32
    peak = tokens.abs().amax(-1, keepdim=True)
    tokens = tokens / torch.where(peak > 0, peak, 1)
    return tokens / tokens.norm(dim=-1, keepdim=True).clamp_min(1e-30)


def _lengths(tokens: torch.Tensor) -> torch.Tensor:
    """[n] float64, where the device has it."""
    wide = torch.float32 if tokens.device.type == "mps" else torch.float64
    return tokens.detach().to(wide).norm(dim=-1)


def _symmetric(tokens: torch.Tensor, similarity: Similarity) -> tuple[torch.Tensor, float | None]:
    unit, lengths = _unit(tokens), _lengths(tokens)
    sigma = _median_distance(unit, lengths) if similarity.metric == "gaussian" else None
    return _matrix(tokens, unit, lengths, similarity, sigma), sigma


def _matrix(
    candidates: torch.Tensor,
    directions: torch.Tensor,
    lengths: torch.Tensor,
    similarity: Similarity,
    sigma: float | None,
) -> torch.Tensor:
    """[M, N] int16 similarity of candidates to targets, these as directions and lengths."""
    matrix = torch.empty(len(candidates), len(directions), dtype=torch.int16, device=candidates.device)
    step = max(1, _PIECE // len(directions))
    longest = float(lengths.max()) or 1.0  # all is measured in it, which float32 can always hold
    for start in range(0, len(candidates), step):
        part = candidates[start : start + step]
        s = _unit(part) @ directions.T
        if sigma is not None:
            squares = _square_distances(s, _lengths(part) / longest, lengths / longest)
            # where more than half of the pairs coincide sigma is 0, and only what coincides is alike
            s = torch.exp(squares * (-0.5 / max((sigma / longest) ** 2, 1e-30)))
        s = s.clamp(-1, 1)
        if similarity.detail != 1:
            s = 1 - (1 - s.clamp_min(0)) ** similarity.detail
        matrix[start : start + step] = (s * SCALE).round().to(torch.int16)
    return matrix


def _square_distances(cosine: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[M, N] |x - y|^2 from [M, N] cosines and the [M] and [N] lengths."""
    a, b = a.float()[:, None], b.float()
    # what float32 cannot tell from 0 is 0: see gaussian.py
    longer = torch.where((a - b).abs() <= 1e-6 * (a + b), 0, a - b)
    gap = torch.where(1 - cosine < 1e-6, 0, 1 - cosine)
    return longer**2 + 2 * a * b * gap


def _median_distance(unit: torch.Tensor, lengths: torch.Tensor) -> float:
    n = len(unit)
    if n < 2:
        return 1.0
    longest = float(lengths.max()) or 1.0
    above = torch.triu_indices(n, n, 1, device=unit.device)
    squares = _square_distances(unit @ unit.T, lengths / longest, lengths / longest)[above[0], above[1]]
    ordered = squares.sort().values
    middle = ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]].double().sqrt().mean()
    return float(middle) * longest


def _history(matrix: torch.Tensor, picks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each time a pick raised a token's cover: the token, the pick's rank, the new cover."""
    n = matrix.shape[1]
    covered = torch.full((1, n), -32768, dtype=torch.int16, device=matrix.device)
    tokens, ranks, covers = [], [], []
    step = max(1, _PIECE // n)
    for start in range(0, len(picks), step):
        rows = matrix[torch.from_numpy(picks[start : start + step]).to(matrix.device)]  # [step, N]
        after = torch.cummax(torch.cat([covered, rows]), 0).values
        rank, token = torch.nonzero(rows > after[:-1], as_tuple=True)
        tokens.append(token.cpu().numpy())
        ranks.append(rank.cpu().numpy() + start)
        covers.append(rows[rank, token].cpu().numpy())
        covered = after[-1:]
    return np.concatenate(tokens), np.concatenate(ranks), np.concatenate(covers)
