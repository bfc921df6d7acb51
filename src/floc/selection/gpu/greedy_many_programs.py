"""Greedy kernel with many programs per set, all running at once.

Each program holds the gains of a part of the candidates and the covers of a part of the tokens. The programs exchange
words twice per step: to find the best candidates, and to share which tokens rose.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from floc.selection.gpu import greedy_steps
from floc.selection.gpu.greedy_steps import (
    LOWEST,
    compute_losses,
    count_accepted,
    exclude_picks,
    find_best,
    has_enough,
    load_candidates,
    merge_summaries,
    number_lanes,
    start_set,
    store_picks,
    try_candidates,
    wait_for,
)
from floc.selection.gpu.sets import Sets, divide_among, load_sizes

MAX_PROGRAMS = 128  # words are read in powers of two, and reading 256 takes longer than a few more programs save
CHUNK = 512  # raised tokens that are waited for together


def launch(sets: Sets, programs: int, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Make the picks of all sets after their first, with the arguments that both greedy kernels share."""
    device, shape = sets.device, choose_shape(max(sets.candidates), max(sets.tokens), programs)
    ring = triton.next_power_of_2(2 * max(sets.tokens))
    _greedy_many_programs[(len(sets) * programs,)](
        *arguments,
        torch.zeros(len(sets), 2, 2 * shape["PROGRAMS"], dtype=torch.int64, device=device),
        torch.zeros(len(sets), 2, shape["PROGRAMS"], dtype=torch.int32, device=device),
        torch.zeros(len(sets), dtype=torch.int32, device=device),
        torch.zeros(len(sets), ring, dtype=torch.int64, device=device),
        torch.empty(len(sets) * programs, 2, CHUNK, dtype=torch.int64, device=device),
        divide_among(max(sets.tokens), programs),
        ring.bit_length() - 1,
        **options,
        **shape,
    )


