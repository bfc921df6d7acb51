"""One block of tokens in every format, and float64 greedy, whose objective all contenders are compared with."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from floc.selection.objective import PLAIN, SCALE


@dataclass(frozen=True)
class BlockTokens:
    """One block in all formats that contenders take."""

    tokens: np.ndarray  # [n, d] float16

    @cached_property
    def unit(self) -> np.ndarray:
        """[n, d] float64, rows of length 1."""
        x = self.tokens.astype(np.float64)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    @cached_property
    def cosine(self) -> np.ndarray:
        """[n, n] float64."""
        return self.unit @ self.unit.T

    @cached_property
    def matrix(self) -> np.ndarray:
        """[n, n] int16 fixed point."""
        return np.rint(self.cosine.clip(-1, 1) * SCALE).astype(np.int16)


def sharpen(cosine: np.ndarray, detail: float) -> np.ndarray:
    """Apply `detail` to cosines: see `floc.selection.objective.Similarity`."""
    near = cosine.clip(0, 1)
    return cosine if detail == 1 else PLAIN * near + (1 - PLAIN) * (1 - (1 - near) ** detail)


def compute_objective(similarity: np.ndarray, picks: np.ndarray) -> float:
    """Return f(picks) in float64."""
    return float(similarity[picks].max(0).sum())


def greedy_float64(similarity: np.ndarray, k: int) -> np.ndarray:
    """Select [k] candidates by lazy greedy in float64 from [n, n] similarities, in plain Python.

    >>> greedy_float64(np.array([[.9, .9, 0], [0, 0, .5], [.1, .1, .1]]), 2).tolist()
    [0, 1]
    """
    first = int(similarity.sum(1).argmax())
    picks, covered = [first], similarity[first].copy()

    def gain(candidate: int) -> float:
        return float(np.maximum(similarity[candidate] - covered, 0).sum())

    # a gain bounds later ones only after the first pick: with negative similarities it may rise before
    heap = [(-gain(candidate), candidate) for candidate in range(len(similarity)) if candidate != first]
    heapq.heapify(heap)
    while len(picks) < k:
        stale, candidate = heap[0]
        fresh = -gain(candidate)
        if fresh != stale:
            heapq.heapreplace(heap, (fresh, candidate))
            continue
        heapq.heappop(heap)
        picks.append(candidate)
        np.maximum(covered, similarity[candidate], out=covered)
    return np.array(picks)
