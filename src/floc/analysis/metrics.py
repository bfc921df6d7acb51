"""Metrics of a selection of tokens.

V is the set of all tokens, S the set of kept tokens (merged tokens, for a method that merges), and sim is the cosine
similarity. A zero token has a cosine of 0 with every token.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch

from floc._arrays import Array, to_numpy, to_tensor
from floc.kept import Kept
from floc.representatives import TILE_BYTES, compute_cosines, find_nearest, normalize
from floc.tokens import TokenGrid


def averaged_sum_coverage(tokens: Array, kept: Kept) -> float:
    """Return the representativeness of the FLoC paper: the mean of sim(v, u) over all v in V and u in S."""
    return mean_cosine(sum_normalized(TokenGrid.from_array(tokens).tokens), kept)


def mean_cosine(token_sum: torch.Tensor, kept: Kept) -> float:
    """Return `averaged_sum_coverage`, given the sum [D] of all normalized tokens."""
    # the mean of products is the product of means
    return float(token_sum @ sum_normalized(to_tensor(kept.features))) / (kept.n * len(kept))


def averaged_distance(tokens: Array, kept: Kept) -> float:
    """Return the diversity of the FLoC paper: the mean of 1 - sim(u, w) over pairs of different u, w in S.

    NaN for one kept token. `tokens` is unused; it makes all metrics take the same arguments.
    """
    k = len(kept)
    if k == 1:
        return math.nan
    features = to_tensor(kept.features)
    total = sum_normalized(features)
    self_similarity = sum(float((part.double() ** 2).sum()) for part in _normalized_parts(features))
    return 1 - (float(total @ total) - self_similarity) / (k * (k - 1))


def closeness(tokens: Array, kept: Kept) -> np.ndarray:
    """Return [n] the highest cosine of every token with any kept token."""
    return to_numpy(find_nearest(TokenGrid.from_array(tokens).tokens, to_tensor(kept.features))[0])


def coverage(tokens: Array, kept: Kept) -> float:
    """Return the mean over V of the highest sim(v, u) with any u in S.

    `kept.coverage` can be lower: it uses the representative that the method assigned to each token, in its block.
    """
    return float(closeness(tokens, kept).mean(dtype=np.float64))


def worst_coverage(tokens: Array, kept: Kept, share: float = 0.05) -> float:
    """Return the mean of `closeness` over the given share of tokens with the lowest values."""
    return mean_of_lowest(closeness(tokens, kept), share)


def mean_of_lowest(values: np.ndarray, share: float = 0.05) -> float:
    """Return the mean of the lowest share of values, at least one."""
    count = max(1, math.ceil(share * len(values)))
    return float(np.partition(values, count - 1)[:count].mean(dtype=np.float64))


def redundancy(tokens: Array, kept: Kept, block: int = 32) -> float:
    """Return how much blocks repeat each other: the mean over S of the highest cosine with a token of another block.

    Blocks are runs of `block` frames, independent of the method's own blocks. NaN if all kept tokens are in one block.
    `tokens` is unused.
    """
    features = to_tensor(kept.features)
    return redundancy_of(features, features, to_tensor(kept.positions)[:, 0] // block)


def redundancy_of(features: torch.Tensor, search_features: torch.Tensor, blocks: torch.Tensor) -> float:
    """Return the mean of the highest cosine of each token [K, D] with one of another block, by `blocks` [K].

    The most similar token is found in `search_features` [K, d]; its cosine is computed from `features`.
    """
    if len(blocks.unique()) < 2:
        return math.nan
    rows = normalize(search_features)
    step = max(1, TILE_BYTES // (4 * len(rows)))
    parts = zip(rows.split(step), blocks.split(step), strict=True)
    nearest = [(part @ rows.T).masked_fill(own[:, None] == blocks, -torch.inf).argmax(1) for part, own in parts]
    return float(compute_cosines(features, features, torch.cat(nearest)).double().mean())


def count_per_frame(kept: Kept) -> np.ndarray:
    """Return [T] int64, the number of kept tokens in each frame."""
    return np.bincount(to_numpy(kept.positions)[:, 0], minlength=kept.shape[0])


def count_per_second(kept: Kept, times_s: np.ndarray) -> np.ndarray:
    """Return [S] int64, the number of kept tokens in each second; times_s [T] is the time of each frame."""
    if len(times_s) != kept.shape[0]:
        raise ValueError(f"times_s must have one time for each of {kept.shape[0]} frames, got {len(times_s)}")
    second = np.floor(np.asarray(times_s) - times_s[0] + 1e-6).astype(np.int64)
    return np.bincount(second, weights=count_per_frame(kept)).astype(np.int64)


def zscore(values: np.ndarray) -> np.ndarray:
    """Scale values to mean 0 and standard deviation 1; equal values become 0."""
    values = np.asarray(values, np.float64)
    deviation = values.std()
    return (values - values.mean()) / deviation if deviation > 1e-12 else np.zeros_like(values)


def sum_normalized(tokens: torch.Tensor) -> torch.Tensor:
    """Return [D] float64, the sum of all tokens [..., D] scaled to length 1."""
    return torch.stack([part.double().sum(0) for part in _normalized_parts(tokens)]).sum(0)


def _normalized_parts(tokens: torch.Tensor) -> Iterator[torch.Tensor]:
    rows = tokens.reshape(-1, tokens.shape[-1])
    for part in rows.split(max(1, TILE_BYTES // (4 * rows.shape[1]))):
        yield normalize(part)
