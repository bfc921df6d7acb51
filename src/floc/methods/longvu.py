"""LongVU (Shen et al., "LongVU: Spatiotemporal Adaptive Compression for Long Video-Language Understanding", 2024)."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.budgets import check_floor
from floc.methods.shared.frames import compare_cells
from floc.methods.shared.inputs import check_least
from floc.tokens import TokenGrid


@register(
    "longvu",
    "Shen et al., LongVU, 2024",
    "select",
    floor="the first frame of every 8 (12.5%)",
    searched=("threshold", "max_visual_len"),
)
@dataclass(frozen=True)
class LongVU:
    """Keep the first frame of every 8, and in the others the tokens least similar to the same cell of that frame.

    Without a budget, a token of a later frame is kept if its cosine with the same cell in the first frame of its
    window is below `threshold`. The published program also uses thresholds of 0.6, 0.65 and 0.7 in places. A budget
    sets one threshold for the whole video and is met exactly: ties keep the earlier token, which a threshold alone
    cannot do. The cosine with a zero token is 0.

    A budget below the first frames is an error. `nearest` then keeps the first frames, and `widen` uses windows as
    long as the budget needs.

    Differences from the published program: it compresses only videos longer than its context, and then cuts the end
    of every window to fit. `max_visual_len` does this; it is off by default and cannot be combined with a budget. The
    program's frame selection and its use of the question are not included.
    """

    threshold: float = 0.8
    window: int = 8  # frames
    max_visual_len: int | None = None
    widen: bool = False  # below the floor, use the shortest window that fits the budget
    nearest: bool = False

    def __post_init__(self) -> None:
        check_least(self, 1, "frame", "window")
        if self.max_visual_len is not None:
            check_least(self, 1, "token", "max_visual_len")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        t, window, cells = grid.shape[0], int(self.window), grid.cells
        if self.widen and budget < math.ceil(t / window) * cells:
            window = math.ceil(t / max(1, budget // cells))
        floor = math.ceil(t / window) * cells
        reason = f"the first frame of every {window} whole" + ("" if self.widen else " (fewer with widen=True)")
        check_floor("longvu", budget, floor, grid.n, reason, nearest=self.nearest)
        is_later = np.arange(t) % window > 0
        later = is_later.nonzero()[0]
        cosine, order = compare_cells(grid.tokens, later, later - later % window).ravel().sort(stable=True)
        count = max(0, budget - floor)
        indices = np.arange(grid.n).reshape(t, cells)
        picks = np.concatenate([indices[~is_later].ravel(), indices[later].ravel()[order[:count].cpu().numpy()]])
        settings = {"threshold": _find_threshold(cosine, count), "window": window, "max_visual_len": None}
        return replace(grid.keep(picks), settings=settings)

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        """Keep the tokens below the threshold."""
        t, window, cells = grid.shape[0], int(self.window), grid.cells
        if self.max_visual_len is not None and grid.n <= self.max_visual_len:
            return grid.keep(np.arange(grid.n))
        later = (np.arange(t) % window > 0).nonzero()[0]
        keep = np.ones((t, cells), dtype=bool)
        keep[later] = (compare_cells(grid.tokens, later, later - later % window) < float(self.threshold)).cpu().numpy()
        picks = np.flatnonzero(keep)
        if self.max_visual_len is not None:
            picks = _truncate(picks, window * cells, int(self.max_visual_len))
        return grid.keep(picks)


def _find_threshold(ascending: torch.Tensor, count: int) -> float:
    """Return a threshold above the first `count` values and, unless they tie, not above the others."""
    below = ascending[count - 1].item() if count else -2.0  # outside the range of cosines
    above = ascending[count].item() if count < len(ascending) else 2.0
    middle = float(np.float32((below + above) / 2))  # it will be compared in float32
    return middle if middle > below else above


def _truncate(picks: np.ndarray, window_tokens: int, limit: int) -> np.ndarray:
    """Cut the same number of tokens from the end of every window, then the end of the whole, to fit the limit."""
    window = picks // window_tokens
    ends = np.bincount(window).cumsum()
    until_end = ends[window] - np.arange(len(picks))  # 1 for the last token of a window
    return picks[until_end > math.ceil(max(0, len(picks) - limit) / len(ends))][:limit]
