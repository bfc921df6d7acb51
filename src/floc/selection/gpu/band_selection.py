"""Selection within a horizon on the GPU: from tokens to a ranking, without waiting for the device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from floc.ranking import DeviceRanking, Ranking
from floc.selection.engine import Band
from floc.selection.gpu.band_rounds import BandPicks, pick_in_rounds
from floc.selection.gpu.band_similarity import compute_band
from floc.selection.gpu.launch import use_device
from floc.selection.gpu.run import convert_readable
from floc.selection.gpu.similarity import Rows
from floc.selection.objective import SCALE


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
        keys, order = torch.sort(selection.picks.gains, descending=True, stable=True)
        gains = keys[:depth].clamp_min(0).double() / SCALE
        picks = order[:budget].clone()  # releases the order of all tokens

    def fetch() -> Ranking:
        values = gains.cpu().numpy()
        next_gains = values[budget:] if depth > budget else np.zeros(1)
        group = np.zeros(budget, np.int64)
        columns = picks.cpu().numpy(), values[:budget], group, np.arange(budget)
        return Ranking(*columns, np.array([band.n]), next_gains, shared=True, history=None)

    return DeviceRanking(picks, gains[:budget], selection.rows.flags[1:], fetch, band)
