"""Plain greedy, written to be read: the oracle that every other backend is held to."""

from __future__ import annotations

import numpy as np


def greedy(similarity: np.ndarray, k: int, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Pick the `k` candidates that together cover all tokens best.

    Args:
        similarity: [M, N] int16 fixed point, how well candidate i stands in for token j.
        k: how many to pick, 1 <= k <= M.
        weights: [N] int64, how much each token counts; 1 each where not given.

    Returns:
        [k] int64 picks in the order they were made, and [k] int64 their gains.

    >>> greedy(np.array([[9, 9, 0], [0, 0, 5], [1, 1, 1]]), k=2)[0].tolist()
    [0, 1]
    """
    similarity = similarity.astype(np.int64)
    if weights is None:
        weights = np.ones(similarity.shape[1], np.int64)
    # f of nothing is 0, so the first pick is judged by its whole sum, negative similarities included
    gains = similarity @ weights  # [M]
    picks: list[int] = []
    won: list[int] = []
    covered = np.zeros(0, np.int64)
    for _ in range(k):
        # argmax takes the first maximum: ties go to the lowest index, on every backend
        best = int(gains.argmax())
        picks.append(best)
        won.append(int(gains[best]))
        covered = np.maximum(covered, similarity[best]) if len(picks) > 1 else similarity[best]  # [N]
        gains = np.maximum(similarity - covered, 0) @ weights
        # a pick may not repeat, even once every gain is zero
        gains[picks] = -1
    return np.array(picks, np.int64), np.array(won, np.int64)
