"""Who stands for whom, and the sums of those who share a representative, on the GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from floc.selection.gpu.sets import (
    COLUMNS,
    DEPTH,
    FIRST_PICK,
    FIRST_TOKEN,
    MATRIX,
    MATRIX_STRIDE,
    PIECE_OF_TOKENS,
    TOKENS,
    Sets,
)
from floc.selection.gpu.similarity import Rows
from floc.selection.gpu.steps import Picked


def represent(matrix: torch.Tensor, sets: Sets, picks: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """[tokens of all sets] int32: the pick, counted through all sets, that each token is most similar to.

    Args:
        matrix: the int16 matrices of all sets.
        picks: [P] int32, as in `Picked`.
        counts: [B] int32, how many picks of each set, at least 1, stand for its tokens. Each of them stands for itself.
    """
    by = torch.empty(sum(sets.tokens), dtype=torch.int32, device=matrix.device)
    _represent[(len(sets.token_pieces),)](
        matrix, picks, counts, by, sets.table, sets.token_pieces, BLOCK=PIECE_OF_TOKENS, TOGETHER=16, num_warps=1
    )
    return by


def sums(rows: Rows, cluster: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
    """[count, D] the sums of each cluster's rows at length 1, always added in the same order.

    Args:
        cluster: [n] int64, the cluster of each row; none is empty.
    """
    dim = rows.values.shape[1]
    members = torch.sort(cluster, stable=True)
    starts = torch.searchsorted(members.values, torch.arange(count + 1, device=cluster.device))
    out = torch.empty(count, dim, dtype=dtype, device=cluster.device)
    block = min(1024, triton.next_power_of_2(dim))
    _sum[(count, triton.cdiv(dim, block))](
        rows.values, rows.scale, rows.power, members.indices, starts, out, dim, BLOCK=block, TOGETHER=4, num_warps=4
    )
    return out


def gathered(rows: Rows, places: torch.Tensor, dtype: torch.dtype) -> Rows:
    """Some rows, in fp16 or float32, at a length between 1/2 and 1.

    They are scaled by powers of two, so that fp16 loses nothing of bf16 but what is below 2**-17 of a row's length.
    """
    dim = rows.values.shape[1]
    n = len(places)
    values = torch.empty(n, dim, dtype=dtype, device=places.device)
    scale = torch.empty(n, dtype=torch.float32, device=places.device)
    block = min(4096, triton.next_power_of_2(dim))
    _gather[(n,)](rows.values, rows.scale, rows.power, places, values, scale, dim, BLOCK=block, num_warps=4)
    return Rows(values, scale, torch.ones_like(scale), torch.zeros(2, dtype=torch.int32, device=places.device))


@triton.jit
def _represent(matrix, picks, counts, by, table, pieces, BLOCK: tl.constexpr, TOGETHER: tl.constexpr):
    piece = pieces + tl.program_id(0) * 2
    which = tl.load(piece)
    here = table + which * COLUMNS
    n = tl.load(here + TOKENS)
    stride = tl.multiple_of(tl.load(here + MATRIX_STRIDE), 64)
    rows = matrix + tl.multiple_of(tl.load(here + MATRIX), 64)
    v = tl.multiple_of(tl.load(piece + 1), BLOCK) + tl.arange(0, BLOCK)
    first = tl.load(here + FIRST_PICK).to(tl.int32)
    count = tl.load(counts + which)
    best = tl.full([BLOCK], -32769, tl.int32)
    place = tl.zeros([BLOCK], tl.int32)
    for start in range(0, count, TOGETHER):
        for j in tl.static_range(TOGETHER):
            # behind the last one: the last one again, which changes nothing
            rank = tl.minimum(start + j, count - 1)
            pick = tl.load(picks + first + rank)
            s = tl.load(rows + pick * stride + v, mask=v < stride, other=0).to(tl.int32)
            s = tl.where(v == pick, 32768, s)
            place = tl.where(s > best, first + rank, place)
            best = tl.maximum(best, s)
    tl.store(by + tl.load(here + FIRST_TOKEN) + v, place, mask=v < n)


@triton.jit
def _sum(values, scale, power, members, starts, out, dim, BLOCK: tl.constexpr, TOGETHER: tl.constexpr):
    cluster = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first, last = tl.load(starts + cluster), tl.load(starts + cluster + 1)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(first, last, TOGETHER):
        for j in tl.static_range(TOGETHER):
            row = tl.load(members + start + j, mask=start + j < last, other=0)
            x = tl.load(values + row * dim + at, mask=at < tl.where(start + j < last, dim, 0), other=0).to(tl.float32)
            total += x * tl.load(power + row) * tl.load(scale + row)
    tl.store(out + cluster.to(tl.int64) * dim + at, total.to(out.dtype.element_ty), mask=at < dim)


@triton.jit
def _gather(values, scale, power, places, out, out_scale, dim, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    row = tl.load(places + i)
    inverse = tl.load(scale + row)
    # the power of two just below; 0 stays 0
    exponent = inverse.to(tl.int32, bitcast=True) & 0x7F800000
    near = exponent.to(tl.float32, bitcast=True)
    factor = tl.load(power + row)
    for start in range(0, dim, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(values + row * dim + at, mask=at < dim, other=0).to(tl.float32)
        tl.store(out + i * dim + at, (x * factor * near).to(out.dtype.element_ty), mask=at < dim)
    tl.store(out_scale + i, tl.where(near > 0, inverse / tl.where(near > 0, near, 1.0), 0.0))


def worst_first(rows: Rows, sets: Sets, picked: Picked, by: torch.Tensor, enough: int) -> torch.Tensor:
    """[tokens of all sets] int32: the tokens of each set from the worst covered on, for sets that are not complete.

    Args:
        by: [tokens of all sets] int32, the pick that stands for each, as `represent` tells.
        enough: where so many picks were made in all, no set needs more; 0: each needs its own depth.
    """
    n, dim = rows.values.shape
    keys = torch.empty(n, dtype=torch.int64, device=by.device)
    _worst[(n,)](
        rows.values,
        rows.scale,
        rows.power,
        picked.picks,
        picked.made,
        by,
        keys,
        sets.table,
        sets.set_of_token,
        enough,
        len(sets),
        dim,
        SETS=triton.next_power_of_2(len(sets)),
        BLOCK=min(4096, triton.next_power_of_2(dim)),
        num_warps=4,
    )
    order = torch.sort(keys, stable=True).indices
    return (order - sets.first_of_token).to(torch.int32)


@triton.jit
def _worst(
    values,
    scale,
    power,
    picks,
    made,
    by,
    keys,
    table,
    sets,
    enough,
    count,
    dim,
    SETS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    which = tl.load(sets + i)
    here = table + which * COLUMNS
    needed = tl.load(made + which) < tl.load(here + DEPTH)
    if enough > 0:
        each = tl.arange(0, SETS)
        needed = needed & (tl.sum(tl.load(made + each, mask=each < count, other=0), 0) < enough)
    cosine = 0.0
    if needed:
        first = tl.load(here + FIRST_TOKEN)
        other = first + tl.load(picks + tl.load(by + i))
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, dim, BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(values + i * dim + at, mask=at < dim, other=0).to(tl.float32) * tl.load(power + i)
            y = tl.load(values + other * dim + at, mask=at < dim, other=0).to(tl.float32) * tl.load(power + other)
            total += x * y
        cosine = tl.sum(total, 0) * tl.load(scale + i) * tl.load(scale + other)
    # only a zero token is like nothing at this point, and it would gain nothing either: last
    cosine = tl.where(cosine > 0, cosine, 2.0)
    tl.store(keys + i, (which.to(tl.int64) << 32) | cosine.to(tl.int32, bitcast=True).to(tl.int64))
