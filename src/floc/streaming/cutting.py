"""Cutting a stream into blocks: of a fixed length, or along scenes."""

import math
from collections import deque
from typing import Any

import numpy as np
import torch

from floc import scenes
from floc._checked_file import Fields
from floc._checks import require
from floc.scenes import LONGEST, SHORTEST
from floc.streaming.past import SavedStream

LEAST_BLOCK, BLOCK_HORIZONS = 32, 8  # frames of a block with a horizon: at least so many, and so many horizons
LEAST_CAPACITY = 64
RECENT = 1024  # frames whose breaks the median is taken over


class EvenCutter:
    """Cuts blocks of a fixed number of frames."""

    context = 0  # frames before and after a block that its selection also considers
    before = 0  # number of waiting frames that belong to the previous block

    def __init__(self, frames: int) -> None:
        self.block: int | None = frames  # None: blocks differ
        self.capacity = frames  # frames that may wait for the end of their block
        self.least_capacity = frames  # frames for which memory is allocated at first

    def observe(self, waiting: torch.Tensor) -> None:
        """Look at the waiting frames, [t, H, W, D], the last of which is new."""

    def find_block(self, waiting: int) -> int:
        """Return how many of the waiting frames form a complete block, with those around it; 0 if none do yet."""
        return self.capacity if waiting == self.capacity else 0

    def discard(self, frames: int) -> None:
        """Forget the first waiting frames, which became a block."""

    def split_rest(self, waiting: int) -> list[int]:
        """Return the lengths of the blocks that the waiting frames would form if the stream ended now."""
        return [waiting] if waiting else []

    def metadata(self) -> dict[str, Any]:
        """Return the JSON-serialisable state to save."""
        return {}

    def restore(self, metadata: Fields, saved: SavedStream) -> None:
        """Restore a saved state; raise ValueError if no stream can have it."""


class HorizonCutter(EvenCutter):
    """Cuts blocks of a fixed number of frames, which wait until the frames in twice their horizon are known.

    A pick changes the gains of tokens at most twice the horizon away. The waiting frames start with as many of the
    block before.
    """

    def __init__(self, horizon: int) -> None:
        super().__init__(max(LEAST_BLOCK, BLOCK_HORIZONS * horizon))
        self.context = 2 * horizon
        self.capacity += 2 * self.context
        self.least_capacity = min(self.capacity, LEAST_CAPACITY)

    def find_block(self, waiting: int) -> int:
        assert self.block is not None
        frames = self.before + self.block + self.context
        return frames if waiting >= frames else 0

    def discard(self, frames: int) -> None:
        self.before = self.context

    def split_rest(self, waiting: int) -> list[int]:
        return [waiting] if waiting > self.before else []

    def restore(self, metadata: Fields, saved: SavedStream) -> None:
        self.before = saved.before


class SceneCutter(EvenCutter):
    """Cuts blocks that follow scenes, a few frames after a scene has ended.

    A break is compared with those of the last `RECENT` frames, relative to the spread of all tokens so far (see
    `floc.scenes`), and counts when no clearer break can follow too close to it. A scene is cut in half at `LONGEST`.
    """

    def __init__(self, dim: int | None = None) -> None:
        super().__init__(LONGEST)
        self.block = None
        self.dim = dim  # number of features to compare, the first ones; None: all
        self.frames = self.cells = 0
        # differences of each waiting frame to the previous one and to the last but one
        self.apart: list[tuple[float, float]] = []
        self.recent: deque[float] = deque(maxlen=RECENT)  # breaks, not divided by the spread
        self.total: np.ndarray | None = None  # [D] sum of all normalized tokens
        self.squares = 0.0

    def observe(self, waiting: torch.Tensor) -> None:
        latest = waiting[-3:, ..., : self.dim]
        (_, total, squares), (apart, _, _) = scenes.measure_differences(latest[-1:]), scenes.measure_differences(latest)
        self.total = total if self.total is None else self.total + total
        self.squares += squares
        self.frames += 1
        self.cells = latest.shape[1] * latest.shape[2]
        one, two = apart[:, -1].tolist()
        self.apart.append((one, two if self.frames > 2 else np.inf))
        if self.frames > 2:  # the first frame has no break, and that of the latest is not known yet
            self.recent.append(float(self._measure_breaks()[-1]))

    def find_block(self, waiting: int) -> int:
        candidates = self._find_candidates()
        is_due = bool(candidates) and (waiting > max(candidates) + SHORTEST or waiting == self.capacity)
        if is_due and (cuts := scenes.space_cuts(candidates, waiting, SHORTEST)):
            return cuts[0]
        return self.capacity // 2 if waiting == self.capacity else 0

    def discard(self, frames: int) -> None:
        self.apart = self.apart[frames:]

    def split_rest(self, waiting: int) -> list[int]:
        cuts = scenes.space_cuts(self._find_candidates(), waiting, SHORTEST)
        return np.diff([0, *cuts, waiting]).tolist() if waiting else []

    def metadata(self) -> dict[str, Any]:
        total = None if self.total is None else self.total.tolist()
        saved = {name: getattr(self, name) for name in ("frames", "apart", "squares", "cells")}
        return {**saved, "recent": [*self.recent], "total": total}

    def restore(self, metadata: Fields, saved: SavedStream) -> None:
        frames = saved.frames + saved.waiting
        self.frames = metadata.integer("frames", frames, frames)
        if not frames:
            return
        require(saved.waiting >= SHORTEST or not saved.frames, f"{saved.waiting} frames wait, at least {SHORTEST} must")
        self.cells = metadata.integer("cells", saved.cells, saved.cells)
        self.squares = metadata.number("squares", 0, 1.01 * frames)
        limit = 1.01 * frames * saved.cells
        self.total = np.array(metadata.numbers("total", saved.compared, -limit, limit))
        self.recent.extend(metadata.numbers("recent", min(RECENT, max(0, frames - 2)), *_DIFFERENCES))
        apart = metadata.sequence("apart", saved.waiting)
        for i in range(saved.waiting):
            one, two = apart.numbers(str(i), 2, _DIFFERENCES[0], math.inf)
            # the first two frames have no frame two before them
            is_valid = one <= _DIFFERENCES[1] and two <= (_DIFFERENCES[1] if saved.frames + i >= 2 else math.inf)
            require(is_valid, f"cutter.apart.{i} must be numbers from 0 to 2, got {one:g} and {two:g}")
            self.apart.append((one, two))

    def _measure_breaks(self) -> np.ndarray:
        """Return [t - 1], the breaks of all waiting frames but the last, whose break depends on the next frame."""
        one, two = np.array(self.apart).T
        return np.minimum(np.minimum(one, two)[:-1], two[1:])

    def _find_candidates(self) -> list[int]:
        """Return the waiting frames at which a scene may start, the clearest first."""
        if not self.recent or len(self.apart) < 2:
            return []
        assert self.total is not None
        spread = scenes.compute_spread(self.total, self.squares, self.frames, self.cells)
        median = float(np.median(self.recent))
        if spread < scenes.NO_SPREAD or median > scenes.CONTINUOUS * spread:
            return []
        return scenes.find_clearest(self._measure_breaks(), (median + spread) / 2)


_DIFFERENCES = (-0.01, 2.01)  # range of differences 1 - cos, with rounding errors
