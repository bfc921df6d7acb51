"""TS-LLaVA's sampling (Qu et al., "TS-LLaVA: Constructing Visual Tokens through Thumbnail-and-Sampling", 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from floc.kept import Kept
from floc.methods.base import Facts
from floc.methods.registry import register
from floc.tokens import TokenGrid


@register("ts_llava")
@dataclass(frozen=True)
class TSLLaVA:
    """Keep evenly spaced tokens of the whole video, from the first to the last.

    Only the sampling half of Thumbnail-and-Sampling: the thumbnail, a picture made of small frames, is no choice of
    tokens. The tokens of a frame and the spacing can be commensurate, so what is kept can form stripes; that is the
    method. Places are rounded in float32 as in the published program, which near the end of a long video differs from
    the nearest place for a few tokens. Where the budget is nearly all of a long video, its rounding would give the
    same token twice; there the places are computed exactly, so that as many are kept as asked for.
    """

    facts: ClassVar[Facts] = Facts("Qu et al., TS-LLaVA, 2024", "select")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        places = _in_float32(grid.n, budget)
        return grid.keep(places if (np.diff(places) > 0).all() else _exactly(grid.n, budget))


def _in_float32(n: int, k: int) -> np.ndarray:
    """[k] int64, evenly spaced in 0..n-1, not falling, as float32 has it.

    >>> _in_float32(11, 6).tolist()
    [0, 2, 4, 6, 8, 10]
    """
    if k == 1:
        return np.zeros(1, np.int64)
    step = np.float64(np.float32(n - 1) / np.float32(k - 1))
    i = np.arange(k)
    # a float32 step times a count is exact in float64, so each point is rounded once, like a fused multiply-add
    points = np.where(i < k // 2, step * i, n - 1 - step * (k - 1 - i)).astype(np.float32)
    return np.rint(points).clip(0, n - 1).astype(np.int64)


def _exactly(n: int, k: int) -> np.ndarray:
    """[k] int64, evenly spaced in 0..n-1, halves to the even place; distinct for 2 <= k <= n.

    >>> _exactly(10, 7).tolist()  # 1.5, 4.5 and 7.5 among them
    [0, 2, 3, 4, 6, 8, 9]
    """
    below, rest = np.divmod(np.arange(k) * (n - 1), k - 1)
    return below + ((2 * rest > k - 1) | ((2 * rest == k - 1) & (below % 2 == 1)))
