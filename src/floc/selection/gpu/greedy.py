"""Exact greedy on the GPU, by gains that are kept up to date.

After a pick only those tokens matter whose cover rose, a few dozen of thousands: every candidate loses, for each of
them, what it would have added between the old cover and the new. So a pick costs one row of the matrix and as many of
its transpose as tokens rose, and no candidate is ever evaluated again. All is integer arithmetic, so sums may be taken
in any order: picks and gains are those of `reference.greedy`, bit for bit.

Several picks are made in one step. Of the candidates with the largest gains, in order, the second is greedy's next pick
if it raises no token that the first one raises: its gain has not changed then, and no gain ever rises. So it goes on
until two meet. On videos two to six picks in a step are common, and a step takes about as long as one pick would.

Two kernels do this. `_solo` has one program for each set, which holds all gains and covers of the set in registers.
`_team` has many programs for each set. Each holds the gains of some candidates and the cover of some tokens, and in a
step they meet twice: to find the best candidates, and to tell which tokens rose. They meet by words in memory that
carry a stamp in their lowest bits: who sees this step's stamp has this step's word, so there are no locks, no fences,
and nothing to reset. Two buffers suffice, as nobody writes a step's words before everybody has read those of the step
before. This relies on what all NVIDIA GPUs do and the memory model of PTX does not say of plain stores: that a store
of 64 bits arrives whole, and in the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .launch import interpreted, multiprocessors
from .sets import (
    CANDIDATES,
    COLUMNS,
    DEPTH,
    FIRST_CANDIDATE,
    FIRST_PICK,
    FIRST_TOKEN,
    MATRIX,
    MATRIX_STRIDE,
    PIECE,
    TOKENS,
    TURNED,
    TURNED_STRIDE,
    Sets,
    round_up,
)

WIDEST_SOLO = 8192  # candidates or tokens of a set that one program can hold
SMALLEST_TEAM = 4  # fewer are no faster than one alone
BINS = 1024  # of gains, on a scale of 16 steps to a factor of 2
_LOWEST = tl.constexpr(-(2**63))
_NOTHING = tl.constexpr(-32768)  # covers no token
_BINS = tl.constexpr(BINS)


@dataclass(frozen=True)
class Picked:
    """Picks of all sets, each set's from its FIRST_PICK on."""

    picks: torch.Tensor  # [P] int32 candidates of the set
    gains: torch.Tensor  # [P] int32 or int64
    made: torch.Tensor  # [B] int32, how many were made in each set before gains ended; the others are not written
    steps: torch.Tensor  # [B] int32, that it took


def greedy(
    matrix: torch.Tensor,
    sets: Sets,
    weights: torch.Tensor | None = None,
    *,
    spread: int = 1 << 15,
    enough: int = 0,
    firsts: bool = False,
    team: int | None = None,
) -> Picked:
    """Pick from every set until its depth is reached, or nothing gains any more.

    Args:
        matrix: the int16 matrices of all sets.
        weights: [tokens of all sets] int64 >= 0, how much each counts.
        spread: no two similarities differ by more.
        enough: stop in sets where so many picks of all sets have larger gains; 0: never. No pick counts for more than
            its set's first.
        firsts: let the first pick of every set count for more than any other.
        team: programs for each set; chosen by size where not given.
    """
    device = matrix.device
    weighted = weights is not None
    kind = torch.int64 if weighted or max(sets.tokens) * spread >= 1 << 31 else torch.int32
    now = torch.empty(sum(sets.candidates), dtype=kind, device=device)
    picked = Picked(
        torch.empty(sets.picks, dtype=torch.int32, device=device),
        torch.empty(sets.picks, dtype=kind, device=device),
        torch.empty(len(sets), dtype=torch.int32, device=device),
        torch.empty(len(sets), dtype=torch.int32, device=device),
    )
    given = weights if weights is not None else now  # where there are none the kernels do not read them
    for after in (False, True):
        _evaluate[(len(sets.candidate_pieces),)](
            matrix,
            given,
            picked.picks,
            now,
            sets.table,
            sets.candidate_pieces,
            AFTER=after,
            WEIGHTED=weighted,
            ROWS=PIECE,
            BLOCK=512,
            num_warps=4,
        )
        if not after:
            _first[(len(sets),)](now, picked.picks, picked.gains, sets.table, BLOCK=4096, num_warps=8)
    members = _team_size(sets) if team is None else team
    if members == 0:
        _run_solo(matrix, given, now, picked, sets, weighted=weighted, enough=enough, firsts=firsts)
    else:
        _run_team(matrix, given, now, picked, sets, members, weighted=weighted, enough=enough, firsts=firsts)
    return picked


