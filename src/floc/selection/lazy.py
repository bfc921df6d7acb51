"""Lazy greedy (Minoux) on the CPU: the picks of `reference.greedy`, from a fraction of its evaluations.

A gain never rises, so a gain computed earlier bounds the gain now. A heap keeps every candidate under its last known
gain; the top is evaluated again, and if it stays on top it is the pick, without a look at the others.

The bounds hold from the second pick on. The first pick is judged by its whole sum, which bounds nothing once
similarities can be negative: a token far from everything covers its own neighbourhood poorly by that sum and well
after the first pick. So all candidates are evaluated once more after the first pick.

Memory: a heap of one int64 a candidate, `gain << bits | complement of the index`, so one comparison settles both the
larger gain and, for equal gains, the lower index. An evaluation reads one contiguous row of the matrix:
sum(max(row, covered)) - sum(covered), 16-bit maxima summed in 32 bits, which the compiler turns into full vectors.
"""

from __future__ import annotations

import numba as nb
import numpy as np

# 2**15 values of at most 2**15 each stay below 2**31: rows are summed in int32 by pieces this long
_PIECE = 1 << 15
_STRETCH = 64  # values that are looked at together


def greedy(similarity: np.ndarray, k: int, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Pick the `k` candidates that together cover all tokens best; the contract of `reference.greedy`.

    >>> greedy(np.array([[9, 9, 0], [0, 0, 5], [1, 1, 1]], np.int16), k=2)[0].tolist()
    [0, 1]
    """
    picks, gains, _ = counted_greedy(similarity, k, weights)
    return picks, gains


def counted_greedy(
    similarity: np.ndarray, k: int, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """`greedy`, and how many gains were evaluated on the way."""
    picks, gains = np.empty(k, np.int64), np.empty(k, np.int64)
    evaluations = _greedy(similarity, weights, picks, gains)
    return picks, gains, evaluations


def history(similarity: np.ndarray, picks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each time a pick raised a token's cover: [E] int64 the token, [E] int64 the pick's rank, [E] int16 the cover."""
    token, rank, cover, length = _history(similarity, picks)
    return token[:length], rank[:length], cover[:length]


@nb.njit(nogil=True, cache=True)
def _history(similarity, picks):
    """The arrays, and how far they are filled."""
    n = similarity.shape[1]
    covered = np.full(n, -32768, np.int16)
    token, rank, cover = np.empty(8 * n, np.int64), np.empty(8 * n, np.int64), np.empty(8 * n, np.int16)
    length = 0
    for r in range(picks.shape[0]):
        if length + n > token.shape[0]:
            token, rank, cover = _lengthened(token), _lengthened(rank), _lengthened(cover)
        row = similarity[picks[r]]
        for start in range(0, n, _STRETCH):
            stop = min(start + _STRETCH, n)
            if _rises(row[start:stop], covered[start:stop]):
                for j in range(start, stop):
                    if row[j] > covered[j]:
                        covered[j] = row[j]
                        token[length], rank[length], cover[length] = j, r, row[j]
                        length += 1
    return token, rank, cover, length


@nb.njit(nogil=True, cache=True)
def _rises(row, covered):
    """Whether any of a few values does, told without a branch for each: after the first picks few do."""
    found = np.int16(0)
    for j in range(row.shape[0]):
        found |= np.int16(row[j] > covered[j])
    return found != 0


@nb.njit(nogil=True, cache=True)
def _lengthened(array):
    longer = np.empty(2 * array.shape[0], array.dtype)
    longer[: array.shape[0]] = array
    return longer


def closest(similarity: np.ndarray, picks: np.ndarray, count: int) -> np.ndarray:
    """[N, count] int64: for each token the ranks of the picks most similar to it, in no particular order."""
    ranks = np.zeros((similarity.shape[1], count), np.int64)
    _closest(similarity, picks, ranks)
    return ranks


@nb.njit(nogil=True, cache=True)
def _closest(similarity, picks, ranks):
    n, count = ranks.shape
    cover = np.full((n, count), -32768, np.int16)
    least = np.full(n, -32768, np.int16)  # of `cover`, so that most picks are passed over by one comparison
    for r in range(picks.shape[0]):
        row = similarity[picks[r]]
        for j in range(n):
            if row[j] > least[j] or r < count:
                slot = r if r < count else cover[j].argmin()
                cover[j, slot], ranks[j, slot] = row[j], r
                least[j] = cover[j].min()


@nb.njit(nogil=True, cache=True)
def _piece_sum(row, covered):
    total = np.int32(0)
    for j in range(row.shape[0]):
        total = np.int32(total + np.int32(max(row[j], covered[j])))
    return total


@nb.njit(nogil=True, cache=True)
def _covered_sum(row, covered, weights):
    """Sum over tokens of weight x max(row, covered)."""
    total = np.int64(0)
    if weights is None:
        for start in range(0, row.shape[0], _PIECE):
            total += np.int64(_piece_sum(row[start : start + _PIECE], covered[start : start + _PIECE]))
    else:
        for j in range(row.shape[0]):
            total += np.int64(max(row[j], covered[j])) * weights[j]
    return total


@nb.njit(nogil=True, cache=True)
def evaluate(similarity, covered, weights, out):
    """out[i] = what candidate i would add to `covered`."""
    base = _covered_sum(covered, covered, weights)
    for i in range(similarity.shape[0]):
        out[i] = _covered_sum(similarity[i], covered, weights) - base


@nb.njit(nogil=True, cache=True)
def _sift_down(heap, place):
    key = heap[place]
    while True:
        child = 2 * place + 1
        if child >= heap.shape[0]:
            break
        if child + 1 < heap.shape[0] and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= key:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = key


@nb.njit(nogil=True, cache=True)
def _greedy(similarity, weights, picks, gains):
    m, n = similarity.shape
    current = np.empty(m, np.int64)
    nothing = np.full(n, -32768, np.int16)
    evaluate(similarity, nothing, weights, current)
    best = current.argmax()  # the first maximum: ties go to the lowest index
    covered = similarity[best].copy()
    covered_total = _covered_sum(covered, covered, weights)
    picks[0], gains[0] = best, covered_total
    if picks.shape[0] == 1:
        return m

    evaluate(similarity, covered, weights, current)
    evaluations = 2 * m
    bits = np.int64(0)
    while (np.int64(1) << bits) < m:
        bits += 1
    mask = (np.int64(1) << bits) - 1
    heap = np.empty(m - 1, np.int64)
    size = 0
    for i in range(m):
        if i != best:
            heap[size] = current[i] << bits | (mask - i)
            size += 1
    for place in range(size // 2 - 1, -1, -1):
        _sift_down(heap, place)

    evaluated_at = np.ones(m, np.int64)  # the number of picks a gain was computed against
    for step in range(1, picks.shape[0]):
        while True:
            top = heap[0]
            candidate = mask - (top & mask)
            # a gain of 0 cannot fall further
            if evaluated_at[candidate] == step or top >> bits == 0:
                break
            gain = _covered_sum(similarity[candidate], covered, weights) - covered_total
            evaluations += 1
            evaluated_at[candidate] = step
            heap[0] = gain << bits | (mask - candidate)
            _sift_down(heap[:size], 0)
        picks[step], gains[step] = candidate, heap[0] >> bits
        row = similarity[candidate]
        for j in range(n):
            covered[j] = max(covered[j], row[j])
        covered_total += gains[step]
        size -= 1
        if size > 0:
            heap[0] = heap[size]
            _sift_down(heap[:size], 0)
    return evaluations
