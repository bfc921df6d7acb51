"""The past of a stream with a ratio: what is saved, and which saved blocks are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import floc
from examples.synthetic import make_tokens
from floc.budget import Budget
from floc.selection.engine import History, Solution
from floc.streaming import growing

N = 24  # tokens of a block of 4 frames
BUDGET = Budget.parse("1/4", None, None)


@pytest.fixture
def solution() -> Solution:
    stream = floc.Stream(ratio="1/4", block=4)
    stream.push(make_tokens(4, 2, 3, dim=8))
    return stream._past.blocks[0].solution  # type: ignore[union-attr]


def change_history(solution: Solution, **columns: np.ndarray) -> Solution:
    assert solution.history is not None
    return replace(solution, history=solution.history._replace(**columns))


def test_a_block_keeps_one_pick_more_than_its_share(solution: Solution) -> None:
    assert len(solution.picks) == 7
    growing._check_solution("block 0", solution, N, BUDGET)


def test_impossible_blocks_are_refused(solution: Solution) -> None:
    picks, gains, history = solution.picks, solution.gains, solution.history
    assert history is not None
    assert history.cosine is not None
    short = History(*(column[1:] for column in history))  # type: ignore[union-attr]
    for changed, message in [
        (replace(solution, picks=picks[1:]), "must have 7 picks"),
        (replace(solution, picks=np.where(picks == picks[0], picks[1], picks)), "must differ"),
        (replace(solution, picks=picks + N), "be below 24"),
        (replace(solution, picks=picks - N), "be below 24"),
        (replace(solution, gains=gains * 1e3), "must be at most 48"),
        (replace(solution, gains=np.append(gains[:-1], N)), "must not rise"),
        (replace(solution, next_gain=2.0 * N), "must not rise"),
        (replace(solution, history=short), "must represent every token"),
        (change_history(solution, token=history.token[:-1]), "at least 24 entries"),
        (change_history(solution, token=history.token + N), "names other tokens"),
        (change_history(solution, rank=history.rank - 1), "names other tokens or picks"),
        (change_history(solution, rank=history.rank[::-1].copy()), "must not descend"),
        (change_history(solution, cosine=history.cosine + 3), "cosines in the history"),
        (change_history(solution, rank=np.minimum(history.rank, 5)), "must represent itself"),
    ]:
        with pytest.raises(ValueError, match=message):
            growing._check_solution("block 0", changed, N, BUDGET)
