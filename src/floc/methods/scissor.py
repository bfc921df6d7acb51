"""LLaVA-Scissor (Sun et al., 2025): semantic connected components in every frame, then over the whole video.

A search for a budget tries about twenty thresholds. At each, the frames have other components, and their means would
have to be compared with each other: almost a product of all tokens with all tokens. Here this is done about once:

1. Single-linkage trees give the components of the frames at any threshold (`components.py`).
2. A sample of tokens tells between which two thresholds the budget lies: the number of components is less than the
   sum of 1 / degree, and more than the number of tokens without neighbours.
3. The nodes alive somewhere in this window are compared, a strip of rows at a time. Pairs joined throughout the
   window are contracted at once; pairs joined in a part of it are stored with that part. Any threshold in the window
   then needs only these few edges.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.budgets import find_parameter
from floc.methods.shared.components import FrameTrees, find_components, sum_groups
from floc.representatives import TILE_BYTES, normalize
from floc.tokens import TokenGrid

MAX_EDGES = 1 << 24  # stored for a window; a narrower window has fewer
STRIP = 512  # rows compared at a time; half of a strip's own square is redundant
SAMPLE = 128  # nodes that tell where the budget lies
NARROW = 1e-6  # do not divide narrower windows: at cosines that differ by rounding the count jumps
PASSES = 64  # over the nodes, at most, in a search; usually one is enough
ALL, NONE = -1.01, 1.05  # thresholds below and above every cosine, including rounding


@register("scissor", "Sun et al., LLaVA-Scissor, 2025", "merge", exact=False, searched=("tau",))
@dataclass(frozen=True)
class Scissor:
    """Merge tokens connected by a chain of similar tokens, first within each frame, then over the video.

    Tokens of a frame are joined if their cosine is above `tau`, and every connected component is replaced by its
    mean. The same is done with the means of all frames. Finally every token is added to the most similar mean, and is
    represented by it. A merged token takes the position of its key: of the component with the most neighbours, the
    token with the most neighbours in its frame.

    A budget is a search for `tau`. The count is nearly, not strictly, monotone in `tau` and steep near 1, so it is
    usually a few tokens below the budget.

    Differences from the published program:
    - Its union-find can lose members of a component at random. Here components are exact; the results are equal if it
      loses none.
    - With more than about 3230 means, it joins only the neighbours of a random sample of them. Here all are joined.
    - The cosine with a zero vector is 0.
    """

    tau: float = 0.9  # tokens with a higher cosine are joined

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        if budget == grid.n:
            return replace(grid.keep_all(), settings={"tau": NONE})
        trees = FrameTrees.build(grid)
        window, tau = _search(trees, budget)
        return replace(_merge(grid, trees, tau, window), settings={"tau": tau})

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        trees = FrameTrees.build(grid)
        tau = min(max(self.tau, ALL), NONE)  # beyond these it makes no difference
        return _merge(grid, trees, tau, _compare_at(trees, tau))


@dataclass(frozen=True, eq=False)
class _Window:
    """The nodes joined at any threshold of an interval."""

    nodes: torch.Tensor  # [U] the nodes of `FrameTrees` that are alive at some threshold
    death: torch.Tensor  # [U] alive from this threshold
    birth: torch.Tensor  # [U] up to, but not at, this threshold
    root: torch.Tensor  # [U] the first node that each is joined with throughout the window
    degree: torch.Tensor  # [U] neighbours throughout the window
    a: torch.Tensor  # [E] pairs joined in a part of the window
    b: torch.Tensor  # [E]
    since: torch.Tensor  # [E] joined from this threshold
    until: torch.Tensor  # [E] up to, but not at, this threshold

    def count(self, tau: float) -> int:
        is_root = self.find_components(tau) == torch.arange(len(self.nodes), device=self.nodes.device)
        return int((is_root & self.is_alive(tau)).sum())

    def is_alive(self, tau: float) -> torch.Tensor:
        return (self.death <= tau) & (self.birth > tau)

    def find_components(self, tau: float) -> torch.Tensor:
        """Return the first node of each node's component: [U]."""
        edges = self._find_edges(tau)
        return find_components(len(self.nodes), self.root[self.a[edges]], self.root[self.b[edges]])[self.root]

    def count_neighbours(self, tau: float) -> torch.Tensor:
        """Return the neighbours of each node: [U]."""
        edges = self._find_edges(tau)
        return self.degree + _count_edges(self.a[edges], self.b[edges], len(self.nodes))

    def _find_edges(self, tau: float) -> torch.Tensor:
        return ((self.since <= tau) & (self.until > tau)).nonzero()[:, 0]


