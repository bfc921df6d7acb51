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
    around = 2 * (reach // cells)
    gain = np.zeros(n + 2 * reach, np.int32)  # by the video; `reach` entries before the first token and after the last
    inner = gain[reach : reach + n]
    asking = np.zeros(n, np.int64)  # gain by the question, weighted
    for q in range(relevance.shape[0]):
        _lower_asking(asking, relevance[q], np.int16(0), np.int16(32767), -weight)
    for u in range(n):
        inner[u] = _sum(similarity[u])
    covered = np.zeros(n + 2 * reach, np.int16)
    asked = np.zeros(relevance.shape[0], np.int16)
    is_picked = np.zeros(n, np.bool_)
    best, best_gain = np.empty(frames, np.int64), np.empty(frames, np.int64)
    for t in range(frames):
        best[t], best_gain[t] = _find_best(inner, asking, unit, is_picked, t * cells, cells)
    step = 0
    while step < picks.shape[0]:
        t = int(best_gain.argmax())  # the first maximum: ties go to the lowest index
        u = best[t]
        if best_gain[t] <= 0:
            break
        picks[step], gains[step] = u, best_gain[t]
        is_picked[u] = True
        start = t * cells  # of the columns of u, in padded arrays
        for j in range(width):
            old, new = covered[start + j], similarity[u, j]
            if new > old:
                covered[start + j] = new
                token = start + j - reach
                first = token // cells * cells
                _lower(gain[first : first + width], similarity[token], old, new)
        first_slice, last_slice = max(0, t - around), min(frames, t + around + 1)  # where gains may have changed
        for q in range(relevance.shape[0]):
            old, new = asked[q], relevance[q, u]
            if new > old:
                asked[q] = new
                _lower_asking(asking, relevance[q], old, new, weight)
                first_slice, last_slice = 0, frames
        for s in range(first_slice, last_slice):
            v = best[s]
            if v == u or inner[v] * unit + asking[v] != best_gain[s]:
                best[s], best_gain[s] = _find_best(inner, asking, unit, is_picked, s * cells, cells)
        step += 1
    for u in range(n):  # what is left gains nothing
        if step < picks.shape[0] and not is_picked[u]:
            picks[step] = u
            step += 1


@nb.njit(nogil=True, cache=True)
def _sum(row):
    total = np.int32(0)
    for j in range(row.shape[0]):
        total = np.int32(total + np.int32(row[j]))
    return total


@nb.njit(nogil=True, cache=True)
def _lower(gain, row, old, new):
    """Subtract from every gain what it loses by a token whose cover rose from `old` to `new`."""
    for i in range(gain.shape[0]):
        gain[i] = np.int32(gain[i] + np.int32(old) - np.int32(max(min(row[i], new), old)))


@nb.njit(nogil=True, cache=True)
def _lower_asking(gain, row, old, new, weight):
    """Subtract from every gain what it loses by a token of the question whose cover rose from `old` to `new`."""
    for i in range(gain.shape[0]):
        gain[i] -= np.int64(max(min(row[i], new), old) - old) * weight


@nb.njit(nogil=True, cache=True)
def _find_best(inner, asking, unit, is_picked, start, count):
    """Return the first of the tokens with the largest gain among those not picked, and its gain; -1 if all are."""
    best, best_gain = start, np.int64(-1)
    for u in range(start, start + count):
        gain = inner[u] * unit + asking[u]
        if gain > best_gain and not is_picked[u]:
            best, best_gain = u, gain
    return best, best_gain
