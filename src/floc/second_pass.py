"""The second pass: select again among the survivors of all blocks, which removes what blocks repeat.

A survivor is a token that passed the first pass. It represents a cluster of tokens of its block. The cosines of these
tokens with a token u add up to exactly (the sum of the normalized tokens) . u, so the second pass sees every survivor
as one target, with the direction and the length of that sum, and needs no other token. `floc.compress` runs the second
pass once, `floc.Stream` whenever it holds too many survivors.

The survivors of a long video are selected from in windows, because time and memory grow with the square of their
number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from floc import blocks
from floc._arrays import to_numpy
from floc.ranking import Ranking, find_improvements, find_nearest_place
from floc.selection.engine import History, Reach, Solution, Targets, Tick
from floc.selection.objective import SCALE, WEIGHT_SCALE, Similarity
from floc.selection.torch.engine import TorchEngine
from floc.tokens import TokenGrid

SURVIVORS_TOGETHER = 12_288  # survivors in one window at most: their similarity matrix takes 300 MB
WEIGHT_LIMIT = 2.0**30  # limit for the sum of a stream's weights, so that exact gains fit 64 bits


def plan_windows(sizes: np.ndarray, survivors: int, most: int) -> list[tuple[range, int]]:
    """Group consecutive blocks into windows, and share the survivors among these.

    Blocks get survivors in proportion to their sizes, at least one each. A window has at most `most`, unless one block
    alone has more. Returns the blocks of each window, and its number of survivors.

    >>> plan_windows(np.array([100, 100, 50]), 50, 40)
    [(range(0, 1), 20), (range(1, 3), 30)]
    """
    counts = np.maximum(blocks.share_budget(sizes, survivors), 1)
    return [(window, int(counts[window.start : window.stop].sum())) for window in blocks.pack_blocks(counts, most)]


def merge_survivors(gains: Sequence[np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Select the `count` best picks of several sets by gain; every set's first pick comes before all others.

    Without a survivor a set would have nothing to represent its tokens. Returns the [count] set and [count] rank in its
    set of each pick, most important first.
    """
    group, rank = blocks.merge_by_gain(gains)
    order = np.concatenate([np.flatnonzero(rank == 0), np.flatnonzero(rank > 0)])[:count]
    return group[order], rank[order]


class _Window(NamedTuple):
    """The survivors of consecutive blocks, and the clusters of tokens that they represent."""

    blocks: range
    tokens: slice  # flat indices of the blocks' tokens
    survivors: np.ndarray  # [M] int64 flat token index, most important first, which decides ties
    cluster: np.ndarray  # [tokens] int64, the cluster of each token; M in all, numbered block by block


