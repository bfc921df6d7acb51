"""Greedy facility location on the CPU, compiled by numba: the picks of `reference.greedy` with far less work.

`lazy_greedy` (Minoux) takes any matrix and weights. Gains never rise, so an earlier gain is an upper bound. A heap
orders candidates by their last gain; the top one is evaluated again, and if it stays on top it is the pick. The first
gain is a whole row sum, which later gains can exceed if similarities are negative, so all candidates are evaluated
again after the first pick. A heap entry is one int64, `gain << bits | complement of the index`: one comparison finds
the larger gain and, for equal gains, the lower index.

`symmetric_greedy` keeps all gains up to date. When the cover of token v rises, candidate u loses what it would have
added in between: clip(similarity[v, u], old, new) - old. In a symmetric matrix that reads one contiguous row per raised
token, four in one pass over the gains. After the first picks few tokens rise: about six rows are read per token in all,
against five to seventeen in `lazy_greedy`, each with a heap operation. The raised tokens are also the history.

`band_greedy` does the same on the band of a video with a horizon. A pick changes the gains of a few slices only, so the
largest gain of every slice is stored, and found again only if it fell.
"""

import numba as nb
import numpy as np

from floc.selection.engine import Band, Raises

_SUM_CHUNK = 1 << 15  # values summed in int32: 2**15 values below 2**15 add up to less than 2**31
_SCAN_CHUNK = 64  # values tested together for a change or a maximum
MAX_INT32_TOKENS = 1 << 16  # gains over fewer tokens fit int32


def lazy_greedy(
    similarity: np.ndarray, k: int, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Pick `k` candidates as `reference.greedy` does; also return the number of gains evaluated.

    >>> lazy_greedy(np.array([[9, 9, 0], [0, 0, 5], [1, 1, 1]], np.int16), k=2)[0].tolist()
    [0, 1]
    """
    picks, gains = np.empty(k, np.int64), np.empty(k, np.int64)
    return picks, gains, _lazy_greedy(similarity, weights, picks, gains)


def symmetric_greedy(similarity: np.ndarray, k: int, traced: int) -> tuple[np.ndarray, np.ndarray, Raises]:
    """Pick `k` tokens from a symmetric matrix as `reference.greedy` does; also trace the first `traced` picks.

    >>> symmetric_greedy(np.array([[9, 9, 0], [9, 9, 0], [0, 0, 5]], np.int16), k=2, traced=2)[0].tolist()
    [0, 2]
    """
    if len(similarity) >= MAX_INT32_TOKENS:
        picks, gains, _ = lazy_greedy(similarity, k)
        return picks, gains, trace_history(similarity, picks[:traced])
    picks, gains = np.empty(k, np.int64), np.empty(k, np.int64)
    token, rank, cover, length = _symmetric_greedy(similarity, traced, picks, gains)
    return picks, gains, (token[:length], rank[:length], cover[:length])


def band_greedy(
    similarity: np.ndarray, band: Band, k: int, traced: int, given: np.ndarray | None = None, first: int = 0
) -> tuple[np.ndarray, np.ndarray, Raises]:
    """Pick `k` tokens from a symmetric band of less than MAX_INT32_TOKENS columns; also trace the first `traced` picks.

    For `given` and `first` see `Job`; with these nothing is traced.

    >>> band_greedy(np.array([[0, 9, 9], [9, 9, 0], [0, 5, 0]], np.int16), Band(3, 1, 1), k=2, traced=2)[0].tolist()
    [0, 2]
    """
    given = np.zeros(0, np.int64) if given is None else given
    before = len(given)
    picks, gains = np.append(given, np.empty(k, np.int64)), np.empty(before + k, np.int64)
    gain = np.zeros(band.n + 2 * band.reach, np.int32)
    _sum_rows(similarity, gain[band.reach :])
    token, rank, cover, length = _band_greedy(similarity, band.cells, gain, before, first, traced, picks, gains)
    return picks[before:], gains[before:], (token[:length], rank[:length], cover[:length])


def trace_history(similarity: np.ndarray, picks: np.ndarray, cells: int = 0) -> Raises:
    """List every time a pick raised a token's cover; `cells` is that of a band, or 0 for a whole matrix."""
    token, rank, cover, length = _trace_history(similarity, picks, cells)
    return token[:length], rank[:length], cover[:length]


def find_closest(similarity: np.ndarray, picks: np.ndarray, count: int) -> np.ndarray:
    """[N, count] int64: for each token the ranks of the picks most similar to it, in no particular order."""
    ranks = np.zeros((similarity.shape[1], count), np.int64)
    _find_closest(similarity, picks, ranks)
    return ranks


@nb.njit(nogil=True, cache=True)
def _trace_history(similarity, picks, cells):
    """Return token, rank and cover arrays, and their filled length."""
    width, n = similarity.shape[1], max(similarity.shape[0], similarity.shape[1])
    reach = (width - cells) // 2 if cells else 0
    covered = np.zeros(n + 2 * reach, np.int16) if cells else np.full(width, -32768, np.int16)
    raised, old, new = np.empty(width, np.int64), np.empty(width, np.int16), np.empty(width, np.int16)
    token, rank, cover = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int16)
    length = 0
    for r in range(picks.shape[0]):
        start = picks[r] // cells * cells if cells else 0
        count = _raise_cover(covered[start : start + width], similarity[picks[r]], raised, old, new)
        raised[:count] += start - reach
        token, rank, cover = _append_history(token, rank, cover, length, r, raised[:count], new)
        length += count
    return token, rank, cover, length