def choose_shape(candidates: int, tokens: int, programs: int) -> dict[str, int]:
    """Return the constants to compile the kernel with, given the sizes of the largest set."""
    width = triton.next_power_of_2(divide_among(candidates, programs))
    warps = 8 if width > 256 else 4  # a warp reads 256 columns at a time
    return dict(
        PROGRAMS=triton.next_power_of_2(programs),
        CANDIDATE_WIDTH=width,
        TOKEN_WIDTH=triton.next_power_of_2(divide_among(tokens, programs)),
        ROWS=16 if width > 256 else 8,
        LANES=max(1, warps * 256 // width),
        CHUNK=CHUNK,
        TRIALS=8 if programs > 32 else 4,
        AXIS=greedy_steps.AXIS,
        num_warps=warps,
    )


@triton.jit(do_not_specialize=["stop_count", "programs", "bits", "ring_bits"])
def _greedy_many_programs(
    matrix,
    weights,
    current_gains,
    picks,
    gains,
    counts,
    steps,
    histogram,
    stop_count,
    table,
    programs,
    candidates_each,
    bits,
    best_words,
    summary_words,
    tails,
    rings,
    buffers,
    tokens_each,
    ring_bits,
    WEIGHTED: tl.constexpr,
    STOPS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    CANDIDATE_WIDTH: tl.constexpr,
    TOKEN_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK: tl.constexpr,
    TRIALS: tl.constexpr,
    AXIS: tl.constexpr,
):
    set_index, program, rows, stride, columns, column_stride, starts = start_set(
        matrix, weights, current_gains, picks, gains, histogram, table, programs, STOPS
    )
    weights, current_gains, picks, gains = starts
    m, n, depth = load_sizes(table, set_index)
    depth = depth.to(tl.int32)
    best_words += set_index * 4 * PROGRAMS
    summary_words += set_index * 2 * PROGRAMS
    tails += set_index
    ring = rings + (set_index.to(tl.int64) << ring_bits)
    buffers += tl.program_id(0) * 2 * CHUNK

    first, highest = tl.load(picks), tl.load(gains)
    u, exists, readable, gain = load_candidates(
        current_gains, first, program, candidates_each, m, column_stride, CANDIDATE_WIDTH
    )
    v = program * tokens_each + tl.arange(0, TOKEN_WIDTH)
    is_token = (tl.arange(0, TOKEN_WIDTH) < tokens_each) & (v < stride)
    one_each, two_each = tl.arange(0, PROGRAMS), tl.arange(0, 2 * PROGRAMS)
    all_bits = (1 << bits) - 1
    in_ring = (1 << ring_bits) - 1
    complement = (all_bits - u).to(tl.int64) << 2
    # rows are read up to their stride; what is no token of this program gets the highest cover, so that it never rises
    cover = tl.load(rows + first * stride + v, mask=is_token, other=0)
    cover = tl.where(is_token & (v < n), cover, 32767)
    count = depth * 0 + 1
    step = depth * 0
    tail = depth * 0  # end of the entries in the ring, modulo 4 rings, which is what the stamps can distinguish
    going = depth > 1
    while going:
        # share this program's two best candidates
        stamp = ((step >> 1) + 1) & 3
        key = tl.where(exists, (gain << (bits + 2)) | complement, LOWEST)
        best = find_best(key, 2)
        words = best_words + (step & 1) * 2 * PROGRAMS
        tl.atomic_xchg(words + program, best[0] | stamp, sem="relaxed")
        tl.atomic_xchg(words + PROGRAMS + program, best[1] | stamp, sem="relaxed")
        present = two_each % PROGRAMS < programs
        word = wait_for(words + two_each, present, stamp)
        best = find_best(tl.where(present, word & -4, LOWEST), TRIALS)

        # the best of all programs, in order; a program's third best is unknown, so none after its second is allowed
        tried, tried_gains, allowed, owners = (), (), (), ()
        is_known = depth > count
        for j in tl.static_range(TRIALS):
            candidate = (all_bits - ((best[j] >> 2) & all_bits)).to(tl.int32)
            tried, tried_gains = tried + (candidate,), tried_gains + (best[j] >> (bits + 2),)
            allowed = allowed + (is_known & (tried_gains[j] > 0) & (depth - count > j),)
            for i in tl.static_range(j):
                is_known = is_known & (owners[i] != candidate // candidates_each)
            owners = owners + (candidate // candidates_each,)
        going = tried_gains[0] > 0
        if going:
            # share this program's raised tokens: first their number and the conflicts, then each token
            new_cover, raised_by, summary = try_candidates(rows, stride, v, is_token, cover, tried, allowed, TRIALS)
            if STOPS:
                # program 0 decides for all, by the flag that the first candidate does not need
                if (program == 0) & (step % 8 == 7):
                    summary |= has_enough(histogram, stop_count, tl.minimum(tried_gains[0], highest)).to(tl.int32)
            headers = summary_words + (step & 1) * PROGRAMS
            tl.atomic_xchg(headers + program, (summary << 2) | stamp, sem="relaxed")
            if summary >> 8 > 0:
                at = tl.atomic_add(tails, summary >> 8, sem="relaxed")
                at = (at + tl.cumsum((raised_by < TRIALS).to(tl.int32), 0) - 1) & (4 * in_ring + 3)
                covers = ((cover.to(tl.int64) & 0xFFFF) << 16) | (new_cover.to(tl.int64) & 0xFFFF)
                change = (((v << 3) | raised_by).to(tl.int64) << 34) | (covers << 2) | (((at >> ring_bits) + 1) & 3)
                tl.store(ring + (at & in_ring), change, mask=raised_by < TRIALS)
            header = wait_for(headers + one_each, one_each < programs, stamp)
            summary = tl.reduce(header >> 2, 0, merge_summaries)
            raised_count = summary >> 8
            accepted = count_accepted(allowed, summary, TRIALS)

            # what this program's candidates lose. All programs read the same changes at the same time and would queue
            # for them, so each copies them to a buffer of its own first. No warp writes to a buffer before all have
            # read what it held before, because they synchronise in `wait_for`
            lost = tl.zeros([LANES, CANDIDATE_WIDTH], current_gains.dtype.element_ty)
            for begin in range(0, raised_count, CHUNK):
                position = begin + tl.arange(0, CHUNK)
                stamps = (((tail + position) >> ring_bits) + 1) & 3
                arrived = wait_for(ring + ((tail + position) & in_ring), position < raised_count, stamps)
                buffer = buffers + ((begin // CHUNK) & 1) * CHUNK
                tl.store(buffer + tl.arange(0, CHUNK), arrived)
                tl.debug_barrier()
                left = tl.minimum(raised_count - begin, CHUNK)
                for start in range(0, left, ROWS * LANES):
                    at = start + number_lanes(ROWS, LANES, AXIS)
                    entry = tl.load(buffer + at, mask=at < left, other=0)
                    token, covers = (entry >> 34).to(tl.int32), (entry >> 2).to(tl.int32)
                    counted = (at < left) & ((token & 7) < accepted)
                    covers = tl.where(counted, covers, 0)
                    old, new = covers >> 16, covers.to(tl.int16).to(tl.int32)
                    lost += compute_losses(
                        token >> 3, old, new, counted, columns, column_stride, u, readable, weights, WEIGHTED, AXIS
                    )
            gain -= tl.sum(lost, 0)
            tail = (tail + raised_count) & (4 * in_ring + 3)
            cover = tl.where(raised_by < accepted, new_cover, cover)
            if program == 0:
                store_picks(picks, gains, histogram, count, highest, tried, tried_gains, accepted, STOPS, TRIALS)
            gain = exclude_picks(gain, u, tried, accepted, TRIALS)
            count += accepted
            step += 1
            going = (count < depth) & ((summary & 1) == 0)
    if program == 0:
        tl.store(counts + set_index, count)
        tl.store(steps + set_index, step)
