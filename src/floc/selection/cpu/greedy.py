"""Greedy on the CPU, compiled: the picks of `reference.greedy` from a fraction of its evaluations, in two ways.

`lazily` (Minoux) takes any matrix and weights. A gain never rises, so a gain computed earlier bounds the gain now. A
heap keeps every candidate under its last known gain; the top is evaluated again, and if it stays on top it is the pick,
without a look at the others. The bounds hold from the second pick on. The first pick is judged by its whole sum, which
bounds nothing once similarities can be negative: a token far from everything covers its own neighbourhood poorly by
that sum and well after the first pick. So all candidates are evaluated once more after the first pick. The heap has one
int64 a candidate, `gain << bits | complement of the index`, so one comparison settles both the larger gain and, for
equal gains, the lower index. An evaluation reads one contiguous row of the matrix: sum(max(row, covered)) -
sum(covered), 16-bit maxima summed in 32 bits, which the compiler turns into full vectors.

`from_symmetric` has the gain of every candidate at hand all the time. A pick raises the cover of some tokens. Only
these change any gain, and token v changes that of candidate u by what lies between its old and its new cover:
clip(similarity[v, u], old, new) - old. In a symmetric matrix that is one contiguous row for each token that rose, four
of them in one pass over the gains. After the first picks few tokens rise: about six rows a token in all. `lazily` reads
five to seventeen, each with a walk through its heap. Which token rose when is the history of representatives, so it
comes with the picks.
"""

from __future__ import annotations

import numba as nb
import numpy as np

# 2**15 values of at most 2**15 each stay below 2**31: rows are summed in int32 by pieces this long
_PIECE = 1 << 15
_STRETCH = 64  # values that are looked at together
MOST_TOKENS = 1 << 16  # gains of fewer stay below 2**31


