"""LongVU's spatial token compression (Shen et al., "LongVU: Spatiotemporal Adaptive Compression for Long
Video-Language Understanding", 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from floc.kept import Kept
from floc.methods.base import Facts
from floc.methods.budgets import require_floor
from floc.methods.cells import same_cell
from floc.methods.registry import register
from floc.tokens import TokenGrid


@register("longvu")
@dataclass(frozen=True)
class LongVU:
    """Keep the first frame of every 8, and of the others the tokens least like the same cell of that frame.

    Without a budget: a token of a later frame is kept where its cosine with the cell's token in the first frame of its
    window is below `threshold`; the published program also has thresholds of 0.6, 0.65 and 0.7 in places. With a
    budget: the threshold is put where it gives the budget exactly, one for the whole video; equal cosines go to the
    earlier token, so there a threshold alone can differ.

    Fewer tokens than the first frames have is below its floor, an error; `nearest` accepts the first frames for it, and
    `widen` takes windows as long as the budget needs. The published program compresses only what is longer than its
    context, then cuts every window's end off to fit: that is `max_visual_len`, off by default, and not for use with a
    budget. Its choice of frames and its use of the question are not part of this. The cosine with a zero token is 0.
    """

    facts: ClassVar[Facts] = Facts(
        "Shen et al., LongVU, 2024",
        "select",
        floor="the first frame of every 8 (12.5%)",
        searched=("threshold", "max_visual_len"),
    )

    threshold: float = 0.8
    window: int = 8  # frames
    max_visual_len: int | None = None
    widen: bool = False  # below the floor, the shortest window that has room
    nearest: bool = False

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1 frame, got {self.window}")
        if self.max_visual_len is not None and self.max_visual_len < 1:
            raise ValueError(f"max_visual_len must be at least 1 token, got {self.max_visual_len}")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        t, h, w = grid.shape
        window, cells = int(self.window), h * w
        if self.widen and budget < math.ceil(t / window) * cells:
            window = math.ceil(t / max(1, budget // cells))
        floor = math.ceil(t / window) * cells
        why = f"the first frame of every {window} whole" + (
            "" if self.widen else " (of longer windows with widen=True)"
        )
        require_floor("longvu", budget, floor, grid.n, why, nearest=self.nearest)
        first, later = _windows(t, window)
        cosine, order = same_cell(grid.tokens, later, later - later % window).ravel().sort(stable=True)
        take = max(0, budget - floor)
        picks = np.concatenate([_flat(first, cells), _flat(later, cells)[order[:take].cpu().numpy()]])
        settings = {"threshold": _between(cosine, take), "window": window, "max_visual_len": None}
        return replace(grid.keep(picks), settings=settings)

    def native(self, grid: TokenGrid) -> Kept:
        """Keep what is below the threshold."""
        t, h, w = grid.shape
        window, cells = int(self.window), h * w
        if self.max_visual_len is not None and grid.n <= self.max_visual_len:
            return grid.keep(np.arange(grid.n))
        _, later = _windows(t, window)
        keep = np.ones((t, cells), dtype=bool)
        keep[later] = (same_cell(grid.tokens, later, later - later % window) < float(self.threshold)).cpu().numpy()
        picks = keep.ravel().nonzero()[0]
        return grid.keep(
            picks if self.max_visual_len is None else _cut(picks, window * cells, int(self.max_visual_len))
        )


def _windows(frames: int, window: int) -> tuple[np.ndarray, np.ndarray]:
    """The frames that open a window, and the others."""
    t = np.arange(frames)
    return t[t % window == 0], t[t % window > 0]


def _flat(frames: np.ndarray, cells: int) -> np.ndarray:
    """The flat indices of all tokens of some frames."""
    return (frames[:, None] * cells + np.arange(cells)).ravel()


def _between(ascending: torch.Tensor, count: int) -> float:
    """A threshold that is above the first `count` values and not above the others, where no tie forbids it."""
    below = ascending[count - 1].item() if count else -2.0  # no cosine is beyond 2
    above = ascending[count].item() if count < len(ascending) else 2.0
    middle = float(np.float32((below + above) / 2))  # it will be compared in float32
    return middle if middle > below else above


def _cut(picks: np.ndarray, window_tokens: int, most: int) -> np.ndarray:
    """Cut the end of every window off, each as much, and then the end of the whole."""
    window = picks // window_tokens
    sizes = np.bincount(window)
    excess = max(0, len(picks) - most)
    to_its_end = np.cumsum(sizes)[window] - np.arange(len(picks))  # 1 for the last of a window
    return picks[to_its_end > math.ceil(excess / len(sizes))][:most]
