"""One program for each set, or a few that run at once.

Each holds the cover of all tokens of the set and the gains of some of its candidates. In a step they meet once, to find
the best candidates of all; what those do to the tokens each then works out for itself, and the same. They meet by words
in memory that carry a stamp: see words.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from floc.selection.gpu import steps
from floc.selection.gpu.sets import (
    CANDIDATES,
    COLUMNS,
    DEPTH,
    FIRST_CANDIDATE,
    FIRST_PICK,
    FIRST_TOKEN,
    TOKENS,
    Sets,
    share,
)
from floc.selection.gpu.steps import (
    Enough,
    Picked,
    accepted,
    best,
    count_first,
    count_picks,
    in_lanes,
    is_enough,
    matrices,
    note,
    raised,
    taken_away,
    without,
)
from floc.selection.gpu.words import LOWEST, wait_for

WIDEST = 8192  # candidates or tokens of a set that one program can hold
MOST = 8  # programs; with more, those that share the tokens too are faster
AT_ONCE = 4  # candidates that are tried in a step


def run(
    matrix: torch.Tensor,
    weights: torch.Tensor,
    now: torch.Tensor,
    picked: Picked,
    sets: Sets,
    members: int,
    *,
    weighted: bool,
    enough: Enough,
) -> None:
    """Pick from all sets, from the gains that candidates have after the first pick."""
    device, shape = matrix.device, shape_of(max(sets.candidates), max(sets.tokens), members)
    _few[(len(sets) * members,)](
        matrix,
        weights,
        now,
        picked.picks,
        picked.gains,
        picked.made,
        picked.steps,
        torch.empty(len(sets) * members, 2, shape["TOKENS_"] + 1, dtype=torch.int64, device=device),
        torch.zeros(len(sets), 2, AT_ONCE, shape["MEMBERS"], dtype=torch.int64, device=device),
        enough.histogram(device),
        enough.count,
        sets.table,
        members,
        share(max(sets.candidates), members),
        max(1, (max(sets.candidates) - 1).bit_length()),
        WEIGHTED=weighted,
        BOUNDED=enough.count > 0,
        FIRSTS=enough.firsts,
        **shape,
        **({"launch_cooperative_grid": True} if members > 1 else {}),
    )


def shape_of(candidates: int, tokens: int, members: int) -> dict[str, int]:
    """What the kernel is compiled for, where the largest set has so many candidates and tokens."""
    width, all_tokens = triton.next_power_of_2(share(candidates, members)), triton.next_power_of_2(tokens)
    # as many as hold what there is; where several share it, no more than it takes: each waits for all others
    warps = min(32 if members == 1 else 8, max(4, max(width, all_tokens) // 256))
    return dict(
        MEMBERS=triton.next_power_of_2(members),
        CANDIDATES_=width,
        TOKENS_=all_tokens,
        ROWS=16 if members == 1 and max(width, all_tokens) <= 2048 else 8,  # as many as there are registers for
        LANES=max(1, warps * 256 // width),  # a warp reads 256 columns at a time
        AT_ONCE=AT_ONCE,
        AXIS=steps.AXIS,
        num_warps=warps,
    )


@triton.jit(do_not_specialize=["enough", "members", "bits"])
def _few(
    matrix,
    weights,
    now,
    picks,
    gains,
    made,
    steps,
    risen,
    best_words,
    histogram,
    enough,
    table,
    members,
    candidates_each,
    bits,
    WEIGHTED: tl.constexpr,
    BOUNDED: tl.constexpr,
    FIRSTS: tl.constexpr,
    MEMBERS: tl.constexpr,
    CANDIDATES_: tl.constexpr,
    TOKENS_: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    AT_ONCE: tl.constexpr,
    AXIS: tl.constexpr,
):
    which, me = tl.program_id(0) // members, tl.program_id(0) % members
    here = table + which * COLUMNS
    m, n, depth = tl.load(here + CANDIDATES), tl.load(here + TOKENS), tl.load(here + DEPTH).to(tl.int32)
    rows, stride, turned, turned_stride = matrices(matrix, here)
    weights += tl.load(here + FIRST_TOKEN)
    picks += tl.load(here + FIRST_PICK)
    gains += tl.load(here + FIRST_PICK)
    risen += tl.program_id(0).to(tl.int64) * 2 * (TOKENS_ + 1)
    best_words += which * 2 * AT_ONCE * MEMBERS

    u, v = me * candidates_each + tl.arange(0, CANDIDATES_), tl.arange(0, TOKENS_)
    mine = (tl.arange(0, CANDIDATES_) < candidates_each) & (u < m)
    my_columns = (tl.arange(0, CANDIDATES_) < candidates_each) & (u < turned_stride)
    all_bits = (1 << bits) - 1
    complement = (all_bits - u).to(tl.int64) << 3

    first = tl.load(picks)
    highest = tl.load(gains)
    gain = tl.load(now + tl.load(here + FIRST_CANDIDATE) + u, mask=mine, other=-1).to(tl.int64)
    gain = tl.where(u == first, -1, gain)
    # rows are read to their stride; nothing rises above the cover that is given to what lies behind them
    cover = tl.load(rows + first * stride + v, mask=v < stride, other=0)
    cover = tl.where(v < n, cover, 32767)
    if BOUNDED:
        count_first(histogram, highest, me == 0, FIRSTS)
    last = highest
    count = depth * 0 + 1
    step = depth * 0
    going = depth > 1
    while going:
        # my best candidates, in order: gains in front, so that the largest word is the best, and of equals the lowest;
        # behind them a flag by which the first of us tells the others that this is the last step, and the stamp
        stop = depth * 0
        if BOUNDED:
            if (me == 0) & (step % 8 == 7):
                stop = is_enough(histogram, enough, tl.minimum(last, highest)).to(tl.int32)
        key = tl.where(mine, (gain << (bits + 3)) | complement | (stop << 2), LOWEST)
        leading = best(key, AT_ONCE)
        if MEMBERS > 1:
            # the best of all, in the same order
            stamp = ((step >> 1) + 1) & 3
            words = best_words + (step & 1) * AT_ONCE * MEMBERS
            for j in tl.static_range(AT_ONCE):
                tl.atomic_xchg(words + j * MEMBERS + me, leading[j] | stamp, sem="relaxed")
            every = tl.arange(0, AT_ONCE * MEMBERS)
            present = every % MEMBERS < members
            wait_for(words + every, present, stamp)
            word = tl.load(words + every, mask=present, other=0, volatile=True)
            stop = ((tl.sum(tl.where(every == 0, word, 0), 0) >> 2) & 1).to(tl.int32)
            leading = best(tl.where(present, word & -8, LOWEST), AT_ONCE)
        p, g, allowed = (), (), ()
        for j in tl.static_range(AT_ONCE):
            p = p + ((all_bits - ((leading[j] >> 3) & all_bits)).to(tl.int32),)
            g = g + (leading[j] >> (bits + 3),)
            allowed = allowed + ((g[j] > 0) & (depth - count > j),)
        going = g[0] > 0
        if going:
            to, by, met = raised(rows, stride, v, v < stride, cover, p, allowed, AT_ONCE)
            taken = accepted(allowed, met, AT_ONCE)

            # tokens that rise, from what to what: listed by turns in two places, as a slow warp may still read the last
            rose = by < taken
            slot = tl.cumsum(rose.to(tl.int32), 0)
            listed = risen + (step & 1) * (TOKENS_ + 1)
            change = (v.to(tl.int64) << 32) | ((cover.to(tl.int64) & 0xFFFF) << 16) | (to.to(tl.int64) & 0xFFFF)
            tl.store(listed + slot, change, mask=rose)
            tl.store(listed + v * 0, slot.to(tl.int64), mask=v == TOKENS_ - 1)
            cover = tl.where(rose, to, cover)
            tl.debug_barrier()

            many = tl.load(listed).to(tl.int32)
            lost = tl.zeros([LANES, CANDIDATES_], now.dtype.element_ty)
            for start in range(0, many, ROWS * LANES):
                at = start + in_lanes(ROWS, LANES, AXIS)
                # behind the last one: token 0, from cover 0 to cover 0, which takes nothing
                entry = tl.load(listed + 1 + at, mask=at < many, other=0)
                old, new = (entry >> 16).to(tl.int16).to(tl.int32), entry.to(tl.int16).to(tl.int32)
                lost = taken_away(
                    lost,
                    entry >> 32,
                    old,
                    new,
                    at < many,
                    turned,
                    turned_stride,
                    u,
                    my_columns,
                    weights,
                    WEIGHTED,
                    AXIS,
                )
            gain -= tl.sum(lost, 0)
            if me == 0:
                note(picks, gains, count, p, g, taken, AT_ONCE)
                if BOUNDED:
                    count_picks(histogram, highest, g, taken, AT_ONCE)
            gain = without(gain, u, p, taken, AT_ONCE)
            last = g[0].to(last.dtype)
            count += taken
            step += 1
            going = (count < depth) & (stop == 0)
    if me == 0:
        tl.store(made + which, count)
        tl.store(steps + which, step)
