"""One run, every smaller budget: the picks in order, and whom each represents from when on.

Greedy's picks for k open its picks for k + 1, so an order of picks together with the history of representatives holds
the answer for every budget up to its length, with representatives, coverage and certificate, at no further cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from floc import blocks
from floc.budget import find_fewest


class Answer(NamedTuple):
    """What a path says for one budget."""

    indices: np.ndarray  # [K] int64, ascending
    order: np.ndarray  # [K] int64 places in `indices`, most important first
    gains: np.ndarray  # [K] float64, in that order
    represents: np.ndarray | None  # [n] int64 places in `indices`; None where the path has no history
    coverage: float | None
    bound: float | None


class Groups(NamedTuple):
    """What is known of groups that were chosen from separately, beside the picks."""

    group: np.ndarray  # [K] int64, which group a pick is from
    next_gains: np.ndarray  # [G] float64, what the best further pick of each group would add
    openings: np.ndarray  # [G, 2] float64, the first and second gain of each group, also where neither was chosen


class Chosen(NamedTuple):
    """What was chosen on a device, most important first, and is still there."""

    picks: torch.Tensor  # [K] int64 flat token index
    gains: torch.Tensor  # [K] float64
    groups: Callable[[], Groups]  # fetches what is known of the groups that were chosen from separately
    wrong: torch.Tensor  # [1] int32, not 0 if any token is not finite
    plan: object  # what a CUDA graph that made this reads when it is replayed


class History(NamedTuple):
    """Who represents whom, as it changes along a path."""

    token: np.ndarray  # [E] int64: when pick `place` is taken, `token` gets a better representative
    place: np.ndarray  # [E] int64, never falling
    cosine: np.ndarray  # [E] float64, of the token and that pick


@dataclass(frozen=True)
class Ranking:
    """Picks from most to least important, in groups that were chosen from separately, and who represented whom."""

    picks: np.ndarray  # [P] int64 flat token index
    gains: np.ndarray  # [P] float64
    group: np.ndarray  # [P] int64, which group a pick is from
    group_sizes: np.ndarray  # [G] int64 tokens in each group
    next_gains: np.ndarray | None  # [G] float64, what the best further pick of each group would add; None: unknown
    shared: bool  # whether a budget is shared out among groups by size, or simply cut off
    n: int  # tokens there are
    history: History | None  # who represented whom; None: unknown
    openings: np.ndarray | None = None  # [G, 2] float64, the first and second gain of each group; None: all are here

    def upto(self, budget: int) -> Ranking:
        """The path that ends where the answer for `budget` does, in every group."""
        if not self.shared:
            return self  # any answer is a prefix of any longer one
        taken = self._taken(budget)
        next_gains = None
        if self.next_gains is not None:
            next_gains = self.next_gains.copy()
            for g, gain in zip(self.group[~taken][::-1], self.gains[~taken][::-1], strict=True):
                next_gains[g] = gain  # the first one not taken stays
        history = None
        if self.history is not None:
            seen = taken[self.history.place]
            token, place, cosine = (each[seen] for each in self.history)
            history = History(token, (taken.cumsum() - 1)[place], cosine)
        return replace(
            self,
            picks=self.picks[taken],
            gains=self.gains[taken],
            group=self.group[taken],
            next_gains=next_gains,
            history=history,
        )

    def indices(self, budget: int) -> np.ndarray:
        """[K] int64 ascending, the tokens of the answer for `budget`."""
        return np.sort(self.picks[self._taken(budget)])

    def answer(self, budget: int) -> Answer:
        """The answer for `budget` <= P tokens."""
        taken = self._taken(budget)  # [P]
        picks = self.picks[taken]
        indices = np.sort(picks)
        order = np.searchsorted(indices, picks)
        represents, coverage = None, None
        if self.history is not None:
            # the last representative that was taken; where no pick of a group was, the kept token nearest in the video
            last = self._last(self.history, taken)  # [n]
            represents = np.where(
                last < 0, find_nearest_place(indices, np.arange(self.n)), np.searchsorted(indices, self.picks[last])
            )
            coverage = self._coverage(taken)
        return Answer(indices, order, self.gains[taken], represents, coverage, self._bound(taken, budget))

    def bound(self, budget: int) -> float | None:
        """The certificate of the answer for `budget`."""
        return self._bound(self._taken(budget), budget)

    def fewest(self, coverage: float) -> int:
        """The smallest budget that reaches a coverage."""
        low = find_fewest(lambda count: self._coverage(self._taken(count)), len(self.picks), coverage)
        # a token more, shared out by size, can take one from some block: look whether a few less do as well
        fewer = range(max(1, low - 2 * len(self.group_sizes)), low) if self.shared else ()
        return next((count for count in fewer if self._coverage(self._taken(count)) >= coverage), low)

    def _taken(self, budget: int) -> np.ndarray:
        """[P] bool, the picks that belong to the answer for `budget`."""
        if not self.shared:
            return np.arange(len(self.picks)) < budget
        room = np.bincount(self.group, minlength=len(self.group_sizes))
        return self._rank() < blocks.share_budget(self.group_sizes, budget, room)[self.group]

    def _rank(self) -> np.ndarray:
        """[P] each pick's rank within its group."""
        by_group = np.argsort(self.group, kind="stable")
        counts = np.bincount(self.group, minlength=len(self.group_sizes))
        rank = np.empty(len(self.group), np.int64)
        rank[by_group] = np.arange(len(self.group)) - np.repeat(counts.cumsum() - counts, counts)
        return rank

    def _last(self, history: History, taken: np.ndarray) -> np.ndarray:
        """[n] the place of each token's representative among the taken picks, -1 where it has none."""
        last = np.full(self.n, -1, np.int64)
        seen = taken[history.place]
        last[history.token[seen]] = history.place[
            seen
        ]  # of a repeated index the last value stays, and places never fall
        return last

    def _coverage(self, taken: np.ndarray) -> float:
        """f(taken) / n with plain cosines; a token without a representative counts 0, as f of nothing does."""
        assert self.history is not None, "coverage is told by it"
        best = np.zeros(self.n)
        seen = taken[self.history.place]
        best[self.history.token[seen]] = self.history.cosine[seen]
        return float(best.mean())

    def _bound(self, taken: np.ndarray, budget: int) -> float | None:
        """f(S) over the least upper limit that the gains prove for any other choice; None where they are not of f.

        Where the budget is shared out, other choices are those that share it out alike.
        """
        if self.next_gains is None:
            return None
        if self.shared:
            counts = np.bincount(self.group[taken], minlength=len(self.group_sizes))
            groups = np.flatnonzero(counts)
            limit = sum(_limit(self.gains[self.group == g], self.next_gains[g], int(counts[g])) for g in groups)
        else:
            # no group may be empty for a limit to hold: see `_limit`
            present, first = np.unique(self.group, return_index=True)
            if budget == 1 or (len(present) == len(self.group_sizes) and first.max() < budget):
                limit = _limit(self.gains, self.next_gains.max(), budget, int(first.max()) if budget > 1 else 0)
            else:
                openings = self._openings() if self.openings is None else self.openings
                limit = openings[:, 0].sum() + budget * openings[:, 1].max()
        value = self.gains[taken].sum()
        return float(min(1.0, value / limit)) if limit > 0 else 1.0

    def _openings(self) -> np.ndarray:
        """[G, 2] the first and second gain of each group that has picks."""
        assert self.next_gains is not None, "they belong to the certificate"
        groups = np.unique(self.group)
        return np.array([np.append(self.gains[self.group == g], self.next_gains[g])[:2] for g in groups])