@nb.njit(nogil=True, cache=True)
def _append_history(token, rank, cover, length, r, raised, new):
    """Append the tokens raised by pick `r` to a history of `length` entries; double the arrays if they are full."""
    if length + raised.shape[0] > token.shape[0]:
        token = np.concatenate((token, np.empty_like(token)))
        rank = np.concatenate((rank, np.empty_like(rank)))
        cover = np.concatenate((cover, np.empty_like(cover)))
    for i in range(raised.shape[0]):
        token[length + i], rank[length + i], cover[length + i] = raised[i], r, new[i]
    return token, rank, cover


@nb.njit(nogil=True, cache=True)
def _raise_cover(covered, row, raised, old, new):
    """Raise `covered` to `row`; list the raised tokens with their old and new cover, and return their number."""
    count = 0
    for start in range(0, row.shape[0], _SCAN_CHUNK):
        values, cover = row[start : start + _SCAN_CHUNK], covered[start : start + _SCAN_CHUNK]
        if _any_above(values, cover):
            for j in range(values.shape[0]):
                if values[j] > cover[j]:
                    raised[count], old[count], new[count] = start + j, cover[j], values[j]
                    cover[j] = values[j]
                    count += 1
    return count


@nb.njit(nogil=True, cache=True)
def _any_above(row, covered):
    """Return whether any value of a chunk exceeds its cover; no branch per value, as few do after the first picks."""
    is_above = np.int16(0)
    for j in range(row.shape[0]):
        is_above |= np.int16(row[j] > covered[j])
    return is_above != 0


@nb.njit(nogil=True, cache=True)
def _find_closest(similarity, picks, ranks):
    n, count = ranks.shape
    cover = np.full((n, count), -32768, np.int16)
    least = np.full(n, -32768, np.int16)  # the minimum of `cover`: most picks are rejected by this one comparison
    for r in range(picks.shape[0]):
        row = similarity[picks[r]]
        for j in range(n):
            if row[j] > least[j] or r < count:
                slot = r if r < count else cover[j].argmin()
                cover[j, slot], ranks[j, slot] = row[j], r
                least[j] = cover[j].min()


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
def _symmetric_greedy(similarity, traced, picks, gains):
    """Fill `picks` and `gains`; return token, rank and cover of the history, and their filled length."""
    n = similarity.shape[0]
    current = np.empty(n, np.int64)
    _evaluate(similarity, np.full(n, -32768, np.int16), None, current)
    best = current.argmax()  # the first maximum: ties go to the lowest index
    covered = similarity[best].copy()
    picks[0], gains[0] = best, np.int64(0)
    for j in range(n):
        gains[0] += covered[j]
    _evaluate(similarity, covered, None, current)
    gain = current.astype(np.int32)
    gain[best] = -1  # never pick it twice

    raised, old, new = np.arange(n), np.empty(n, np.int16), np.empty(n, np.int16)
    token, rank, cover = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int16)
    length = 0
    if traced > 0:
        token, rank, cover = _append_history(token, rank, cover, 0, 0, raised, covered)
        length = n
    for step in range(1, picks.shape[0]):
        best = _find_first_maximum(gain)
        picks[step], gains[step] = best, gain[best]
        if gain[best] > 0:
            count = _raise_cover(covered, similarity[best], raised, old, new)
            _lower_gains(gain, similarity, raised[:count], old, new)
            if step < traced:
                token, rank, cover = _append_history(token, rank, cover, length, step, raised[:count], new)
                length += count
        gain[best] = -1
    return token, rank, cover, length


@nb.njit(nogil=True, cache=True)
def _find_first_maximum(values):
    best = values[0]
    for j in range(values.shape[0]):
        best = max(best, values[j])
    for start in range(0, values.shape[0], _SCAN_CHUNK):
        chunk = values[start : start + _SCAN_CHUNK]
        has_best = np.int32(0)
        for j in range(chunk.shape[0]):  # no branch per value
            has_best |= np.int32(chunk[j] == best)
        if has_best != 0:
            for j in range(chunk.shape[0]):
                if chunk[j] == best:
                    return start + j
    return 0


