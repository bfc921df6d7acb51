"""Device functions shared by both greedy kernels, and the types of their arguments and results.

In a step both kernels try the best candidates in order, and accept those before the first that raises a token another
one raises. The programs of a set exchange 64-bit words in memory that carry a stamp, the step, in their lowest bits. A
word with this step's stamp is complete, so no locks, fences or resets are needed. Two buffers are enough, because no
program writes a step's words before every program has read those of the step before. Plain stores rely on a property of
all NVIDIA GPUs that the PTX memory model does not guarantee: 64-bit stores are not torn, and become visible eventually.

To stop early, all sets count the gains of their picks in one histogram.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from floc.selection.gpu.sets import load_matrix, load_starts, load_transpose

# the axis of rows, the one that the compiler does not split among warps: Triton 3.7 swapped them
AXIS = 1 if tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 7) else 0
BINS = 1024  # bins of the histogram of gains, 16 per factor of 2
LOWEST = tl.constexpr(-(2**63))  # below any word
_UNCOVERED = tl.constexpr(-32768)  # the lowest similarity: raises no token
_BINS = tl.constexpr(BINS)


class Picks(NamedTuple):
    """The picks of all sets; those of a set start at its FIRST_PICK."""

    picks: torch.Tensor  # [P] int32 candidates of the set
    gains: torch.Tensor  # [P] int32 or int64
    counts: torch.Tensor  # [B] int32, number of picks made in each set before gains ended; the others are not written
    steps: torch.Tensor  # [B] int32, number of steps in each set


@triton.jit
def wait_for(words, present, stamp):
    """Wait until all words carry the stamp, and load them.

    Several threads may hold copies of a word, each loaded at another time, and the test sees only one copy. So the
    words are loaded again after the test.
    """
    missing = 1
    while missing > 0:
        word = tl.load(words, mask=present, other=0, volatile=True)
        missing = tl.sum((present & ((word & 3) != stamp)).to(tl.int32), 0)
    return tl.load(words, mask=present, other=0, volatile=True)


@triton.jit
def start_set(matrix, weights, current_gains, picks, gains, histogram, table, programs, STOPS: tl.constexpr):
    """Find the set and the number of this program, and where the set's data start; count its first pick."""
    set_index, program = tl.program_id(0) // programs, tl.program_id(0) % programs
    first_candidate, first_token, first_pick = load_starts(table, set_index)
    rows, stride = load_matrix(table, set_index, matrix)
    columns, column_stride = load_transpose(table, set_index, matrix)
    if STOPS:
        # in the highest bin: it counts as larger than any other pick
        tl.atomic_add(histogram + (_BINS - 1), 1, mask=program == 0, sem="relaxed")
    starts = weights + first_token, current_gains + first_candidate, picks + first_pick, gains + first_pick
    return set_index, program, rows, stride, columns, column_stride, starts


@triton.jit
def load_candidates(gains, first_pick, program, per_program, m, stride, WIDTH: tl.constexpr):
    """Load a program's candidates: indices, which of them exist, which columns can be read, and current gains."""
    u = program * per_program + tl.arange(0, WIDTH)
    exists = (tl.arange(0, WIDTH) < per_program) & (u < m)
    readable = (tl.arange(0, WIDTH) < per_program) & (u < stride)
    gain = tl.load(gains + u, mask=exists, other=-1).to(tl.int64)
    return u, exists, readable, tl.where(u == first_pick, -1, gain)


@triton.jit
def find_bin(gain):
    """Return the histogram bin of a gain; gains of 0 go to the lowest bin."""
    place = (gain.to(tl.float32).to(tl.int32, bitcast=True) >> 19) - 127 * 16
    return tl.minimum(tl.where(gain > 0, place + 1, 0), _BINS - 2)


@triton.jit
def has_enough(histogram, stop_count, gain):
    """Return whether `stop_count` picks with larger gains were made."""
    bins = tl.arange(0, _BINS)
    larger = tl.load(histogram + bins, mask=bins > find_bin(gain), other=0, volatile=True)
    return tl.sum(larger, 0) >= stop_count


@triton.jit
def find_best(words, COUNT: tl.constexpr):
    """Return the COUNT largest words in descending order."""
    best = ()
    for j in tl.static_range(COUNT):
        best = best + (tl.max(words, 0),)
        words = tl.where(words == best[j], LOWEST, words)
    return best


