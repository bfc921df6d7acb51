"""Plain greedy facility location, written to be read: the oracle every other backend is tested against."""

import numpy as np


def greedy(similarity: np.ndarray, k: int, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Pick `k` candidates, one at a time, each the one that adds most to the coverage of all tokens.

    Args:
        similarity: [M, N] int16 fixed point, how well candidate i represents token j.
        k: number of picks, 1 <= k <= M.
        weights: [N] int64, how much each token counts; 1 by default.

    Returns:
        [k] int64 picks in the order they were made, and [k] int64 gains, the increase of the objective by each pick.

    >>> greedy(np.array([[9, 9, 0], [0, 0, 5], [1, 1, 1]]), k=2)[0].tolist()
    [0, 1]
    """
    similarity = similarity.astype(np.int64)
    if weights is None:
        weights = np.ones(similarity.shape[1], np.int64)

    # The empty set has value 0, so the first gain is the whole weighted row sum, negative similarities included.
    gains = similarity @ weights  # [M]
    first = int(gains.argmax())
    picks, pick_gains = [first], [int(gains[first])]
    covered = similarity[first]  # [N], the similarity of each token to its representative

    while len(picks) < k:
        gains = np.maximum(similarity - covered, 0) @ weights
        gains[picks] = -1  # never pick a candidate twice, even when no other gains anything
        best = int(gains.argmax())  # the first maximum: ties go to the lowest index
        picks.append(best)
        pick_gains.append(int(gains[best]))
        covered = np.maximum(covered, similarity[best])
    return np.array(picks, np.int64), np.array(pick_gains, np.int64)


def limit_to_horizon(similarity: np.ndarray, cells: int, horizon: int) -> np.ndarray:
    """Set negative similarities, and those of tokens more than `horizon` slices apart, to 0.

    Greedy on the result maximizes f(S) = sum over v of max(0, max over u in S with |t_u - t_v| <= h of sim(v, u)).

    Args:
        similarity: [n, n] int16, of tokens in slices of `cells` tokens.
        cells: tokens in a slice.
        horizon: h, in slices, at least 0.

    >>> limit_to_horizon(np.array([[9, 5, 4], [5, 9, -3], [4, -3, 9]]), cells=1, horizon=1).tolist()
    [[9, 5, 0], [5, 9, 0], [0, 0, 9]]
    """
    slices = np.arange(len(similarity)) // cells
    is_near = np.abs(slices[:, None] - slices) <= horizon
    return np.where(is_near, np.maximum(similarity, 0), 0)
