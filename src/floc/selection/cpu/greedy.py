"""Greedy facility location on the CPU, compiled by numba: the picks of `reference.greedy` with far less work.

`lazy_greedy` (Minoux) takes any matrix and weights. Gains never rise, so an earlier gain is an upper bound. A heap
orders candidates by their last gain; the top one is evaluated again, and if it stays on top it is the pick. The first
gain is a whole row sum, which later gains can exceed if similarities are negative, so all candidates are evaluated
again after the first pick. A heap entry is one int64, `gain << bits | complement of the index`: one comparison finds
the larger gain and, for equal gains, the lower index.

`symmetric_greedy` keeps all gains up to date. When the cover of token v rises, candidate u loses what it would have
added in between: clip(similarity[v, u], old, new) - old. In a symmetric matrix that reads one contiguous row per raised
token, four in one pass over the gains. After the first picks few tokens rise: about six rows are read per token in all,
compared with five to seventeen in `lazy_greedy`, each with a heap operation.

`band_greedy` does the same on the band of a video with a horizon. A pick changes the gains within 2h slices only, so a
candidate with the largest gain there can be picked at once (docs/background/how-it-works.md), and threads pick in parts
of the video at the same time. All parts go down the levels of gains until there are enough picks, which are sorted.
"""

import numba as nb
import numpy as np

from floc._system import count_threads, run_in_threads
from floc.selection.engine import Band

_SUM_CHUNK = 1 << 15  # values summed in int32: 2**15 values below 2**15 add up to less than 2**31
_SCAN_CHUNK = 64  # values tested together for a change or a maximum
MAX_INT32_TOKENS = 1 << 16  # gains over fewer tokens fit int32
LEVELS = 256  # of gains: about 7% apart
_INDEX_BITS = 31  # of a key, which has a gain above them
_INDEX_MASK = (1 << _INDEX_BITS) - 1


