"""Similarities on the GPU: tokens in their own format in, int16 fixed point out, in one product.

Rows are never normalised in memory. A first kernel finds the inverse length of every row; the product multiplies the
tokens as they are, and what it adds up is scaled, weighted towards detail and snapped before it leaves the registers.
Products of bf16 or fp16 numbers are exact in float32, so nothing is rounded but their sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from floc.selection.gpu.launch import is_interpreted, supports_tma
from floc.selection.gpu.sets import (
    CANDIDATES,
    COLUMNS,
    FIRST_CANDIDATE,
    FIRST_TOKEN,
    MATRIX,
    MATRIX_STRIDE,
    TILE,
    TOKENS,
    TURNED,
    TURNED_STRIDE,
    Sets,
)
from floc.selection.objective import SCALE

_LARGEST = tl.constexpr(3.4028234663852886e38)  # float32
_SCALE = tl.constexpr(float(SCALE))
# adding and taking it away rounds a float32 below 2**22 to the nearest whole number, halves to even
_ROUND = tl.constexpr(1.5 * 2**23)


@dataclass(frozen=True)
class Rows:
    """[n, D] tokens, and what makes each of them one of length 1: times power, times scale."""

    values: torch.Tensor
    scale: torch.Tensor  # [n] float32; 0 for a zero token
    power: torch.Tensor  # [n] float32, a power of two: 1, unless squares of the row would leave float32
    seen: torch.Tensor  # [2] int32: whether any power is not 1, and whether any value is not finite

    @classmethod
    def of(cls, values: torch.Tensor) -> Rows:
        """Measure rows of fp16, bf16 or float32."""
        if is_interpreted() and values.dtype == torch.bfloat16:
            values = values.float()  # the interpreter takes the bits of bf16 for whole numbers when it multiplies
        n, dim = values.shape
        scale = torch.empty(n, dtype=torch.float32, device=values.device)
        rows = cls(values, scale, torch.empty_like(scale), torch.zeros(2, dtype=torch.int32, device=values.device))
        block = min(4096, triton.next_power_of_2(dim))
        _measure[(n,)](values, rows.scale, rows.power, rows.seen, dim, BLOCK=block, num_warps=4 if block > 512 else 1)
        return rows

    def part(self, start: int, stop: int) -> Rows:
        """Some consecutive rows."""
        if stop - start == len(self.values):
            return self
        return Rows(self.values[start:stop], self.scale[start:stop], self.power[start:stop], self.seen)


def fill(matrix: torch.Tensor, candidates: Rows, tokens: Rows, sets: Sets, detail: float) -> None:
    """Write the similarities of every set's candidates to its tokens, and their transpose where that is another."""
    a, b = candidates.values, tokens.values
    dim = a.shape[1]
    wide = a.element_size() == 4
    step = 32 if wide else 64
    boxed = (
        supports_tma(a.device) and (dim * a.element_size()) % 16 == 0 and a.data_ptr() % 16 == b.data_ptr() % 16 == 0
    )
    for scaled in (False, True) if a.dtype != torch.float16 else (False,):
        _fill[(len(sets.tiles),)](
            a,
            TensorDescriptor.from_tensor(a, [TILE, step]) if boxed and not scaled else None,
            candidates.scale,
            candidates.power,
            candidates.seen,
            b,
            TensorDescriptor.from_tensor(b, [TILE, step]) if boxed and not scaled else None,
            tokens.scale,
            tokens.power,
            tokens.seen,
            matrix,
            sets.table,
            sets.tiles,
            dim,
            float(detail),
            SYMMETRIC=sets.symmetric,
            DETAIL=0 if detail == 1 else 1 if detail == 2 else 2,
            PRECISION="tf32x3" if wide else "tf32",
            SCALED=scaled,
            BOXED=boxed and not scaled,
            EVEN=dim % step == 0,
            TILE=TILE,
            STEP=step,
            num_warps=8,
            num_stages=4,
        )


@triton.jit
def _measure(values, scale, power, seen, dim, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, dim, BLOCK):
        x = tl.load(values + row * dim + start + at, mask=start + at < dim, other=0).to(tl.float32)
        squares += x * x
    total = tl.sum(squares, 0)
    factor = tl.sum(squares * 0, 0) * 0 + 1.0
    if not ((total > 1e-30) & (total < 1e30)):
        largest = tl.zeros([BLOCK], tl.float32)
        wrong = tl.zeros([BLOCK], tl.int32)
        for start in range(0, dim, BLOCK):
            x = tl.load(values + row * dim + start + at, mask=start + at < dim, other=0).to(tl.float32)
            wrong |= tl.where(tl.abs(x) <= _LARGEST, 0, 1)
            largest = tl.maximum(largest, tl.where(tl.abs(x) <= _LARGEST, tl.abs(x), 0.0))
        if tl.max(wrong, 0) > 0:
            tl.store(seen + 1, 1)
        peak = tl.max(largest, 0)
        if peak > 0:
            tl.store(seen, 1)
        # a power of two, so that nothing is rounded: about 1 over the largest value
        exponent = (peak.to(tl.int32, bitcast=True) >> 23) & 255
        factor = (tl.minimum(tl.maximum(254 - exponent, 1), 254) << 23).to(tl.float32, bitcast=True)
        squares = tl.zeros([BLOCK], tl.float32)
        for start in range(0, dim, BLOCK):
            x = tl.load(values + row * dim + start + at, mask=start + at < dim, other=0).to(tl.float32)
            x = tl.where(tl.abs(x) <= _LARGEST, x * factor, 0.0)
            squares += x * x
        total = tl.sum(squares, 0)
    tl.store(scale + row, tl.where(total > 0, 1 / tl.sqrt(tl.where(total > 0, total, 1.0)), 0.0))
    tl.store(power + row, factor)