def _count_edges(a: torch.Tensor, b: torch.Tensor, nodes: int) -> torch.Tensor:
    return torch.bincount(torch.cat([a, b]), minlength=nodes)


def _compare(trees: FrameTrees, low: float, high: float) -> _Window | None:
    """Compare the nodes alive in [low, high]; None if there are too many edges."""
    nodes = trees.find_nodes(low, high)
    x = trees.sum_tokens(nodes)
    x /= torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-12)
    death, birth = trees.death[nodes], trees.birth[nodes]
    root = torch.arange(len(nodes), device=x.device)
    degree = torch.zeros_like(root)
    constant: list[torch.Tensor] = []  # [2, edges] each, joined throughout
    partial: list[tuple[torch.Tensor, ...]] = []
    step = max(1, min(STRIP, TILE_BYTES // (4 * len(x))))
    for i in range(0, len(x), step):
        cosine = x[i : i + step] @ x[i:].T  # the columns before were compared with the rows before
        similar = cosine > low
        similar[:, :step].triu_(1)
        a, b = similar.nonzero(as_tuple=True)
        cosine, a, b = cosine[a, b], i + a, i + b
        since = torch.maximum(death[a], death[b])
        until = torch.minimum(torch.minimum(birth[a], birth[b]), cosine)
        throughout = (since <= low) & (until > high)
        part = (~throughout & (since < until) & (since <= high) & (until > low)).nonzero()[:, 0]
        partial.append(tuple(array[part] for array in (a, b, since, until)))
        if sum(len(edges[0]) for edges in partial) > MAX_EDGES:
            return None
        a, b = torch.stack([a, b])[:, throughout.nonzero()[:, 0]]
        degree += _count_edges(a, b, len(x))
        constant.append(torch.stack([a, b])[:, (root[a] != root[b]).nonzero()[:, 0]])
        if i + step >= len(x) or sum(edges.shape[1] for edges in constant) > MAX_EDGES // 4:
            a, b = torch.cat(constant, 1)
            root = find_components(len(x), root[a], root[b])[root]
            constant = []
    return _Window(nodes, death, birth, root, degree, *(torch.cat(edges) for edges in zip(*partial, strict=True)))


def _compare_at(trees: FrameTrees, tau: float) -> _Window:
    window = _compare(trees, tau, tau)
    assert window is not None, "at a single threshold no edge is partial"
    return window


def _search(trees: FrameTrees, budget: int) -> tuple[_Window, float]:
    """Find the threshold with the largest count within a budget, and a window that contains it."""
    low, high = ALL, NONE  # thresholds known to be within the budget, and above it
    a, b = _guess_window(trees, budget)
    best: tuple[_Window, float] | None = None
    for _ in range(PASSES):
        width = 2 * max(b - a, 0.001)
        window = _compare(trees, a, b)
        if window is None:  # too many edges: halve the window
            middle = (a + b) / 2
            point = _compare_at(trees, middle)
            if point.count(middle) <= budget:
                low = a = middle
                best = point, middle
            else:
                high = b = middle
            if b - a > NARROW:
                continue
            if best is not None:
                break
        tau = None if window is None else find_parameter(window.count, a, b, budget, steps=22)
        if window is None or tau is None:  # the budget lies below the window
            low, high = (low if low < a else ALL), a
            a, b = max(low, a - width), a
            continue
        best = window, tau
        if b == high or window.count(b) > budget:
            break
        low = b
        a, b = b, min(high, b + width)
    return best or (_compare_at(trees, ALL), ALL)


def _guess_window(trees: FrameTrees, budget: int) -> tuple[float, float]:
    """Guess two thresholds that enclose the one for a budget, from the neighbours of a few nodes.

    The sum of 1 / degree over a component of m nodes is at least 1, as their degrees, themselves included, are at
    most m, and exactly 1 if all are similar. So that sum over all nodes is slightly above the count, and the number of
    nodes without neighbours is slightly below it. Both are used with a margin for chance.
    """
    least, _ = _bracket(trees.count, budget)  # there are no more components than nodes
    x, high = trees.rows, NONE
    for _ in range(4):
        low, over = _bracket_sample(x, budget)
        low = max(low, least)
        high = max(min(high, over), low + 0.002)
        if trees.count(high) > 0.75 * len(x):
            break
        x = trees.sum_tokens(trees.find_nodes(high, high))  # means that differ from those compared so far
    return low, min(high, NONE)


def _bracket_sample(x: torch.Tensor, budget: int) -> tuple[float, float]:
    """Estimate thresholds at which [n, D] nodes have fewer and more components than a budget, from a sample of them."""
    n, count = len(x), min(SAMPLE, len(x))
    sample = torch.arange(count, device=x.device) * n // count
    norm = torch.linalg.vector_norm(x, dim=-1).clamp_min(1e-12)
    cosine = x[sample] @ x.T / norm[sample, None] / norm  # [SAMPLE, n]

    def upper(tau: float) -> int:
        return math.ceil(n * float((1 / (cosine > tau).sum(1).clamp_min(1)).mean()))

    def lower(tau: float) -> int:
        return math.floor(n * float(((cosine > tau).sum(1) <= 1).float().mean()))

    # the lower bound is unreliable if few nodes have no neighbour; the upper one is rarely four times the count
    over = min(_bracket(lower, int(1.3 * budget) + 1)[1], _bracket(upper, 4 * budget)[1])
    return _bracket(upper, int(0.75 * budget))[0], over


def _bracket(count: Callable[[float], int], budget: int) -> tuple[float, float]:
    """Return two close thresholds, the first within a budget, the second above it."""
    within, over = ALL, NONE
    for _ in range(12):
        middle = (within + over) / 2
        within, over = (middle, over) if count(middle) <= budget else (within, middle)
    return within, over


def _merge(grid: TokenGrid, trees: FrameTrees, tau: float, window: _Window) -> Kept:
    alive = window.is_alive(tau).nonzero()[:, 0]
    nodes = window.nodes[alive]
    component = torch.empty_like(trees.order)  # [n] of each token in its frame
    component[trees.order] = torch.arange(len(nodes), device=alive.device).repeat_interleave(trees.size[nodes])
    key = _find_keys(trees.count_neighbours(tau, grid.cells), component, len(nodes))  # [M1] tokens
    # ordered by key, which breaks ties
    by_key = key.argsort()
    component = by_key.argsort()[component]
    key, size, alive = key[by_key], trees.size[nodes][by_key], alive[by_key]
    group = window.find_components(tau)[alive].unique(return_inverse=True)[1]  # [M1]
    count = int(group.max()) + 1
    group_key = _find_keys(window.count_neighbours(tau)[alive], group, count)  # [M2] components
    group = group_key.argsort().argsort()[group]
    group_key = group_key.sort().values
    # the mean of components, each the mean of its tokens
    weight = 1 / (size * torch.bincount(group)[group]).float()
    token_group = group[component]
    members = token_group.argsort(stable=True)
    means = sum_groups(trees.rows, members, torch.bincount(token_group), weight[component[members]])
    directions = normalize(means)
    parts = trees.rows.split(max(1, TILE_BYTES // (4 * count)))
    place = torch.cat([(directions @ part.T).max(0).indices for part in parts])  # [n] the most similar mean
    assigned = torch.bincount(place, minlength=count)
    added = sum_groups(trees.rows, place.argsort(stable=True), assigned)
    merged = (means + added) / (1 + assigned)[:, None]
    return grid.merge(key[group_key].cpu().numpy(), merged, place.cpu().numpy())


def _find_keys(degree: torch.Tensor, group: torch.Tensor, count: int) -> torch.Tensor:
    """Return the member of each group with the highest degree, the first on ties: [count].

    >>> _find_keys(torch.tensor([1, 3, 3, 2]), torch.tensor([1, 0, 0, 1]), 2).tolist()
    [1, 3]
    """
    n = len(degree)
    first = n - 1 - torch.arange(n, device=degree.device)
    best = torch.full((count,), -1, dtype=torch.int64, device=degree.device)
    best.scatter_reduce_(0, group, degree * n + first, "amax")
    return n - 1 - best % n
