"""Many programs for each set, all running at once.

Each holds the gains of some candidates and the cover of some tokens, and in a step they meet twice: to find the best
candidates, and to tell which tokens rose: see words.py.
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
    together,
    without,
)
from floc.selection.gpu.words import LOWEST, wait_for

MOST = 128  # programs: words are read in powers of two, and twice as many take longer than a few more programs save
CHUNK = 512  # tokens that rose that are waited for together


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
    ring = triton.next_power_of_2(2 * max(sets.tokens))
    _team[(len(sets) * members,)](
        matrix,
        weights,
        now,
        picked.picks,
        picked.gains,
        picked.made,
        picked.steps,
        torch.zeros(len(sets), 2, 2 * shape["MEMBERS"], dtype=torch.int64, device=device),
        torch.zeros(len(sets), 2, shape["MEMBERS"], dtype=torch.int32, device=device),
        torch.zeros(len(sets), dtype=torch.int32, device=device),
        torch.zeros(len(sets), ring, dtype=torch.int64, device=device),
        torch.empty(len(sets) * members, 2, CHUNK, dtype=torch.int64, device=device),
        enough.histogram(device),
        enough.count,
        sets.table,
        members,
        share(max(sets.candidates), members),
        share(max(sets.tokens), members),
        max(1, (max(sets.candidates) - 1).bit_length()),
        ring.bit_length() - 1,
        WEIGHTED=weighted,
        BOUNDED=enough.count > 0,
        FIRSTS=enough.firsts,
        **shape,
        **({"launch_cooperative_grid": True} if members > 1 else {}),
    )


def shape_of(candidates: int, tokens: int, members: int) -> dict[str, int]:
    """What the kernel is compiled for, where the largest set has so many candidates and tokens."""
    width = triton.next_power_of_2(share(candidates, members))
    warps = 8 if width > 256 else 4  # a warp reads 256 columns at a time
    return dict(
        MEMBERS=triton.next_power_of_2(members),
        CANDIDATES_=width,
        TOKENS_=triton.next_power_of_2(share(tokens, members)),
        ROWS=16 if width > 256 else 8,
        LANES=max(1, warps * 256 // width),
        CHUNK=CHUNK,
        AT_ONCE=8 if members > 32 else 4,
        AXIS=steps.AXIS,
        num_warps=warps,
    )


@triton.jit(do_not_specialize=["enough", "members", "bits", "ring_bits"])
def _team(
    matrix,
    weights,
    now,
    picks,
    gains,
    made,
    steps,
    best_words,
    risen_words,
    tails,
    rings,
    nears,
    histogram,
    enough,
    table,
    members,
    candidates_each,
    tokens_each,
    bits,
    ring_bits,
    WEIGHTED: tl.constexpr,
    BOUNDED: tl.constexpr,
    FIRSTS: tl.constexpr,
    MEMBERS: tl.constexpr,
    CANDIDATES_: tl.constexpr,
    TOKENS_: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK: tl.constexpr,
    AT_ONCE: tl.constexpr,
    AXIS: tl.constexpr,
):
    """Many programs for each set, all running at once."""
    which, me = tl.program_id(0) // members, tl.program_id(0) % members
    here = table + which * COLUMNS
    m, n, depth = tl.load(here + CANDIDATES), tl.load(here + TOKENS), tl.load(here + DEPTH).to(tl.int32)
    rows, stride, turned, turned_stride = matrices(matrix, here)
    weights += tl.load(here + FIRST_TOKEN)
    picks += tl.load(here + FIRST_PICK)
    gains += tl.load(here + FIRST_PICK)
    best_words += which * 4 * MEMBERS
    risen_words += which * 2 * MEMBERS
    tails += which
    ring = rings + (which.to(tl.int64) << ring_bits)
    near = nears + tl.program_id(0) * 2 * CHUNK

    u = me * candidates_each + tl.arange(0, CANDIDATES_)
    mine = (tl.arange(0, CANDIDATES_) < candidates_each) & (u < m)
    my_columns = (tl.arange(0, CANDIDATES_) < candidates_each) & (u < turned_stride)
    v = me * tokens_each + tl.arange(0, TOKENS_)
    my_tokens = (tl.arange(0, TOKENS_) < tokens_each) & (v < stride)
    member, both = tl.arange(0, MEMBERS), tl.arange(0, 2 * MEMBERS)
    all_bits = (1 << bits) - 1
    in_ring = (1 << ring_bits) - 1
    complement = (all_bits - u).to(tl.int64) << 2

    first = tl.load(picks)
    highest = tl.load(gains)
    gain = tl.load(now + tl.load(here + FIRST_CANDIDATE) + u, mask=mine, other=-1).to(tl.int64)
    gain = tl.where(u == first, -1, gain)
    # rows are read to their stride; nothing rises above the cover that is given to what is not a token of mine
    cover = tl.load(rows + first * stride + v, mask=my_tokens, other=0)
    cover = tl.where(my_tokens & (v < n), cover, 32767)
    if BOUNDED:
        count_first(histogram, highest, me == 0, FIRSTS)
    count = depth * 0 + 1
    step = depth * 0
    tail = depth * 0  # of the entries in the ring, modulo 4 rings: what the stamps of entries can tell apart
    going = depth > 1
    while going:
        # my two best candidates, to all
        stamp = ((step >> 1) + 1) & 3
        key = tl.where(mine, (gain << (bits + 2)) | complement, LOWEST)
        leading = best(key, 2)
        words = best_words + (step & 1) * 2 * MEMBERS
        tl.atomic_xchg(words + me, leading[0] | stamp, sem="relaxed")
        tl.atomic_xchg(words + MEMBERS + me, leading[1] | stamp, sem="relaxed")
        present = both % MEMBERS < members
        wait_for(words + both, present, stamp)
        word = tl.load(words + both, mask=present, other=0, volatile=True)
        leading = best(tl.where(present, word & -4, LOWEST), AT_ONCE)

        # the best of all, in order; a member's third best is not known, so nothing after its second may be taken
        p, g, allowed, owners = (), (), (), ()
        known = depth > count
        for j in tl.static_range(AT_ONCE):
            candidate = (all_bits - ((leading[j] >> 2) & all_bits)).to(tl.int32)
            p, g = p + (candidate,), g + (leading[j] >> (bits + 2),)
            allowed = allowed + (known & (g[j] > 0) & (depth - count > j),)
            for i in tl.static_range(j):
                known = known & (owners[i] != candidate // candidates_each)
            owners = owners + (candidate // candidates_each,)
        going = g[0] > 0
        if going:
            # my tokens that rise, to all: how many they are, and who met whom among them, and then one by one
            to, by, met = raised(rows, stride, v, my_tokens, cover, p, allowed, AT_ONCE)
            if BOUNDED:
                # what one of us finds goes for all, in the flag that the first candidate does not need
                if (me == 0) & (step % 8 == 7):
                    met |= is_enough(histogram, enough, tl.minimum(g[0], highest)).to(tl.int32)
            headers = risen_words + (step & 1) * MEMBERS
            tl.atomic_xchg(headers + me, (met << 2) | stamp, sem="relaxed")
            if met >> 8 > 0:
                at = tl.atomic_add(tails, met >> 8, sem="relaxed") + tl.cumsum((by < AT_ONCE).to(tl.int32), 0) - 1
                at = at & (4 * in_ring + 3)
                covers = ((cover.to(tl.int64) & 0xFFFF) << 16) | (to.to(tl.int64) & 0xFFFF)
                change = (((v << 3) | by).to(tl.int64) << 34) | (covers << 2) | (((at >> ring_bits) + 1) & 3)
                tl.store(ring + (at & in_ring), change, mask=by < AT_ONCE)
            wait_for(headers + member, member < members, stamp)
            header = tl.load(headers + member, mask=member < members, other=0, volatile=True)
            met = tl.reduce(header >> 2, 0, together)
            many = met >> 8
            taken = accepted(allowed, met, AT_ONCE)

            # what my candidates lose by them. All members read the same tokens at the same time, and would stand in
            # line for them: what has come is copied near first. Nobody writes there before all warps have read what was
            # there before, as they meet in the waiting
            lost = tl.zeros([LANES, CANDIDATES_], now.dtype.element_ty)
            for begin in range(0, many, CHUNK):
                coming = begin + tl.arange(0, CHUNK)
                place = ring + ((tail + coming) & in_ring)
                wait_for(place, coming < many, (((tail + coming) >> ring_bits) + 1) & 3)
                come = tl.load(place, mask=coming < many, other=0, volatile=True)
                held = near + ((begin // CHUNK) & 1) * CHUNK
                tl.store(held + tl.arange(0, CHUNK), come)
                tl.debug_barrier()
                left = tl.minimum(many - begin, CHUNK)
                for start in range(0, left, ROWS * LANES):
                    at = start + in_lanes(ROWS, LANES, AXIS)
                    entry = tl.load(held + at, mask=at < left, other=0)
                    token, covers = (entry >> 34).to(tl.int32), (entry >> 2).to(tl.int32)
                    counts = (at < left) & ((token & 7) < taken)
                    covers = tl.where(counts, covers, 0)
                    old, new = covers >> 16, covers.to(tl.int16).to(tl.int32)
                    lost = taken_away(
                        lost,
                        token >> 3,
                        old,
                        new,
                        counts,
                        turned,
                        turned_stride,
                        u,
                        my_columns,
                        weights,
                        WEIGHTED,
                        AXIS,
                    )
            gain -= tl.sum(lost, 0)
            tail = (tail + many) & (4 * in_ring + 3)
            cover = tl.where(by < taken, to, cover)
            if me == 0:
                note(picks, gains, count, p, g, taken, AT_ONCE)
                if BOUNDED:
                    count_picks(histogram, highest, g, taken, AT_ONCE)
            gain = without(gain, u, p, taken, AT_ONCE)
            count += taken
            step += 1
            going = (count < depth) & ((met & 1) == 0)
    if me == 0:
        tl.store(made + which, count)
        tl.store(steps + which, step)
