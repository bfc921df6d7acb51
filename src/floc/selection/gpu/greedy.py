"""Exact greedy facility location on the GPU, by gains that are kept up to date.

After a pick only the tokens whose cover rose matter, a few dozen of thousands: for each of them every candidate loses
what it would have added between the old and the new cover. So a pick reads one row of the matrix and one row of its
transpose per raised token, and no candidate is evaluated again. Picks and gains are those of `reference.greedy`.

Several picks are made in one step. The candidate with the second largest gain is greedy's next pick if it raises no
token that the first raises: its gain has not changed, and gains never rise. The same holds for those after it, up to
the first conflict. On videos two to five picks per step are common, and a step takes about as long as one pick.

Two kernels do this, in `greedy_few_programs.py` and `greedy_many_programs.py`; `greedy_steps.py` holds what they share.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl

from floc.selection.gpu import greedy_few_programs, greedy_many_programs
from floc.selection.gpu.greedy_steps import BINS, Picks
from floc.selection.gpu.launch import count_multiprocessors, is_interpreted
from floc.selection.gpu.sets import CANDIDATE_CHUNK, Sets, divide_among, load_matrix, load_sizes, load_starts

_ROWS = tl.constexpr(CANDIDATE_CHUNK)  # evaluated by one program,
_COLUMNS = tl.constexpr(512)  # in blocks of this width


class Programs(NamedTuple):
    """A kernel, and how many of its programs work on each set."""

    kernel: Literal["few", "many"]
    per_set: int


def greedy(
    matrix: torch.Tensor,
    sets: Sets,
    weights: torch.Tensor | None = None,
    *,
    spread: int = 1 << 15,
    stop_count: int = 0,
    programs: Programs | None = None,
) -> Picks:
    """Pick from every set until its depth is reached or no candidate gains anything.

    Args:
        matrix: int16 matrices of all sets.
        weights: [tokens of all sets] int64 >= 0.
        spread: upper bound of the difference of two similarities.
        stop_count: stop at a gain once all sets together have this many larger ones; 0: never. The first pick of every
            set counts as larger than any other, and no pick as larger than its set's first.
        programs: chosen by size by default.
    """
    device = matrix.device
    weighted = weights is not None
    dtype = torch.int64 if weighted or max(sets.tokens) * spread >= 1 << 31 else torch.int32
    gains = torch.empty(sum(sets.candidates), dtype=dtype, device=device)
    counts = torch.empty(len(sets), dtype=torch.int32, device=device)
    flat_picks = torch.empty(sum(sets.depths), dtype=torch.int32, device=device)
    picks = Picks(flat_picks, torch.empty_like(flat_picks, dtype=dtype), counts, torch.empty_like(counts))
    inputs = (matrix, gains if weights is None else weights)  # without weights the kernels do not read them
    chunks = sets.candidate_chunks
    evaluated = (*inputs, picks.picks, gains, sets.table, chunks)
    _evaluate[(len(chunks),)](*evaluated, AFTER=False, WEIGHTED=weighted, num_warps=4)
    _pick_first[(len(sets),)](gains, picks.picks, picks.gains, sets.table, BLOCK=4096, num_warps=8)
    _evaluate[(len(chunks),)](*evaluated, AFTER=True, WEIGHTED=weighted, num_warps=4)

    histogram = torch.zeros(BINS if stop_count else 1, dtype=torch.int32, device=device)
    kernel, per_set = _choose_programs(sets) if programs is None else programs
    largest = max(sets.candidates)
    partition = (per_set, divide_among(largest, per_set), max(1, (largest - 1).bit_length()))
    arguments = (*inputs, gains, *picks, histogram, stop_count, sets.table, *partition)
    options = dict(WEIGHTED=weighted, STOPS=stop_count > 0)
    if per_set > 1:
        options["launch_cooperative_grid"] = True  # programs wait for one another, so all must run at once
    (greedy_few_programs if kernel == "few" else greedy_many_programs).launch(sets, per_set, arguments, options)
    return picks


def fill_up(picks: Picks, sets: Sets) -> None:
    """Fill the picks that gain nothing with the remaining candidates, by index."""
    marks = torch.zeros(sum(sets.candidates), dtype=torch.int8, device=picks.picks.device)
    _fill_up[(len(sets),)](*picks[:3], marks, sets.table, BLOCK=1024, num_warps=4)


def _choose_programs(sets: Sets) -> Programs:
    largest = max(*sets.tokens, *sets.candidates)
    available = 1 if is_interpreted() else max(1, count_multiprocessors(sets.device) // len(sets))
    many = min(available, greedy_many_programs.MAX_PROGRAMS, -(-largest // 64))
    if largest <= greedy_few_programs.MAX_SIZE and (available <= greedy_few_programs.MAX_PROGRAMS or many == 1):
        return Programs("few", min(available, -(-max(sets.candidates) // 256)))
    return Programs("many", many)


@triton.jit
def _evaluate(matrix, weights, picks, gains, table, chunks, AFTER: tl.constexpr, WEIGHTED: tl.constexpr):
    """Compute the gain of each candidate over the empty set or, if AFTER, over the first pick."""
    chunk = chunks + tl.program_id(0) * 2
    set_index = tl.load(chunk)
    m, n, _ = load_sizes(table, set_index)
    first_row, stride = load_matrix(table, set_index, matrix)
    first_candidate, first_token, first_pick = load_starts(table, set_index)
    rows = tl.load(chunk + 1) + tl.arange(0, _ROWS)
    pick_row = first_row
    if AFTER:
        pick_row = first_row + tl.load(picks + first_pick) * stride
    total = tl.zeros([_ROWS], gains.dtype.element_ty)
    for left in range(0, n, _COLUMNS):
        columns = left + tl.arange(0, _COLUMNS)
        inside = (rows < m)[:, None] & (columns < stride)[None, :]
        s = tl.load(first_row + rows[:, None] * stride + columns[None, :], mask=inside, other=0).to(tl.int32)
        if AFTER:
            cover = tl.load(pick_row + columns, mask=columns < stride, other=0).to(tl.int32)
            s = tl.maximum(s - cover[None, :], 0)
        s = tl.where((columns < n)[None, :], s, 0)
        if WEIGHTED:
            weight = tl.load(weights + first_token + columns, mask=columns < n, other=0)
            total += tl.sum(s.to(tl.int64) * weight[None, :], 1)
        else:
            total += tl.sum(s, 1)
    tl.store(gains + first_candidate + rows, total, mask=rows < m)


@triton.jit
def _pick_first(current_gains, picks, gains, table, BLOCK: tl.constexpr):
    """Pick the candidate with the largest gain over the empty set, the lowest index of equals."""
    m, _, _ = load_sizes(table, tl.program_id(0))
    first_candidate, _, first_pick = load_starts(table, tl.program_id(0))
    current_gains += first_candidate
    at = tl.arange(0, BLOCK)
    best = tl.load(current_gains)
    place = m * 0
    for start in range(0, m, BLOCK):
        value = tl.load(current_gains + start + at, mask=start + at < m, other=best)
        highest = tl.max(value, 0)
        if highest > best:
            best = highest
            place = start + tl.min(tl.where(value == highest, at, BLOCK), 0).to(tl.int64)
    tl.store(picks + first_pick, place.to(tl.int32))
    tl.store(gains + first_pick, best)


@triton.jit
def _fill_up(picks, gains, counts, marks, table, BLOCK: tl.constexpr):
    set_index = tl.program_id(0)
    m, _, depth = load_sizes(table, set_index)
    m, depth = m.to(tl.int32), depth.to(tl.int32)
    first_candidate, _, first_pick = load_starts(table, set_index)
    picks += first_pick
    gains += first_pick
    marks += first_candidate
    count = tl.load(counts + set_index)
    at = tl.arange(0, BLOCK)
    if count < depth:
        for start in range(0, count, BLOCK):
            pick = tl.load(picks + start + at, mask=start + at < count, other=0)
            tl.store(marks + pick, tl.full([BLOCK], 1, tl.int8), mask=start + at < count)
        tl.debug_barrier()
        for start in range(0, m, BLOCK):
            candidate = start + at
            free = (candidate < m) & (tl.load(marks + candidate, mask=candidate < m, other=1) == 0)
            place = count + tl.cumsum(free.to(tl.int32), 0) - 1
            tl.store(picks + place, candidate, mask=free & (place < depth))
            tl.store(gains + place, tl.zeros([BLOCK], gains.dtype.element_ty), mask=free & (place < depth))
            count += tl.sum(free.to(tl.int32), 0)
