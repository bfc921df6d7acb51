"""What both kernels of `greedy` do in a step: try the best candidates one after the other, and take what does not meet.

Also the count of gains by which sets can tell that enough was chosen in all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from floc.selection.gpu.sets import MATRIX, MATRIX_STRIDE, TURNED, TURNED_STRIDE
from floc.selection.gpu.words import LOWEST

# rows are along the axis that the compiler does not split among warps: 3.7 turned that round
AXIS = 1 if tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 7) else 0
BINS = 1024  # of gains, on a scale of 16 steps to a factor of 2
NOTHING = tl.constexpr(-32768)  # covers no token
_BINS = tl.constexpr(BINS)


@dataclass(frozen=True)
class Picked:
    """Picks of all sets, each set's from its FIRST_PICK on."""

    picks: torch.Tensor  # [P] int32 candidates of the set
    gains: torch.Tensor  # [P] int32 or int64
    made: torch.Tensor  # [B] int32, how many were made in each set before gains ended; the others are not written
    steps: torch.Tensor  # [B] int32, that it took


@dataclass(frozen=True)
class Enough:
    """When sets may stop before their depth is reached."""

    count: int = 0  # so many picks of all sets have larger gains; 0: never
    firsts: bool = False  # whether the first pick of every set counts for more than any other

    def histogram(self, device: torch.device) -> torch.Tensor:
        """[BINS] int32 where gains are counted, or next to nothing where they are not."""
        return torch.zeros(BINS if self.count else 1, dtype=torch.int32, device=device)


@triton.jit
def matrices(matrix, here):
    """Where a set's matrix and its transpose begin, and how long their rows are."""
    stride = tl.multiple_of(tl.load(here + MATRIX_STRIDE), 64)
    turned_stride = tl.multiple_of(tl.load(here + TURNED_STRIDE), 64)
    rows = matrix + tl.multiple_of(tl.load(here + MATRIX), 64)
    turned = matrix + tl.multiple_of(tl.load(here + TURNED), 64)
    return rows, stride, turned, turned_stride


@triton.jit
def _bin(gain):
    """The place of a gain on a scale of 16 steps to a factor of 2; of none at all, the lowest."""
    place = (gain.to(tl.float32).to(tl.int32, bitcast=True) >> 19) - 127 * 16
    return tl.minimum(tl.where(gain > 0, place + 1, 0), _BINS - 2)


@triton.jit
def is_enough(histogram, enough, gain):
    """Whether so many picks were made that are larger."""
    bins = tl.arange(0, _BINS)
    larger = tl.load(histogram + bins, mask=bins > _bin(gain), other=0, volatile=True)
    return tl.sum(larger, 0) >= enough


@triton.jit
def count_first(histogram, highest, counts, FIRSTS: tl.constexpr):
    """Count a set's first pick."""
    place = _BINS - 1 if FIRSTS else _bin(highest)
    tl.atomic_add(histogram + place, 1, mask=counts, sem="relaxed")


@triton.jit
def count_picks(histogram, highest, g, taken, AT_ONCE: tl.constexpr):
    """Count the picks that were taken, none of them for more than the first."""
    for j in tl.static_range(AT_ONCE):
        tl.atomic_add(histogram + _bin(tl.minimum(g[j], highest)), 1, mask=taken > j, sem="relaxed")


@triton.jit
def together(a, b):
    """Of words that hold a count above 8 flags: counts add up, flags join."""
    return (((a >> 8) + (b >> 8)) << 8) | ((a | b) & 255)


@triton.jit
def best(words, COUNT: tl.constexpr):
    """The largest of some words, in order."""
    found = ()
    for j in tl.static_range(COUNT):
        found = found + (tl.max(words, 0),)
        words = tl.where(words == found[j], LOWEST, words)
    return found


@triton.jit
def raised(rows, stride, v, mine, cover, picks, allowed, AT_ONCE: tl.constexpr):
    """What the candidates at `picks`, taken one after the other, would make of the covers of some tokens.

    Returns the cover that the first of them to raise a token would give it, which one that is (AT_ONCE: none does),
    and a word: how many tokens are raised, and for each candidate whether it raises one that another raised before it.
    """
    to = cover
    by = tl.full(cover.shape, AT_ONCE, tl.int32)
    met = tl.zeros(cover.shape, tl.int32)
    for j in tl.static_range(AT_ONCE):
        row = rows + picks[j] * stride
        r = tl.load(row + v, mask=mine & (v < tl.multiple_of(tl.where(allowed[j], stride, 0), 64)), other=NOTHING)
        up = r > cover
        met |= (up & (by < j)).to(tl.int32) << j
        to = tl.where(up & (by == AT_ONCE), r, to)
        by = tl.where(up & (by == AT_ONCE), j, by)
    return to, by, tl.reduce(((by < AT_ONCE).to(tl.int32) << 8) | met, 0, together)


@triton.jit
def in_lanes(ROWS: tl.constexpr, LANES: tl.constexpr, AXIS: tl.constexpr):
    """[LANES, ROWS] numbers from 0 on, lane after lane, or turned: rows are along AXIS."""
    if AXIS == 1:
        return tl.arange(0, LANES)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    else:
        return tl.arange(0, ROWS)[:, None] + tl.arange(0, LANES)[None, :] * ROWS


@triton.jit
def taken_away(
    lost,
    token,
    old,
    new,
    counts,
    turned,
    turned_stride,
    u,
    my_columns,
    weights,
    WEIGHTED: tl.constexpr,
    AXIS: tl.constexpr,
):
    """What candidates lose by tokens that rise from `old` to `new`, added to [LANES, candidates] of what they lost.

    Tokens are `in_lanes`: every warp adds up the rows of its own lanes, and waits for no other.
    """
    column = turned + token.to(tl.int64)[:, :, None] * turned_stride + u[None, None, :]
    s = tl.load(column, mask=counts[:, :, None] & my_columns[None, None, :], other=0).to(tl.int32)
    between = tl.minimum(tl.maximum(s, old[:, :, None]), new[:, :, None])
    if WEIGHTED:
        weight = tl.load(weights + token, mask=counts, other=0)
        lost += tl.sum((between - old[:, :, None]).to(tl.int64) * weight[:, :, None], AXIS)
    else:
        lost += (tl.sum(between, AXIS) - tl.sum(old[:, :, None], AXIS)).to(lost.dtype)
    return lost


@triton.jit
def accepted(allowed, met, AT_ONCE: tl.constexpr):
    """How many of the candidates are greedy's next picks: those before the first that meets another."""
    taken = met * 0 + 1
    for j in tl.static_range(1, AT_ONCE):
        taken += ((taken == j) & allowed[j] & (((met >> j) & 1) == 0)).to(tl.int32)
    return taken


@triton.jit
def note(picks, gains, count, p, g, taken, AT_ONCE: tl.constexpr):
    """Write down the picks that were taken, after `count` others."""
    for j in tl.static_range(AT_ONCE):
        tl.store(picks + count + j, p[j], mask=taken > j)
        tl.store(gains + count + j, g[j].to(gains.dtype.element_ty), mask=taken > j)


@triton.jit
def without(gain, u, p, taken, AT_ONCE: tl.constexpr):
    """Gains of which the picks are taken out: no gain is below 0."""
    for j in tl.static_range(AT_ONCE):
        gain = tl.where((u == p[j]) & (taken > j), -1, gain)
    return gain
