"""Greedy kernel with one or a few programs per set, all running at once.

Each program holds the covers of all tokens of its set and the gains of a part of its candidates. The programs exchange
words once per step, to find the best candidates of all; each then computes the raised tokens for itself.
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
    number_lanes,
    start_set,
    store_picks,
    try_candidates,
    wait_for,
)
from floc.selection.gpu.sets import Sets, divide_among, load_sizes

MAX_SIZE = 8192  # candidates or tokens of a set that one program can hold
MAX_PROGRAMS = 8  # with more, `greedy_many_programs` is faster
TRIALS = 4  # candidates tried in a step


def launch(sets: Sets, programs: int, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Make the picks of all sets after their first, with the arguments that both greedy kernels share."""
    device, shape = sets.device, choose_shape(max(sets.candidates), max(sets.tokens), programs)
    _greedy_few_programs[(len(sets) * programs,)](
        *arguments,
        torch.empty(len(sets) * programs, 2, shape["TOKEN_WIDTH"] + 1, dtype=torch.int64, device=device),
        torch.zeros(len(sets), 2, TRIALS, shape["PROGRAMS"], dtype=torch.int64, device=device),
        **options,
        **shape,
    )


def choose_shape(candidates: int, tokens: int, programs: int) -> dict[str, int]:
    """Return the constants to compile the kernel with, given the sizes of the largest set."""
    width, token_width = triton.next_power_of_2(divide_among(candidates, programs)), triton.next_power_of_2(tokens)
    # enough warps to hold the set; if several programs share it no more than needed, as each waits for all others
    warps = min(32 if programs == 1 else 8, max(4, max(width, token_width) // 256))
    return dict(
        PROGRAMS=triton.next_power_of_2(programs),
        CANDIDATE_WIDTH=width,
        TOKEN_WIDTH=token_width,
        ROWS=16 if programs == 1 and max(width, token_width) <= 2048 else 8,  # limited by registers
        LANES=max(1, warps * 256 // width),  # a warp reads 256 columns at a time
        TRIALS=TRIALS,
        AXIS=greedy_steps.AXIS,
        num_warps=warps,
    )


@triton.jit(do_not_specialize=["stop_count", "programs", "bits"])
def _greedy_few_programs(
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
    raised,
    best_words,
    WEIGHTED: tl.constexpr,
    STOPS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    CANDIDATE_WIDTH: tl.constexpr,
    TOKEN_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TRIALS: tl.constexpr,
    AXIS: tl.constexpr,
):
    set_index, program, rows, stride, columns, column_stride, starts = start_set(
        matrix, weights, current_gains, picks, gains, histogram, table, programs, STOPS
    )
    weights, current_gains, picks, gains = starts
    m, n, depth = load_sizes(table, set_index)
    depth = depth.to(tl.int32)
    raised += tl.program_id(0).to(tl.int64) * 2 * (TOKEN_WIDTH + 1)
    best_words += set_index * 2 * TRIALS * PROGRAMS

    first, highest = tl.load(picks), tl.load(gains)
    u, exists, readable, gain = load_candidates(
        current_gains, first, program, candidates_each, m, column_stride, CANDIDATE_WIDTH
    )
    v = tl.arange(0, TOKEN_WIDTH)
    all_bits = (1 << bits) - 1
    complement = (all_bits - u).to(tl.int64) << 3
    # rows are read up to their stride; the padding gets the highest cover, so that it never rises
    cover = tl.load(rows + first * stride + v, mask=v < stride, other=0)
    cover = tl.where(v < n, cover, 32767)
    last = highest
    count = depth * 0 + 1
    step = depth * 0
    going = depth > 1
    while going:
        # this program's best candidates. A key is the gain, then the complement of the index, so that the largest key
        # has the largest gain and, of equals, the lowest index; then the stop flag of program 0, then the stamp
        stop = depth * 0
        if STOPS:
            if (program == 0) & (step % 8 == 7):
                stop = has_enough(histogram, stop_count, tl.minimum(last, highest)).to(tl.int32)
        key = tl.where(exists, (gain << (bits + 3)) | complement | (stop << 2), LOWEST)
        best = find_best(key, TRIALS)
        if PROGRAMS > 1:
            # the best of all programs, in the same order
            stamp = ((step >> 1) + 1) & 3
            words = best_words + (step & 1) * TRIALS * PROGRAMS
            for j in tl.static_range(TRIALS):
                tl.atomic_xchg(words + j * PROGRAMS + program, best[j] | stamp, sem="relaxed")
            slots = tl.arange(0, TRIALS * PROGRAMS)
            present = slots % PROGRAMS < programs
            word = wait_for(words + slots, present, stamp)
            stop = ((tl.sum(tl.where(slots == 0, word, 0), 0) >> 2) & 1).to(tl.int32)
            best = find_best(tl.where(present, word & -8, LOWEST), TRIALS)
        tried, tried_gains, allowed = (), (), ()
        for j in tl.static_range(TRIALS):
            tried = tried + ((all_bits - ((best[j] >> 3) & all_bits)).to(tl.int32),)
            tried_gains = tried_gains + (best[j] >> (bits + 3),)
            allowed = allowed + ((tried_gains[j] > 0) & (depth - count > j),)
        going = tried_gains[0] > 0
        if going:
            new_cover, raised_by, summary = try_candidates(rows, stride, v, v < stride, cover, tried, allowed, TRIALS)
            accepted = count_accepted(allowed, summary, TRIALS)

            # list the raised tokens with old and new cover, in two alternating buffers: a slow warp may still read the
            # list of the last step
            rises = raised_by < accepted
            slot = tl.cumsum(rises.to(tl.int32), 0)
            changes = raised + (step & 1) * (TOKEN_WIDTH + 1)
            change = (v.to(tl.int64) << 32) | ((cover.to(tl.int64) & 0xFFFF) << 16) | (new_cover.to(tl.int64) & 0xFFFF)
            tl.store(changes + slot, change, mask=rises)
            tl.store(changes + v * 0, slot.to(tl.int64), mask=v == TOKEN_WIDTH - 1)
            cover = tl.where(rises, new_cover, cover)
            tl.debug_barrier()

            raised_count = tl.load(changes).to(tl.int32)
            lost = tl.zeros([LANES, CANDIDATE_WIDTH], current_gains.dtype.element_ty)
            for start in range(0, raised_count, ROWS * LANES):
                at = start + number_lanes(ROWS, LANES, AXIS)
                # after the last change: token 0 from cover 0 to cover 0, which takes nothing
                entry = tl.load(changes + 1 + at, mask=at < raised_count, other=0)
                old, new = (entry >> 16).to(tl.int16).to(tl.int32), entry.to(tl.int16).to(tl.int32)
                counted = at < raised_count
                lost += compute_losses(
                    entry >> 32, old, new, counted, columns, column_stride, u, readable, weights, WEIGHTED, AXIS
                )
            gain -= tl.sum(lost, 0)
            if program == 0:
                store_picks(picks, gains, histogram, count, highest, tried, tried_gains, accepted, STOPS, TRIALS)
            gain = exclude_picks(gain, u, tried, accepted, TRIALS)
            last = tried_gains[0].to(last.dtype)
            count += accepted
            step += 1
            going = (count < depth) & (stop == 0)
    if program == 0:
        tl.store(counts + set_index, count)
        tl.store(steps + set_index, step)
