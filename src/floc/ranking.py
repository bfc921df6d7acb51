"""The nested order of picks, which holds the result for every smaller budget.

Greedy's first k picks do not depend on the budget. So the picks in order, with the history of representatives, give the
kept tokens, their representatives, the coverage and the bound for every budget up to their number, at no further cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from floc import blocks
from floc.budget import find_fewest
from floc.selection.engine import Band, History, Solution


@dataclass(frozen=True, eq=False)
class DeviceRanking:
    """A ranking that is still on the GPU that made it. Only `fetch` waits for the GPU."""

    picks: torch.Tensor  # [P] int64 flat token index
    gains: torch.Tensor  # [P] float64
    non_finite: torch.Tensor  # [1] int32, not 0 if any token is not finite
    fetch: Callable[[], Ranking]  # copies it to the host, without a history; keeps what a CUDA graph reads alive
    band: Band | None = None  # with a horizon: the slices within which tokens represent each other


@dataclass(frozen=True, eq=False)
class Ranking:
    """Picks from most to least important, in groups that were selected from separately: blocks or windows."""

    picks: np.ndarray  # [P] int64 flat token index
    gains: np.ndarray  # [P] float64
    group: np.ndarray  # [P] int64, the group of each pick
    rank: np.ndarray  # [P] int64, the rank of each pick in its group
    group_sizes: np.ndarray  # [G] int64 tokens in each group
    next_gains: np.ndarray | None  # [G] float64, the gain of each group's best further pick; None if unknown
    shared: bool  # whether a budget is shared among groups by size; else it takes the first picks of the order
    history: History | None  # the changes of representatives; None if unknown
    openings: np.ndarray | None = None  # [G, 2] float64, each group's first two gains, if the budget is not shared

    @classmethod
    def merge(
        cls,
        solutions: Sequence[Solution | None],
        sizes: np.ndarray,
        *,
        shared: bool = True,
        rising: bool = True,
        with_history: bool = True,
    ) -> Ranking:
        """Merge the solutions of all groups into one order.

        Args:
            solutions: [G], gains in units of similarity; None for a group without picks.
            sizes: [G] tokens in each group.
            shared: Share a budget among groups by size. Otherwise order all picks by gain.
            rising: Whether cosines rise with every change of a representative; if not, other changes are left out.
            with_history: Whether representatives are needed.
        """
        offsets = sizes.cumsum() - sizes
        present = [(g, solution) for g, solution in enumerate(solutions) if solution is not None]
        counts = np.array([0 if solution is None else len(solution.picks) for solution in solutions])
        starts = counts.cumsum() - counts  # where each group's picks start if they are concatenated
        if shared:
            group = np.repeat(np.arange(len(counts)), counts)
            rank = np.arange(len(group)) - starts[group]
            order = blocks.interleave(sizes, rank, group)
            group, rank = group[order], rank[order]
        else:
            group, rank = blocks.merge_by_gain([s.gains for _, s in present])
            group = np.array([g for g, _ in present])[group]
        concatenated = starts[group] + rank  # [P] from order to concatenation
        picks = np.concatenate([offsets[g] + s.picks for g, s in present])[concatenated]
        gains = np.concatenate([s.gains for _, s in present])[concatenated]
        next_gains = None
        if all(s.next_gain is not None for _, s in present):
            next_gains = np.array([0 if s is None else s.next_gain for s in solutions], np.float64)
        history = _merge_histories(present, offsets, starts, concatenated, rising) if with_history else None
        openings = None if shared else np.array([np.append(s.gains, s.next_gain or 0)[:2] for _, s in present])
        return cls(picks, gains, group, rank, sizes, next_gains, shared, history, openings)

    @property
    def n(self) -> int:
        """Number of tokens that were selected from."""
        return int(self.group_sizes.sum())

    def mask(self, count: int) -> np.ndarray:
        """Return [P] bool, the picks that a budget of `count` <= P tokens keeps."""
        if not self.shared:
            return np.arange(len(self.picks)) < count
        room = np.bincount(self.group, minlength=len(self.group_sizes))
        return self.rank < blocks.share_budget(self.group_sizes, count, room)[self.group]

    def truncate(self, count: int) -> Ranking:
        """Drop the picks that a budget of `count` does not keep."""
        if not self.shared:
            return self  # every smaller result is a prefix
        kept = self.mask(count)
        next_gains = None
        if self.next_gains is not None:
            next_gains = self.next_gains.copy()
            next_gains[self.group[~kept][::-1]] = self.gains[~kept][::-1]  # for a repeated index the last value counts
        history = self.history
        if history is not None:
            token, rank, cosine = (column[kept[history.rank]] for column in history)  # type: ignore[index]  # has cosines
            history = History(token, (kept.cumsum() - 1)[rank], cosine)
        columns: Any = {name: getattr(self, name)[kept] for name in ("picks", "gains", "group", "rank")}
        return replace(self, **columns, next_gains=next_gains, history=history)

    def represents(self, count: int) -> np.ndarray:
        """Return [n] int64, for every token the place of its representative among the kept tokens by index."""
        assert self.history is not None
        kept = self.mask(count)
        indices = np.sort(self.picks[kept])
        last = self.history.representatives(self.n, kept)
        # tokens of a group without picks are represented by the kept token with the nearest index
        nearest = find_nearest_place(indices, np.arange(self.n))
        return np.where(last < 0, nearest, np.searchsorted(indices, self.picks[last]))

    def coverage(self, count: int) -> float:
        """Return the mean cosine of tokens and their representatives; 0 for tokens of a group without picks."""
        assert self.history is not None
        assert self.history.cosine is not None
        best = np.zeros(self.n)
        remains = self.mask(count)[self.history.rank]
        best[self.history.token[remains]] = self.history.cosine[remains]
        return float(best.mean())

    def find_count(self, coverage: float) -> int:
        """Return the smallest budget that reaches a coverage."""
        low = find_fewest(self.coverage, len(self.picks), coverage)
        # one more token, shared by size, can take one away from a block: check whether slightly fewer do as well
        fewer = range(max(1, low - 2 * len(self.group_sizes)), low) if self.shared else ()
        return next((count for count in fewer if self.coverage(count) >= coverage), low)

    def bound(self, count: int) -> float | None:
        """Return f(S) divided by an upper limit of f for any other selection; None if it is unknown or negative.

        The gains prove the limit. If the budget is shared among groups, other selections share it in the same way.
        """
        if self.next_gains is None:
            return None
        kept = self.mask(count)
        if self.shared:
            counts = np.bincount(self.group[kept], minlength=len(self.group_sizes))
            groups = np.flatnonzero(counts)
            limit = sum(_limit(self.gains[self.group == g], self.next_gains[g], int(counts[g])) for g in groups)
        else:
            # the limit holds only if no group is empty: see `_limit`
            present, first = np.unique(self.group, return_index=True)
            if count == 1 or (len(present) == len(self.group_sizes) and first.max() < count):
                limit = _limit(self.gains, self.next_gains.max(), count, int(first.max()) if count > 1 else 0)
            else:
                assert self.openings is not None
                limit = self.openings[:, 0].sum() + count * self.openings[:, 1].max()
        share = float(min(1.0, self.gains[kept].sum() / limit)) if limit > 0 else 1.0
        return share if share >= 0 else None


def _merge_histories(
    present: list[tuple[int, Solution]], offsets: np.ndarray, starts: np.ndarray, concatenated: np.ndarray, rising: bool
) -> History:
    """Renumber the tokens and ranks of all groups' histories, and merge them in the order of ranks."""
    place = np.empty(len(concatenated), np.int64)
    place[concatenated] = np.arange(len(concatenated))  # [P] from concatenation to order
    histories = [(g, s.history) for g, s in present if s.history is not None]
    token = np.concatenate([offsets[g] + history.token for g, history in histories])
    rank = np.concatenate([place[starts[g] + history.rank] for g, history in histories])
    cosine = np.concatenate([history.cosine for _, history in histories])
    if not rising:
        return find_improvements(token, rank, cosine)
    by_rank = np.argsort(rank, kind="stable")
    return History(token[by_rank], rank[by_rank], cosine[by_rank])


