"""Greedy selection on a band of similarities in rounds: one kernel, whose programs wait for their neighbours only.

A round picks every candidate that has the largest gain within 2h slices, where h is the horizon: see
docs/background/how-it-works.md. Each program owns a few consecutive slices and holds the gains of their tokens. It also
keeps covers of its own for all tokens within h slices of these, so it computes by itself what its candidates lose by a
pick. The programs exchange one word for each slice and round: the key of the slice's best candidate. A key is the gain,
then the complement of the index, so that the largest key has the largest gain and, of equals, the lowest index. As in
`greedy_steps.py`, words carry a stamp of the round, and two buffers take turns.

A program is done when none of its candidates can be among the first K picks: all picks together are counted in a
histogram by gain. It leaves words that hold for all later rounds and name no candidate.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from floc.selection.engine import Band
from floc.selection.gpu.greedy_steps import BINS, LOWEST, find_bin, has_enough
from floc.selection.gpu.launch import count_multiprocessors, is_interpreted

_WARPS = 8  # of all programs that a multiprocessor can hold, whatever registers they need
_DONE = tl.constexpr(4)  # flag of words that hold for all later rounds
_CHECK = tl.constexpr(4)  # rounds between two looks at the histogram


class BandPicks(NamedTuple):
    """The gain at which each token was picked, -1 if it was not, and the rounds of each program."""

    gains: torch.Tensor  # [n] int32 or int64
    rounds: torch.Tensor  # [P] int32


class BandPrograms(NamedTuple):
    """How many slices each program owns, and its warps."""

    slices: int
    num_warps: int


@lru_cache
def choose_programs(band: Band, device: torch.device) -> BandPrograms:
    """Choose one warp for small horizons, more for larger ones; all programs must run at the same time."""
    warps = min(_WARPS, max(1, triton.next_power_of_2(band.width) // 1024))
    programs = 1 if is_interpreted() else count_multiprocessors(device) * (_WARPS // warps)
    return BandPrograms(triton.cdiv(band.frames, programs), warps)


def pick_in_rounds(
    similarity: torch.Tensor, sums: torch.Tensor, band: Band, stop_count: int, programs: BandPrograms | None = None
) -> BandPicks:
    """Pick at least the first `stop_count` tokens of greedy's order, or all that gain anything.

    Args:
        similarity: [n, width] int16 of at least 0, symmetric.
        sums: [n] int32 or int64, the sum of each row.
        band: The sizes of the band.
        stop_count: Number of picks needed.
        programs: Chosen by size by default.
    """
    owned, warps = choose_programs(band, similarity.device) if programs is None else programs
    count = triton.cdiv(band.frames, owned)
    device, shape = similarity.device, choose_shape(band, owned, warps)
    halo = (owned + 2 * band.horizon) * band.cells  # tokens whose covers a program keeps
    picks = BandPicks(torch.full_like(sums, -1), torch.empty(count, dtype=torch.int32, device=device))
    _pick_in_rounds[(count,)](
        similarity,
        sums,
        *picks,
        torch.zeros(count, halo, dtype=torch.int16, device=device),
        torch.empty(count, halo, dtype=torch.int64, device=device),
        torch.zeros(2, band.frames, dtype=torch.int64, device=device),
        torch.zeros(BINS, dtype=torch.int32, device=device),
        stop_count,
        band.frames,
        band.cells,
        band.horizon,
        owned,
        halo,
        max(1, (band.n - 1).bit_length()),
        **shape,
        **({"launch_cooperative_grid": True} if count > 1 else {}),  # programs wait for one another
    )
    return picks


def choose_shape(band: Band, owned: int, warps: int) -> dict[str, int]:
    """Return the constants to compile the kernel with."""
    slices, cells = triton.next_power_of_2(owned), triton.next_power_of_2(band.cells)
    tokens = min(triton.next_power_of_2(triton.cdiv(band.width, 2)), 512 * warps)  # most picks are not that near
    return dict(
        SLICES=slices,
        CELLS=cells,
        WORDS=triton.next_power_of_2(min(band.frames, owned + 8 * band.horizon)),
        TOKENS=tokens,
        LANES=min(tokens, 32 * warps),
        ROWS=min(16, max(2, 2048 * warps // (slices * cells))),  # limited by registers
        num_warps=warps,
    )


@triton.jit
def _wait_for_slices(words, present, stamp):
    """Wait until all words carry the stamp or hold for all later rounds, and load them; see `wait_for`."""
    missing = 1
    while missing > 0:
        word = tl.load(words, mask=present, other=0, volatile=True)
        missing = tl.sum((present & ((word & 3) != stamp) & ((word & _DONE) == 0)).to(tl.int32), 0)
    return tl.load(words, mask=present, other=0, volatile=True)


@triton.jit
def _list_raised(similarity, covers, changes, count, pick, slice_, first, last, frames, cells, horizon, TOKENS, LANES):
    """Raise the covers of a program's tokens by a pick, and append the raised tokens to its list of changes.

    Returns the new length of the list. An entry is the token, its old cover and its new cover.
    """
    row = similarity + pick.to(tl.int64) * ((2 * horizon + 1) * cells)
    begin = tl.maximum(tl.maximum(slice_, first) - horizon, 0) * cells
    end = tl.minimum(tl.minimum(slice_, last - 1) + horizon + 1, frames) * cells
    at = (tl.arange(0, TOKENS // LANES) * LANES)[:, None] + tl.arange(0, LANES)[None, :]
    for start in range(begin, end, TOKENS):
        cover_at = covers + (start - (first - horizon) * cells) + at
        new = tl.load(row + (start - (slice_ - horizon) * cells) + at, mask=at < end - start, other=0)
        old = tl.load(cover_at, mask=at < end - start, other=32767)
        rises = new > old
        # the list is in no order: each lane lists its own tokens together
        number = tl.cumsum(rises.to(tl.int32), 0)
        in_lane = tl.sum(rises.to(tl.int32), 0)
        place = count + number - 1 + (tl.cumsum(in_lane, 0) - in_lane)[None, :]
        raise_ = (old.to(tl.int32) << 16) | new.to(tl.int32)
        tl.store(changes + place, ((start + at).to(tl.int64) << 32) | raise_.to(tl.int64), mask=rises)
        tl.store(cover_at, new, mask=rises)
        count += tl.sum(in_lane, 0)
    return count


@triton.jit
def _compute_losses(similarity, changes, count, own_slices, cell, exists, cells, horizon, gain, ROWS: tl.constexpr):
    """[SLICES, CELLS] what the candidates of a program's slices lose by a list of changes."""
    width = (2 * horizon + 1) * cells
    u = own_slices[:, None] * cells + cell[None, :]
    lost = tl.zeros(gain.shape, gain.dtype)
    for start in range(0, count, ROWS):
        at = start + tl.arange(0, ROWS)
        # after the last change: token 0 from cover 0 to cover 0, which takes nothing
        entry = tl.load(changes + at, mask=at < count, other=0)
        token, old, new = (entry >> 32).to(tl.int32), (entry >> 16).to(tl.int32) & 0xFFFF, entry.to(tl.int32) & 0xFFFF
        slice_ = tl.where(at < count, token // cells, -1 - horizon)
        is_near = tl.abs(slice_[:, None] - own_slices[None, :]) <= horizon
        row = similarity + (token.to(tl.int64) * width - (slice_ - horizon) * cells)
        mask = is_near[:, :, None] & exists[None, :, :]
        s = tl.load(row[:, None, None] + u[None, :, :], mask=mask, other=0).to(tl.int32)
        # similarities that were not loaded are raised to the old cover, which counts nothing
        s = tl.minimum(tl.maximum(s, old[:, None, None]), new[:, None, None]) - old[:, None, None]
        lost += tl.sum(s.to(gain.dtype), 0)
    return lost


@triton.jit(do_not_specialize=["stop_count", "frames", "cells", "horizon", "owned", "halo", "bits"])
def _pick_in_rounds(
    similarity,
    sums,
    picked_gains,
    rounds,
    covers,
    changes,
    words,
    histogram,
    stop_count,
    frames,
    cells,
    horizon,
    owned,
    halo,
    bits,
    SLICES: tl.constexpr,
    CELLS: tl.constexpr,
    WORDS: tl.constexpr,
    TOKENS: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
):
    program = tl.program_id(0)
    first = program * owned
    last = tl.minimum(first + owned, frames)
    covers += program.to(tl.int64) * halo
    changes += program.to(tl.int64) * halo
    own_slices, cell = first + tl.arange(0, SLICES), tl.arange(0, CELLS)
    u = own_slices[:, None] * cells + cell[None, :]
    exists = (own_slices < last)[:, None] & (cell < cells)[None, :]
    gain = tl.load(sums + u, mask=exists, other=-1)
    all_bits = (1 << bits) - 1
    # the slices whose best candidates decide about the picks within 2h of the own slices
    slices = tl.maximum(first - 4 * horizon, 0) + tl.arange(0, WORDS)
    present = slices < tl.minimum(last + 4 * horizon, frames)
    matters = present & (slices >= first - 2 * horizon) & (slices < last + 2 * horizon)
    step = program * 0
    going = stop_count > 0
    while going:
        stamp = ((step >> 1) + 1) & 3
        buffer = words + (step & 1) * frames
        best = tl.max(tl.where(exists, (gain.to(tl.int64) << bits) | (all_bits - u), LOWEST >> 3), 1)
        highest = tl.max(best, 0) >> bits
        if step % _CHECK == _CHECK - 1:
            going = has_enough(histogram, stop_count, highest) == 0
        going = going & (highest > 0)
        word = tl.where(going, (best << 3) | stamp, _DONE)
        tl.atomic_xchg(buffer + own_slices, word, mask=own_slices < last, sem="relaxed")
        key = _wait_for_slices(buffer + slices, present, stamp) >> 3
        if going:
            # of the candidates that matter, the best one first. No slice within 2h of it has another pick
            count = step * 0
            key = tl.where(present, key, LOWEST)
            left = tl.where(matters, key, LOWEST)
            candidate = tl.max(left, 0)
            while (candidate >> bits) > 0:
                pick = (all_bits - (candidate & all_bits)).to(tl.int32)
                slice_ = pick // cells
                is_close = (slices >= slice_ - 2 * horizon) & (slices <= slice_ + 2 * horizon)
                if tl.max(tl.where(is_close, key, LOWEST), 0) == candidate:
                    count = _list_raised(
                        similarity,
                        covers,
                        changes,
                        count,
                        pick,
                        slice_,
                        first,
                        last,
                        frames,
                        cells,
                        horizon,
                        TOKENS,
                        LANES,
                    )
                    if (slice_ >= first) & (slice_ < last):
                        tl.store(picked_gains + pick, (candidate >> bits).to(picked_gains.dtype.element_ty))
                        tl.atomic_add(histogram + find_bin(candidate >> bits), 1, sem="relaxed")
                        gain = tl.where(u == pick, -1, gain)
                left = tl.where(is_close, LOWEST, left)
                candidate = tl.max(left, 0)
            tl.debug_barrier()
            gain -= _compute_losses(similarity, changes, count, own_slices, cell, exists, cells, horizon, gain, ROWS)
            tl.debug_barrier()  # before the list and the covers are used again
            step += 1
    # Each warp waits for the neighbours by itself. All must have seen this round's words before the last words are
    # written: these let the neighbours go on, and overwrite what a slow warp still waits for.
    # Every neighbour has read the words of the round before this one, so their buffer is free.
    tl.debug_barrier()
    buffer = words + ((step + 1) & 1) * frames
    done = (own_slices * 0 + _DONE).to(tl.int64)
    tl.atomic_xchg(buffer + own_slices, done, mask=own_slices < last, sem="relaxed")
    tl.store(rounds + program, step)