@triton.jit
def merge_summaries(a, b):
    """Merge two words with a count above 8 flags: add the counts, OR the flags."""
    return (((a >> 8) + (b >> 8)) << 8) | ((a | b) & 255)


@triton.jit
def try_candidates(rows, stride, v, is_token, cover, candidates, allowed, TRIALS: tl.constexpr):
    """Compute how candidates, taken in order, would raise the covers of tokens `v`.

    Returns the cover each token would get from the first candidate to raise it, the number of that candidate (TRIALS if
    none does), and a summary word: the number of raised tokens, and for each candidate a flag whether it raises a token
    that an earlier one raises.
    """
    new_cover = cover
    raised_by = tl.full(cover.shape, TRIALS, tl.int32)
    conflicts = tl.zeros(cover.shape, tl.int32)
    for j in tl.static_range(TRIALS):
        row = rows + candidates[j] * stride
        readable = is_token & (v < tl.multiple_of(tl.where(allowed[j], stride, 0), 64))
        similarity = tl.load(row + v, mask=readable, other=_UNCOVERED)
        rises = similarity > cover
        conflicts |= (rises & (raised_by < j)).to(tl.int32) << j
        new_cover = tl.where(rises & (raised_by == TRIALS), similarity, new_cover)
        raised_by = tl.where(rises & (raised_by == TRIALS), j, raised_by)
    summaries = ((raised_by < TRIALS).to(tl.int32) << 8) | conflicts
    return new_cover, raised_by, tl.reduce(summaries, 0, merge_summaries)


@triton.jit
def count_accepted(allowed, summary, TRIALS: tl.constexpr):
    """Return how many of the tried candidates are greedy's next picks: those before the first conflict."""
    accepted = summary * 0 + 1
    for j in tl.static_range(1, TRIALS):
        accepted += ((accepted == j) & allowed[j] & (((summary >> j) & 1) == 0)).to(tl.int32)
    return accepted


@triton.jit
def number_lanes(ROWS: tl.constexpr, LANES: tl.constexpr, AXIS: tl.constexpr):
    """[LANES, ROWS] consecutive numbers, lane after lane, or its transpose: rows are along AXIS."""
    if AXIS == 1:
        return tl.arange(0, LANES)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    else:
        return tl.arange(0, ROWS)[:, None] + tl.arange(0, LANES)[None, :] * ROWS


@triton.jit
def compute_losses(
    token, old, new, counts, columns, stride, u, readable, weights, WEIGHTED: tl.constexpr, AXIS: tl.constexpr
):
    """[LANES, candidates] what candidates `u` lose by tokens whose cover rises from `old` to `new`.

    Tokens are arranged as in `number_lanes`: each warp sums the rows of its own lanes and waits for no other warp.
    """
    column = columns + token.to(tl.int64)[:, :, None] * stride + u[None, None, :]
    similarity = tl.load(column, mask=counts[:, :, None] & readable[None, None, :], other=0).to(tl.int32)
    clipped = tl.minimum(tl.maximum(similarity, old[:, :, None]), new[:, :, None])
    if WEIGHTED:
        weight = tl.load(weights + token, mask=counts, other=0)
        return tl.sum((clipped - old[:, :, None]).to(tl.int64) * weight[:, :, None], AXIS)
    else:
        return tl.sum(clipped, AXIS) - tl.sum(old[:, :, None], AXIS)


@triton.jit
def store_picks(
    picks, gains, histogram, count, highest, tried, tried_gains, accepted, STOPS: tl.constexpr, TRIALS: tl.constexpr
):
    """Store the accepted picks after `count` others, and count them in the histogram, none above the set's first."""
    for j in tl.static_range(TRIALS):
        tl.store(picks + count + j, tried[j], mask=accepted > j)
        tl.store(gains + count + j, tried_gains[j].to(gains.dtype.element_ty), mask=accepted > j)
    if STOPS:
        for j in tl.static_range(TRIALS):
            place = find_bin(tl.minimum(tried_gains[j], highest))
            tl.atomic_add(histogram + place, 1, mask=accepted > j, sem="relaxed")


@triton.jit
def exclude_picks(gain, u, tried, accepted, TRIALS: tl.constexpr):
    """Set the gains of accepted picks to -1, below any other gain."""
    for j in tl.static_range(TRIALS):
        gain = tl.where((u == tried[j]) & (accepted > j), -1, gain)
    return gain