def lazy_greedy(
    similarity: np.ndarray, k: int, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Pick `k` candidates as `reference.greedy` does; also return the number of gains evaluated.

    >>> lazy_greedy(np.array([[9, 9, 0], [0, 0, 5], [1, 1, 1]], np.int16), k=2)[0].tolist()
    [0, 1]
    """
    picks, gains = np.empty(k, np.int64), np.empty(k, np.int64)
    return picks, gains, _lazy_greedy(similarity, weights, picks, gains)


def symmetric_greedy(similarity: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Pick `k` tokens from a symmetric matrix as `reference.greedy` does.

    >>> symmetric_greedy(np.array([[9, 9, 0], [9, 9, 0], [0, 0, 5]], np.int16), k=2)[0].tolist()
    [0, 2]
    """
    if len(similarity) >= MAX_INT32_TOKENS:
        return lazy_greedy(similarity, k)[:2]
    picks, gains = np.empty(k, np.int64), np.empty(k, np.int64)
    _symmetric_greedy(similarity, picks, gains)
    return picks, gains


def band_greedy(
    similarity: np.ndarray, band: Band, k: int, given: np.ndarray | None = None, first: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Pick `k` tokens from a symmetric band of less than MAX_INT32_TOKENS columns; for `given` and `first` see `Job`.

    >>> band_greedy(np.array([[0, 9, 9], [9, 9, 0], [0, 5, 0]], np.int16), Band(3, 1, 1), k=2)[0].tolist()
    [0, 2]
    """
    # padded by what lies before the first token and after the last one: there gains stay 0 or less
    gain, covered = np.zeros(band.n + 2 * band.reach, np.int32), np.zeros(band.n + 2 * band.reach, np.int16)
    for u in () if given is None else given:
        around = covered[u // band.cells * band.cells :][: band.width]
        np.maximum(around, similarity[u], out=around)
    keys = np.empty(band.frames, np.int64)
    levels = np.unique(np.geomspace(1, band.width << 14, LEVELS).astype(np.int64))[::-1].copy()
    # a part for each thread; in short parts most slices would be too close to the next one
    parts = max(1, min(count_threads(), band.frames // (32 * max(1, band.horizon))))
    counts = np.zeros((parts + 1, len(levels)), np.int64)
    state = similarity, band.cells, gain, covered, keys

    def select(part: int) -> None:
        start, stop = band.frames * part // parts, band.frames * (part + 1) // parts
        _compute_gains(*state, first, start, stop)
        _pick_in_slices(*state, levels, counts, part, start, stop, k)

    run_in_threads(select, range(parts))
    _pick_in_slices(*state, levels, counts, parts, 0, band.frames, k)
    # what was picked has its gain, negative; what was not gains nothing, or less than the k-th pick
    left = gain[band.reach : band.reach + band.n]
    picked = first + np.flatnonzero(left[first:] <= 0)
    picks = picked[np.argsort(left[picked], kind="stable")[:k]]
    return picks, -left[picks].astype(np.int64)


@nb.njit(nogil=True, cache=True)
def trace_history(similarity, picks, cells=0):
    """List every time a pick raised a token's cover: `Raises`. `cells` is that of a band, or 0 for a whole matrix."""
    width, n = similarity.shape[1], max(similarity.shape[0], similarity.shape[1])
    reach = (width - cells) // 2 if cells else 0
    covered = np.zeros(n + 2 * reach, np.int16) if cells else np.full(width, -32768, np.int16)
    raised, old, new = np.empty(width, np.int64), np.empty(width, np.int16), np.empty(width, np.int16)
    token, rank, cover = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int16)
    length = 0
    for r in range(picks.shape[0]):
        start = picks[r] // cells * cells if cells else 0
        count = _raise_cover(covered[start : start + width], similarity[picks[r]], raised, old, new)
        if length + count > token.shape[0]:
            token = np.concatenate((token, np.empty_like(token)))
            rank = np.concatenate((rank, np.empty_like(rank)))
            cover = np.concatenate((cover, np.empty_like(cover)))
        for i in range(count):
            token[length + i], rank[length + i], cover[length + i] = start - reach + raised[i], r, new[i]
        length += count
    return token[:length], rank[:length], cover[:length]


@nb.njit(nogil=True, cache=True)
def _raise_cover(covered, row, raised, old, new):
    """Raise `covered` to `row`; list the raised tokens with their old and new cover, and return their number."""
    count = 0
    for start in range(0, row.shape[0], _SCAN_CHUNK):
        values, cover = row[start : start + _SCAN_CHUNK], covered[start : start + _SCAN_CHUNK]
        is_above = np.int16(0)
        for j in range(values.shape[0]):  # no branch per value, as few are above after the first picks
            is_above |= np.int16(values[j] > cover[j])
        if is_above != 0:
            for j in range(values.shape[0]):
                if values[j] > cover[j]:
                    raised[count], old[count], new[count] = start + j, cover[j], values[j]
                    cover[j] = values[j]
                    count += 1
    return count


@nb.njit(nogil=True, cache=True)
def find_closest(similarity, picks, count):
    """[N, count] int64: for each token the ranks of the picks most similar to it, in no particular order."""
    n = similarity.shape[1]
    ranks = np.zeros((n, count), np.int64)
    cover = np.full((n, count), -32768, np.int16)
    least = np.full(n, -32768, np.int16)  # the minimum of `cover`: most picks are rejected by this one comparison
    for r in range(picks.shape[0]):
        row = similarity[picks[r]]
        for j in range(n):
            if row[j] > least[j] or r < count:
                slot = r if r < count else cover[j].argmin()
                cover[j, slot], ranks[j, slot] = row[j], r
                least[j] = cover[j].min()
    return ranks


@nb.njit(nogil=True, cache=True)
def _sum_chunk(row, covered):
    total = np.int32(0)
    for j in range(row.shape[0]):
        total = np.int32(total + np.int32(max(row[j], covered[j])))
    return total


@nb.njit(nogil=True, cache=True)
def _covered_sum(row, covered, weights):
    """Return the sum over tokens of weight x max(row, covered)."""
    total = np.int64(0)
    if weights is None:
        for start in range(0, row.shape[0], _SUM_CHUNK):
            total += np.int64(_sum_chunk(row[start : start + _SUM_CHUNK], covered[start : start + _SUM_CHUNK]))
    else:
        for j in range(row.shape[0]):
            total += np.int64(max(row[j], covered[j])) * weights[j]
    return total


@nb.njit(nogil=True, cache=True)
def _evaluate(similarity, covered, weights, out):
    """Set out[i] to the gain of candidate i over `covered`."""
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
def _lazy_greedy(similarity, weights, picks, gains):
    m, n = similarity.shape
    current = np.empty(m, np.int64)
    _evaluate(similarity, np.full(n, -32768, np.int16), weights, current)
    best = current.argmax()  # the first maximum: ties go to the lowest index
    covered = similarity[best].copy()
    covered_total = _covered_sum(covered, covered, weights)
    picks[0], gains[0] = best, covered_total
    if picks.shape[0] == 1:
        return m

    _evaluate(similarity, covered, weights, current)
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
def _symmetric_greedy(similarity, picks, gains):
    n = similarity.shape[0]
    current = np.empty(n, np.int64)
    _evaluate(similarity, np.full(n, -32768, np.int16), None, current)
    best = current.argmax()  # the first maximum: ties go to the lowest index
    covered = similarity[best].copy()
    picks[0], gains[0] = best, _covered_sum(covered, covered, None)
    _evaluate(similarity, covered, None, current)
    gain = current.astype(np.int32)
    gain[best] = -1  # never pick it twice

    raised, old, new = np.empty(n, np.int64), np.empty(n, np.int16), np.empty(n, np.int16)
    for step in range(1, picks.shape[0]):
        best = _find_first_maximum(gain, 0, n)
        picks[step], gains[step] = best, gain[best]
        if gain[best] > 0:
            count = _raise_cover(covered, similarity[best], raised, old, new)
            _lower_gains(gain, similarity, raised, old, new, 0, count)
        gain[best] = -1


@nb.njit(nogil=True, cache=True)
def _find_first_maximum(values, start, stop):
    """Return the first index from `start` on, below `stop`, of the largest value there."""
    part = values[start:stop]
    best = part[0]
    for j in range(part.shape[0]):
        best = max(best, part[j])
    for first in range(0, part.shape[0], _SCAN_CHUNK):
        chunk = part[first : first + _SCAN_CHUNK]
        has_best = np.int32(0)
        for j in range(chunk.shape[0]):  # no branch per value
            has_best |= np.int32(chunk[j] == best)
        if has_best != 0:
            for j in range(chunk.shape[0]):
                if chunk[j] == best:
                    return start + first + j
    return start


@nb.njit(nogil=True, cache=True)
def _lower_gains(gain, similarity, raised, old, new, start, stop):
    """Subtract from every gain what it loses by the tokens raised[start:stop], whose cover rose from `old` to `new`."""
    i = start
    while i + 4 <= stop:
        a, b, c, d = (
            similarity[raised[i]],
            similarity[raised[i + 1]],
            similarity[raised[i + 2]],
            similarity[raised[i + 3]],
        )
        a0, b0, c0, d0 = old[i], old[i + 1], old[i + 2], old[i + 3]
        a1, b1, c1, d1 = new[i], new[i + 1], new[i + 2], new[i + 3]
        base = np.int32(np.int32(a0) + np.int32(b0) + np.int32(c0) + np.int32(d0))
        for u in range(gain.shape[0]):
            left = np.int32(np.int32(max(min(a[u], a1), a0)) + np.int32(max(min(b[u], b1), b0)))
            right = np.int32(np.int32(max(min(c[u], c1), c0)) + np.int32(max(min(d[u], d1), d0)))
            gain[u] = np.int32(gain[u] + base - np.int32(left + right))
        i += 4
    while i < stop:
        row, low, high = similarity[raised[i]], old[i], new[i]
        for u in range(gain.shape[0]):
            gain[u] = np.int32(gain[u] + np.int32(low) - np.int32(max(min(row[u], high), low)))
        i += 1


@nb.njit(nogil=True, cache=True)
def _compute_gains(similarity, cells, gain, covered, keys, first, start, stop):
    """Compute the gains of the candidates in slices start..stop, and the keys of these slices."""
    width = similarity.shape[1]
    inner = gain[(width - cells) // 2 :]
    for t in range(start, stop):
        around = covered[t * cells : t * cells + width]
        base = _covered_sum(around, around, None)
        for u in range(t * cells, (t + 1) * cells):
            inner[u] = _covered_sum(similarity[u], around, None) - base if u >= first else -1
        keys[t] = _find_key(inner, t * cells, cells)


@nb.njit(nogil=True, cache=True)
def _find_key(inner, start, cells):
    """Return `gain << _INDEX_BITS | complement of the index` of the best of some candidates."""
    u = _find_first_maximum(inner, start, start + cells)
    return np.int64(inner[u]) << _INDEX_BITS | (_INDEX_MASK - u)


@nb.njit(nogil=True, cache=True)
def _pick_in_slices(similarity, cells, gain, covered, keys, levels, counts, part, start, stop, k):
    """Pick in slices start..stop what has the largest gain around it, level by level, until `k` picks are counted.

    counts[part, i] are those of at least levels[i]. Other threads may do the same in other slices at the same time.
    """
    around = similarity.shape[1] // cells - 1  # slices in which a pick changes gains: twice the horizon
    low = start if start == 0 else start + around
    high = stop if stop == keys.shape[0] else stop - around
    i = 0
    while True:
        for t in range(low, high):
            while keys[t] >> _INDEX_BITS >= levels[i]:
                best = _climb(keys, t, around, low, high)
                if best < 0:
                    break
                _pick_best(similarity, cells, gain, covered, keys, best)
                counts[part, i] += 1
        total, parts = counts[:, : i + 1].sum(), counts.shape[0] - 1
        is_ahead = part < parts and 2 * parts * counts[part].sum() > 3 * k  # of parts that had to wait
        if total >= k or is_ahead or i + 1 == levels.shape[0]:
            return
        # large steps at first: neighbours are picked one after the other, while their rows are in the cache
        i = min(i + (1 if 4 * total >= k else 8), levels.shape[0] - 1)


@nb.njit(nogil=True, cache=True)
def _climb(keys, t, around, low, high):
    """Go to the largest key within reach until none is larger; return that slice, or -1 outside of low..high."""
    while low <= t < high:
        best = t
        for s in range(max(0, t - around), min(keys.shape[0], t + around + 1)):
            if keys[s] > keys[best]:
                best = s
        if best == t:
            return t
        t = best
    return -1


@nb.njit(nogil=True, cache=True)
def _pick_best(similarity, cells, gain, covered, keys, t):
    """Pick the best candidate of slice t: lower the gains around it and find the best ones there again."""
    width = similarity.shape[1]
    reach = (width - cells) // 2
    inner = gain[reach:]
    u = _INDEX_MASK - (keys[t] & _INDEX_MASK)
    raised, old, new = np.empty(width, np.int64), np.empty(width, np.int16), np.empty(width, np.int16)
    start = t * cells
    count = _raise_cover(covered[start : start + width], similarity[u], raised, old, new)
    i = 0
    while i < count:  # the raised tokens of one slice have the same candidates
        first = (start + raised[i] - reach) // cells * cells
        j = i
        while j < count and start + raised[j] - reach < first + cells:
            raised[j] += start - reach
            j += 1
        _lower_gains(gain[first : first + width], similarity, raised, old, new, i, j)
        i = j
    inner[u] = -(keys[t] >> _INDEX_BITS)  # it is not picked twice, and its neighbours cannot lower this any more
    around = width // cells - 1
    for s in range(max(0, t - around), min(keys.shape[0], t + around + 1)):
        if inner[_INDEX_MASK - (keys[s] & _INDEX_MASK)] != keys[s] >> _INDEX_BITS:
            keys[s] = _find_key(inner, s * cells, cells)
