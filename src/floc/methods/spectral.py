"""Spectral clustering by scikit-learn, and of each cluster the token nearest to its mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import numpy as np
import torch

from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.methods.base import Facts
from floc.methods.clusters import (
    chosen,
    identical,
    on_device,
    representatives,
    require_block_and_seed,
    require_clusters,
    require_memory,
    squared_distances,
)
from floc.methods.registry import register
from floc.representatives import normalize
from floc.tokens import TokenGrid

STARTS = 10  # of k-means in the embedding, as in scikit-learn

# Blocks at a time. Much of the work holds Python's lock: on 16 cores a film took 8.2 s with one thread, 6.5 with two,
# 8.8 with four and 11 with all.
AT_ONCE = 2


@register("spectral")
@dataclass(frozen=True)
class Spectral:
    """Keep of each spectral cluster the token nearest to the mean of its members.

    The clusters are those of `sklearn.cluster.SpectralClustering(k, random_state=seed)` with its defaults: affinities
    exp(-gamma * distance^2), the first k eigenvectors by ARPACK, k-means with ten starts; in blocks of 8 frames as in
    the FLoC paper (`block=None`: the whole video). The nearest token is searched for among the members, in the space
    that was clustered, the first of several that are as near.

    The paper does not say on what; with gamma = 1 the affinities of raw tokens are all but zero, the graph falls apart
    and rounding decides. So tokens are brought to length 1 first; `normalise=False` takes them as they are, and
    scikit-learn warns where the graph is not connected.

    Its two steps, `spectral_embedding` and `k_means`, are called one by one, to hand k-means the starts that its own
    k-means++ would draw at a fraction of the time. Where it finds fewer clusters than asked for, because tokens
    repeat, the budget is filled up with the tokens farthest from the one that represents their cluster, repeated
    tokens last, and of those the first ones.
    """

    facts: ClassVar[Facts] = Facts("spectral clustering in scikit-learn", "select", searched=("n_clusters",))

    n_clusters: int | None = None  # how many to keep, where no budget says it
    block: BlockSpec = 8  # frames clustered together; None: the whole video
    seed: int = 0
    normalise: bool = True  # tokens at length 1
    gamma: float = 1.0

    def __post_init__(self) -> None:
        require_block_and_seed(self.block, self.seed)
        if not (isinstance(self.gamma, Real) and 0 < self.gamma < math.inf):
            raise ValueError(f"gamma must be a number above 0, got {self.gamma!r}")

    def native(self, grid: TokenGrid) -> Kept:
        """Keep a token of each of `n_clusters` clusters."""
        return self(grid, require_clusters("spectral", self.n_clusters, grid.n))

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        try:
            import sklearn.cluster
            import sklearn.manifold  # noqa: F401  # here, not first in one of the threads
        except ImportError as error:
            raise ImportError("method 'spectral' needs scikit-learn: pip install 'floc-video[cluster]'") from error
        require_memory("spectral", grid, self.block, 5)

        def choose(tokens: torch.Tensor, k: int) -> np.ndarray:
            x = on_device(tokens)
            if self.normalise:
                x = normalize(x)
            points = x.cpu().numpy()
            first, kind = identical(points)
            if len(first) <= k:
                return representatives(points, kind, k)
            return representatives(points, labels_of(x, k, self.gamma, self.seed), k)

        return grid.keep(chosen(grid, self.block, budget, choose, at_once=AT_ONCE))


def labels_of(x: torch.Tensor, k: int, gamma: float, seed: int) -> np.ndarray:
    """[n] the cluster of each of [n, D] points, k < n."""
    from sklearn.cluster import k_means
    from sklearn.manifold import spectral_embedding

    affinity = squared_distances(x).mul_(-gamma).exp_().cpu().numpy()
    random = np.random.RandomState(seed)  # one for both steps
    embedding = spectral_embedding(affinity, n_components=k, random_state=random, drop_first=False)
    return k_means(embedding, k, init=seeding(embedding), n_init=STARTS, random_state=random)[1]


def seeding(points: np.ndarray) -> Callable[..., np.ndarray]:
    """The start that scikit-learn's k-means++ draws, for many starts on the same [n, D] points.

    It draws by distances to the points drawn so far; here all distances are computed once, not anew in every step.
    """
    distance = squared_distances(torch.from_numpy(points - points.mean(0))).numpy()

    def start(x: np.ndarray, k: int, random_state: np.random.RandomState) -> np.ndarray:
        n, trials = len(distance), 2 + int(np.log(k))
        drawn = np.empty(k, np.int64)
        drawn[0] = random_state.choice(n, p=np.full(n, 1 / n))
        closest = distance[drawn[0]]  # [n] to the nearest point drawn
        total = closest.sum()
        for i in range(1, k):
            places = closest.cumsum().searchsorted(random_state.uniform(size=trials) * total)
            candidates = np.minimum(places, n - 1)  # rounding can point behind the last
            after = np.minimum(closest, distance[candidates])  # [trials, n]
            totals = after.sum(1)
            best = totals.argmin()
            drawn[i], closest, total = candidates[best], after[best], totals[best]
        return x[drawn]

    return start