class Choice(NamedTuple):
    """What was chosen from one block, and who represented whom from when on; all indices are within the block."""

    picks: np.ndarray  # [k] int64, most important first
    gains: np.ndarray  # [k]
    token: np.ndarray  # [E] int64: when pick `rank` is taken, `token` gets a better representative
    rank: np.ndarray  # [E] int64, never falling
    cosine: np.ndarray  # [E], of the token and that pick
    next_gain: float | None  # what the best further pick would add, where that is known


def joined(choices: Sequence[Choice | None], sizes: np.ndarray, *, shared: bool = True, rising: bool = True) -> Ranking:
    """The path through all blocks' choices.

    Args:
        choices: one for each block, None where nothing was chosen.
        sizes: [B] tokens in each block.
        shared: share a budget out among blocks by size; else the largest gains of all blocks come first.
        rising: whether each new representative has a higher cosine than the one before; else those that have not are
            left out.
    """
    offsets = sizes.cumsum() - sizes
    present = [(b, choice) for b, choice in enumerate(choices) if choice is not None]
    if shared:
        group = np.concatenate([np.full(len(c.picks), b) for b, c in present])
        rank = np.concatenate([np.arange(len(c.picks)) for _, c in present])
        order = blocks.interleave(sizes, rank, group)
        group, rank = group[order], rank[order]
    else:
        group, rank = blocks.merge_by_gain([c.gains for _, c in present])
        group = np.array([b for b, _ in present])[group]
    starts = np.zeros(len(choices), np.int64)  # where each block's picks start when they are laid end to end
    starts[[b for b, _ in present]] = np.cumsum([0] + [len(c.picks) for _, c in present])[:-1]
    laid_out = starts[group] + rank  # [P] from order to end-to-end
    place = np.empty(len(group), np.int64)
    place[laid_out] = np.arange(len(group))  # and back

    token = np.concatenate([offsets[b] + c.token for b, c in present])
    at = np.concatenate([place[starts[b] + c.rank] for b, c in present])
    cosine = np.concatenate([c.cosine for _, c in present])
    if rising:
        in_time = np.argsort(at, kind="stable")
        token, at, cosine = token[in_time], at[in_time], cosine[in_time]
    else:
        token, at, cosine = find_improvements(token, at, cosine)
    next_gains = None
    if all(c.next_gain is not None for _, c in present):
        next_gains = np.zeros(len(choices))
        next_gains[[b for b, _ in present]] = [c.next_gain for _, c in present]
    return Ranking(
        picks=np.concatenate([offsets[b] + c.picks for b, c in present])[laid_out],
        gains=np.concatenate([c.gains for _, c in present])[laid_out],
        group=group,
        group_sizes=sizes,
        next_gains=next_gains,
        shared=shared,
        n=int(sizes.sum()),
        history=History(token, at, cosine),
    )


