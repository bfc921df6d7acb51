"""Similarity matrices on the GPU: tokens in their own format in, int16 fixed point out, in one product.

Rows are not normalized in memory. A first kernel computes the inverse length of every row. The product multiplies the
tokens as they are; its sums are scaled, sharpened by `detail` and rounded before they leave the registers. Products of
bf16 or fp16 numbers are exact in float32, so only their sums are rounded.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from floc.selection.gpu.launch import is_interpreted, supports_tma
from floc.selection.gpu.sets import TILE, Sets, load_matrix, load_sizes, load_starts, load_transpose
from floc.selection.objective import LARGEST_DETAIL, PLAIN, SCALE

_LARGEST = tl.constexpr(3.4028234663852886e38)  # float32
_PRECISION = tl.constexpr("tf32x3")  # of products of float32; ignored for other formats
_SCALE = tl.constexpr(float(SCALE))
_PLAIN = tl.constexpr(PLAIN)
_TILE = tl.constexpr(TILE)
# adding and subtracting it rounds a float32 below 2**22 to the nearest integer, halves to even
_ROUND = tl.constexpr(1.5 * 2**23)


class Rows(NamedTuple):
    """[n, D] tokens, and the factors that scale each to length 1: value x power x scale."""

    values: torch.Tensor
    scale: torch.Tensor  # [n] float32; 0 for a zero token
    power: torch.Tensor  # [n] float32, a power of two: 1, unless squares of the row would overflow or underflow float32
    flags: torch.Tensor  # [2] int32: whether any power is not 1, and whether any value is not finite

    @classmethod
    def measure(cls, values: torch.Tensor) -> Rows:
        """Compute the factors of rows of fp16, bf16 or float32."""
        if is_interpreted() and values.dtype == torch.bfloat16:
            values = values.float()  # the interpreter multiplies the bits of bf16 as integers
        n, dim = values.shape
        scale = torch.empty(n, dtype=torch.float32, device=values.device)
        rows = cls(values, scale, torch.empty_like(scale), torch.zeros(2, dtype=torch.int32, device=values.device))
        block = min(4096, triton.next_power_of_2(dim))
        _measure[(n,)](*rows, dim, BLOCK=block, num_warps=4 if block > 512 else 1)
        return rows

    def slice(self, start: int, stop: int) -> Rows:
        """Return consecutive rows."""
        if stop - start == len(self.values):
            return self
        return Rows(self.values[start:stop], self.scale[start:stop], self.power[start:stop], self.flags)


def fill(matrix: torch.Tensor, candidates: Rows, tokens: Rows, sets: Sets, detail: float) -> None:
    """Write the similarities of every set's candidates to its tokens and, unless symmetric, their transpose."""
    a, b = candidates.values, tokens.values
    dim = a.shape[1]
    step = choose_step(a)
    constants = dict(SYMMETRIC=sets.symmetric, DETAIL=get_kind(detail), EVEN=dim % step == 0, STEP=step)
    layout = (matrix, sets.table, sets.tiles)
    for scaled in (False, True) if a.dtype != torch.float16 else (False,):
        boxes = [None if scaled else make_box(values, TILE, step) for values in (a, b)]
        boxes = [None, None] if None in boxes else boxes
        arguments = (*candidates, *tokens, *boxes, *layout, dim, float(min(detail, LARGEST_DETAIL)))
        options = dict(SCALED=scaled, TMA=None not in boxes, num_warps=8, num_stages=4)
        _fill[(len(sets.tiles),)](*arguments, **options, **constants)


def choose_step(values: torch.Tensor) -> int:
    """Return how many features are multiplied at a time."""
    return 32 if values.element_size() == 4 else 64


def get_kind(detail: float) -> int:
    """Return the constant DETAIL of the kernels."""
    return {1.0: 0, 2.0: 1, 3.0: 2}.get(detail, 3)


def make_box(values: torch.Tensor, rows: int, step: int) -> TensorDescriptor | None:
    """Describe boxes of [rows, step] values for the Tensor Memory Accelerator; None if it cannot read them."""
    is_aligned = (values.shape[1] * values.element_size()) % 16 == 0 and values.data_ptr() % 16 == 0
    return TensorDescriptor.from_tensor(values, [rows, step]) if is_aligned and supports_tma(values.device) else None


