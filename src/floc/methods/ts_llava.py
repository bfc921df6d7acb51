"""TS-LLaVA's sampling (Qu et al., "TS-LLaVA: Constructing Visual Tokens through Thumbnail-and-Sampling", 2024)."""

from dataclasses import dataclass

import numpy as np

from floc.kept import Kept
from floc.methods.registry import register
from floc.tokens import TokenGrid


@register("ts_llava", "Qu et al., TS-LLaVA, 2024", "select")
@dataclass(frozen=True)
class TSLLaVA:
    """Keep evenly spaced tokens of the whole video, from the first to the last.

    This is the sampling half of Thumbnail-and-Sampling; the thumbnail, an image composed of small frames, does not
    select tokens. If the frame size and the spacing share a factor, the kept tokens form stripes. That is inherent
    in the method. Indices are rounded in float32 as in the published program, so near the end of a long video a few
    differ from exact rounding. If float32 would repeat a token, the indices are computed exactly instead, and the
    budget is met.
    """

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        indices = _space_in_float32(grid.n, budget)
        return grid.keep(indices if (np.diff(indices) > 0).all() else _space_exactly(grid.n, budget))


def _space_in_float32(n: int, k: int) -> np.ndarray:
    """Return [k] int64 evenly spaced indices in 0..n-1, computed in float32; they may repeat.

    >>> _space_in_float32(11, 6).tolist()
    [0, 2, 4, 6, 8, 10]
    """
    if k == 1:
        return np.zeros(1, np.int64)
    step = np.float64(np.float32(n - 1) / np.float32(k - 1))
    i = np.arange(k)
    # a float32 step times an integer is exact in float64, so each point is rounded once, like a fused multiply-add
    points = np.where(i < k // 2, step * i, n - 1 - step * (k - 1 - i)).astype(np.float32)
    return np.rint(points).clip(0, n - 1).astype(np.int64)


def _space_exactly(n: int, k: int) -> np.ndarray:
    """Return [k] int64 distinct evenly spaced indices in 0..n-1, halves rounded to even, 2 <= k <= n.

    >>> _space_exactly(10, 7).tolist()  # rounds 1.5, 4.5 and 7.5
    [0, 2, 3, 4, 6, 8, 9]
    """
    whole, rest = np.divmod(np.arange(k) * (n - 1), k - 1)
    return whole + ((2 * rest > k - 1) | ((2 * rest == k - 1) & (whole % 2 == 1)))