@nb.njit(nogil=True, cache=True)
def _lower_gains(gain, similarity, raised, old, new):
    """Subtract from every gain what it loses by tokens whose cover rose from `old` to `new`."""
    i = 0
    while i + 4 <= raised.shape[0]:
        a, b, c, d = raised[i], raised[i + 1], raised[i + 2], raised[i + 3]
        rows = similarity[a], similarity[b], similarity[c], similarity[d]
        _lower_gains_by_four(gain, *rows, old[i : i + 4], new[i : i + 4])
        i += 4
    while i < raised.shape[0]:
        _lower_gains_by_one(gain, similarity[raised[i]], old[i], new[i])
        i += 1


@nb.njit(nogil=True, cache=True)
def _lower_gains_by_four(gain, a, b, c, d, old, new):
    a0, b0, c0, d0 = old[0], old[1], old[2], old[3]
    a1, b1, c1, d1 = new[0], new[1], new[2], new[3]
    base = np.int32(np.int32(a0) + np.int32(b0) + np.int32(c0) + np.int32(d0))
    for u in range(gain.shape[0]):
        left = np.int32(np.int32(max(min(a[u], a1), a0)) + np.int32(max(min(b[u], b1), b0)))
        right = np.int32(np.int32(max(min(c[u], c1), c0)) + np.int32(max(min(d[u], d1), d0)))
        gain[u] = np.int32(gain[u] + base - np.int32(left + right))


@nb.njit(nogil=True, cache=True)
def _lower_gains_by_one(gain, row, old, new):
    for u in range(gain.shape[0]):
        gain[u] = np.int32(gain[u] + np.int32(old) - np.int32(max(min(row[u], new), old)))


@nb.njit(nogil=True, cache=True)
def _sum_rows(similarity, out):
    """Set out[i] to the sum of row i, which is less than 2**31."""
    for i in range(similarity.shape[0]):
        total = np.int32(0)
        row = similarity[i]
        for j in range(row.shape[0]):
            total = np.int32(total + np.int32(row[j]))
        out[i] = total


@nb.njit(nogil=True, cache=True)
def _band_greedy(similarity, cells, gain, given, candidates, traced, picks, gains):
    """Fill `picks` after the `given` ones, and `gains`; return token, rank and cover of the history, and their length.

    Only tokens from number `candidates` on are picked.
    `gain` has `reach` entries before the first token and after the last one, which stay 0 or less: the band is 0 there.
    """
    n, width = similarity.shape
    reach, frames = (width - cells) // 2, n // cells
    around = 2 * (reach // cells)
    inner = gain[reach : reach + n]
    covered = np.zeros(n + 2 * reach, np.int16)
    raised, old, new = np.empty(width, np.int64), np.empty(width, np.int16), np.empty(width, np.int16)
    token, rank, cover = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int16)
    length = 0
    for u in picks[:given]:
        _raise_cover(covered[u // cells * cells : u // cells * cells + width], similarity[u], raised, old, new)
    inner[:candidates] = -1
    for u in range(candidates, n if given > 0 else 0):
        around_u = covered[u // cells * cells : u // cells * cells + width]
        inner[u] = _covered_sum(similarity[u], around_u, None) - _covered_sum(around_u, around_u, None)
    best, best_gain = np.empty(frames, np.int64), np.empty(frames, np.int32)
    for t in range(frames):
        best[t] = t * cells + _find_first_maximum(inner[t * cells : (t + 1) * cells])
        best_gain[t] = inner[best[t]]
    step = given
    while step < picks.shape[0]:
        t = _find_first_maximum(best_gain)
        u = best[t]
        if best_gain[t] <= 0:
            break
        picks[step], gains[step] = u, best_gain[t]
        start = t * cells
        count = _raise_cover(covered[start : start + width], similarity[u], raised, old, new)
        i = 0
        while i < count:  # the raised tokens of one slice have the same candidates
            first = (start + raised[i] - reach) // cells * cells
            j = i
            while j < count and start + raised[j] - reach < first + cells:
                raised[j] += start - reach
                j += 1
            _lower_gains(gain[first : first + width], similarity, raised[i:j], old[i:j], new[i:j])
            i = j
        inner[u] = -1  # never pick it twice
        if step < traced:
            token, rank, cover = _append_history(token, rank, cover, length, step, raised[:count], new)
            length += count
        for s in range(max(0, t - around), min(frames, t + around + 1)):
            if inner[best[s]] != best_gain[s]:
                best[s] = s * cells + _find_first_maximum(inner[s * cells : (s + 1) * cells])
                best_gain[s] = inner[best[s]]
        step += 1
    for u in range(candidates, n):  # what is left gains nothing
        if step < picks.shape[0] and inner[u] == 0:
            picks[step], gains[step] = u, 0
            step += 1
    return token, rank, cover, length
