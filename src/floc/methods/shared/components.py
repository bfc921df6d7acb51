"""Connected components of a graph, and of the tokens of each frame at any threshold, from single-linkage trees."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from floc.representatives import TILE_BYTES
from floc.tokens import TokenGrid

LINKAGE_BYTES = 1 << 29  # of cosines within frames held at a time


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


@dataclass(frozen=True, eq=False)
class FrameTrees:
    """The single-linkage trees of all frames: a node for each component that a frame has at any threshold.

    Prim's algorithm visits the token most similar to any visited so far. In this order every component is a run, at
    any threshold: it ends where the next token is not similar enough.
    """

    rows: torch.Tensor  # [n, D] float32 tokens
    order: torch.Tensor  # [n] int64, tokens in the order of visits, frame by frame
    start: torch.Tensor  # [P] int64, where in that order each node starts
    size: torch.Tensor  # [P] int64, tokens of each node
    death: torch.Tensor  # [P] float32, the lowest threshold at which the node is a component
    birth: torch.Tensor  # [P] float32, the threshold at which it splits; below it, it is a component
    cosines: list[torch.Tensor]  # [t, N, N] within frames, t frames each; empty if too large to keep

    @classmethod
    def build(cls, grid: TokenGrid) -> "FrameTrees":
        t, cells = grid.shape[0], grid.cells
        rows = grid.tokens.detach().float().reshape(t, cells, -1)
        cosines, parts = [], []
        for part in _split_frames(rows):
            cosine = compute_cosines(part)
            parts.append(_link(cosine))
            if 4 * t * cells**2 <= TILE_BYTES:
                cosines.append(cosine)
        order, start, size, death, birth = (torch.cat(arrays) for arrays in zip(*parts, strict=True))
        offset = torch.arange(0, grid.n, cells, device=rows.device)[:, None]
        is_alive = death < birth
        nodes = ((start + offset)[is_alive], size[is_alive], death[is_alive], birth[is_alive])
        return cls(rows.flatten(0, 1), (order + offset).flatten(), *nodes, cosines)

    def count(self, tau: float) -> int:
        """Count the components of all frames at a threshold."""
        return int(((self.death <= tau) & (self.birth > tau)).sum())

    def find_nodes(self, low: float, high: float) -> torch.Tensor:
        """Return the nodes that are components at some threshold in [low, high], in the order of their tokens."""
        nodes = ((self.death <= high) & (self.birth > low)).nonzero()[:, 0]
        return nodes[self.start[nodes].argsort(stable=True)]

    def sum_tokens(self, nodes: torch.Tensor) -> torch.Tensor:
        """Return the sum of the tokens of each node: [len(nodes), D]."""
        size = self.size[nodes]
        first = self.start[nodes] - (size.cumsum(0) - size)
        places = torch.arange(int(size.sum()), device=size.device) + first.repeat_interleave(size)
        return sum_groups(self.rows, self.order[places], size)

    def count_neighbours(self, tau: float, n: int) -> torch.Tensor:
        """Return how many of the n tokens of its frame each token is similar to: [tokens]."""
        cosines = self.cosines or (compute_cosines(part) for part in _split_frames(self.rows.unflatten(0, (-1, n))))
        return torch.cat([(cosine > tau).sum(-1).flatten() for cosine in cosines])


def _split_frames(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return rows.split(max(1, LINKAGE_BYTES // (4 * rows.shape[1] ** 2)))


def compute_cosines(tokens: torch.Tensor) -> torch.Tensor:
    """Return the cosines of [t, N, D] tokens within each frame: [t, N, N]."""
    norm = torch.linalg.vector_norm(tokens, dim=-1).clamp_min(1e-12)
    return tokens @ tokens.mT / norm[:, :, None] / norm[:, None]


def _link(cosine: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Build the trees of [t, N, N] cosines: the order, [t, N]; start, size, death and birth of nodes, [t, 2 N - 1]."""
    t, n, _ = cosine.shape
    device = cosine.device
    frames = torch.arange(t, device=device)
    order = torch.zeros((t, n), dtype=torch.int64, device=device)
    link = torch.full((t, n + 1), -torch.inf, device=device)  # highest cosine with a visited token; -inf at ends
    visited = torch.zeros((t, n), dtype=torch.bool, device=device)
    best = cosine[:, 0]
    for i in range(1, n):
        visited[frames, order[:, i - 1]] = True
        link[:, i], order[:, i] = best.masked_fill(visited, -torch.inf).max(1)
        best = torch.maximum(best, cosine[frames, order[:, i]])
    # when the threshold falls below a link, it joins the runs up to the next lower links on both sides
    place = torch.arange(n + 1, device=device)
    own, other = link[:, 1:n, None], link[:, None]  # [t, N - 1, 1], [t, 1, N + 1]
    middle = place[1:n, None]
    left = torch.where((other <= own) & (place < middle), place, 0).amax(-1)
    right = torch.where((other < own) & (place > middle), place, n).amin(-1)
    death = torch.maximum(link.gather(1, left), link.gather(1, right))
    # single tokens, then joined runs
    start = torch.cat([place[:n].expand(t, n), left], 1)
    size = torch.cat([torch.ones_like(order), right - left], 1)
    death = torch.cat([torch.maximum(link[:, :-1], link[:, 1:]), death], 1)
    birth = torch.cat([torch.full((t, n), torch.inf, device=device), link[:, 1:n]], 1)
    return order, start, size, death, birth
