"""K-means by scikit-learn, and of each cluster the token nearest to its mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.methods.base import Facts
from floc.methods.clusters import (
    chosen,
    dot_products,
    identical,
    on_device,
    representatives,
    require_block_and_seed,
    require_clusters,
)
from floc.methods.registry import register
from floc.tokens import TokenGrid

TOLERANCE = 1e-4  # scikit-learn's
OWN_LENGTH = 1e-11  # of the largest square, a hundred times what rounding adds to products in float64
LARGE = 1 << 19  # numbers in a block from which on other coordinates pay; below, clusters take milliseconds in any


@register("kmeans")
@dataclass(frozen=True)
class KMeans:
    """Keep of each k-means cluster the token nearest to the mean of its members.

    The clusters are those of `sklearn.cluster.KMeans(k, random_state=seed)` with its defaults: k-means++, one start,
    Euclidean on the tokens as they are, in blocks of 8 frames as in the FLoC paper (`block=None`: the whole video).
    The search for the nearest token is among the members, the first of several that are as near.

    Where a block is large, and its tokens have at least twice as many features as there are tokens, scikit-learn gets
    them in float64 and in coordinates of the space that they span: all distances, and so the clusters, are the same,
    at a quarter of the time. Only a draw that rounding decides can come out differently.

    Where scikit-learn finds fewer clusters than asked for, because tokens repeat, the budget is filled up with the
    tokens farthest from the one that represents their cluster, repeated tokens last, and of those the first ones.
    """

    facts: ClassVar[Facts] = Facts(
        "k-means++ and Lloyd's algorithm in scikit-learn", "select", searched=("n_clusters",)
    )

    n_clusters: int | None = None  # how many to keep, where no budget says it
    block: BlockSpec = 8  # frames clustered together; None: the whole video
    seed: int = 0

    def __post_init__(self) -> None:
        require_block_and_seed(self.block, self.seed)

    def native(self, grid: TokenGrid) -> Kept:
        """Keep a token of each of `n_clusters` clusters."""
        return self(grid, require_clusters("kmeans", self.n_clusters, grid.n))

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        try:
            from sklearn import cluster
        except ImportError as error:
            raise ImportError("method 'kmeans' needs scikit-learn: pip install 'floc-video[cluster]'") from error

        def choose(tokens: torch.Tensor, k: int) -> np.ndarray:
            x = on_device(tokens)
            raw = x.cpu().numpy()
            first, kind = identical(raw)
            if len(first) <= k:
                return representatives(raw, kind, k)
            points, tolerance = None, TOLERANCE
            if 2 * len(x) <= x.shape[1] and x.numel() >= LARGE:
                points = spanned(x)
                # it is a share of the mean variance of a feature, and there are fewer features now
                tolerance *= len(x) / x.shape[1]
            if points is None:
                # a power of two changes nothing else, and squares of large or small tokens fit float32
                points, tolerance = np.ldexp(raw, -np.frexp(np.abs(raw).max())[1]), TOLERANCE
            fit = cluster.KMeans(k, random_state=self.seed, tol=tolerance, copy_x=False).fit(points)
            return representatives(raw, fit.labels_, k)

        return grid.keep(chosen(grid, self.block, budget, choose))


def spanned(x: torch.Tensor) -> np.ndarray | None:
    """[n, n] float64, the [n, D] points in coordinates of the space that they span around their mean, D >= n.

    None where rounding leaves no such coordinates.
    """
    x = x.double()
    products = dot_products(x - x.mean(0)).cpu().numpy()
    # Any triangle with these products has these distances. Centred points span less than n dimensions, so each gets a
    # little length in a direction of its own, which leaves the distances in proportion.
    products[np.diag_indices(len(x))] += OWN_LENGTH * products.diagonal().max()
    try:
        return np.linalg.cholesky(products)
    except np.linalg.LinAlgError:
        return None
