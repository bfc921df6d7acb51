"""K-means by scikit-learn, keeping the token nearest to each cluster's mean."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from floc.methods.registry import register
from floc.methods.shared import batches, clusters
from floc.tokens import TokenGrid

TOLERANCE = 1e-4  # scikit-learn's default
RIDGE = 1e-11  # relative to the largest square: a hundred times the rounding of products in float64
MIN_PROJECTED = 1 << 19  # values in a block above which projecting pays; smaller blocks take milliseconds anyway


@register("kmeans", "k-means++ and Lloyd's algorithm in scikit-learn", "select")
@dataclass(frozen=True)
class KMeans(clusters.BatchedClusterMethod):
    """Keep the token nearest to the mean of each k-means cluster.

    The clusters are those of `sklearn.cluster.KMeans(k, random_state=seed)` with its defaults: k-means++, one start,
    Euclidean distances of raw tokens. `block` sets the frames clustered together: 8 as in the FLoC paper;
    `block=None` is the whole video. Only members of a cluster can represent it; ties keep the lowest index.

    If a block is large and its tokens have at least twice as many features as there are tokens, scikit-learn gets
    float64 coordinates in the space that the tokens span. All distances, and so the clusters, are the same, in a
    quarter of the time. Only a random draw that depends on rounding can differ.

    For tokens on a GPU, or with `backend="torch"`, the same steps with the same random draws run in torch, on many
    blocks at once, from the distances between tokens in float64. Clusters can differ from scikit-learn's where its
    float32 rounding decides a draw or a tie; `backend="cpu"` always calls scikit-learn.

    If scikit-learn finds fewer clusters than requested because of duplicate tokens, the tokens farthest from their
    cluster's representative fill the budget, duplicates last.
    """

    name: ClassVar[str] = "kmeans"

    def _select_batches(self, grid: TokenGrid, spans: list[slice], budget: int) -> np.ndarray:
        return batches.select_in_batches(
            grid, spans, budget, 2, lambda batch: batches.select_by_means(batch, self.seed)
        )

    def _select(self, tokens: torch.Tensor, k: int) -> np.ndarray:
        from sklearn.cluster import KMeans as ScikitKMeans

        x = clusters.to_float32(tokens)
        raw = x.cpu().numpy()
        first, group = clusters.find_duplicates(raw)
        if len(first) <= k:
            return clusters.select_representatives(raw, group, k)
        points, tolerance = None, TOLERANCE
        if 2 * len(x) <= x.shape[1] and x.numel() >= MIN_PROJECTED:
            points = project_to_span(x)
            tolerance *= len(x) / x.shape[1]  # it is relative to the mean variance of a feature
        if points is None:
            # scaling by a power of two is exact, and the squares of large or small tokens then fit float32
            points, tolerance = np.ldexp(raw, -np.frexp(np.abs(raw).max())[1]), TOLERANCE
        fit = ScikitKMeans(k, random_state=self.seed, tol=tolerance, copy_x=False).fit(points)
        return clusters.select_representatives(raw, fit.labels_, k)


def project_to_span(x: torch.Tensor) -> np.ndarray | None:
    """Return [n, D] points, D >= n, in coordinates of the space they span around their mean: [n, n] float64.

    Returns None if rounding makes the Cholesky decomposition fail.
    """
    x = x.double()
    products = clusters.compute_products(x - x.mean(0)).cpu().numpy()
    # Any triangular matrix with these products has these distances. Centred points span fewer than n dimensions, so
    # each gets a small component of its own, which keeps all distances in proportion.
    products[np.diag_indices(len(x))] += RIDGE * products.diagonal().max()
    try:
        return np.linalg.cholesky(products)
    except np.linalg.LinAlgError:
        return None
