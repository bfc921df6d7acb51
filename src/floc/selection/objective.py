"""The objective, in the numbers everything here computes with.

f(S) = sum over tokens v of weight(v) x max over u in S of similarity(u, v), and f of nothing is 0.

Similarities are snapped once to int16 at 1/SCALE; from there on all is integer arithmetic, exact in any order, so every
backend makes the same picks with the same gains on the same matrix, ties included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

SCALE = 1 << 14  # one unit of similarity in fixed point; int16 has room for [-2, 2)
WEIGHT_SCALE = 1 << 8  # one unit of weight; small, so that gain x candidates still fits an int64

Metric = Literal["cosine", "gaussian"]
METRICS: tuple[str, ...] = get_args(Metric)


@dataclass(frozen=True)
class Similarity:
    """How alike two tokens are: the cosine or a Gaussian of their distance, then weighted towards detail.

    `detail` p > 1 makes it 1 - (1 - s)^p, where a negative s counts as 0: what is badly covered weighs more.
    """

    metric: Metric = "cosine"
    detail: float = 1

    @property
    def is_plain_cosine(self) -> bool:
        """Whether coverage can be read off the matrix."""
        return self.metric == "cosine" and self.detail == 1


def snap(similarity: np.ndarray) -> np.ndarray:
    """Similarities in [-1, 1] as int16 fixed point, rounded to nearest, halves to even.

    >>> snap(np.array([1.0, 0.5, -1.0])).tolist()
    [16384, 8192, -16384]
    """
    return np.rint(np.clip(similarity, -1, 1) * SCALE).astype(np.int16)


def value(similarity: np.ndarray, picks: np.ndarray, weights: np.ndarray | None = None) -> int:
    """f(picks) in fixed point, straight from the definition.

    >>> value(np.array([[9, 9, 0], [0, 0, 5], [1, 1, 1]]), np.array([0, 1]))
    23
    """
    if len(picks) == 0:
        return 0
    covered = similarity[picks].max(0).astype(np.int64)  # [N]
    return int(covered.sum() if weights is None else (covered * weights).sum())
