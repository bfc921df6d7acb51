"""K-medoids: FasterPAM by the kmedoids package, or the alternating algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from floc._checks import check_choice
from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.methods.base import Facts
from floc.methods.clusters import (
    chosen,
    on_device,
    require_block_and_seed,
    require_clusters,
    require_memory,
    squared_distances,
)
from floc.methods.registry import register
from floc.tokens import TokenGrid

ALTERNATIONS = 300  # at most


@register("kmedoids")
@dataclass(frozen=True)
class KMedoids:
    """Keep the tokens from which all others are least far in sum: the medoids.

    Euclidean on the tokens as they are, in blocks of 8 frames as in the FLoC paper (`block=None`: the whole video).
    Distances are rounded to 32 bits: then a tie is a tie on every machine, and does not depend on how sums are rounded.
    The paper says scikit-learn, which has no k-medoids; its companion scikit-learn-extra alternates, and ends with sums
    of distances a tenth to a quarter larger than FasterPAM's. So the default is `kmedoids.fasterpam` with at most 100
    iterations, from medoids drawn with `seed` (`init="random"`) or from PAM's own start without any chance
    (`init="build"`); on one thread, so that the number of cores does not change the order of its swaps.

    `algorithm="alternate"` gives what `sklearn_extra.cluster.KMedoids(k)` does by default, without that package, which
    does not run with numpy 2: from the k tokens with the least sum of distances, give every token to the nearest
    medoid, replace each medoid by a member with a smaller sum of distances to the members, until none changes. There
    is no chance in it, so no `init`, and `seed` has no effect.

    Where tokens repeat, `init="build"` stops once every token has a medoid like it, and the alternating algorithm can
    name a medoid twice. The budget is filled up with the tokens farthest from their nearest medoid, the first of those
    that are as far.
    """

    facts: ClassVar[Facts] = Facts(
        "Schubert and Rousseeuw, FasterPAM, Information Systems 2021", "select", searched=("n_clusters",)
    )

    n_clusters: int | None = None  # how many to keep, where no budget says it
    block: BlockSpec = 8  # frames clustered together; None: the whole video
    seed: int = 0
    init: str = "random"  # or "build"
    algorithm: str = "fasterpam"  # or "alternate"

    def __post_init__(self) -> None:
        require_block_and_seed(self.block, self.seed)
        check_choice("init", self.init, ("random", "build"))
        check_choice("algorithm", self.algorithm, ("fasterpam", "alternate"))
        if self.algorithm == "alternate" and self.init != "random":
            raise ValueError(
                f"init={self.init!r} is a start of FasterPAM; algorithm='alternate' has a start of its own"
            )

    def native(self, grid: TokenGrid) -> Kept:
        """Keep a token of each of `n_clusters` clusters."""
        return self(grid, require_clusters("kmedoids", self.n_clusters, grid.n))

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        require_memory("kmedoids", grid, self.block, 3)
        medoids_of = self._fasterpam() if self.algorithm == "fasterpam" else alternate

        def choose(tokens: torch.Tensor, k: int) -> np.ndarray:
            distance = whole(squared_distances(on_device(tokens)).sqrt_()).cpu().numpy()
            return filled_up(medoids_of(distance, k), distance, k)

        return grid.keep(chosen(grid, self.block, budget, choose))

    def _fasterpam(self) -> Callable[[np.ndarray, int], np.ndarray]:
        try:
            from kmedoids import fasterpam
        except ImportError as error:
            raise ImportError(
                "method 'kmedoids' needs the kmedoids package: pip install 'floc-video[cluster]'"
            ) from error
        seed = self.seed if self.init == "random" else None
        return lambda distance, k: fasterpam(
            distance, k, max_iter=100, init=self.init, random_state=seed, n_cpu=1
        ).medoids.astype(np.int64)


def whole(distance: torch.Tensor) -> torch.Tensor:
    """Distances as whole numbers of at most 32 bits, still in float64.

    Sums of them are exact in any order. Ties, as in every cluster of two, then are ties on every machine and device;
    else rounding would decide whether FasterPAM swaps the one for the other.
    """
    return distance.mul_(2.0 ** (32 - math.frexp(float(distance.max()))[1])).round_()


def alternate(distance: np.ndarray, k: int) -> np.ndarray:
    """[k] medoids from [n, n] distances, by turns: members to the nearest medoid, medoids to the middle of members.

    >>> alternate(np.abs(np.subtract.outer([0, 1, 2, 9, 10, 11.0], [0, 1, 2, 9, 10, 11.0])), 2).tolist()
    [1, 4]
    """
    medoids = np.argsort(distance.sum(1), kind="stable")[:k]
    for _ in range(ALTERNATIONS):
        labels = distance[:, medoids].argmin(1)
        costs = np.where(labels[:, None] == labels, distance, 0).sum(1)  # [n] of each token to its cluster
        order = np.lexsort((costs, labels))
        present, starts = np.unique(labels[order], return_index=True)
        best = order[starts]
        better = costs[best] < costs[medoids[present]]
        if not better.any():
            break
        medoids[present[better]] = best[better]
    return medoids


def filled_up(medoids: np.ndarray, distance: np.ndarray, k: int) -> np.ndarray:
    """[k] distinct tokens: the medoids, and where those are fewer, the tokens farthest from all of them."""
    medoids = np.unique(medoids)
    rest = np.setdiff1d(np.arange(len(distance)), medoids)
    farthest = np.argsort(-distance[np.ix_(rest, medoids)].min(1), kind="stable")
    return np.concatenate([medoids, rest[farthest[: k - len(medoids)]]])
