"""K-means and k-medoids of many equally large blocks at once, in torch, from the distances of their tokens.

Distances are rounded to whole numbers in float64, [B, n, n], so that their sums are exact in any order: the result does
not depend on the device. Only the loops over picks, iterations and swaps are in Python. Nothing is read from the device
but whether all blocks are done, once an iteration of k-means and once every CHECK_EVERY swaps.
"""

from collections.abc import Callable

import numpy as np
import torch

from floc import blocks
from floc._system import check_memory
from floc.methods.shared.clusters import NO_DISTANCE
from floc.tokens import TokenGrid

MAX_ITERATIONS = 300  # of k-means and of the alternating algorithm, as in scikit-learn
TOLERANCE = 1e-4  # of k-means, relative to the mean variance of a feature, as in scikit-learn
CHECK_EVERY = 8  # swaps
BATCH_BYTES = 1 << 31  # of matrices at a time
MATRICES = 6  # [n, n] of a block at a time


class Batch:
    """Equally large blocks with the same number of tokens to keep."""

    def __init__(self, x: torch.Tensor, k: int, power: int) -> None:
        """Compute Euclidean distances of [B, n, D] tokens (`power` 1) or their squares (`power` 2)."""
        self.k, self.dim = k, x.shape[2]
        b, self.n = x.shape[:2]
        x = x.double()
        products = x @ x.mT
        squares = products.diagonal(dim1=1, dim2=2)
        lengths = squares[:, :, None] + squares[:, None]
        distance = lengths - (products + products.mT)  # symmetric to the last bit
        distance.masked_fill_(distance <= NO_DISTANCE * lengths, 0)
        distance.diagonal(dim1=1, dim2=2).zero_()
        distance = distance if power == 2 else distance.sqrt_()
        # at most 2 ** 52 in sum, at most 2 ** 32 each
        largest = min(2.0**32, 2.0**52 / self.n)
        scale = largest / distance.amax((1, 2)).clamp(min=torch.finfo(torch.float64).tiny)
        self.distance = distance.mul_(scale.clamp(max=1e300)[:, None, None]).round_()  # [B, n, n]
        self.blocks = torch.arange(b, device=x.device)

    def get_rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the distances of [B, m] tokens to all: [B, m, n]."""
        return self.distance.gather(1, tokens[..., None].expand(-1, -1, self.n))

    def make_members(self, labels: torch.Tensor) -> torch.Tensor:
        """Return [B, n, k], 1 where a token has a label and 0 elsewhere."""
        members = self.distance.new_zeros(len(labels), self.n, self.k)
        return members.scatter_(2, labels[..., None], 1)

    def find_first_best(self, cost: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the member of each cluster with the lowest of [B, n] costs, the first on ties, n if empty: [B, k]."""
        least = cost.new_full((len(cost), self.k), torch.inf).scatter_reduce(1, labels, cost, "amin")
        places = torch.arange(self.n, device=cost.device).expand_as(labels)
        places = torch.where(cost == least.gather(1, labels), places, self.n)
        return labels.new_full((len(cost), self.k), self.n).scatter_reduce(1, labels, places, "amin")

    def fill_up(self, picks: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        """Return k distinct tokens of each block: [B, m] picks, n for none, then the farthest by [B, n] distance."""
        is_picked = torch.zeros_like(distance[:, :1]).expand(-1, self.n + 1).scatter(1, picks, 1)[:, : self.n]
        order = distance.sort(dim=1, descending=True, stable=True).indices
        order = order.gather(1, is_picked.gather(1, order).sort(dim=1, descending=True, stable=True).indices)
        return order[:, : self.k]


def select_in_batches(
    grid: TokenGrid, spans: list[slice], budget: int, power: int, select: Callable[[Batch], torch.Tensor]
) -> np.ndarray:
    """Select tokens in every block by `select(batch)` -> [B, k] places; return flat indices: [budget] int64.

    Blocks with the same number of tokens and of picks are selected from together, as many as fit BATCH_BYTES.
    """
    sizes = [(span.stop - span.start) * grid.cells for span in spans]
    starts = torch.tensor([span.start * grid.cells for span in spans])
    check_memory(max(sizes), 8 * MATRICES * max(sizes) ** 2, grid.tokens.device, "block=8, or fewer frames")
    groups: dict[tuple[int, int], list[int]] = {}
    for i, k in enumerate(blocks.share_budget(sizes, budget).tolist()):
        if k:
            groups.setdefault((sizes[i], k), []).append(i)
    picks = []
    for (size, k), members in groups.items():
        most = max(1, BATCH_BYTES // (8 * MATRICES * size**2))
        for first in range(0, len(members), most):
            part = members[first : first + most]
            if k == size:
                places = torch.arange(size).expand(len(part), -1)
            else:
                x = torch.stack([grid.frames(spans[i]).detach() for i in part])
                places = select(Batch(x, k, power)).cpu()
            picks.append((starts[part][:, None] + places).flatten())
    return torch.cat(picks).sort().values.numpy()


def select_by_means(batch: Batch, seed: int) -> torch.Tensor:
    """Keep the token nearest to the mean of each cluster of k-means, the first on ties: [B, k]."""
    labels = _run_lloyd(batch, _draw_starts(batch, seed))
    members = batch.make_members(labels)
    to_mean = _Centres(batch, members).distance.gather(2, labels[..., None])[..., 0]
    picks = batch.find_first_best(to_mean, labels)
    # with duplicate tokens, there may be fewer clusters
    representative = picks.gather(1, labels)
    return batch.fill_up(picks, batch.distance.gather(2, representative[..., None])[..., 0])


class _Centres:
    """The squared distances of all tokens to the means of clusters, from those between tokens."""

    def __init__(self, batch: Batch, members: torch.Tensor) -> None:
        self.members = members  # [B, n, k]
        self.counts = members.sum(1)  # [B, k]
        self.sums = batch.distance @ members  # [B, n, k] from each token to the members, together
        sizes = self.counts.clamp(min=1)
        self.spread = (members * self.sums).sum(1) / (2 * sizes * sizes)  # [B, k] of members around their mean
        self.distance = self.sums / sizes[:, None] - self.spread[:, None]
        self.distance.masked_fill_(self.counts[:, None] == 0, torch.inf)

    def measure_shift(self, before: "_Centres") -> torch.Tensor:
        """Return the sum of squared distances from other centres: [B]."""
        sizes = self.counts.clamp(min=1) * before.counts.clamp(min=1)
        between = (self.members * before.sums).sum(1) / sizes
        shift = between - self.spread - before.spread
        return shift.masked_fill((self.counts == 0) | (before.counts == 0), 0).clamp(min=0).sum(1)


def _draw_starts(batch: Batch, seed: int) -> torch.Tensor:
    """Draw centres by greedy k-means++, with the random numbers that scikit-learn would draw: [B, k]."""
    b, n, k = len(batch.blocks), batch.n, batch.k
    device = batch.distance.device
    random, trials = np.random.RandomState(seed), 2 + int(np.log(k))
    first = int(random.choice(n, p=np.full(n, 1 / n)))
    draws = torch.from_numpy(random.uniform(size=(k - 1, trials))).to(device)
    picks = torch.full((b, k), first, device=device)
    closest = batch.distance[:, first]  # [B, n] to the nearest centre
    for i in range(1, k):
        values = draws[i - 1] * closest.sum(1, keepdim=True)
        candidates = torch.searchsorted(closest.cumsum(1), values).clamp_(max=n - 1)  # [B, trials]
        distance = torch.minimum(closest[:, None], batch.get_rows(candidates))
        best = distance.sum(2).argmin(1, keepdim=True)
        picks[:, i] = candidates.gather(1, best)[:, 0]
        closest = distance.gather(1, best[..., None].expand(-1, -1, n))[:, 0]
    return picks


def _run_lloyd(batch: Batch, starts: torch.Tensor) -> torch.Tensor:
    """Return the cluster of each token when k-means has converged: [B, n]."""
    start_members = torch.zeros_like(batch.distance[:, :, : batch.k]).scatter_(1, starts[:, None], 1)
    centres = _Centres(batch, start_members)
    # the mean variance of a feature, as sums of squared distances
    tolerance = TOLERANCE * batch.distance.mean((1, 2)) / 2 / batch.dim
    is_done = torch.zeros_like(batch.blocks, dtype=torch.bool)
    before = torch.full_like(batch.distance[:, 0], -1, dtype=torch.int64)
    for _ in range(MAX_ITERATIONS):
        labels = centres.distance.argmin(2)
        moved = _fill_empty_clusters(batch, centres, labels)
        members = torch.where(is_done[:, None, None], centres.members, batch.make_members(moved))
        after = _Centres(batch, members)
        is_done |= (labels == before).all(1) | (after.measure_shift(centres) <= tolerance)
        centres, before = after, labels
        if bool(is_done.all()):  # the only number that is read
            break
    return centres.distance.argmin(2)


def _fill_empty_clusters(batch: Batch, centres: _Centres, labels: torch.Tensor) -> torch.Tensor:
    """Give each cluster without members the token that is farthest from its own centre, as scikit-learn does."""
    counts = torch.zeros_like(centres.counts).scatter_add_(1, labels, torch.ones_like(labels, dtype=torch.float64))
    farness = centres.distance.gather(2, labels[..., None])[..., 0]
    by_farness = farness.sort(dim=1, descending=True, stable=True).indices
    is_empty = (counts == 0) & (farness.amax(1, keepdim=True) > 0)
    place = (is_empty.cumsum(1) - 1).clamp(min=0)
    token = torch.where(is_empty, by_farness.gather(1, place), batch.n)
    cluster = torch.arange(batch.k, device=labels.device).expand_as(token)
    return torch.cat([labels, labels[:, :1]], 1).scatter_(1, token, cluster)[:, : batch.n]


def select_medoids(batch: Batch, init: str, seed: int) -> torch.Tensor:
    """Keep medoids that no single swap with another token improves, starting as `init` says: [B, k]."""
    if init == "build":
        medoids = _build_medoids(batch)
    else:
        drawn = np.random.RandomState(seed).choice(batch.n, batch.k, replace=False)
        medoids = torch.from_numpy(drawn).to(batch.blocks.device).expand(len(batch.blocks), -1).contiguous()
    is_better = True
    while is_better:
        for _ in range(CHECK_EVERY):
            medoids, has_swapped = _swap_best(batch, medoids)
        is_better = bool(has_swapped.any())  # the only number that is read
    return batch.fill_up(medoids, batch.get_rows(medoids).amin(1))


def _build_medoids(batch: Batch) -> torch.Tensor:
    """Choose medoids one after the other, each the token that reduces the sum of distances most: [B, k]."""
    closest = batch.distance.amax((1, 2))[:, None].expand(-1, batch.n)
    picks: list[torch.Tensor] = []
    for _ in range(batch.k):
        total = torch.minimum(batch.distance, closest[:, :, None]).sum(1)
        if picks:
            total = total.scatter(1, torch.cat(picks, 1), torch.inf)
        picks.append(total.argmin(1, keepdim=True))
        closest = torch.minimum(closest, batch.get_rows(picks[-1])[:, 0])
    return torch.cat(picks, 1)


def _swap_best(batch: Batch, medoids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Swap a medoid of each block with the token that reduces the sum of distances most; also return which did."""
    distance = batch.distance
    rows = batch.get_rows(medoids)  # [B, k, n]
    nearest, labels = rows.min(1)
    second = rows.scatter(1, labels[:, None], torch.inf).amin(1).clamp(max=2.0**33)  # all are less
    members = batch.make_members(labels)
    # what changes without a medoid: its tokens go to their second nearest, or to the candidate if that is nearer
    lost = ((second - nearest)[:, None] @ members)[:, 0]  # [B, k]
    nearer = torch.minimum(torch.maximum(distance, nearest[:, :, None]), second[:, :, None]) - second[:, :, None]
    change = members.mT @ nearer + lost[..., None]  # [B, k, n]
    change += (distance - nearest[:, :, None]).clamp_(max=0).sum(1)[:, None]  # tokens nearer to the candidate
    least, place = change.flatten(1).min(1)
    has_swapped = least < 0
    slot, token = place // batch.n, place % batch.n
    swapped = medoids.scatter(1, slot[:, None], token[:, None])
    return torch.where(has_swapped[:, None], swapped, medoids), has_swapped


def alternate_medoids(batch: Batch) -> torch.Tensor:
    """Alternate between assigning tokens to medoids and moving medoids within their clusters: [B, k]."""
    distance = batch.distance
    medoids = distance.sum(1).argsort(dim=1, stable=True)[:, : batch.k]
    for _ in range(MAX_ITERATIONS):
        labels = batch.get_rows(medoids).argmin(1)
        cost = (distance @ batch.make_members(labels)).gather(2, labels[..., None])[..., 0]  # to its cluster
        best = batch.find_first_best(cost, labels)
        is_better = best < batch.n
        best = torch.where(is_better, best, medoids)
        is_better &= cost.gather(1, best) < cost.gather(1, medoids)
        medoids = torch.where(is_better, best, medoids)
        if not bool(is_better.any()):  # the only number that is read
            break
    return batch.fill_up(medoids, batch.get_rows(medoids).amin(1))
