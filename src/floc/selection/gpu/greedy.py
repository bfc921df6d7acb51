"""Exact greedy on the GPU, by gains that are kept up to date.

After a pick only those tokens matter whose cover rose, a few dozen of thousands: every candidate loses, for each of
them, what it would have added between the old cover and the new. So a pick costs one row of the matrix and as many of
its transpose as tokens rose, and no candidate is ever evaluated again. All is integer arithmetic, so sums may be taken
in any order: picks and gains are those of `reference.greedy`, bit for bit.

Several picks are made in one step. Of the candidates with the largest gains, in order, the second is greedy's next pick
if it raises no token that the first one raises: its gain has not changed then, and no gain ever rises. So it goes on
until two meet. On videos two to five picks in a step are common, and a step takes about as long as one pick would.

Two kernels do this: one program for each set or a few (few.py), or many (team.py). What both do in a step is in
steps.py.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl

from floc.selection.gpu import few, team
from floc.selection.gpu.launch import count_multiprocessors, is_interpreted
from floc.selection.gpu.sets import (
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
    Sets,
)
from floc.selection.gpu.steps import Enough, Picked

NEVER = Enough()


class Programs(NamedTuple):
    """A kernel, and how many of its programs work on each set."""

    kernel: Literal["few", "team"]
    members: int


def greedy(
    matrix: torch.Tensor,
    sets: Sets,
    weights: torch.Tensor | None = None,
    *,
    spread: int = 1 << 15,
    enough: Enough = NEVER,
    by: Programs | None = None,
) -> Picked:
    """Pick from every set until its depth is reached, or nothing gains any more.

    Args:
        matrix: the int16 matrices of all sets.
        weights: [tokens of all sets] int64 >= 0, how much each counts.
        spread: no two similarities differ by more.
        enough: when to stop in sets whose picks are not wanted. No pick counts for more than its set's first.
        by: what makes the picks; chosen by size where not given.
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
    kernel, members = _programs(sets) if by is None else by
    run = few.run if kernel == "few" else team.run
    run(matrix, given, now, picked, sets, members, weighted=weighted, enough=enough)
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


def _programs(sets: Sets) -> Programs:
    """What suits the sizes."""
    largest = max(*sets.tokens, *sets.candidates)
    running = 1 if is_interpreted() else max(1, count_multiprocessors(sets.device) // len(sets))
    members = min(running, team.MOST, -(-largest // 64))
    if largest <= few.WIDEST and (running <= few.MOST or members == 1):
        return Programs("few", min(running, -(-max(sets.candidates) // 256)))
    return Programs("team", members)


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
