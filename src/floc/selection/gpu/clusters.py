"""Representatives of tokens, sums of the tokens they represent, and tokens by coverage, on the GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from floc.selection.gpu.sets import TOKEN_CHUNK, Sets, load_matrix, load_sizes, load_starts
from floc.selection.gpu.similarity import Rows

_TOKENS = tl.constexpr(TOKEN_CHUNK)  # whose representatives one program finds
_UNROLL = tl.constexpr(16)  # picks read at a time


def find_representatives(matrix: torch.Tensor, sets: Sets, picks: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """[tokens of all sets] int32: the place in `picks` of the pick of its set that each token is most similar to.

    Only the first `counts` [B] int32 >= 1 picks of each set represent tokens. Each pick represents itself.
    """
    representatives = torch.empty(sum(sets.tokens), dtype=torch.int32, device=matrix.device)
    chunks = sets.token_chunks
    _find_representatives[(len(chunks),)](matrix, picks, counts, representatives, sets.table, chunks, num_warps=1)
    return representatives


def sum_clusters(rows: Rows, cluster: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
    """[count, D] sums of the unit rows of each cluster, none empty, always added in the same order."""
    dim = rows.values.shape[1]
    members = torch.sort(cluster, stable=True)
    starts = torch.searchsorted(members.values, torch.arange(count + 1, device=cluster.device))
    out = torch.empty(count, dim, dtype=dtype, device=cluster.device)
    block = min(1024, triton.next_power_of_2(dim))
    _sum_clusters[(count, triton.cdiv(dim, block))](
        *rows[:3], members.indices, starts, out, dim, BLOCK=block, UNROLL=4, num_warps=4
    )
    return out


def gather_rows(rows: Rows, places: torch.Tensor, dtype: torch.dtype) -> Rows:
    """Copy the rows at `places` to fp16 or float32, scaled to a length between 1/2 and 1.

    The factors are powers of two, so that fp16 loses only digits of bf16 values below 2**-17 of a row's length.
    """
    n, dim = len(places), rows.values.shape[1]
    values = torch.empty(n, dim, dtype=dtype, device=places.device)
    scale = torch.empty(n, dtype=torch.float32, device=places.device)
    block = min(4096, triton.next_power_of_2(dim))
    _gather_rows[(n,)](*rows[:3], places, values, scale, dim, BLOCK=block, num_warps=4)
    return Rows(values, scale, torch.ones_like(scale), torch.zeros(2, dtype=torch.int32, device=places.device))


@triton.jit
def _find_representatives(matrix, picks, counts, representatives, table, chunks):
    chunk = chunks + tl.program_id(0) * 2
    set_index = tl.load(chunk)
    _, n, _ = load_sizes(table, set_index)
    rows, stride = load_matrix(table, set_index, matrix)
    _, first_token, first = load_starts(table, set_index)
    v = tl.multiple_of(tl.load(chunk + 1), _TOKENS) + tl.arange(0, _TOKENS)
    first = first.to(tl.int32)
    count = tl.load(counts + set_index)
    best = tl.full([_TOKENS], -32769, tl.int32)
    place = tl.zeros([_TOKENS], tl.int32)
    for start in range(0, count, _UNROLL):
        for j in tl.static_range(_UNROLL):
            # after the last pick: the last one again, which changes nothing
            rank = tl.minimum(start + j, count - 1)
            pick = tl.load(picks + first + rank)
            s = tl.load(rows + pick * stride + v, mask=v < stride, other=0).to(tl.int32)
            s = tl.where(v == pick, 32768, s)
            place = tl.where(s > best, first + rank, place)
            best = tl.maximum(best, s)
    tl.store(representatives + first_token + v, place, mask=v < n)


@triton.jit
def _sum_clusters(values, scale, power, members, starts, out, dim, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    cluster = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first, last = tl.load(starts + cluster), tl.load(starts + cluster + 1)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(first, last, UNROLL):
        for j in tl.static_range(UNROLL):
            row = tl.load(members + start + j, mask=start + j < last, other=0)
            x = tl.load(values + row * dim + at, mask=at < tl.where(start + j < last, dim, 0), other=0).to(tl.float32)
            total += x * tl.load(power + row) * tl.load(scale + row)
    tl.store(out + cluster.to(tl.int64) * dim + at, total.to(out.dtype.element_ty), mask=at < dim)


@triton.jit
def _gather_rows(values, scale, power, places, out, out_scale, dim, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    row = tl.load(places + i)
    inverse = tl.load(scale + row)
    # the largest power of two not above it; 0 stays 0
    exponent = inverse.to(tl.int32, bitcast=True) & 0x7F800000
    near = exponent.to(tl.float32, bitcast=True)
    factor = tl.load(power + row)
    for start in range(0, dim, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(values + row * dim + at, mask=at < dim, other=0).to(tl.float32)
        tl.store(out + i * dim + at, (x * factor * near).to(out.dtype.element_ty), mask=at < dim)
    tl.store(out_scale + i, tl.where(near > 0, inverse / tl.where(near > 0, near, 1.0), 0.0))
