"""Density peaks (DPC-kNN): points that are dense, and far from any denser one, are the centres of clusters.

Many small groups are clustered at once: [B, M, D] holds one group per row, padded to the largest, `sizes` says how
many of the M are real. A few kernels then do for a whole film what would otherwise be a loop over its frames.
"""

from __future__ import annotations

import torch

from floc.tokens import TokenGrid

CACHE_BYTES = 1 << 23  # of tokens taken at a time on a CPU: fresh memory for more costs as much as the arithmetic
DEVICE_BYTES = 1 << 28  # and elsewhere, where it takes this much to be busy
ROUNDING = 8  # units in the last place that a squared distance may be off


def tiles(count: int, each_bytes: int, device: torch.device) -> list[slice]:
    """Stretches of a few of `count` things, to take at a time, where each takes some memory.

    >>> tiles(5, CACHE_BYTES // 2, torch.device("cpu"))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, (CACHE_BYTES if device.type == "cpu" else DEVICE_BYTES) // each_bytes)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def wide(x: torch.Tensor) -> torch.Tensor:
    """In float32 or better."""
    return x if x.dtype == torch.float64 else x.float()


def frame_means(grid: TokenGrid) -> torch.Tensor:
    """[T, D] the mean token of every frame, in float32 or better."""
    t, h, w = grid.shape
    mean = wide(grid.tokens[:0]).new_full((1, h * w), 1 / (h * w))
    parts = tiles(t, 4 * h * w * grid.dim, grid.tokens.device)
    return torch.cat([(mean @ wide(grid.tokens[part]).reshape(-1, h * w, grid.dim))[:, 0] for part in parts])


def distances(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """[B, M, M] the mean squared difference of any two points of a group, infinite where one is padding.

    Args:
        x: [B, M, D] float32 or better.
        sizes: [B] int64, points in each group, at least 1.

    >>> distances(torch.tensor([[[0.0, 0.0], [0.0, 2.0]]]), torch.tensor([2])).tolist()
    [[[0.0, 2.0], [2.0, 0.0]]]
    """
    padding = torch.arange(x.shape[1], device=x.device) >= sizes[:, None]  # [B, M]
    share = (~padding / sizes[:, None]).to(x.dtype)
    x = x - share[:, None] @ x  # lengths are then not much larger than distances: little is lost in their difference
    products = x @ x.mT
    squares = products.diagonal(dim1=1, dim2=2)  # [B, M]
    both = squares[:, :, None] + squares[:, None]
    # as far one way as the other, to the last bit: points that are each other's nearest are equally dense
    squared = both - (products + products.mT)
    # what a product cannot tell from rounding is a duplicate, so that duplicates are equals on every device
    squared.masked_fill_(squared <= both.mul_(ROUNDING * torch.finfo(x.dtype).eps), 0).div_(x.shape[-1])
    squared.diagonal(dim1=1, dim2=2).zero_()
    return squared.masked_fill_(padding[:, :, None] | padding[:, None], torch.inf)


def ranked(squared: torch.Tensor, sizes: torch.Tensor, k: int) -> torch.Tensor:
    """[B, M] int64 the points of each group by falling density times distance to a denser one; padding comes last.

    The density is exp(-mean squared distance to the k nearest, itself among them). It is compared by its logarithm:
    the density itself is 0 in float32 for points that lie far apart. Of equally dense points the first counts as the
    denser, and of equal scores the first comes first.

    Args:
        squared: [B, M, M] of `distances`.
        sizes: [B] int64.
        k: neighbours; fewer in a group that has fewer.
    """
    b, m, _ = squared.shape
    parts = tiles(m, squared.element_size() * b * m, squared.device)
    near = torch.cat([squared[:, rows].topk(min(k, m), largest=False).values for rows in parts], 1)  # [B, M, k]
    sparseness = near.masked_fill_(near.isinf(), 0).sum(2) / sizes.clamp(max=k)[:, None]  # minus the log of density
    places = torch.arange(m, device=squared.device)
    padding = places >= sizes[:, None]
    sparseness.masked_fill_(padding, torch.inf)
    apart = torch.empty_like(sparseness)  # squared distance to the nearest denser point
    farthest = squared.new_zeros(b)
    for rows in parts:
        mine, part = sparseness[:, rows, None], squared[:, rows]
        denser = (sparseness[:, None] < mine) | ((sparseness[:, None] == mine) & (places < places[rows, None]))
        apart[:, rows] = part.masked_fill(~denser, torch.inf).amin(2)
        farthest = torch.maximum(farthest, part.masked_fill(part.isinf(), 0).amax((1, 2)))
    apart = torch.where(apart.isinf(), farthest[:, None], apart)
    score = (apart.log() / 2 - sparseness).clamp_(min=torch.finfo(apart.dtype).min)  # a duplicate's is -inf
    return score.masked_fill_(padding, -torch.inf).sort(descending=True, stable=True, dim=1).indices


def assigned(
    squared: torch.Tensor, order: torch.Tensor, sizes: torch.Tensor, counts: torch.Tensor, most: int
) -> torch.Tensor:
    """[B, M] int64 the cluster of every point, numbered by the rank of its centre; `most` for padding.

    Args:
        squared: [B, M, M] of `distances`.
        order: [B, M] of `ranked`; the first points of each group are its centres.
        sizes: [B] int64.
        counts: [B] int64, centres of each group, 1 <= counts <= sizes.
        most: the largest of the counts.
    """
    b, m, _ = squared.shape
    ranks = torch.arange(m, device=squared.device)
    to_centres = squared.gather(2, order[:, None, :most].expand(b, m, most))  # [B, M, most]
    cluster = to_centres.masked_fill_(ranks[:most] >= counts[:, None, None], torch.inf).argmin(2)
    rank = torch.empty_like(order).scatter_(1, order, ranks.expand(b, m))
    # a centre stays in its own cluster, also where an equal point has the lower rank
    cluster = torch.where(rank < counts[:, None], rank, cluster)
    return cluster.masked_fill_(ranks >= sizes[:, None], most)
