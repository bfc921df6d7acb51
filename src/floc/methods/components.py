"""Groups of tokens: the connected components of a graph, and sums over their members."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def components(size: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[size] int64, the smallest node that each node is connected with, where edge e joins nodes a[e] and b[e].

    Each round hooks every root to the smallest of its neighbours, flattens the trees by pointer jumping and drops the
    edges inside them, so there are about as many rounds as the logarithm of the size.

    >>> components(5, torch.tensor([4, 3]), torch.tensor([1, 4])).tolist()
    [0, 1, 2, 1, 1]
    """
    root = torch.arange(size, device=a.device)
    while len(a):
        root.scatter_reduce_(0, torch.maximum(a, b), torch.minimum(a, b), "amin")
        while not torch.equal(flatter := root[root], root):
            root = flatter
        a, b = root[a], root[b]
        apart = (a != b).nonzero()[:, 0]
        a, b = a[apart], b[apart]
    return root


def sums(
    rows: torch.Tensor, members: torch.Tensor, sizes: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """[K, D] the sum of each group's rows, weighted where there are weights.

    On a GPU a scattered sum adds in any order; this one adds in the order of the members, the same every time.

    Args:
        rows: [n, D] float32.
        members: [M] int64 places of rows, one group after the other.
        sizes: [K] int64, how many of the members each group has.
        weights: [M] float32.

    >>> sums(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([2, 0, 1]), torch.tensor([2, 1])).tolist()
    [[5.0], [2.0]]
    """
    starts = sizes.cumsum(0) - sizes
    return F.embedding_bag(members, rows, starts, mode="sum", per_sample_weights=weights)
