"""K-medoids: FasterPAM by the kmedoids package, or the alternating algorithm."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from floc._checks import check_choice
from floc.methods.registry import register
from floc.methods.shared import batches, clusters
from floc.tokens import TokenGrid

MAX_ALTERNATIONS = 300


@register("kmedoids", "Schubert and Rousseeuw, FasterPAM, Information Systems 2021", "select")
@dataclass(frozen=True)
class KMedoids(clusters.BatchedClusterMethod):
    """Keep the medoids: the tokens with the smallest sum of distances from all tokens to their nearest medoid.

    Distances are Euclidean, of raw tokens. They are rounded to 32 bits, so that ties are ties on every machine. `block`
    sets the frames clustered together: 8 as in the FLoC paper; `block=None` is the whole video.

    The paper names scikit-learn, which has no k-medoids. Its companion scikit-learn-extra uses the alternating
    algorithm, whose sums of distances are a tenth to a quarter larger than FasterPAM's. The default is therefore
    `kmedoids.fasterpam` with at most 100 iterations on one thread, so that the result does not depend on the number
    of cores. It starts from medoids drawn with `seed` (`init="random"`) or from PAM's deterministic start
    (`init="build"`).

    `algorithm="alternate"` reproduces the defaults of `sklearn_extra.cluster.KMedoids(k)`, which does not run with
    numpy 2. It starts from the k tokens with the smallest sum of distances, assigns every token to its nearest medoid,
    replaces each medoid by a member with a smaller sum of distances to the other members, and repeats until nothing
    changes. It is deterministic: it takes no `init`, and `seed` has no effect.

    For tokens on a GPU, or with `backend="torch"`, distances and swaps are computed in torch, for many blocks at once
    and without the package. There, every swap is the best of all (PAM with FastPAM1's sums); FasterPAM swaps as soon as
    it finds an improvement. Both stop when no single swap improves the sum of distances, usually at other medoids whose
    sum is within 1%. The alternating algorithm is the same.

    With duplicate tokens, `init="build"` stops once every token equals a medoid, and the alternating algorithm can
    select a medoid twice. The tokens farthest from their nearest medoid then fill the budget; ties keep the lowest
    index.
    """

    name: ClassVar[str] = "kmedoids"
    package: ClassVar[str] = "the kmedoids package"
    matrices: ClassVar[int] = 3

    init: str = "random"  # or "build"
    algorithm: str = "fasterpam"  # or "alternate"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("init", self.init, ("random", "build"))
        check_choice("algorithm", self.algorithm, ("fasterpam", "alternate"))
        if self.algorithm == "alternate" and self.init != "random":
            raise ValueError(f"init={self.init!r} applies to FasterPAM only; remove it, or algorithm='alternate'")

    def _list_modules(self) -> tuple[str, ...]:
        return ("kmedoids",) if self.algorithm == "fasterpam" else ()

    def _select_batches(self, grid: TokenGrid, spans: list[slice], budget: int) -> np.ndarray:
        def select(batch: batches.Batch) -> torch.Tensor:
            if self.algorithm == "alternate":
                return batches.alternate_medoids(batch)
            return batches.select_medoids(batch, self.init, self.seed)

        return batches.select_in_batches(grid, spans, budget, 1, select)

    def _select(self, tokens: torch.Tensor, k: int) -> np.ndarray:
        squared = clusters.compute_squared_distances(clusters.to_float32(tokens))
        distance = round_distances(squared.sqrt_()).cpu().numpy()
        if self.algorithm == "alternate":
            return fill_up(alternate(distance, k), distance, k)
        from kmedoids import fasterpam

        seed = self.seed if self.init == "random" else None
        fit = fasterpam(distance, k, max_iter=100, init=self.init, random_state=seed, n_cpu=1)
        return fill_up(fit.medoids.astype(np.int64), distance, k)


def round_distances(distance: torch.Tensor) -> torch.Tensor:
    """Scale and round distances, in place, to whole numbers of at most 32 bits in float64.

    Their sums are exact in any order. Otherwise rounding would break ties, such as in every cluster of two tokens.
    """
    return distance.mul_(2.0 ** (32 - math.frexp(float(distance.max()))[1])).round_()


def alternate(distance: np.ndarray, k: int) -> np.ndarray:
    """Find [k] medoids of [n, n] distances by alternating between assigning tokens and moving medoids.

    >>> alternate(np.abs(np.subtract.outer([0, 1, 2, 9, 10, 11.0], [0, 1, 2, 9, 10, 11.0])), 2).tolist()
    [1, 4]
    """
    medoids = np.argsort(distance.sum(1), kind="stable")[:k]
    for _ in range(MAX_ALTERNATIONS):
        labels = distance[:, medoids].argmin(1)
        costs = np.where(labels[:, None] == labels, distance, 0).sum(1)  # [n] to the members of its cluster
        order = np.lexsort((costs, labels))
        present, starts = np.unique(labels[order], return_index=True)
        best = order[starts]
        better = costs[best] < costs[medoids[present]]
        if not better.any():
            break
        medoids[present[better]] = best[better]
    return medoids


def fill_up(medoids: np.ndarray, distance: np.ndarray, k: int) -> np.ndarray:
    """Return [k] distinct tokens: the medoids, then the tokens farthest from all of them."""
    medoids = np.unique(medoids)
    rest = np.setdiff1d(np.arange(len(distance)), medoids)
    farthest = np.argsort(-distance[np.ix_(rest, medoids)].min(1), kind="stable")
    return np.concatenate([medoids, rest[farthest[: k - len(medoids)]]])
