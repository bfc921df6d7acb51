"""Average pooling: every frame on a coarser grid."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from floc._checks import check_choice, is_int
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.frames import split_tiles, to_float
from floc.methods.shared.inputs import check_least
from floc.tokens import TokenGrid


@register("pooling", "average pooling", "merge", exact=False, searched=("adaptive_size", "stride", "frames"))
@dataclass(frozen=True)
class Pooling:
    """Replace neighbouring cells by their mean, so that every frame has the same coarser grid.

    With a budget, each frame is pooled to round(H * sqrt(ratio)) rows and as many columns as then fit, which nearly
    preserves the aspect ratio. The count is a multiple of the frames, at most the budget. If the sizes do not divide,
    pooled cells can share a row or column. A budget smaller than the number of frames keeps that many evenly spaced
    frames, one token each.

    Without a budget, set `adaptive_size`, or `stride` as the LLaVA family does. `pool="bilinear"` interpolates instead
    of averaging (half-pixel centres, no antialiasing), so with a stride above 2 some tokens do not contribute.

    A merged token takes the position of its top left source cell and represents the tokens whose centre lies in it.
    Tokens of a frame that was left out are represented by the nearest pooled frame in time, and those of a last row
    or column left out by `ceil=False` by the row or column before.
    """

    adaptive_size: Sequence[int] | None = None  # rows and columns of the pooled grid
    stride: int | None = None  # or the side of a pooled cell, in source cells
    frames: int | None = None  # pool this many evenly spaced frames; None: all
    ceil: bool = True  # with a stride, pool an incomplete last row or column into a cell of its own
    pool: str = "average"  # or "bilinear"

    def __post_init__(self) -> None:
        check_choice("pool", self.pool, ("average", "bilinear"))
        if self.adaptive_size is not None and self.stride is not None:
            raise ValueError(f"pass adaptive_size or stride, not both; got {self.adaptive_size} and {self.stride}")
        if self.stride is not None:
            check_least(self, 1, "cell", "stride")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        t, h, w = grid.shape
        frames = min(t, budget)
        frame_budget = budget // frames
        rows = min(h, frame_budget, max(1, math.floor(h * math.sqrt(budget / grid.n) + 0.5)))
        size = (rows, min(w, frame_budget // rows))
        settings: dict[str, Any] = {"adaptive_size": size, "stride": None, "frames": None if frames == t else frames}
        return replace(replace(self, **settings).keep_by_options(grid), settings=settings)

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        t, h, w = grid.shape
        rows, columns = self._pooled_size(h, w)
        frames = np.arange(t)
        if self.frames is not None:
            if not 1 <= self.frames <= t:
                raise ValueError(f"frames must be in 1..{t}, the frames of the video; got {self.frames}")
            frames = np.rint(np.linspace(0, t - 1, self.frames)).astype(np.int64)  # the same spacing as frame_uniform
        device = grid.tokens.device
        index = torch.from_numpy(frames).to(device)
        merged = [
            self._pool(to_float(grid.tokens.detach().index_select(0, index[tile])), rows, columns)
            for tile in split_tiles(len(frames), 4 * grid.cells * grid.dim, device)
        ]
        top, row = self._map_sources(h, rows)
        left, column = self._map_sources(w, columns)
        indices = (frames[:, None, None] * h + top[:, None]) * w + left
        frame = np.searchsorted(frames[:-1] + frames[1:], 2 * np.arange(t))  # the nearest, the earlier of two
        represents = (frame[:, None, None] * rows + row[:, None]) * columns + column
        return grid.merge(indices.ravel(), torch.cat(merged).reshape(-1, grid.dim), represents.ravel())

    def _pooled_size(self, h: int, w: int) -> tuple[int, int]:
        if self.stride is not None:
            divide = math.ceil if self.ceil else math.floor
            return max(1, divide(h / self.stride)), max(1, divide(w / self.stride))
        if self.adaptive_size is None:
            raise ValueError("pooling needs adaptive_size=(rows, columns), stride=, or a ratio or budget")
        size = self.adaptive_size
        is_pair = isinstance(size, list | tuple) and len(size) == 2 and all(map(is_int, size))
        if not (is_pair and 1 <= size[0] <= h and 1 <= size[1] <= w):
            raise ValueError(f"adaptive_size must be (rows, columns), at least 1 and at most ({h}, {w}); got {size!r}")
        return size[0], size[1]

    def _pool(self, x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """Pool [B, H, W, D] to [B, rows, columns, D]."""
        x = x.permute(0, 3, 1, 2)
        if self.pool == "bilinear":
            pooled = F.interpolate(x, (rows, columns), mode="bilinear", align_corners=False)
        elif self.stride is None:
            pooled = F.adaptive_avg_pool2d(x, (rows, columns))
        else:
            sides = [min(self.stride, side) for side in x.shape[2:]]  # a grid narrower than the stride is one cell
            pooled = F.avg_pool2d(x, sides, ceil_mode=self.ceil)
        return pooled.permute(0, 2, 3, 1)

    def _map_sources(self, side: int, pooled: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first source cell of each pooled cell along a side, [pooled], and the reverse map, [side]."""
        i, y = np.arange(pooled), np.arange(side)
        if self.pool == "bilinear":
            # floor((i + 0.5) * side / pooled - 0.5): centres lie half a cell in
            first = np.maximum(0, ((2 * i + 1) * side - pooled) // (2 * pooled))
        elif self.stride is None:
            first = i * side // pooled
        else:
            return i * self.stride, np.minimum(y // self.stride, pooled - 1)
        return first, (2 * y + 1) * pooled // (2 * side)
