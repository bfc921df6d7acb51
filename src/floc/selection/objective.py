"""The objective of facility location, in fixed point.

f(S) = sum over tokens v of weight(v) x max over u in S of similarity(u, v), and f of the empty set is 0.

Similarities are rounded once to int16 multiples of 1/SCALE. From there on all arithmetic is on integers, whose sums do
not depend on the order of the terms. So every backend returns the same picks and gains for the same matrix, bit for
bit, ties included.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

SCALE = 1 << 14  # similarity 1.0 in fixed point; int16 holds [-2, 2)
WEIGHT_SCALE = 1 << 8  # weight 1.0 in fixed point; small, so that a gain and a candidate index fit one int64
PLAIN = 0.125  # share of the similarity on which `detail` has no effect
LARGEST_DETAIL = 1e30  # fits float32; a larger one gives the same similarities, 0 and 1

Metric = Literal["cosine", "gaussian"]
METRICS: tuple[str, ...] = get_args(Metric)


@dataclass(frozen=True)
class Similarity:
    """How to compute the similarity s of two tokens: cosine or Gaussian of the distance, then sharpened by `detail`.

    With `detail` p > 1 the similarity is PLAIN c + (1 - PLAIN) (1 - (1 - c)^p), where c = max(s, 0). It gives poorly
    covered tokens more influence. Without the plain part all similarities near 1 would round to 1, so that on static
    video most picks would gain nothing.
    """

    metric: Metric = "cosine"
    detail: float = 1

    @property
    def is_plain_cosine(self) -> bool:
        """Whether the matrix holds the cosines themselves, so that coverage can be read from it."""
        return self.metric == "cosine" and self.detail == 1

    def tabulate_cosines(self) -> np.ndarray:
        """Return [SCALE + 1] float64, the cosine of every fixed-point similarity from 0 to 1."""
        cosine = np.linspace(0, 1, 4 * SCALE + 1)
        gap = 1 - cosine
        sharpened = 1 - gap * (PLAIN + (1 - PLAIN) * gap ** (min(self.detail, LARGEST_DETAIL) - 1))
        return np.interp(np.arange(SCALE + 1) / SCALE, sharpened, cosine)