def _limit(gains: np.ndarray, next_gain: float, k: int, start: int = 0) -> float:
    """Return an upper limit of f over all sets of k: the least f(S_i) + k x the next gain, over i = start + 1 .. k.

    f(any k) <= f(S_i) + the k largest gains at S_i for every non-empty prefix S_i of greedy's picks. From the empty set
    gains can rise if similarities are negative. Greedy's first pick is the best single one.
    """
    if k == 1:
        return float(gains[0])
    reached = gains[:k].cumsum()
    following = np.append(gains, next_gain)[1 : k + 1]
    return float((reached + k * following)[start:].min())


def find_improvements(token: np.ndarray, rank: np.ndarray, cosine: np.ndarray) -> History:
    """Keep, of all candidate representatives, those better than every earlier one, in the order of ranks.

    >>> columns = map(np.array, ([7, 7, 5, 7], [2, 0, 1, 3], [0.5, 0.8, 0.1, 0.9]))
    >>> [column.tolist() for column in find_improvements(*columns)]
    [[7, 5, 7], [0, 1, 3], [0.8, 0.1, 0.9]]
    """
    # a cosine that differs from 1 by rounding belongs to the token itself or to an equal one
    cosine = np.where(cosine > 1 - 1e-6, 1.0, cosine)
    by_token = np.lexsort((rank, token))
    token, rank, cosine = token[by_token], rank[by_token], cosine[by_token]
    # one running maximum for all tokens: each starts 4 above the last, and cosines span only 2
    level = np.unique(token, return_inverse=True)[1] * 4.0 + cosine
    better = np.append(True, level[1:] > np.maximum.accumulate(level)[:-1])
    by_rank = np.flatnonzero(better)[np.argsort(rank[better], kind="stable")]
    return History(token[by_rank], rank[by_rank], cosine[by_rank])


def find_nearest_place(ascending: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return, for each value, the place of the nearest entry of an ascending array; ties go to the earlier one."""
    right = np.searchsorted(ascending, values).clip(max=len(ascending) - 1)
    left = (right - 1).clip(min=0)
    return np.where(values - ascending[left] <= ascending[right] - values, left, right)
