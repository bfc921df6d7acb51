"""The blocks that are chosen from, and what float64 greedy makes of them: the value that others are held to."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from floc.selection.objective import snap
from floc.synthetic import film


@dataclass(frozen=True)
class Shape:
    """A film's grid."""

    frames: int
    height: int
    width: int
    dim: int

    @property
    def n(self) -> int:
        return self.frames * self.height * self.width

    def tokens(self, seed: int = 0) -> np.ndarray:
        """[frames, height, width, dim] float16."""
        return film(self.frames, self.height, self.width, self.dim, seed=seed)


@dataclass(frozen=True)
class BlockTokens:
    """One block in all the formats that contenders ask for."""

    tokens: np.ndarray  # [n, d] float16

    @cached_property
    def unit(self) -> np.ndarray:
        """[n, d] float64 at length 1."""
        x = self.tokens.astype(np.float64)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    @cached_property
    def cosine(self) -> np.ndarray:
        """[n, n] float64."""
        return self.unit @ self.unit.T

    @cached_property
    def matrix(self) -> np.ndarray:
        """[n, n] int16 fixed point."""
        return snap(self.cosine)


def value(similarity: np.ndarray, picks: np.ndarray) -> float:
    """f(picks) in float64."""
    return float(similarity[picks].max(0).sum())


def float64_greedy(similarity: np.ndarray, k: int) -> np.ndarray:
    """[k] picks of lazy greedy in float64, on [n, n] similarities: plain Python, so that there is little to get wrong.

    >>> float64_greedy(np.array([[.9, .9, 0], [0, 0, .5], [.1, .1, .1]]), 2).tolist()
    [0, 1]
    """
    first = int(similarity.sum(1).argmax())
    picks, covered = [first], similarity[first].copy()

    def gain(candidate: int) -> float:
        return float(np.maximum(similarity[candidate] - covered, 0).sum())

    # gains bound later ones only from the first pick on: negative similarities make them rise before
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
