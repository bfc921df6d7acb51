"""Density-peak clustering (DPC-kNN): dense points that are far from any denser point become cluster centres.

Many small groups are clustered at once: `x`, [B, M, D] in float32 or float64, holds one group per row, padded to the
largest; `sizes`, [B] int64, gives the number of real points, at least 1.
"""

import torch

from floc.methods.shared.frames import split_tiles

ROUNDING = 8  # error of a squared distance, in units in the last place


def compute_distances(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Return the mean squared difference of any two points of a group, infinite for padding: [B, M, M].

    >>> compute_distances(torch.tensor([[[0.0, 0.0], [0.0, 2.0]]]), torch.tensor([2])).tolist()
    [[[0.0, 2.0], [2.0, 0.0]]]
    """
    padding = torch.arange(x.shape[1], device=x.device) >= sizes[:, None]  # [B, M]
    share = (~padding / sizes[:, None]).to(x.dtype)
    x = x - share[:, None] @ x  # centred, lengths are about as large as distances: their difference loses little
    products = x @ x.mT
    squares = products.diagonal(dim1=1, dim2=2)  # [B, M]
    both = squares[:, :, None] + squares[:, None]
    # symmetric to the last bit, so that points that are each other's nearest are equally dense
    squared = both - (products + products.mT)
    # distances within rounding are 0, so that duplicates are exact duplicates on every device
    squared.masked_fill_(squared <= both.mul_(ROUNDING * torch.finfo(x.dtype).eps), 0).div_(x.shape[-1])
    squared.diagonal(dim1=1, dim2=2).zero_()
    return squared.masked_fill_(padding[:, :, None] | padding[:, None], torch.inf)


def rank_points(squared: torch.Tensor, sizes: torch.Tensor, k: int | torch.Tensor) -> torch.Tensor:
    """Sort the points of each group by density times distance to the nearest denser point, descending: [B, M].

    The density is exp(-mean squared distance to the k nearest points, including the point itself), or to all points of
    a smaller group. Its logarithm is compared, since the density underflows in float32 if points lie far apart. Among
    equally dense points the first counts as denser, and equal scores keep their order. Padding comes last. `k`, at
    least 1, may also be given for each group, [B].
    """
    b, m, _ = squared.shape
    neighbours = sizes.clamp(max=k) if isinstance(k, int) else torch.minimum(sizes, k)  # [B]
    most = k if isinstance(k, int) else int(k.max())
    tiles = split_tiles(m, squared.element_size() * b * m, squared.device)
    near = torch.cat([squared[:, rows].topk(min(most, m), largest=False).values for rows in tiles], 1)  # [B, M, k]
    beyond = torch.arange(near.shape[2], device=near.device) >= neighbours[:, None, None]
    sparseness = near.masked_fill_(beyond | near.isinf(), 0).sum(2) / neighbours[:, None]  # -log(density)
    points = torch.arange(m, device=squared.device)
    padding = points >= sizes[:, None]
    sparseness.masked_fill_(padding, torch.inf)
    separation = torch.empty_like(sparseness)  # squared distance to the nearest denser point
    farthest = squared.new_zeros(b)
    for rows in tiles:
        own, tile = sparseness[:, rows, None], squared[:, rows]
        denser = (sparseness[:, None] < own) | ((sparseness[:, None] == own) & (points < points[rows, None]))
        separation[:, rows] = tile.masked_fill(~denser, torch.inf).amin(2)
        farthest = torch.maximum(farthest, tile.masked_fill(tile.isinf(), 0).amax((1, 2)))
    separation = torch.where(separation.isinf(), farthest[:, None], separation)
    score = (separation.log() / 2 - sparseness).clamp_(min=torch.finfo(separation.dtype).min)  # duplicates have -inf
    return score.masked_fill_(padding, -torch.inf).sort(descending=True, stable=True, dim=1).indices


def cluster_points(
    x: torch.Tensor, sizes: torch.Tensor, counts: torch.Tensor, most: int, k: int | torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cluster the points of each group around its [B] `counts`, at most `most`, first ranked points.

    Returns:
        [B, most] the centres by rank, and [B, M] the rank of the centre nearest to each point; `most` for padding.
    """
    squared = compute_distances(x, sizes)
    order = rank_points(squared, sizes, k)
    b, m = order.shape
    ranks = torch.arange(m, device=x.device)
    to_centres = squared.gather(2, order[:, None, :most].expand(b, m, most))  # [B, M, most]
    cluster = to_centres.masked_fill_(ranks[:most] >= counts[:, None, None], torch.inf).argmin(2)
    rank = torch.empty_like(order).scatter_(1, order, ranks.expand(b, m))
    # a centre stays in its own cluster, even if a duplicate of it has a lower rank
    cluster = torch.where(rank < counts[:, None], rank, cluster)
    return order[:, :most], cluster.masked_fill_(ranks >= sizes[:, None], most)
