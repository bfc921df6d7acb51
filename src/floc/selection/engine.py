"""What a backend does for the methods: choose from sets of tokens, and from survivors that stand for others.

An engine turns tokens into a fixed-point matrix, picks greedily on it, and tells for every token by whom it was
represented along the way. That history is what makes one run answer every smaller budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from floc.ranking import Choice
from floc.selection.objective import SCALE, Similarity

CLOSEST = 4  # how many of the picks that are most similar to a target `solve_weighted` names
Tick = Callable[[float], None]  # called with the multiply-adds done since the last call


def no_tick(_: float) -> None:
    """For callers that show no progress."""


class Job(NamedTuple):
    """One set of tokens to choose from."""

    tokens: torch.Tensor  # [n, D]
    budget: int  # 1 <= budget <= n


class Targets(NamedTuple):
    """What candidates have to cover when each target stands for several tokens."""

    directions: torch.Tensor  # [N, D] float32, at length 1
    lengths: np.ndarray  # [N] float64, where they lie along their directions: the Gaussian needs it
    weights: np.ndarray  # [N] int64, how much each counts


class History(NamedTuple):
    """Who represents whom, as it changed: at pick number `rank`, `token` got a better representative."""

    token: np.ndarray  # [E] int64
    rank: np.ndarray  # [E] int64, never falling
    cosine: np.ndarray | None  # [E] float64, of the token and that pick; None where it was not asked for

    def representatives(self, n: int, k: int) -> np.ndarray:
        """[n] int64: the rank of each token's representative among the first `k` picks."""
        last = np.full(n, -1, np.int64)
        early = self.rank < k
        last[self.token[early]] = self.rank[early]  # of a repeated index the last value stays, and ranks never fall
        return last


NO_HISTORY = History(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))  # where it was not asked for


@dataclass(frozen=True)
class Solution:
    """The picks from one set, as places in it, and what they cover."""

    picks: np.ndarray  # [k] int64, in the order they were made
    gains: np.ndarray  # [k] int64 fixed point
    next_gain: int  # what the best further pick would have added: the certificate needs it
    history: History
    sigma: float | None = None  # the width of the Gaussian, where there is one
    closest: np.ndarray | None = None  # [N, r] int64 ranks of the picks most similar to each, if weighted

    def choice(self, *, with_history: bool = True) -> Choice:
        """The same in units of similarity, where no second pass follows."""
        history = self.history if with_history else NO_HISTORY
        assert history.cosine is not None, "a first pass without a second names them"
        return Choice(
            self.picks, self.gains / SCALE, history.token, history.rank, history.cosine, self.next_gain / SCALE
        )


class Engine(Protocol):
    """A backend, as the methods see it."""

    name: str

    def at_work(self) -> AbstractContextManager[None]:
        """Around several calls, so that what each would set up and take down is set up once."""
        ...

    def solve(
        self, jobs: Iterable[Job], similarity: Similarity, *, with_cosines: bool, tick: Tick = no_tick
    ) -> Iterator[Solution]:
        """Choose from each set, in turn."""
        ...

    def sum_by_cluster(
        self, sets: Sequence[tuple[torch.Tensor, np.ndarray]], count: int, *, unit: bool
    ) -> tuple[torch.Tensor, np.ndarray]:
        """The sum of each cluster's tokens, at length 1 each where `unit`: [count, D] directions, [count] lengths.

        Each set is its [n, D] tokens and the [n] cluster of each; sets do not share clusters.
        """
        ...

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
        """Choose from [M, D] candidates those that cover the targets best, which are the tokens of the history.

        The solution also names the CLOSEST picks to each target, or all where there are fewer. Without a history it has
        the picks and their gains alone.
        """
        ...

    def cosines(self, left: torch.Tensor, i: np.ndarray, right: torch.Tensor, j: np.ndarray) -> np.ndarray:
        """[E] float64: the cosine of row i[e] of `left` and row j[e] of `right`."""
        ...

    def bytes_needed(self, n: int, dim: int, similarity: Similarity, *, weighted: bool = False) -> int:
        """Memory for choosing from a set of `n` tokens, or of as many that stand for others."""
        ...

    def survivors_together(self, sizes: np.ndarray, survivors: int) -> int:
        """How many of the survivors of blocks of these sizes can be chosen from together."""
        ...


def until_next(picks: np.ndarray, gains: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Picks and gains up to the budget, and the gain that would come next; 0 when nothing is left.

    Engines run greedy to `min(budget + 1, candidates)` for it.
    """
    return picks[:budget], gains[:budget], int(gains[budget]) if len(gains) > budget else 0


def solution_of(
    choice: tuple[np.ndarray, np.ndarray, int],
    raises: tuple[np.ndarray, np.ndarray, np.ndarray],
    own_cover: np.ndarray,
    similarity: Similarity,
    sigma: float | None,
    cosines: Callable[[np.ndarray, np.ndarray], np.ndarray],
    *,
    with_cosines: bool,
) -> Solution:
    """What greedy's picks from a set amount to, the same for every engine.

    Args:
        choice: picks, gains and the next gain.
        raises: each time a pick raised a token's cover: the token, the pick's rank, the cover.
        own_cover: [n] int16, how well each token stands in for itself.
        cosines: of tokens i and j of the set.
        with_cosines: whether the history needs them; those that can be read off the matrix are always there.
    """
    picks, gains, next_gain = choice
    token, rank, cover = raises
    if similarity.detail > 1:
        picks = _spend_on_the_worst(picks, gains, History(token, rank, None), len(own_cover), cosines)
    # every pick represents itself from its own turn on; where it was covered fully before, no raise says so
    rank = np.concatenate([rank, np.arange(len(picks))])
    in_time = np.argsort(rank, kind="stable")
    token, rank = np.concatenate([token, picks])[in_time], rank[in_time]
    cosine = None
    if similarity.is_plain_cosine:
        cosine = np.concatenate([cover, own_cover[picks]])[in_time] / SCALE
    elif with_cosines:
        cosine = cosines(token, picks[rank])
    return Solution(picks, gains, next_gain, History(token, rank, cosine), sigma)


def _spend_on_the_worst(
    picks: np.ndarray,
    gains: np.ndarray,
    history: History,
    n: int,
    cosines: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """Exchange picks that gain nothing for the tokens that are covered worst.

    With detail > 1 all similarities near 1 snap to 1: on still footage gains end while there is still something to
    gain, and of equals greedy would take the tokens of the first frames. `cosines` gives those of tokens i and j.
    """
    gaining = 1 + int(np.count_nonzero(gains[1:] > 0))
    if gaining >= len(picks):
        return picks
    is_left = np.ones(n, bool)
    is_left[picks[:gaining]] = False
    rest = np.flatnonzero(is_left)
    cosine = cosines(rest, picks[history.representatives(n, gaining)[rest]])
    # only a zero token is like nothing at this point, and it would gain nothing either: last
    worst_first = rest[np.argsort(np.where(cosine > 0, cosine, 2), kind="stable")]
    return np.concatenate([picks[:gaining], worst_first[: len(picks) - gaining]])
