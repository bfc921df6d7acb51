"""One program for each set, or a few that run at once.

Each holds the cover of all tokens of the set and the gains of some of its candidates. In a step they meet once, to find
the best candidates of all; what those do to the tokens each then works out for itself, and the same. They meet by words
in memory that carry a stamp: see words.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .sets import CANDIDATES, COLUMNS, DEPTH, FIRST_CANDIDATE, FIRST_PICK, FIRST_TOKEN, TOKENS, Sets, round_up
from .steps import (
    Enough,
    Picked,
    accepted,
    best,
    count_first,
    count_picks,
    is_enough,
    matrices,
    note,
    raised,
    without,
)
from .words import LOWEST, wait_for

WIDEST = 8192  # tokens of a set that one program can hold
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
    candidates = round_up(-(-max(sets.candidates) // members), 16)  # so that members read whole vectors
    width, tokens = triton.next_power_of_2(candidates), triton.next_power_of_2(max(sets.tokens))
    padded = triton.next_power_of_2(members)
    # as many as hold what there is; where several share it, no more than it takes: each waits for all others
    warps = min(32 if members == 1 else 8, max(4, max(width, tokens) // 256))
    device = matrix.device
    _few[(len(sets) * members,)](
        matrix,
        weights,
        now,
        picked.picks,
        picked.gains,
        picked.made,
        picked.steps,
        torch.empty(len(sets) * members, 2, tokens + 1, dtype=torch.int64, device=device),
        torch.zeros(len(sets), 2, AT_ONCE, padded, dtype=torch.int64, device=device),
        enough.histogram(device),
        enough.count,
        sets.table,
        members,
        candidates,
        max(1, (max(sets.candidates) - 1).bit_length()),
        WEIGHTED=weighted,
        BOUNDED=enough.count > 0,
        FIRSTS=enough.firsts,
        MEMBERS=padded,
        CANDIDATES_=width,
        TOKENS_=tokens,
        ROWS=16 if members == 1 and max(width, tokens) < 8192 else 8,
        LANES=max(1, warps * 256 // width),  # a warp reads 256 columns at a time
        AT_ONCE=AT_ONCE,
        num_warps=warps,
        **({"launch_cooperative_grid": True} if members > 1 else {}),
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
        # my best candidates, in order: gains in front, so that the largest word is the best, and of equals the lowest
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

            # what my candidates lose by them: every warp adds up its own ROWS of them, and waits for no other
            many = tl.load(listed).to(tl.int32)
            lost = tl.zeros([LANES, CANDIDATES_], now.dtype.element_ty)
            for start in range(0, many, ROWS * LANES):
                at = start + tl.arange(0, LANES)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
                # behind the last one: token 0, from cover 0 to cover 0, which takes nothing
                entry = tl.load(listed + 1 + at, mask=at < many, other=0)
                token = entry >> 32
                old = (entry >> 16).to(tl.int16).to(tl.int32)[:, :, None]
                new = entry.to(tl.int16).to(tl.int32)[:, :, None]
                inside = (at < many)[:, :, None] & my_columns[None, None, :]
                column = turned + token[:, :, None] * turned_stride + u[None, None, :]
                s = tl.load(column, mask=inside, other=0).to(tl.int32)
                between = tl.minimum(tl.maximum(s, old), new)
                if WEIGHTED:
                    weight = tl.load(weights + token, mask=at < many, other=0)
                    lost += tl.sum((between - old).to(tl.int64) * weight[:, :, None], 1)
                else:
                    lost += (tl.sum(between, 1) - tl.sum(old, 1)).to(now.dtype.element_ty)
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