@dataclass(frozen=True, eq=False)
class SecondPass:
    """The second pass of `floc.compress` over one grid of tokens."""

    grid: TokenGrid
    spans: list[slice]  # frames of each block
    sizes: np.ndarray  # [B] tokens in each block
    engine: TorchEngine
    similarity: Similarity
    tick: Tick
    with_history: bool = True  # whether to find representatives

    def rank(self, solutions: Sequence[Solution | None], windows: Sequence[tuple[range, int]], count: int) -> Ranking:
        """Select up to `count` tokens from the survivors of each window of `plan_windows`.

        Takes the [B] solutions of the first pass, with at least one pick in every block.
        """
        present = [solution for solution in solutions if solution is not None]
        assert len(present) == len(self.sizes), "every block has survivors"
        built = [self._build_window(window, present, survivors) for window, survivors in windows]
        sizes = np.array([window.tokens.stop - window.tokens.start for window in built])
        selected = [self._select(window, present, count) for window in built]
        return Ranking.merge(selected, sizes, shared=False, with_history=self.with_history)

    @cached_property
    def _ends(self) -> list[int]:
        return self.sizes.cumsum().tolist()

    def _find_tokens(self, block: int, start: int = 0) -> slice:
        """Return the indices of a block's tokens, counted from `start`."""
        return slice(self._ends[block] - int(self.sizes[block]) - start, self._ends[block] - start)

    def _build_window(self, window: range, solutions: Sequence[Solution], survivors: int) -> _Window:
        """Share survivors among blocks by gain, and assign every token to the cluster of its representative."""
        tokens = slice(self._find_tokens(window[0]).start, self._find_tokens(window[-1]).stop)
        block, rank = merge_survivors([solutions[b].gains for b in window], survivors)
        flat = np.empty(len(block), np.int64)
        cluster = np.empty(tokens.stop - tokens.start, np.int64)
        start = 0
        for i, b in enumerate(window):
            members, place = np.flatnonzero(block == i), self._find_tokens(b, tokens.start)
            history = solutions[b].history
            assert history is not None
            flat[members] = tokens.start + place.start + solutions[b].picks[rank[members]]
            cluster[place] = start + history.representatives(place.stop - place.start, len(members))
            start += len(members)
        return _Window(window, tokens, flat, cluster)

    def _select(self, window: _Window, solutions: Sequence[Solution], count: int) -> Solution:
        """Select from the survivors of a window; picks and history are indices into the window's tokens."""
        survivors = len(window.survivors)
        places = ((b, self._find_tokens(b, window.tokens.start)) for b in window.blocks)
        sets = [(self.grid.frames(self.spans[b]), window.cluster[place]) for b, place in places]
        if self.similarity.metric == "cosine":
            directions, lengths = self.engine.sum_by_cluster(sets, survivors, unit=True)
            weights, sigma = np.rint(lengths * WEIGHT_SCALE).astype(np.int64), None
        else:
            # distances do not add up as cosines do: a cluster is replaced by its mean, weighted by its size
            members = np.bincount(window.cluster, minlength=survivors)
            directions, lengths = self.engine.sum_by_cluster(sets, survivors, unit=False)
            lengths = lengths / np.maximum(members, 1)  # of two equal survivors, one represents both
            weights, sigma = members * WEIGHT_SCALE, float(np.mean([solution.sigma for solution in solutions]))
        candidates, targets = self.grid.gather(window.survivors), Targets(directions, lengths, weights)
        options: Any = dict(sigma=sigma, with_history=self.with_history, tick=self.tick)
        selected = self.engine.solve_weighted(candidates, targets, min(count, survivors), self.similarity, **options)
        picks = window.survivors[selected.picks] - window.tokens.start
        history = self._find_history(window, candidates, selected) if self.with_history else None
        return Solution(picks, selected.gains, selected.next_gain, history).scale(SCALE * WEIGHT_SCALE)

    def _find_history(self, window: _Window, candidates: torch.Tensor, selected: Solution) -> History:
        """Find the representatives of a window's tokens: the most similar one of some candidates.

        These are the picks that represented a token's cluster along the way, the few picks closest to the cluster and,
        for a token that was picked, the token itself.
        """
        history, closest = selected.history, selected.closest
        assert history is not None
        assert closest is not None
        changes = np.argsort(history.token, kind="stable")
        first = np.searchsorted(history.token[changes], np.arange(len(window.survivors) + 1))  # of each cluster
        picked = window.survivors[selected.picks] - window.tokens.start
        parts = []
        for b in window.blocks:
            place = self._find_tokens(b, window.tokens.start)
            cluster = window.cluster[place]
            members = np.arange(len(cluster))
            counts = first[cluster + 1] - first[cluster]
            nth = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
            itself = np.flatnonzero((picked >= place.start) & (picked < place.stop))
            changed = changes[np.repeat(first[cluster], counts) + nth]
            repeated = np.repeat(members, counts), np.repeat(members, closest.shape[1])
            token = np.concatenate([*repeated, picked[itself] - place.start])
            rank = np.concatenate([history.rank[changed], closest[cluster].ravel(), itself])
            by_rank = np.argsort(rank, kind="stable")
            token, rank = token[by_rank], rank[by_rank]
            tokens = self.grid.frames(self.spans[b])
            cosine = self.engine.compute_cosines(tokens, token, candidates, selected.picks[rank])
            parts.append(find_improvements(place.start + token, rank, cosine))
        return History(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class SurvivorSelection(NamedTuple):
    """Some of a stream's survivors, selected among all of them."""

    picks: np.ndarray  # [count] int64 places, most important first
    gains: np.ndarray  # [count] float64, what each added, in tokens
    representatives: np.ndarray  # [M] int64, rank of the pick that represents each survivor
    targets: tuple[torch.Tensor, np.ndarray]  # [M, D] directions and [M] lengths of the sums


def select_survivors(
    engine: TorchEngine,
    similarity: Similarity,
    survivors: torch.Tensor,
    sums: torch.Tensor,
    count: int,
    reach: Reach | None = None,
) -> SurvivorSelection:
    """Select `count` of a stream's survivors; many of them in windows of consecutive survivors, merged by gain.

    Takes [M, D or more] tokens, of which the first D features are compared, and the [M, D] sums of the normalized
    tokens that each represents. A survivor that resembles no pick within reach gets the nearest pick in time as its
    representative.
    """
    total, dim = sums.shape
    norms = torch.linalg.vector_norm(sums, dim=1)
    directions, lengths = sums / norms.clamp(min=1e-30)[:, None], to_numpy(norms).astype(np.float64)
    # as precise as the limit on their sum allows
    scale = min(float(WEIGHT_SCALE), WEIGHT_LIMIT / max(1.0, float(lengths.sum())))
    weights = np.rint(lengths * scale).astype(np.int64)
    windows = blocks.split_blocks(total, math.ceil(total / min(count, math.ceil(total / SURVIVORS_TOGETHER))))
    solutions = []
    for window in windows:
        candidates = survivors[window, :dim].contiguous()
        targets = Targets(directions[window], lengths[window], weights[window])
        near = None if reach is None else reach.split(window)
        budget = min(count, len(candidates))
        solutions.append(engine.solve_weighted(candidates, targets, budget, similarity, reach=near))
    group, rank = merge_survivors([solution.gains for solution in solutions], count)
    picks, gains = np.empty(count, np.int64), np.empty(count)
    representatives = np.empty(total, np.int64)
    for i, (window, solution) in enumerate(zip(windows, solutions, strict=True)):
        assert solution.history is not None
        members = np.flatnonzero(group == i)
        picks[members] = window.start + solution.picks[rank[members]]
        gains[members] = solution.gains[rank[members]] / (SCALE * scale)
        ranks = solution.history.representatives(window.stop - window.start, len(members))
        representatives[window] = members[ranks]
    if reach is not None:
        frames, by_frame = reach.frames, np.argsort(reach.frames[picks], kind="stable")
        is_far = abs(frames[picks[representatives]] - frames) > reach.horizon
        representatives[is_far] = by_frame[find_nearest_place(frames[picks[by_frame]], frames[is_far])]
    return SurvivorSelection(picks, gains, representatives, (directions, lengths))
