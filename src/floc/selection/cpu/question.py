"""Greedy on a band with a question on the CPU: the picks of `reference.greedy`.

As in `greedy.band_greedy`, all gains are kept up to date, and the largest gain of every slice is stored. A pick that
represents the question better than those before it lowers gains in all slices; few picks do.
"""

import numba as nb
import numpy as np

from floc.selection.engine import Band, Question
from floc.selection.objective import WEIGHT_SCALE


def band_greedy(values: np.ndarray, band: Band, k: int, question: Question) -> tuple[np.ndarray, np.ndarray]:
    """Pick `k` tokens from a symmetric band, [n, width] int16 of at least 0; returns [k] int64 picks and gains."""
    picks, gains = np.empty(k, np.int64), np.zeros(k, np.int64)
    relevance = np.ascontiguousarray(question.relevance.cpu().numpy().T)  # [Q, n]
    _band_greedy(values, relevance, question.weight, WEIGHT_SCALE, band.cells, picks, gains)
    return picks, gains


@nb.njit(nogil=True, cache=True)
def _band_greedy(similarity, relevance, weight, unit, cells, picks, gains):
    n, width = similarity.shape
    reach, frames = (width - cells) // 2, n // cells
    horizon = reach // cells
    gain = np.zeros(n + 2 * reach, np.int64)  # `reach` entries before the first token and after the last one stay 0
    inner = gain[reach : reach + n]
    for u in range(n):
        for q in range(relevance.shape[0]):
            inner[u] += relevance[q, u] * weight
        for j in range(width):
            inner[u] += similarity[u, j] * unit
    covered = np.zeros(n + 2 * reach, np.int16)
    asked = np.zeros(relevance.shape[0], np.int16)
    is_picked = np.zeros(n, np.bool_)
    best = np.empty(frames, np.int64)
    for t in range(frames):
        best[t] = _find_best(inner, is_picked, t * cells, cells)
    step = 0
    while step < picks.shape[0]:
        t = -1
        for s in range(frames):
            if best[s] >= 0 and (t < 0 or inner[best[s]] > inner[best[t]]):
                t = s
        if t < 0 or inner[best[t]] <= 0:
            break
        u = best[t]
        picks[step], gains[step] = u, inner[u]
        is_picked[u] = True
        start = t * cells  # of the columns of u, in padded arrays
        for j in range(width):
            old, new = covered[start + j], similarity[u, j]
            if new > old:
                covered[start + j] = new
                token = start + j - reach
                first = token // cells * cells
                row = similarity[token]
                for i in range(width):
                    gain[first + i] -= np.int64(min(max(row[i], old), new) - old) * unit
        first, last = max(0, t - 2 * horizon), min(frames, t + 2 * horizon + 1)  # slices whose gains changed
        for q in range(relevance.shape[0]):
            old, new = asked[q], relevance[q, u]
            if new > old:
                asked[q] = new
                for v in range(n):
                    inner[v] -= np.int64(min(max(relevance[q, v], old), new) - old) * weight
                first, last = 0, frames
        for s in range(first, last):
            best[s] = _find_best(inner, is_picked, s * cells, cells)
        step += 1
    for u in range(n):  # what is left gains nothing
        if step < picks.shape[0] and not is_picked[u]:
            picks[step] = u
            step += 1


@nb.njit(nogil=True, cache=True)
def _find_best(gain, is_picked, start, count):
    """Return the first of the tokens with the largest gain among those not picked; -1 if all are picked."""
    best = -1
    for u in range(start, start + count):
        if not is_picked[u] and (best < 0 or gain[u] > gain[best]):
            best = u
    return best
