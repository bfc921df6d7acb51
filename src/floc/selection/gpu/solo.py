"""One program for each set, which holds all gains and covers of the set in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .sets import CANDIDATES, COLUMNS, DEPTH, FIRST_CANDIDATE, FIRST_PICK, FIRST_TOKEN, TOKENS, Sets
from .steps import (
    Enough,
    Picked,
    accepted,
    count_first,
    count_picks,
    is_enough,
    matrices,
    note,
    raised,
    without,
)

WIDEST = 8192  # candidates or tokens of a set that one program can hold


def run(
    matrix: torch.Tensor,
    weights: torch.Tensor,
    now: torch.Tensor,
    picked: Picked,
    sets: Sets,
    *,
    weighted: bool,
    enough: Enough,
) -> None:
    """Pick from all sets, from the gains that candidates have after the first pick."""
    candidates = triton.next_power_of_2(max(sets.candidates))
    tokens = triton.next_power_of_2(max(sets.tokens))
    risen = torch.empty(len(sets), 2, tokens + 1, dtype=torch.int64, device=matrix.device)
    _solo[(len(sets),)](
        matrix,
        weights,
        now,
        picked.picks,
        picked.gains,
        picked.made,
        picked.steps,
        risen,
        enough.histogram(matrix.device),
        enough.count,
        sets.table,
        WEIGHTED=weighted,
        BOUNDED=enough.count > 0,
        FIRSTS=enough.firsts,
        CANDIDATES_=candidates,
        TOKENS_=tokens,
        ROWS=16 if max(candidates, tokens) < 8192 else 8,  # as many as 64 registers hold
        AT_ONCE=4,
        num_warps=min(32, max(4, max(candidates, tokens) // 256)),
    )


@triton.jit(do_not_specialize=["enough"])
def _solo(
    matrix,
    weights,
    now,
    picks,
    gains,
    made,
    steps,
    risen,
    histogram,
    enough,
    table,
    WEIGHTED: tl.constexpr,
    BOUNDED: tl.constexpr,
    FIRSTS: tl.constexpr,
    CANDIDATES_: tl.constexpr,
    TOKENS_: tl.constexpr,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """One program for each set."""
    here = table + tl.program_id(0) * COLUMNS
    m, n, depth = tl.load(here + CANDIDATES), tl.load(here + TOKENS), tl.load(here + DEPTH).to(tl.int32)
    rows, stride, turned, turned_stride = matrices(matrix, here)
    weights += tl.load(here + FIRST_TOKEN)
    picks += tl.load(here + FIRST_PICK)
    gains += tl.load(here + FIRST_PICK)
    risen += tl.program_id(0) * 2 * (TOKENS_ + 1)

    u, v = tl.arange(0, CANDIDATES_), tl.arange(0, TOKENS_)
    first = tl.load(picks)
    highest = tl.load(gains)
    gain = tl.load(now + tl.load(here + FIRST_CANDIDATE) + u, mask=u < m, other=-1)
    gain = tl.where(u == first, -1, gain)
    # rows are read to their stride; nothing rises above the cover that is given to what lies behind them
    cover = tl.load(rows + first * stride + v, mask=v < stride, other=0)
    cover = tl.where(v < n, cover, 32767)
    if BOUNDED:
        count_first(histogram, highest, depth > 0, FIRSTS)
    count = depth * 0 + 1
    step = depth * 0
    going = depth > 1
    while going:
        # the best, in order
        rest = gain
        p, g, allowed = (), (), ()
        for j in tl.static_range(AT_ONCE):
            best, place = tl.max(rest, 0, return_indices=True)
            rest = tl.where(u == place, -1, rest)
            p, g, allowed = p + (place,), g + (best,), allowed + ((best > 0) & (depth - count > j),)
        going = g[0] > 0
        if BOUNDED:
            if going & (step % 8 == 7):
                if is_enough(histogram, enough, tl.minimum(g[0], highest)):
                    # this one is still greedy's pick, though it is not wanted: it tells what would come next
                    tl.store(picks + count, p[0])
                    tl.store(gains + count, g[0])
                    count += 1
                    going = count < 0
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
            for start in range(0, many, ROWS):
                at = start + tl.arange(0, ROWS)
                # behind the last one: token 0, from cover 0 to cover 0, which takes nothing
                entry = tl.load(listed + 1 + at, mask=at < many, other=0)
                token = entry >> 32
                old, new = (entry >> 16).to(tl.int16).to(tl.int32), entry.to(tl.int16).to(tl.int32)
                inside = (at < many)[:, None] & (u < turned_stride)[None, :]
                s = tl.load(turned + token[:, None] * turned_stride + u[None, :], mask=inside, other=0).to(tl.int32)
                between = tl.minimum(tl.maximum(s, old[:, None]), new[:, None])
                if WEIGHTED:
                    weight = tl.load(weights + token)
                    gain -= tl.sum((between - old[:, None]).to(tl.int64) * weight[:, None], 0)
                else:
                    gain -= tl.sum(between, 0) - tl.sum(old, 0)
            note(picks, gains, count, p, g, taken, AT_ONCE)
            if BOUNDED:
                count_picks(histogram, highest, g, taken, AT_ONCE)
            gain = without(tl.where(u < m, gain, -1), u, p, taken, AT_ONCE)
            count += taken
            step += 1
            going = count < depth
    tl.store(made + tl.program_id(0), count)
    tl.store(steps + tl.program_id(0), step)