@triton.jit
def _measure(values, scale, power, flags, dim, BLOCK: tl.constexpr):
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
        not_finite = tl.zeros([BLOCK], tl.int32)
        for start in range(0, dim, BLOCK):
            x = tl.load(values + row * dim + start + at, mask=start + at < dim, other=0).to(tl.float32)
            not_finite |= tl.where(tl.abs(x) <= _LARGEST, 0, 1)
            largest = tl.maximum(largest, tl.where(tl.abs(x) <= _LARGEST, tl.abs(x), 0.0))
        if tl.max(not_finite, 0) > 0:
            tl.store(flags + 1, 1)
        peak = tl.max(largest, 0)
        if peak > 0:
            tl.store(flags, 1)
        # about 1 over the largest value, as a power of two, so that nothing is rounded
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
def multiply(a, b, a_rows, b_rows, a_power, b_power, dim, SCALED: tl.constexpr, EVEN: tl.constexpr, STEP: tl.constexpr):
    """[M, N] float32: M rows of `a` times N rows of `b`, each first multiplied by its power if SCALED."""
    if SCALED:
        a_factor, b_factor = tl.load(a_power + a_rows), tl.load(b_power + b_rows)
    at = tl.arange(0, STEP)
    total = tl.zeros([a_rows.shape[0], b_rows.shape[0]], tl.float32)
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
            x = (x.to(tl.float32) * a_factor[:, None]).to(x.dtype)
            y = (y.to(tl.float32) * b_factor[None, :]).to(y.dtype)
        total = tl.dot(x, y, total, input_precision=_PRECISION)
        a_at += STEP
        b_at += STEP
    return total


@triton.jit
def multiply_boxes(a, b, a_first, b_first, dim, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    """Compute the same with boxes loaded by the Tensor Memory Accelerator; rows after the last are 0."""
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, dim, STEP):
        total = tl.dot(a.load([a_first, start]), b.load([b_first, start]).T, total, input_precision=_PRECISION)
    return total


@triton.jit
def snap(total, a_scale, b_scale, detail, DETAIL: tl.constexpr):
    """[M, N] int16 similarities from products of rows, and the [M] and [N] factors that scale the rows to length 1."""
    s = total * a_scale[:, None] * b_scale[None, :]
    s = tl.minimum(tl.maximum(s, -1.0 if DETAIL == 0 else 0.0), 1.0)
    if DETAIL == 1:
        s = 1 - (1 - s) * (_PLAIN + (1 - _PLAIN) * (1 - s))
    if DETAIL == 2:
        s = 1 - (1 - s) * (_PLAIN + (1 - _PLAIN) * ((1 - s) * (1 - s)))
    if DETAIL == 3:
        s = 1 - (1 - s) * (_PLAIN + (1 - _PLAIN) * tl.exp2(tl.log2(1 - s) * (detail - 1)))
    return ((s * _SCALE + _ROUND) - _ROUND).to(tl.int16)


@triton.jit
def _fill(
    a,
    a_scale,
    a_power,
    a_flags,
    b,
    b_scale,
    b_power,
    b_flags,
    a_box,
    b_box,
    matrix,
    table,
    tiles,
    dim,
    detail,
    SYMMETRIC: tl.constexpr,
    DETAIL: tl.constexpr,
    SCALED: tl.constexpr,
    TMA: tl.constexpr,
    EVEN: tl.constexpr,
    STEP: tl.constexpr,
):
    # the kernel is launched twice, for tokens with and without powers: one of the launches has nothing to do
    if ((tl.load(a_flags) | tl.load(b_flags)) > 0) != SCALED:
        return
    tile = tiles + tl.program_id(0) * 3
    set_index = tl.load(tile)
    first_row, first_column = tl.load(tile + 1), tl.load(tile + 2)
    m, n, _ = load_sizes(table, set_index)
    first_candidate, first_token, _ = load_starts(table, set_index)
    rows, columns = first_row + tl.arange(0, _TILE), first_column + tl.arange(0, _TILE)
    # tiles that reach beyond the edge read the last row again
    a_rows = first_candidate + tl.minimum(rows, m - 1)
    b_rows = first_token + tl.minimum(columns, n - 1)
    if TMA:
        a_first = (first_candidate + first_row).to(tl.int32)
        b_first = (first_token + first_column).to(tl.int32)
        total = multiply_boxes(a_box, b_box, a_first, b_first, dim, _TILE, _TILE, STEP)
    else:
        total = multiply(a, b, a_rows, b_rows, a_power, b_power, dim, SCALED, EVEN, STEP)
    snapped = snap(total, tl.load(a_scale + a_rows), tl.load(b_scale + b_rows), detail, DETAIL)
    if SYMMETRIC and first_row == first_column:
        # sums may be rounded differently above the diagonal, so mirror the lower triangle
        snapped = tl.where(rows[:, None] >= columns[None, :], snapped, tl.trans(snapped))
    out, stride = load_matrix(table, set_index, matrix)
    inside = (rows < m)[:, None] & (columns < stride)[None, :]  # whole vectors: rows are padded to the stride
    tl.store(out + rows.to(tl.int64)[:, None] * stride + columns[None, :], snapped, mask=inside)
    if not SYMMETRIC or first_row != first_column:
        out, stride = load_transpose(table, set_index, matrix)
        inside = (columns < n)[:, None] & (rows < stride)[None, :]
        tl.store(out + columns.to(tl.int64)[:, None] * stride + rows[None, :], tl.trans(snapped), mask=inside)
