"""Connected components of a graph of tokens, and sums over groups of tokens."""

import torch
import torch.nn.functional as F


def find_components(size: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the smallest node connected with each node, [size] int64, where edge e joins nodes a[e] and b[e].

    Each round hooks every root to its smallest neighbour, flattens the trees by pointer jumping and drops the edges
    inside them, so the number of rounds is about the logarithm of the size.

    >>> find_components(5, torch.tensor([4, 3]), torch.tensor([1, 4])).tolist()
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


def sum_groups(
    rows: torch.Tensor, members: torch.Tensor, sizes: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the (weighted) sum of each group's rows, [K, D]; a scattered sum would add in any order on a GPU.

    Args:
        rows: [n, D] float32.
        members: [M] int64 row numbers, group after group; `weights`, [M] float32, belong to them.
        sizes: [K] int64, members of each group.

    >>> sum_groups(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([2, 0, 1]), torch.tensor([2, 1])).tolist()
    [[5.0], [2.0]]
    """
    starts = sizes.cumsum(0) - sizes
    return F.embedding_bag(members, rows, starts, mode="sum", per_sample_weights=weights)
