"""Numbers that say what a choice of tokens is worth.

V are all tokens, S those kept (for a method that merges, the merged ones), and sim is the cosine. A zero token has a
cosine of 0 with everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from floc._arrays import Array, to_numpy, to_tensor
from floc.kept import Kept
from floc.representatives import TILE_BYTES, compute_cosines, find_nearest, normalize
from floc.tokens import TokenGrid


def averaged_sum_coverage(tokens: Array, kept: Kept) -> float:
    """Representativeness in the FLoC paper: the mean of sim(v, u) over all v in V and u in S.

    The mean of products is the product of the means: (mean of V at length 1) . (mean of S at length 1).
    """
    return sum_coverage(unit_sum(TokenGrid.from_array(tokens).tokens), kept)


def sum_coverage(total: torch.Tensor, kept: Kept) -> float:
    """`averaged_sum_coverage` where the sum of all tokens at length 1 is known already."""
    return float(total @ unit_sum(to_tensor(kept.features))) / (kept.n * len(kept))


def averaged_distance(tokens: Array, kept: Kept) -> float:
    """Diversity in the FLoC paper: the mean of 1 - sim(u, w) over all pairs of different u, w in S; nan for one.

    `tokens` is not looked at; it is there so that all these functions are called alike.
    """
    k = len(kept)
    if k == 1:
        return math.nan
    features = to_tensor(kept.features)
    total = unit_sum(features)
    themselves = sum(float((part.double() ** 2).sum()) for part in _unit_rows(features))
    return 1 - (float(total @ total) - themselves) / (k * (k - 1))


def closeness(tokens: Array, kept: Kept) -> np.ndarray:
    """[n] for every token, its highest cosine with any token kept."""
    return to_numpy(find_nearest(TokenGrid.from_array(tokens).tokens, to_tensor(kept.features))[0])


def coverage(tokens: Array, kept: Kept) -> float:
    """The mean over V of the highest sim(v, u) with any u in S: f(S) / n of the whole video as one set.

    `kept.coverage` can be lower: it looks at the representative that the method gave a token, in its block.
    """
    return float(closeness(tokens, kept).mean(dtype=np.float64))


def worst(tokens: Array, kept: Kept, share: float = 0.05) -> float:
    """The mean of `closeness` over the share of tokens that are covered worst."""
    return worst_of(closeness(tokens, kept), share)


def worst_of(closeness: np.ndarray, share: float = 0.05) -> float:
    """The mean of the lowest share of cosines, of at least one.

    >>> worst_of(np.array([0.9, 0.1, 0.3, 0.8]), share=0.5)
    0.2
    """
    count = max(1, math.ceil(share * len(closeness)))
    return float(np.partition(closeness, count - 1)[:count].mean(dtype=np.float64))


def redundancy(tokens: Array, kept: Kept, block: int = 32) -> float:
    """How much blocks repeat one another: the mean, over S, of the highest cosine with a kept token of another block.

    Blocks are stretches of `block` frames, whatever the method cut the video into. nan where all lies in one of them.
    `tokens` is not looked at.
    """
    features = to_tensor(kept.features)
    return repetition(features, features, to_tensor(kept.positions)[:, 0] // block)


def repetition(features: torch.Tensor, searched: torch.Tensor, block: torch.Tensor) -> float:
    """The mean of the highest cosine of a token with one of another block, which is looked for in other features.

    Args:
        features: [K, D].
        searched: [K, d] features in which the most similar one is found.
        block: [K] the block that each belongs to.
    """
    if not len(block) or bool((block == block[0]).all()):
        return math.nan
    rows = normalize(searched)
    step = max(1, TILE_BYTES // (4 * len(rows)))
    places = [
        (part @ rows.T).masked_fill(mine[:, None] == block[None], -torch.inf).argmax(1)
        for part, mine in zip(rows.split(step), block.split(step), strict=True)
    ]
    return float(compute_cosines(features, features, torch.cat(places)).double().mean())


def per_frame(kept: Kept) -> np.ndarray:
    """[T] int64, how many tokens of each frame were kept."""
    return np.bincount(to_numpy(kept.positions)[:, 0], minlength=kept.shape[0])


def per_second(kept: Kept, times_s: np.ndarray) -> np.ndarray:
    """[S] int64, how many tokens each second of the video keeps, where times_s [T] says when each frame is shown."""
    if len(times_s) != kept.shape[0]:
        raise ValueError(f"times_s must have one time for each of {kept.shape[0]} frames, got {len(times_s)}")
    second = np.floor(np.asarray(times_s) - times_s[0] + 1e-6).astype(np.int64)
    return np.bincount(second, weights=per_frame(kept)).astype(np.int64)


def zscored(values: np.ndarray) -> np.ndarray:
    """Values at mean 0 and standard deviation 1; all 0 where they are all the same.

    >>> zscored(np.array([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """
    values = np.asarray(values, np.float64)
    spread = values.std()
    return (values - values.mean()) / spread if spread > 1e-12 else np.zeros_like(values)


def unit_sum(tokens: torch.Tensor) -> torch.Tensor:
    """[D] float64, the sum of all tokens at length 1."""
    return torch.stack([part.double().sum(0) for part in _unit_rows(tokens)]).sum(0)


def _unit_rows(tokens: torch.Tensor) -> Iterator[torch.Tensor]:
    """Tokens at length 1, a few at a time."""
    rows = tokens.reshape(-1, tokens.shape[-1])
    for part in rows.split(max(1, TILE_BYTES // (4 * rows.shape[1]))):
        yield normalize(part)