def fill_up(picked: Picked, sets: Sets, later: torch.Tensor | None = None) -> None:
    """Fill the picks that gain nothing with the candidates that are left, in index order or in the order of `later`.

    Args:
        later: [candidates of all sets] int32, each set's candidates in the order to take them.
    """
    marks = torch.zeros(sum(sets.candidates), dtype=torch.int8, device=picked.picks.device)
    _fill_up[(len(sets),)](
        picked.picks,
        picked.gains,
        picked.made,
        marks,
        picked.picks if later is None else later,
        sets.table,
        ORDERED=later is not None,
        BLOCK=1024,
        num_warps=4,
    )


def _team_size(sets: Sets) -> int:
    """How many programs to each set; 0: one that needs no team."""
    largest = max(*sets.candidates, *sets.tokens)
    shares = 1 if interpreted() else min(multiprocessors(sets.device) // len(sets), -(-largest // 64))
    if largest <= WIDEST_SOLO and shares < SMALLEST_TEAM:
        return 0
    return max(1, shares)


def _run_solo(
    matrix: torch.Tensor,
    weights: torch.Tensor,
    now: torch.Tensor,
    picked: Picked,
    sets: Sets,
    *,
    weighted: bool,
    enough: int,
    firsts: bool,
) -> None:
    candidates = triton.next_power_of_2(max(sets.candidates))
    tokens = triton.next_power_of_2(max(sets.tokens))
    risen = torch.empty(len(sets), 2, tokens + 1, dtype=torch.int64, device=matrix.device)
    histogram = torch.zeros(BINS if enough else 1, dtype=torch.int32, device=matrix.device)
    _solo[(len(sets),)](
        matrix,
        weights,
        now,
        picked.picks,
        picked.gains,
        picked.made,
        picked.steps,
        risen,
        histogram,
        enough,
        sets.table,
        WEIGHTED=weighted,
        BOUNDED=enough > 0,
        FIRSTS=firsts,
        CANDIDATES_=candidates,
        TOKENS_=tokens,
        ROWS=16 if max(candidates, tokens) < 8192 else 8,  # as many as 64 registers hold
        AT_ONCE=4,
        num_warps=min(32, max(4, max(candidates, tokens) // 256)),
    )


def _run_team(
    matrix: torch.Tensor,
    weights: torch.Tensor,
    now: torch.Tensor,
    picked: Picked,
    sets: Sets,
    members: int,
    *,
    weighted: bool,
    enough: int,
    firsts: bool,
) -> None:
    padded = triton.next_power_of_2(members)
    # multiples of 16, so that members read whole vectors
    candidates = round_up(-(-max(sets.candidates) // members), 16)
    tokens = round_up(-(-max(sets.tokens) // members), 16)
    ring = triton.next_power_of_2(2 * max(sets.tokens))
    device = matrix.device
    width = triton.next_power_of_2(candidates)
    warps = 8 if width > 256 else 4  # a warp reads 256 columns at a time
    _team[(len(sets) * members,)](
        matrix,
        weights,
        now,
        picked.picks,
        picked.gains,
        picked.made,
        picked.steps,
        torch.zeros(len(sets), 2, 2 * padded, dtype=torch.int64, device=device),
        torch.zeros(len(sets), 2, padded, dtype=torch.int32, device=device),
        torch.zeros(len(sets), dtype=torch.int32, device=device),
        torch.zeros(len(sets), ring, dtype=torch.int64, device=device),
        torch.zeros(BINS if enough else 1, dtype=torch.int32, device=device),
        enough,
        sets.table,
        members,
        candidates,
        tokens,
        max(1, (max(sets.candidates) - 1).bit_length()),
        ring.bit_length() - 1,
        WEIGHTED=weighted,
        BOUNDED=enough > 0,
        FIRSTS=firsts,
        MEMBERS=padded,
        CANDIDATES_=width,
        TOKENS_=triton.next_power_of_2(tokens),
        ROWS=8,
        LANES=max(1, warps * 256 // width),
        WAIT=256,
        AT_ONCE=8 if members > 32 else 4,
        num_warps=warps,
        **({"launch_cooperative_grid": True} if members > 1 else {}),
    )


@triton.jit
def _evaluate(
    matrix,
    weights,
    picks,
    now,
    table,
    pieces,
    AFTER: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What each candidate adds to nothing, or AFTER the first pick to that."""
    piece = pieces + tl.program_id(0) * 2
    here = table + tl.load(piece) * COLUMNS
    m, n = tl.load(here + CANDIDATES), tl.load(here + TOKENS)
    stride = tl.multiple_of(tl.load(here + MATRIX_STRIDE), 64)
    start = matrix + tl.multiple_of(tl.load(here + MATRIX), 64)
    rows = tl.load(piece + 1) + tl.arange(0, ROWS)
    first = start
    if AFTER:
        first = start + tl.load(picks + tl.load(here + FIRST_PICK)) * stride
    total = tl.zeros([ROWS], now.dtype.element_ty)
    for left in range(0, n, BLOCK):
        columns = left + tl.arange(0, BLOCK)
        inside = (rows < m)[:, None] & (columns < stride)[None, :]
        s = tl.load(start + rows[:, None] * stride + columns[None, :], mask=inside, other=0).to(tl.int32)
        if AFTER:
            cover = tl.load(first + columns, mask=columns < stride, other=0).to(tl.int32)
            s = tl.maximum(s - cover[None, :], 0)
        s = tl.where((columns < n)[None, :], s, 0)
        if WEIGHTED:
            weight = tl.load(weights + tl.load(here + FIRST_TOKEN) + columns, mask=columns < n, other=0)
            total += tl.sum(s.to(tl.int64) * weight[None, :], 1)
        else:
            total += tl.sum(s, 1)
    tl.store(now + tl.load(here + FIRST_CANDIDATE) + rows, total, mask=rows < m)


@triton.jit
def _first(now, picks, gains, table, BLOCK: tl.constexpr):
    """The best of each set by its whole sum, the lowest index of equals."""
    here = table + tl.program_id(0) * COLUMNS
    m = tl.load(here + CANDIDATES)
    now += tl.load(here + FIRST_CANDIDATE)
    at = tl.arange(0, BLOCK)
    best = tl.load(now)
    place = m * 0
    for start in range(0, m, BLOCK):
        value = tl.load(now + start + at, mask=start + at < m, other=best)
        highest = tl.max(value, 0)
        if highest > best:
            best = highest
            place = start + tl.min(tl.where(value == highest, at, BLOCK), 0).to(tl.int64)
    out = tl.load(here + FIRST_PICK)
    tl.store(picks + out, place.to(tl.int32))
    tl.store(gains + out, best)


@triton.jit
def _bin(gain):
    """The place of a gain on a scale of 16 steps to a factor of 2; of none at all, the lowest."""
    place = (gain.to(tl.float32).to(tl.int32, bitcast=True) >> 19) - 127 * 16
    return tl.minimum(tl.where(gain > 0, place + 1, 0), _BINS - 2)


@triton.jit
def _is_enough(histogram, enough, gain):
    """Whether so many picks were made that are larger."""
    bins = tl.arange(0, _BINS)
    larger = tl.load(histogram + bins, mask=bins > _bin(gain), other=0, volatile=True)
    return tl.sum(larger, 0) >= enough


@triton.jit
def _count_first(histogram, highest, counts, FIRSTS: tl.constexpr):
    place = _BINS - 1 if FIRSTS else _bin(highest)
    tl.atomic_add(histogram + place, 1, mask=counts, sem="relaxed")


@triton.jit
def _count(histogram, highest, g, taken, AT_ONCE: tl.constexpr):
    for j in tl.static_range(AT_ONCE):
        tl.atomic_add(histogram + _bin(tl.minimum(g[j], highest)), 1, mask=taken > j, sem="relaxed")


@triton.jit
def _together(a, b):
    """Of words that hold a count above 8 flags: counts add up, flags join."""
    return (((a >> 8) + (b >> 8)) << 8) | ((a | b) & 255)


@triton.jit
def _raised(rows, stride, v, mine, cover, picks, allowed, AT_ONCE: tl.constexpr):
    """What the candidates at `picks`, taken one after the other, would make of the covers of some tokens.

    Returns the cover that the first of them to raise a token would give it, which one that is (AT_ONCE: none does),
    and a word: how many tokens are raised, and for each candidate whether it raises one that another raised before it.
    """
    to = cover
    by = tl.full(cover.shape, AT_ONCE, tl.int32)
    met = tl.zeros(cover.shape, tl.int32)
    for j in tl.static_range(AT_ONCE):
        row = rows + picks[j] * stride
        r = tl.load(row + v, mask=mine & (v < tl.multiple_of(tl.where(allowed[j], stride, 0), 64)), other=_NOTHING)
        up = r > cover
        met |= (up & (by < j)).to(tl.int32) << j
        to = tl.where(up & (by == AT_ONCE), r, to)
        by = tl.where(up & (by == AT_ONCE), j, by)
    return to, by, tl.reduce(((by < AT_ONCE).to(tl.int32) << 8) | met, 0, _together)


@triton.jit
def _accepted(allowed, met, AT_ONCE: tl.constexpr):
    """How many of the candidates are greedy's next picks: those before the first that meets another."""
    taken = met * 0 + 1
    for j in tl.static_range(1, AT_ONCE):
        taken += ((taken == j) & allowed[j] & (((met >> j) & 1) == 0)).to(tl.int32)
    return taken


@triton.jit
def _note(picks, gains, count, p, g, taken, AT_ONCE: tl.constexpr):
    for j in tl.static_range(AT_ONCE):
        tl.store(picks + count + j, p[j], mask=taken > j)
        tl.store(gains + count + j, g[j].to(gains.dtype.element_ty), mask=taken > j)


@triton.jit
def _without(gain, u, p, taken, AT_ONCE: tl.constexpr):
    """Gains of which the picks are taken out: no gain is below 0."""
    for j in tl.static_range(AT_ONCE):
        gain = tl.where((u == p[j]) & (taken > j), -1, gain)
    return gain


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
    stride = tl.multiple_of(tl.load(here + MATRIX_STRIDE), 64)
    rows = matrix + tl.multiple_of(tl.load(here + MATRIX), 64)
    turned_stride = tl.multiple_of(tl.load(here + TURNED_STRIDE), 64)
    turned = matrix + tl.multiple_of(tl.load(here + TURNED), 64)
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
        _count_first(histogram, highest, depth > 0, FIRSTS)
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
                if _is_enough(histogram, enough, tl.minimum(g[0], highest)):
                    # this one is still greedy's pick, though it is not wanted: it tells what would come next
                    tl.store(picks + count, p[0])
                    tl.store(gains + count, g[0])
                    count += 1
                    going = count < 0
        if going:
            to, by, met = _raised(rows, stride, v, v < stride, cover, p, allowed, AT_ONCE)
            taken = _accepted(allowed, met, AT_ONCE)

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
            _note(picks, gains, count, p, g, taken, AT_ONCE)
            if BOUNDED:
                _count(histogram, highest, g, taken, AT_ONCE)
            gain = _without(tl.where(u < m, gain, -1), u, p, taken, AT_ONCE)
            count += taken
            step += 1
            going = count < depth
    tl.store(made + tl.program_id(0), count)
    tl.store(steps + tl.program_id(0), step)


@triton.jit
def _wait_for(words, present, stamp):
    """Wait until all words carry the stamp.

    They are to be read once more after that: threads may hold copies of a tensor that each loaded for itself, at a
    moment of its own, and only one of the copies is looked at here.
    """
    missing = 1
    while missing > 0:
        word = tl.load(words, mask=present, other=0, volatile=True)
        missing = tl.sum((present & ((word & 3) != stamp)).to(tl.int32), 0)


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
    WAIT: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Many programs for each set, all running at once."""
    which, me = tl.program_id(0) // members, tl.program_id(0) % members
    here = table + which * COLUMNS
    m, n, depth = tl.load(here + CANDIDATES), tl.load(here + TOKENS), tl.load(here + DEPTH).to(tl.int32)
    stride = tl.multiple_of(tl.load(here + MATRIX_STRIDE), 64)
    rows = matrix + tl.multiple_of(tl.load(here + MATRIX), 64)
    turned_stride = tl.multiple_of(tl.load(here + TURNED_STRIDE), 64)
    turned = matrix + tl.multiple_of(tl.load(here + TURNED), 64)
    weights += tl.load(here + FIRST_TOKEN)
    picks += tl.load(here + FIRST_PICK)
    gains += tl.load(here + FIRST_PICK)
    best_words += which * 4 * MEMBERS
    risen_words += which * 2 * MEMBERS
    tails += which
    ring = rings + (which.to(tl.int64) << ring_bits)

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
        _count_first(histogram, highest, me == 0, FIRSTS)
    count = depth * 0 + 1
    step = depth * 0
    tail = depth * 0  # of the entries in the ring, modulo 4 rings: what the stamps of entries can tell apart
    going = depth > 1
    while going:
        # my two best candidates, to all
        stamp = ((step >> 1) + 1) & 3
        key = tl.where(mine, (gain << (bits + 2)) | complement, _LOWEST)
        best = tl.max(key, 0)
        second = tl.max(tl.where(key == best, _LOWEST, key), 0)
        words = best_words + (step & 1) * 2 * MEMBERS
        tl.atomic_xchg(words + me, best | stamp, sem="relaxed")
        tl.atomic_xchg(words + MEMBERS + me, second | stamp, sem="relaxed")
        present = both % MEMBERS < members
        _wait_for(words + both, present, stamp)
        word = tl.load(words + both, mask=present, other=0, volatile=True)
        word = tl.where(present, word & -4, _LOWEST)

        # the best of all, in order; a member's third best is not known, so nothing after its second may be taken
        p, g, allowed, owners = (), (), (), ()
        known = depth > count
        for j in tl.static_range(AT_ONCE):
            best = tl.max(word, 0)
            word = tl.where(word == best, _LOWEST, word)
            candidate = (all_bits - ((best >> 2) & all_bits)).to(tl.int32)
            p, g = p + (candidate,), g + (best >> (bits + 2),)
            allowed = allowed + (known & (g[j] > 0) & (depth - count > j),)
            for i in tl.static_range(j):
                known = known & (owners[i] != candidate // candidates_each)
            owners = owners + (candidate // candidates_each,)
        going = g[0] > 0
        if going:
            # my tokens that rise, to all: how many they are, and who met whom among them, and then one by one
            to, by, met = _raised(rows, stride, v, my_tokens, cover, p, allowed, AT_ONCE)
            if BOUNDED:
                # what one of us finds goes for all, in the flag that the first candidate does not need
                if (me == 0) & (step % 8 == 7):
                    met |= _is_enough(histogram, enough, tl.minimum(g[0], highest)).to(tl.int32)
            headers = risen_words + (step & 1) * MEMBERS
            tl.atomic_xchg(headers + me, (met << 2) | stamp, sem="relaxed")
            if met >> 8 > 0:
                at = tl.atomic_add(tails, met >> 8, sem="relaxed") + tl.cumsum((by < AT_ONCE).to(tl.int32), 0) - 1
                at = at & (4 * in_ring + 3)
                covers = ((cover.to(tl.int64) & 0xFFFF) << 16) | (to.to(tl.int64) & 0xFFFF)
                change = (((v << 3) | by).to(tl.int64) << 34) | (covers << 2) | (((at >> ring_bits) + 1) & 3)
                tl.store(ring + (at & in_ring), change, mask=by < AT_ONCE)
            _wait_for(headers + member, member < members, stamp)
            header = tl.load(headers + member, mask=member < members, other=0, volatile=True)
            met = tl.reduce(header >> 2, 0, _together)
            many = met >> 8
            taken = _accepted(allowed, met, AT_ONCE)
            for start in range(0, many, WAIT):
                at = start + tl.arange(0, WAIT)
                _wait_for(ring + ((tail + at) & in_ring), at < many, (((tail + at) >> ring_bits) + 1) & 3)

            # what my candidates lose by them: every warp adds up its own ROWS of them, and waits for no other
            lost = tl.zeros([LANES, CANDIDATES_], now.dtype.element_ty)
            for start in range(0, many, ROWS * LANES):
                at = start + tl.arange(0, LANES)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
                entry = tl.load(ring + ((tail + at) & in_ring), mask=at < many, other=0, volatile=True)
                place, covers = (entry >> 34).to(tl.int32), (entry >> 2).to(tl.int32)
                counts = (at < many) & ((place & 7) < taken)
                covers = tl.where(counts, covers, 0)
                old, new = (covers >> 16)[:, :, None], covers.to(tl.int16).to(tl.int32)[:, :, None]
                column = turned + (place >> 3).to(tl.int64)[:, :, None] * turned_stride + u[None, None, :]
                s = tl.load(column, mask=counts[:, :, None] & my_columns[None, None, :], other=0).to(tl.int32)
                between = tl.minimum(tl.maximum(s, old), new) - old
                if WEIGHTED:
                    weight = tl.load(weights + (place >> 3), mask=counts, other=0)
                    lost += tl.sum(between.to(tl.int64) * weight[:, :, None], 1)
                else:
                    lost += tl.sum(between, 1).to(now.dtype.element_ty)
            gain -= tl.sum(lost, 0)
            tail = (tail + many) & (4 * in_ring + 3)
            cover = tl.where(by < taken, to, cover)
            if me == 0:
                _note(picks, gains, count, p, g, taken, AT_ONCE)
                if BOUNDED:
                    _count(histogram, highest, g, taken, AT_ONCE)
            gain = _without(gain, u, p, taken, AT_ONCE)
            count += taken
            step += 1
            going = (count < depth) & ((met & 1) == 0)
    if me == 0:
        tl.store(made + which, count)
        tl.store(steps + which, step)


@triton.jit
def _fill_up(picks, gains, made, marks, later, table, ORDERED: tl.constexpr, BLOCK: tl.constexpr):
    which = tl.program_id(0)
    here = table + which * COLUMNS
    m, depth = tl.load(here + CANDIDATES).to(tl.int32), tl.load(here + DEPTH).to(tl.int32)
    picks += tl.load(here + FIRST_PICK)
    gains += tl.load(here + FIRST_PICK)
    marks += tl.load(here + FIRST_CANDIDATE)
    later += tl.load(here + FIRST_CANDIDATE)
    count = tl.load(made + which)
    at = tl.arange(0, BLOCK)
    if count < depth:
        for start in range(0, count, BLOCK):
            pick = tl.load(picks + start + at, mask=start + at < count, other=0)
            tl.store(marks + pick, tl.full([BLOCK], 1, tl.int8), mask=start + at < count)
        tl.debug_barrier()
        for start in range(0, m, BLOCK):
            one = start + at
            if ORDERED:
                one = tl.load(later + start + at, mask=start + at < m, other=0)
            free = (start + at < m) & (tl.load(marks + one, mask=start + at < m, other=1) == 0)
            place = count + tl.cumsum(free.to(tl.int32), 0) - 1
            tl.store(picks + place, one, mask=free & (place < depth))
            tl.store(gains + place, tl.zeros([BLOCK], gains.dtype.element_ty), mask=free & (place < depth))
            count += tl.sum(free.to(tl.int32), 0)
