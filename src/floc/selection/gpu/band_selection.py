"""Selection within a horizon on the GPU: from tokens to a ranking, without waiting for the device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from floc.ranking import DeviceRanking, Ranking
from floc.selection.engine import Band
from floc.selection.gpu.band_rounds import BandPicks, pick_in_rounds
from floc.selection.gpu.band_similarity import compute_band
from floc.selection.gpu.launch import use_device
from floc.selection.gpu.run import convert_readable
from floc.selection.gpu.similarity import Rows, compute_cosine
from floc.selection.objective import SCALE

_EACH = tl.constexpr(32)  # tokens for which one program writes keys


class BandSelection(NamedTuple):
    """The picks from a band, in no order, and what they were computed from."""

    rows: Rows
    values: torch.Tensor  # [n, width] int16
    picks: BandPicks


def select(tokens: torch.Tensor, band: Band, count: int, detail: float) -> BandSelection:
    """Pick at least the first `count` of greedy's picks from [n, D] tokens, or all that gain anything."""
    rows = Rows.measure(convert_readable(tokens))
    values, sums = compute_band(rows, band, detail)
    return BandSelection(rows, values, pick_in_rounds(values, sums, band, count))


def rank_in_band(tokens: torch.Tensor, band: Band, budget: int, detail: float) -> DeviceRanking:
    """Select from the [n, D] tokens of a whole video within a horizon."""
    if len(tokens) != band.n or not 1 <= budget <= band.n:
        raise ValueError(f"cannot select {budget} of {len(tokens)} tokens in {band}")
    depth = min(budget + 1, band.n)  # one more for the bound
    with use_device(tokens.device):
        selection = select(tokens, band, depth, detail)
        keys = selection.picks.gains
        if detail > 1:  # gains end while tokens still differ: see floc.selection.engine
            keys = _key_worst_first(selection, band, depth)
        keys, order = torch.sort(keys, descending=True, stable=True)
        gains = keys[:depth].clamp_min(0).double() / SCALE
        picks = order[:budget].clone()  # releases the order of all tokens

    def fetch() -> Ranking:
        values = gains.cpu().numpy()
        next_gains = values[budget:] if depth > budget else np.zeros(1)
        group = np.zeros(budget, np.int64)
        columns = picks.cpu().numpy(), values[:budget], group, np.arange(budget)
        return Ranking(*columns, np.array([band.n]), next_gains, shared=True, history=None)

    return DeviceRanking(picks, gains[:budget], selection.rows.flags[1:], fetch, band)


def _key_worst_first(selection: BandSelection, band: Band, depth: int) -> torch.Tensor:
    """[n] keys that sort tokens like their gains; if fewer than `depth` gain anything, the worst covered come next."""
    rows, values, picks = selection
    dim = rows.values.shape[1]
    keys = torch.empty_like(picks.gains)
    made = (picks.gains > 0).sum()
    arrays = (*rows[:3], values, picks.gains, made, keys)
    sizes = (band.n, band.cells, band.horizon, dim, depth)
    widths = dict(COLUMNS=min(1024, triton.next_power_of_2(band.width)), BLOCK=min(1024, triton.next_power_of_2(dim)))
    _write_keys[(triton.cdiv(band.n, _EACH.value),)](*arrays, *sizes, **widths, num_warps=4)
    return keys


@triton.jit(do_not_specialize=["n", "cells", "horizon", "depth"])
def _write_keys(
    rows,
    scale,
    power,
    values,
    gains,
    made,
    keys,
    n,
    cells,
    horizon,
    dim,
    depth,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0) * _EACH
    at = first + tl.arange(0, _EACH)
    gain = tl.load(gains + at, mask=at < n, other=-1)
    tl.store(keys + at, gain, mask=at < n)
    if tl.load(made) < depth:
        tl.debug_barrier()
        for i in range(tl.minimum(_EACH, n - first)):
            token = first + i
            if tl.load(gains + token) < 0:
                other = _find_representative(values, gains, token, n, cells, horizon, COLUMNS)
                cosine = compute_cosine(rows, scale, power, token, other, dim, BLOCK)
                # only a zero token has cosine 0 here; it would gain nothing, so it comes last
                cosine = tl.where(cosine > 0, cosine, 2.0)
                key = -1 - cosine.to(tl.int32, bitcast=True)
                tl.store(keys + token, key.to(keys.dtype.element_ty))


@triton.jit
def _find_representative(values, gains, token, n, cells, horizon, COLUMNS: tl.constexpr):
    """Return the pick most similar to a token; of equals the one with the largest gain, then with the lowest index."""
    start = (token // cells - horizon) * cells
    width = (2 * horizon + 1) * cells
    row = values + token.to(tl.int64) * width
    best, best_gain, other = token * 0, token.to(tl.int64) * 0, token
    for left in range(0, width, COLUMNS):
        column = left + tl.arange(0, COLUMNS)
        exists = (column < width) & (start + column >= 0) & (start + column < n)
        gain = tl.load(gains + start + column, mask=exists, other=-1).to(tl.int64)
        s = tl.load(row + column, mask=exists & (gain > 0), other=0).to(tl.int32)
        highest = tl.max(s, 0)
        highest_gain = tl.max(tl.where(s == highest, gain, -1), 0)
        if (highest > best) | ((highest == best) & (highest_gain > best_gain)):
            lowest = tl.min(tl.where((s == highest) & (gain == highest_gain), column, width), 0)
            best, best_gain, other = highest, highest_gain, start + lowest
    return other