def _limit(gains: np.ndarray, next_gain: float, k: int, start: int = 0) -> float:
    """What no set of k can exceed: f(S_i) + k x the next gain, the least of it over i = start + 1 .. k.

    f(any k) <= f(S_i) + the k largest gains at S_i, for every prefix S_i of greedy's picks but the empty one, from
    which gains can rise where similarities are negative. Greedy's first pick is the best single one.
    """
    if k == 1:
        return float(gains[0])
    reached = gains[:k].cumsum()
    following = np.append(gains, next_gain)[1 : k + 1]
    return float((reached + k * following)[start:].min())


def find_improvements(
    token: np.ndarray, place: np.ndarray, cosine: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of possible representatives, those that were better than any before, in time order.

    >>> [each.tolist() for each in find_improvements(*map(np.array, ([7, 7, 5, 7], [2, 0, 1, 3], [.5, .8, .1, .9])))]
    [[7, 5, 7], [0, 1, 3], [0.8, 0.1, 0.9]]
    """
    # what differs from 1 by rounding is the same token, or as good as it
    cosine = np.where(cosine > 1 - 1e-6, 1.0, cosine)
    by_token = np.lexsort((place, token))
    token, place, cosine = token[by_token], place[by_token], cosine[by_token]
    # one running maximum for all tokens: each starts 4 above the last, and cosines span only 2
    level = np.unique(token, return_inverse=True)[1] * 4.0 + cosine
    better = np.append(True, level[1:] > np.maximum.accumulate(level)[:-1])
    in_time = np.flatnonzero(better)[np.argsort(place[better], kind="stable")]
    return token[in_time], place[in_time], cosine[in_time]


def find_nearest_place(ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
    """For each value the place of the nearest in an ascending array, the earlier of two."""
    right = np.searchsorted(ordered, values).clip(max=len(ordered) - 1)
    left = (right - 1).clip(min=0)
    return np.where(values - ordered[left] <= ordered[right] - values, left, right)
