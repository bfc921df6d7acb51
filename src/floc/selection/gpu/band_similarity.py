"""The band of similarities of a video on the GPU; see `Band` and `floc.selection.gpu.similarity`.

The matrix is symmetric. A tile computes the pairs of its rows with the same and later tokens, and stores them twice. It
also adds up its rows and its columns: the sums over all tiles are the gains of the first picks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from floc.selection.engine import Band
from floc.selection.gpu.similarity import Rows, choose_step, get_kind, make_box, multiply, multiply_boxes, snap
from floc.selection.objective import LARGEST_DETAIL, SCALE


class BandTiles(NamedTuple):
    """The size of a tile of the product, and how it is computed."""

    rows: int = 128
    columns: int = 128
    num_warps: int = 8
    num_stages: int = 4


TILES = BandTiles()


def compute_band(rows: Rows, band: Band, detail: float, tiles: BandTiles = TILES) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the [n, width] int16 similarities of a band, and their sums over each row, [n] int32 or int64."""
    a, dim, device = rows.values, rows.values.shape[1], rows.values.device
    values = torch.empty(band.n, band.width, dtype=torch.int16, device=device)
    values[: band.reach].zero_()  # the rows with columns outside of the video
    values[max(0, band.n - band.reach) :].zero_()
    sums = torch.zeros(band.n, dtype=get_gain_type(band), device=device)
    step = choose_step(a)
    # from the first row of a tile to the last token within the horizon of its last row
    farthest = tiles.rows - 1 + band.reach + band.cells
    grid = triton.cdiv(band.n, tiles.rows), triton.cdiv(min(farthest, band.n), tiles.columns)
    sizes = (band.n, band.cells, band.horizon, band.width, dim, float(min(detail, LARGEST_DETAIL)))
    constants = dict(DETAIL=get_kind(detail), EVEN=dim % step == 0, STEP=step, ROWS=tiles.rows, COLUMNS=tiles.columns)
    for scaled in (False, True) if a.dtype != torch.float16 else (False,):
        boxes = [None if scaled else make_box(a, side, step) for side in (tiles.rows, tiles.columns)]
        options = dict(SCALED=scaled, TMA=None not in boxes, num_warps=tiles.num_warps, num_stages=tiles.num_stages)
        _fill_band[(grid[0] * grid[1],)](*rows, *boxes, values, sums, grid[1], *sizes, **constants, **options)
    return values, sums


def get_gain_type(band: Band) -> torch.dtype:
    """Return the type that holds the sum of the similarities of one row."""
    return torch.int32 if band.width * SCALE < 1 << 31 else torch.int64


@triton.jit(do_not_specialize=["tiles_each", "cells", "horizon"])
def _fill_band(
    a,
    scale,
    power,
    flags,
    row_box,
    column_box,
    values,
    sums,
    tiles_each,
    n,
    cells,
    horizon,
    width,
    dim,
    detail,
    DETAIL: tl.constexpr,
    SCALED: tl.constexpr,
    TMA: tl.constexpr,
    EVEN: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    # launched twice, for tokens with and without powers: one of the launches has nothing to do
    if (tl.load(flags) > 0) != SCALED:
        return
    first_row = tl.program_id(0) // tiles_each * ROWS
    first_column = first_row + tl.program_id(0) % tiles_each * COLUMNS
    last_row = tl.minimum(first_row + ROWS, n) - 1
    if first_column >= tl.minimum(n, (last_row // cells + horizon + 1) * cells):
        return
    rows, columns = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    # tiles that reach beyond the last token read it again
    a_rows, b_rows = tl.minimum(rows, n - 1).to(tl.int64), tl.minimum(columns, n - 1).to(tl.int64)
    if TMA:
        total = multiply_boxes(row_box, column_box, first_row, first_column, dim, ROWS, COLUMNS, STEP)
    else:
        total = multiply(a, a, a_rows, b_rows, power, power, dim, SCALED, EVEN, STEP)
    snapped = tl.maximum(snap(total, tl.load(scale + a_rows), tl.load(scale + b_rows), detail, DETAIL), 0)

    # the token in the first column of the band for each row, and the end of the tokens that this tile stores for it
    row_start, column_start = (rows // cells - horizon) * cells, (columns // cells - horizon) * cells
    end = tl.minimum(row_start + width, n)
    later = (columns[None, :] >= rows[:, None]) & (columns[None, :] < end[:, None])
    place = (rows - first_row) * width - row_start  # 32 bits from a 64-bit base: fewer registers
    tl.store(values + first_row.to(tl.int64) * width + (place[:, None] + columns[None, :]), snapped, mask=later)
    # the same pairs as seen from the later token
    earlier = (columns[:, None] > rows[None, :]) & (columns[:, None] < end[None, :])
    place = (columns - first_column) * width - column_start
    mirrored = tl.trans(snapped)
    tl.store(values + first_column.to(tl.int64) * width + (place[:, None] + rows[None, :]), mirrored, mask=earlier)

    kept = tl.where(later, snapped, 0).to(sums.dtype.element_ty)
    tl.atomic_add(sums + rows, tl.sum(kept, 1), mask=rows < n)
    kept = tl.where(columns[None, :] > rows[:, None], kept, 0)
    tl.atomic_add(sums + columns, tl.sum(kept, 0), mask=columns < n)
