"""Cutting a stream into blocks: of a fixed length, or along scenes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from floc import scenes
from floc.scenes import LONGEST, SHORTEST

RECENT = 1024  # frames whose breaks the median is taken over


class EvenCutter:
    """Cuts blocks of a fixed number of frames."""

    def __init__(self, frames: int) -> None:
        self.capacity = frames  # frames that may wait for the end of their block

    def observe(self, waiting: torch.Tensor) -> None:
        """Look at the waiting frames, [t, H, W, D], the last of which is new."""

    def find_block(self, waiting: int) -> int:
        """Return how many of the waiting frames form a complete block; 0 if none do yet."""
        return self.capacity if waiting == self.capacity else 0

    def discard(self, frames: int) -> None:
        """Forget the first waiting frames, which became a block."""

    def split_rest(self, waiting: int) -> list[int]:
        """Return the lengths of the blocks that the waiting frames would form if the stream ended now."""
        return [waiting] if waiting else []

    def metadata(self) -> dict[str, Any]:
        """Return the JSON-serialisable state to save."""
        return {}

    def restore(self, metadata: Mapping[str, Any]) -> None:
        """Restore a saved state."""


class SceneCutter(EvenCutter):
    """Cuts blocks that follow scenes, a few frames after a scene has ended.

    A break is compared with those of the last `RECENT` frames, relative to the spread of all tokens so far (see
    `floc.scenes`), and counts when no clearer break can follow too close to it. A scene is cut in half at `LONGEST`.
    """

    def __init__(self, dim: int | None = None) -> None:
        super().__init__(LONGEST)
        self.dim = dim  # number of features to compare, the first ones; None: all
        self.frames = 0
        # differences of each waiting frame to the previous one and to the last but one
        self.apart: list[tuple[float, float]] = []
        self.recent: deque[float] = deque(maxlen=RECENT)  # breaks, not divided by the spread
        self.total: np.ndarray | None = None  # [D] sum of all normalised tokens
        self.squares = 0.0
        self.cells = 0

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
        if candidates and (waiting > max(candidates) + SHORTEST or waiting == self.capacity):
            cuts = scenes.space_cuts(candidates, waiting, SHORTEST)
            if cuts:
                return cuts[0]
        return self.capacity // 2 if waiting == self.capacity else 0

    def discard(self, frames: int) -> None:
        self.apart = self.apart[frames:]

    def split_rest(self, waiting: int) -> list[int]:
        cuts = scenes.space_cuts(self._find_candidates(), waiting, SHORTEST)
        return np.diff([0, *cuts, waiting]).tolist() if waiting else []

    def metadata(self) -> dict[str, Any]:
        total = None if self.total is None else self.total.tolist()
        return {**{name: getattr(self, name) for name in _SAVED}, "recent": [*self.recent], "total": total}

    def restore(self, metadata: Mapping[str, Any]) -> None:
        for name in _SAVED:
            setattr(self, name, metadata[name])
        self.apart = [(one, two) for one, two in metadata["apart"]]
        self.recent.extend(metadata["recent"])
        self.total = None if metadata["total"] is None else np.array(metadata["total"])

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


_SAVED = ("frames", "apart", "squares", "cells")