def lazily(similarity: np.ndarray, k: int, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Pick the `k` candidates that together cover all tokens best; the contract of `reference.greedy`.

    >>> lazily(np.array([[9, 9, 0], [0, 0, 5], [1, 1, 1]], np.int16), k=2)[0].tolist()
    [0, 1]
    """
    picks, gains, _ = counted(similarity, k, weights)
    return picks, gains


def counted(similarity: np.ndarray, k: int, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, int]:
    """`lazily`, and how many gains were evaluated on the way."""
    picks, gains = np.empty(k, np.int64), np.empty(k, np.int64)
    evaluations = _lazily(similarity, weights, picks, gains)
    return picks, gains, evaluations


def from_symmetric(
    similarity: np.ndarray, k: int, traced: int
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Pick the `k` tokens that together cover all best, and tell what the first `traced` picks raised.

    Returns:
        Picks and gains as `reference.greedy` has them, and as `history` has it: the token, the pick's rank and the
        cover, each time a pick raised one.

    >>> from_symmetric(np.array([[9, 9, 0], [9, 9, 0], [0, 0, 5]], np.int16), k=2, traced=2)[0].tolist()
    [0, 2]
    """
    if len(similarity) >= MOST_TOKENS:
        picks, gains = lazily(similarity, k)
        return picks, gains, history(similarity, picks[:traced])
    picks, gains = np.empty(k, np.int64), np.empty(k, np.int64)
    token, rank, cover, length = _from_symmetric(similarity, traced, picks, gains)
    return picks, gains, (token[:length], rank[:length], cover[:length])


def history(similarity: np.ndarray, picks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each time a pick raised a token's cover: [E] int64 the token, [E] int64 the pick's rank, [E] int16 the cover."""
    token, rank, cover, length = _history(similarity, picks)
    return token[:length], rank[:length], cover[:length]


@nb.njit(nogil=True, cache=True)
def _history(similarity, picks):
    """The arrays, and how far they are filled."""
    n = similarity.shape[1]
    covered = np.full(n, -32768, np.int16)
    raised, old, new = np.empty(n, np.int64), np.empty(n, np.int16), np.empty(n, np.int16)
    token, rank, cover = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int16)
    length = 0
    for r in range(picks.shape[0]):
        count = _raise(covered, similarity[picks[r]], raised, old, new)
        token, rank, cover = _noted(token, rank, cover, length, r, raised[:count], new)
        length += count
    return token, rank, cover, length


@nb.njit(nogil=True, cache=True)
def _noted(token, rank, cover, length, r, raised, new):
    """A history that is filled so far, with what one more pick raised; the arrays grow where they must."""
    if length + raised.shape[0] > token.shape[0]:
        token, rank, cover = _lengthened(token), _lengthened(rank), _lengthened(cover)
    for i in range(raised.shape[0]):
        token[length + i], rank[length + i], cover[length + i] = raised[i], r, new[i]
    return token, rank, cover


@nb.njit(nogil=True, cache=True)
def _lengthened(array):
    longer = np.empty(2 * array.shape[0], array.dtype)
    longer[: array.shape[0]] = array
    return longer


@nb.njit(nogil=True, cache=True)
def _raise(covered, row, raised, old, new):
    """Cover what a pick covers better; which tokens those are, their cover before and after, and how many."""
    count = 0
    for start in range(0, row.shape[0], _STRETCH):
        mine, cover = row[start : start + _STRETCH], covered[start : start + _STRETCH]
        if _rises(mine, cover):
            for j in range(mine.shape[0]):
                if mine[j] > cover[j]:
                    raised[count], old[count], new[count] = start + j, cover[j], mine[j]
                    cover[j] = mine[j]
                    count += 1
    return count


@nb.njit(nogil=True, cache=True)
def _rises(row, covered):
    """Whether any of a few values does, told without a branch for each: after the first picks few do."""
    found = np.int16(0)
    for j in range(row.shape[0]):
        found |= np.int16(row[j] > covered[j])
    return found != 0


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
def _lazily(similarity, weights, picks, gains):
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


@nb.njit(nogil=True, cache=True)
def _from_symmetric(similarity, traced, picks, gains):
    """Fill picks and gains; the history, and how far it is filled."""
    n = similarity.shape[0]
    current = np.empty(n, np.int64)
    evaluate(similarity, np.full(n, -32768, np.int16), None, current)
    best = current.argmax()  # the first maximum: ties go to the lowest index
    covered = similarity[best].copy()
    picks[0], gains[0] = best, np.int64(0)
    for j in range(n):
        gains[0] += covered[j]
    evaluate(similarity, covered, None, current)
    gain = current.astype(np.int32)
    gain[best] = -1  # never again

    raised, old, new = np.arange(n), np.empty(n, np.int16), np.empty(n, np.int16)
    token, rank, cover = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int16)
    length = 0
    if traced > 0:
        token, rank, cover = _noted(token, rank, cover, 0, 0, raised, covered)
        length = n
    for step in range(1, picks.shape[0]):
        best = _first_maximum(gain)
        picks[step], gains[step] = best, gain[best]
        if gain[best] > 0:
            count = _raise(covered, similarity[best], raised, old, new)
            _lower(gain, similarity, raised[:count], old, new)
            if step < traced:
                token, rank, cover = _noted(token, rank, cover, length, step, raised[:count], new)
                length += count
        gain[best] = -1
    return token, rank, cover, length


@nb.njit(nogil=True, cache=True)
def _first_maximum(values):
    best = values[0]
    for j in range(values.shape[0]):
        best = max(best, values[j])
    for start in range(0, values.shape[0], _STRETCH):
        stretch = values[start : start + _STRETCH]
        found = np.int32(0)
        for j in range(stretch.shape[0]):  # without a branch for each
            found |= np.int32(stretch[j] == best)
        if found != 0:
            for j in range(stretch.shape[0]):
                if stretch[j] == best:
                    return start + j
    return 0


@nb.njit(nogil=True, cache=True)
def _lower(gain, similarity, raised, old, new):
    """Take from every gain what lies between the old and the new cover of tokens that rose."""
    i = 0
    while i + 4 <= raised.shape[0]:
        _lower_by_four(
            gain,
            similarity[raised[i]],
            similarity[raised[i + 1]],
            similarity[raised[i + 2]],
            similarity[raised[i + 3]],
            old[i : i + 4],
            new[i : i + 4],
        )
        i += 4
    while i < raised.shape[0]:
        _lower_by_one(gain, similarity[raised[i]], old[i], new[i])
        i += 1


@nb.njit(nogil=True, cache=True)
def _lower_by_four(gain, a, b, c, d, old, new):
    a0, b0, c0, d0 = old[0], old[1], old[2], old[3]
    a1, b1, c1, d1 = new[0], new[1], new[2], new[3]
    base = np.int32(np.int32(a0) + np.int32(b0) + np.int32(c0) + np.int32(d0))
    for u in range(gain.shape[0]):
        left = np.int32(np.int32(max(min(a[u], a1), a0)) + np.int32(max(min(b[u], b1), b0)))
        right = np.int32(np.int32(max(min(c[u], c1), c0)) + np.int32(max(min(d[u], d1), d0)))
        gain[u] = np.int32(gain[u] + base - np.int32(left + right))


@nb.njit(nogil=True, cache=True)
def _lower_by_one(gain, row, old, new):
    for u in range(gain.shape[0]):
        gain[u] = np.int32(gain[u] + np.int32(old) - np.int32(max(min(row[u], new), old)))