@triton.jit
def _product(
    a,
    b,
    a_rows,
    b_rows,
    a_power,
    b_power,
    dim,
    SCALED: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
):
    """[TILE, TILE] float32: rows of `a` times rows of `b`, each multiplied by its power first where SCALED."""
    at = tl.arange(0, STEP)
    total = tl.zeros([TILE, TILE], tl.float32)
    a_at = a + a_rows[:, None] * dim + at[None, :]
    b_at = b + b_rows[None, :] * dim + at[:, None]
    for start in range(0, dim, STEP):
        if EVEN:
            x = tl.load(a_at)
            y = tl.load(b_at)
        else:
            x = tl.load(a_at, mask=(start + at < dim)[None, :], other=0)
            y = tl.load(b_at, mask=(start + at < dim)[:, None], other=0)
        if SCALED:
            x = (x.to(tl.float32) * a_power[:, None]).to(x.dtype)
            y = (y.to(tl.float32) * b_power[None, :]).to(y.dtype)
        total = tl.dot(x, y, total, input_precision=PRECISION)
        a_at += STEP
        b_at += STEP
    return total


@triton.jit
def _boxed_product(a, b, a_first, b_first, dim, PRECISION: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr):
    """The same by the copy engine, which fetches whole boxes; what lies behind the last row is 0."""
    total = tl.zeros([TILE, TILE], tl.float32)
    for start in range(0, dim, STEP):
        total = tl.dot(a.load([a_first, start]), b.load([b_first, start]).T, total, input_precision=PRECISION)
    return total


@triton.jit
def _fill(
    a,
    a_box,
    a_scale,
    a_power,
    a_seen,
    b,
    b_box,
    b_scale,
    b_power,
    b_seen,
    matrix,
    table,
    tiles,
    dim,
    detail,
    SYMMETRIC: tl.constexpr,
    DETAIL: tl.constexpr,
    PRECISION: tl.constexpr,
    SCALED: tl.constexpr,
    BOXED: tl.constexpr,
    EVEN: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
):
    # of the two kernels, for tokens that need their powers and for those that do not, one has nothing to do
    if ((tl.load(a_seen) | tl.load(b_seen)) > 0) != SCALED:
        return
    tile = tiles + tl.program_id(0) * 3
    here = table + tl.load(tile) * COLUMNS
    first_row, first_column = tl.load(tile + 1), tl.load(tile + 2)
    m, n = tl.load(here + CANDIDATES), tl.load(here + TOKENS)
    rows, columns = first_row + tl.arange(0, TILE), first_column + tl.arange(0, TILE)
    # tiles that reach over the edge read the last row again instead of what lies behind it
    a_rows = tl.load(here + FIRST_CANDIDATE) + tl.minimum(rows, m - 1)
    b_rows = tl.load(here + FIRST_TOKEN) + tl.minimum(columns, n - 1)
    if SCALED:
        x, y = tl.load(a_power + a_rows), tl.load(b_power + b_rows)
        total = _product(a, b, a_rows, b_rows, x, y, dim, True, PRECISION, EVEN, TILE, STEP)
    elif BOXED:
        a_first = (tl.load(here + FIRST_CANDIDATE) + first_row).to(tl.int32)
        b_first = (tl.load(here + FIRST_TOKEN) + first_column).to(tl.int32)
        total = _boxed_product(a_box, b_box, a_first, b_first, dim, PRECISION, TILE, STEP)
    else:
        total = _product(a, b, a_rows, b_rows, None, None, dim, False, PRECISION, EVEN, TILE, STEP)
    s = total * tl.load(a_scale + a_rows)[:, None] * tl.load(b_scale + b_rows)[None, :]
    s = tl.minimum(tl.maximum(s, -1.0 if DETAIL == 0 else 0.0), 1.0)
    if DETAIL == 1:
        s = 1 - (1 - s) * (1 - s)
    if DETAIL == 2:
        s = 1 - tl.exp2(tl.log2(1 - s) * detail)
    snapped = ((s * _SCALE + _ROUND) - _ROUND).to(tl.int16)
    if SYMMETRIC and first_row == first_column:
        # sums may be rounded differently above the diagonal
        snapped = tl.where(rows[:, None] >= columns[None, :], snapped, tl.trans(snapped))
    stride = tl.multiple_of(tl.load(here + MATRIX_STRIDE), 64)
    inside = (rows < m)[:, None] & (columns < stride)[None, :]  # whole vectors: rows have room to the stride
    out = matrix + tl.multiple_of(tl.load(here + MATRIX), 64)
    tl.store(out + rows.to(tl.int64)[:, None] * stride + columns[None, :], snapped, mask=inside)
    if not SYMMETRIC or first_row != first_column:
        stride = tl.multiple_of(tl.load(here + TURNED_STRIDE), 64)
        inside = (columns < n)[:, None] & (rows < stride)[None, :]
        out = matrix + tl.multiple_of(tl.load(here + TURNED), 64)
        tl.store(out + columns.to(tl.int64)[:, None] * stride + rows[None, :], tl.trans(snapped), mask=inside)
