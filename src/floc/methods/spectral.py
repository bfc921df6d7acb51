"""Spectral clustering by scikit-learn, keeping the token nearest to each cluster's mean."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from floc.methods.registry import register
from floc.methods.shared import clusters
from floc.representatives import normalize

STARTS = 10  # of k-means in the embedding, scikit-learn's default


@register("spectral", "spectral clustering in scikit-learn", "select")
@dataclass(frozen=True)
class Spectral(clusters.ClusterMethod):
    """Keep the token nearest to the mean of each spectral cluster.

    The clusters are those of `sklearn.cluster.SpectralClustering(k, random_state=seed)` with its defaults: affinities
    exp(-distance^2), the first k eigenvectors by ARPACK, k-means with ten starts. `block` sets the frames
    clustered together: 8 as in the FLoC paper; `block=None` is the whole video. Only members of a cluster can
    represent it, by distances between the clustered tokens; ties keep the lowest index.

    The paper does not say how tokens are scaled. The affinities of raw tokens are almost all zero, the graph is
    disconnected and the result depends on rounding. Tokens are therefore scaled to length 1.

    The two steps of scikit-learn, `spectral_embedding` and `k_means`, are called separately, so that k-means can be
    given the starting points that its own k-means++ would draw, in a fraction of the time. If it finds fewer clusters
    than requested because of duplicate tokens, the tokens farthest from their cluster's representative fill the
    budget, duplicates last.
    """

    name: ClassVar[str] = "spectral"
    matrices: ClassVar[int] = 5
    # Much of the work holds Python's lock: on 16 cores a video took 8.2 s with one thread, 6.5 with two, 8.8 with four
    # and 11 with all.
    threads: ClassVar[int | None] = 2

    def _list_modules(self) -> tuple[str, ...]:
        return "sklearn.cluster", "sklearn.manifold"

    def _select(self, tokens: torch.Tensor, k: int) -> np.ndarray:
        x = normalize(clusters.to_float32(tokens))
        points = x.cpu().numpy()
        first, group = clusters.find_duplicates(points)
        labels = group if len(first) <= k else cluster_spectrally(x, k, self.seed)
        return clusters.select_representatives(points, labels, k)


def cluster_spectrally(x: torch.Tensor, k: int, seed: int) -> np.ndarray:
    """Return the cluster of each of [n, D] points, k < n: [n]."""
    from sklearn.cluster import k_means
    from sklearn.manifold import spectral_embedding

    affinity = clusters.compute_squared_distances(x).neg_().exp_().cpu().numpy()
    random = np.random.RandomState(seed)  # shared by both steps
    embedding = spectral_embedding(affinity, n_components=k, random_state=random, drop_first=False)
    return k_means(embedding, k, init=make_seeding(embedding), n_init=STARTS, random_state=random)[1]


def make_seeding(points: np.ndarray) -> Callable[..., np.ndarray]:
    """Return an `init` function that draws scikit-learn's k-means++ starts from [n, D] points, in less time."""
    distance = clusters.compute_squared_distances(torch.from_numpy(points - points.mean(0))).numpy()

    def seed(x: np.ndarray, k: int, random_state: np.random.RandomState) -> np.ndarray:
        n, trials = len(distance), 2 + int(np.log(k))
        drawn = np.empty(k, np.int64)
        drawn[0] = random_state.choice(n, p=np.full(n, 1 / n))
        closest = distance[drawn[0]]  # [n] to the nearest drawn point
        total = closest.sum()
        for i in range(1, k):
            draws = closest.cumsum().searchsorted(random_state.uniform(size=trials) * total)
            candidates = np.minimum(draws, n - 1)  # rounding can exceed the last
            distances = np.minimum(closest, distance[candidates])  # [trials, n]
            totals = distances.sum(1)
            best = totals.argmin()
            drawn[i], closest, total = candidates[best], distances[best], totals[best]
        return x[drawn]

    return seed
