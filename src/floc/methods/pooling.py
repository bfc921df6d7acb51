"""Pooling: every frame on a coarser grid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from floc._checks import check_choice
from floc.kept import Kept
from floc.methods.base import Facts
from floc.methods.registry import register
from floc.tokens import TokenGrid

TILE_BYTES = 1 << 24  # of tokens in float32 at a time: more is not faster, and from 64 MB slower on a CPU


@register("pooling")
@dataclass(frozen=True)
class Pooling:
    """Keep the means of neighbouring cells, every frame on the same coarser grid.

    Given a budget, each frame is pooled to round(H * sqrt(ratio)) rows and as many columns as there is then room for,
    so that the cells keep about their shape; the count is a multiple of the frames, at most the budget. Pooled cells
    can share a row or column where the sizes do not divide. A budget below one token for each frame takes that many
    evenly spaced frames, one token each.

    Without a budget: `adaptive_size`, or `stride` as the LLaVA family pools. `pool="bilinear"` interpolates instead of
    averaging (half-pixel centres, no antialiasing), so above a stride of 2 some tokens have no say.

    A merged token takes the place of its top left source cell, and represents the tokens whose centre lies in it. The
    tokens of a frame that was left out go with the nearest frame in time that was not, and those of a last row or
    column that `ceil=False` leaves out with the one before.
    """

    facts: ClassVar[Facts] = Facts(
        "average pooling", "merge", exact=False, searched=("adaptive_size", "stride", "frames")
    )

    adaptive_size: Sequence[int] | None = None  # rows and columns of the pooled grid
    stride: int | None = None  # or the cells a pooled one has to a side
    frames: int | None = None  # how many evenly spaced frames to pool; None: all
    ceil: bool = True  # with a stride, whether a last row or column that does not fill a cell has one of its own
    pool: str = "average"  # or "bilinear"

    def __post_init__(self) -> None:
        check_choice("pool", self.pool, ("average", "bilinear"))
        if self.adaptive_size is not None and self.stride is not None:
            raise ValueError(f"give adaptive_size or stride, not both; got {self.adaptive_size} and {self.stride}")
        if self.stride is not None and self.stride < 1:
            raise ValueError(f"stride must be at least 1 cell, got {self.stride}")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        t, h, w = grid.shape
        frames = min(t, budget)
        room = budget // frames  # tokens of a frame
        rows = min(h, room, max(1, math.floor(h * math.sqrt(budget / grid.n) + 0.5)))
        size = (rows, min(w, room // rows))
        sized = replace(self, adaptive_size=size, stride=None, frames=None if frames == t else frames)
        settings = {"adaptive_size": size, "stride": None, "frames": sized.frames}
        return replace(sized.native(grid), settings=settings)

    def native(self, grid: TokenGrid) -> Kept:
        """Pool to the size that was given."""
        t, h, w = grid.shape
        rows, columns = self._size(h, w)
        chosen = self._frames(t)
        merged = torch.cat([self._pooled(part, rows, columns) for part in _parts(grid.tokens, chosen)])
        top, row = self._sources(h, rows)
        left, column = self._sources(w, columns)
        indices = (chosen[:, None, None] * h + top[:, None]) * w + left
        frame = np.searchsorted(chosen[:-1] + chosen[1:], 2 * np.arange(t))  # the nearest, the earlier of two
        represents = (frame[:, None, None] * rows + row[:, None]) * columns + column
        return grid.merge(indices.ravel(), merged.reshape(-1, grid.dim), represents.ravel())

    def _size(self, h: int, w: int) -> tuple[int, int]:
        if self.stride is not None:
            return self._strides(h), self._strides(w)
        if self.adaptive_size is None:
            raise ValueError("pooling needs adaptive_size=(rows, columns), stride=, or a ratio or budget")
        size = [int(each) for each in self.adaptive_size]
        if len(size) != 2 or not (1 <= size[0] <= h and 1 <= size[1] <= w):
            raise ValueError(f"adaptive_size must be rows and columns, at least 1 and at most ({h}, {w}); got {size}")
        return size[0], size[1]

    def _strides(self, side: int) -> int:
        assert self.stride is not None, "the caller has one"
        return max(1, math.ceil(side / self.stride) if self.ceil else side // self.stride)

    def _frames(self, t: int) -> np.ndarray:
        if self.frames is None:
            return np.arange(t)
        if not 1 <= self.frames <= t:
            raise ValueError(f"frames must be in 1..{t}, the frames there are; got {self.frames}")
        return np.rint(np.linspace(0, t - 1, self.frames)).astype(np.int64)  # as frame_uniform spaces them

    def _pooled(self, x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """[B, rows, columns, D] of [B, H, W, D]."""
        x = x.permute(0, 3, 1, 2)
        if self.pool == "bilinear":
            pooled = F.interpolate(x, (rows, columns), mode="bilinear", align_corners=False)
        elif self.stride is None:
            pooled = F.adaptive_avg_pool2d(x, (rows, columns))
        else:
            sides = [min(self.stride, side) for side in x.shape[2:]]  # a grid narrower than the stride is one cell
            pooled = F.avg_pool2d(x, sides, ceil_mode=self.ceil)
        return pooled.permute(0, 2, 3, 1)

    def _sources(self, side: int, pooled: int) -> tuple[np.ndarray, np.ndarray]:
        """[pooled] the first cell of a side that each pooled one comes from, and [side] the pooled one of each cell."""
        i, y = np.arange(pooled), np.arange(side)
        if self.pool == "bilinear":
            # floor((i + 0.5) * side / pooled - 0.5): centres lie half a cell in
            first = np.maximum(0, ((2 * i + 1) * side - pooled) // (2 * pooled))
        elif self.stride is None:
            first = i * side // pooled
        else:
            return i * self.stride, np.minimum(y // self.stride, pooled - 1)
        return first, (2 * y + 1) * pooled // (2 * side)


def _parts(tokens: torch.Tensor, frames: np.ndarray) -> Iterator[torch.Tensor]:
    """[B, H, W, D] some of the frames at a time, in float32 or better."""
    step = max(1, TILE_BYTES // (4 * tokens[0].numel()))
    for start in range(0, len(frames), step):
        part = tokens.detach().index_select(0, torch.from_numpy(frames[start : start + step]).to(tokens.device))
        yield part if part.dtype == torch.float64 else part.float()
