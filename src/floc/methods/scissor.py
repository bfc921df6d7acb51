"""LLaVA-Scissor (Sun et al., 2025): semantic connected components, in every frame and then over the whole video.

A search for a budget tries some twenty thresholds, and each has its own components in the frames, so its own means to
compare with one another: a product of all tokens with all others, nearly, each time. Here it is done about once:

1. The components of a frame at any threshold are the nodes of its single-linkage tree, each alive from one threshold
   to another. Products inside frames are cheap, and this tree is all that is kept of them.
2. A sample of tokens says between which two thresholds the budget lies: there are fewer components than the sum of
   1 / degree, and more than there are tokens without a neighbour.
3. The nodes alive somewhere in that window are compared, a strip of rows at a time. Pairs that are joined all through
   the window are contracted at once; those that are joined in a part of it are remembered with that part. Any
   threshold in the window is then a matter of these few edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from floc.kept import Kept
from floc.methods.base import Facts
from floc.methods.budgets import largest_within
from floc.methods.components import components, sums
from floc.methods.registry import register
from floc.representatives import TILE_BYTES, normalize
from floc.tokens import TokenGrid

LINKAGE_BYTES = 1 << 29  # of products inside frames held at a time
EDGES = 1 << 24  # to remember for a window; a narrower one has fewer
STRIP = 512  # rows compared at a time; of the square of one strip half is not needed
SAMPLE = 128  # nodes that say where the budget lies
NARROW = 1e-6  # a window to divide no further: at cosines that differ by rounding the count leaps
PASSES = 64  # over the nodes at most in a search; mostly one is enough
ALL, NONE = -1.01, 1.05  # thresholds below and above any cosine, rounding included


@register("scissor")
@dataclass(frozen=True)
class Scissor:
    """Merge tokens that are connected by a chain of likeness, in each frame, then over the video.

    From "LLaVA-Scissor" (Sun et al., 2025). Tokens of a frame whose cosine is above `tau` are joined, and every
    connected component becomes its mean; the same again with the means of all frames. Last, every token is added to the
    mean that it is most like, and is represented by it. A merged token stands at the place of its key, the member with
    the most neighbours, and that one's key in the frame.

    Where we differ from the published program:
        - Its components can lose members, at random, on their way through the union-find; ours are exact. Where it
          loses none the result is the same.
        - With more than about 3230 means it joins only those next to a random sample of them. Here all are joined;
          `epsilon`, its error tolerance (0.05 there), samples as it does, with a `seed` of its own. Frames are never
          sampled.
        - The cosine with a zero vector is 0.
    A budget is a search for `tau`: the count is nearly, not strictly, monotone in it, and steep near 1, so it is mostly
    a few tokens under the budget.
    """

    facts: ClassVar[Facts] = Facts("Sun et al., LLaVA-Scissor, 2025", "merge", exact=False, searched=("tau",))

    tau: float = 0.9  # tokens are joined where their cosine is above it
    epsilon: float | None = None  # joins only what is next to a sample of ln(count) / epsilon^2 means; None joins all
    seed: int = 0  # of that sample

    def __post_init__(self) -> None:
        if self.epsilon is not None and not self.epsilon > 0:
            raise ValueError(f"epsilon must be above 0, or None to join all; got {self.epsilon}")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        if budget == grid.n:
            return replace(grid.keep_all(), settings={"tau": NONE})
        frames = _Frames.of(grid)
        if _sample_size(grid.n, self.epsilon) < grid.n:
            tau = largest_within(lambda each: self._joined(frames, each).count(each), ALL, NONE, budget, steps=22)
            assert tau is not None, "below any cosine all is one component"
            kept = self._merged(grid, frames, tau)
        else:
            window, tau = _search(frames, budget)
            kept = _merged(grid, frames, tau, window, window)
        return replace(kept, settings={"tau": tau})

    def native(self, grid: TokenGrid) -> Kept:
        return self._merged(grid, _Frames.of(grid), self.tau)

    def _merged(self, grid: TokenGrid, frames: _Frames, tau: float) -> Kept:
        window = _at(frames, tau)
        joined = (
            window if _sample_size(len(window.nodes), self.epsilon) == len(window.nodes) else self._joined(frames, tau)
        )
        return _merged(grid, frames, tau, window, joined)

    def _joined(self, frames: _Frames, tau: float) -> _Window:
        """Only what is next to a sample, if there is one."""
        count = frames.count(tau)
        drawn = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))
        return _at(frames, tau, drawn[: _sample_size(count, self.epsilon)].sort().values.to(frames.rows.device))


def _sample_size(count: int, epsilon: float | None) -> int:
    return count if epsilon is None else min(count, math.ceil(math.log(count) / epsilon**2))


@dataclass(frozen=True, eq=False)
class _Frames:
    """Every component that a frame has at any threshold: the nodes of its single-linkage tree.

    In the order in which Prim's algorithm visits tokens, always the one most like any visited so far, a component is a
    run, whatever the threshold: it ends where the next token is not like enough.
    """

    rows: torch.Tensor  # [n, D] float32 tokens
    order: torch.Tensor  # [n] int64, the tokens as visited, frame by frame
    start: torch.Tensor  # [P] int64 where in that order each node begins
    size: torch.Tensor  # [P] int64 tokens of each
    death: torch.Tensor  # [P] float32, a node is a component at thresholds from here, below it is part of another,
    birth: torch.Tensor  # [P] float32, up to but not at this one, where it falls apart
    cosines: list[torch.Tensor] | None  # [t, N, N] each, some frames' after others', where they are few enough to keep

    @classmethod
    def of(cls, grid: TokenGrid) -> _Frames:
        t, h, w = grid.shape
        rows = grid.tokens.detach().float().reshape(t, h * w, -1)
        cosines, parts = [], []
        for part in rows.split(_frames_at_a_time(h * w)):
            cosine = _cosines(part)
            parts.append(_linked(cosine))
            if 4 * t * (h * w) ** 2 <= TILE_BYTES:
                cosines.append(cosine)
        order, start, size, death, birth = (torch.cat(each) for each in zip(*parts, strict=True))
        offset = torch.arange(0, grid.n, h * w, device=rows.device)[:, None]
        lives = death < birth
        return cls(
            rows.flatten(0, 1),
            (order + offset).flatten(),
            (start + offset)[lives],
            size[lives],
            death[lives],
            birth[lives],
            cosines or None,
        )

    def count(self, tau: float) -> int:
        """Components of all frames at a threshold."""
        return int(((self.death <= tau) & (self.birth > tau)).sum())

    def alive(self, low: float, high: float) -> torch.Tensor:
        """The nodes that are components somewhere from one threshold to another, in the order of their tokens."""
        nodes = ((self.death <= high) & (self.birth > low)).nonzero()[:, 0]
        return nodes[self.start[nodes].argsort(stable=True)]

    def sums(self, nodes: torch.Tensor) -> torch.Tensor:
        """[len(nodes), D] each node's tokens added up."""
        size = self.size[nodes]
        first = self.start[nodes] - (size.cumsum(0) - size)
        places = torch.arange(int(size.sum()), device=size.device) + first.repeat_interleave(size)
        return sums(self.rows, self.order[places], size)

    def degrees(self, tau: float, n: int) -> torch.Tensor:
        """[n tokens] how many of its frame each token is like."""
        if self.cosines is not None:
            return torch.cat([(each > tau).sum(-1).flatten() for each in self.cosines])
        parts = self.rows.unflatten(0, (-1, n)).split(_frames_at_a_time(n))
        return torch.cat([(_cosines(part) > tau).sum(-1).flatten() for part in parts])


def _frames_at_a_time(n: int) -> int:
    return max(1, LINKAGE_BYTES // (4 * n * n))


def _cosines(tokens: torch.Tensor) -> torch.Tensor:
    """[t, N, N] of [t, N, D] tokens inside each frame."""
    norm = torch.linalg.vector_norm(tokens, dim=-1).clamp_min(1e-12)
    return tokens @ tokens.mT / norm[:, :, None] / norm[:, None]


def _linked(cosine: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Single-linkage trees of [t, N, N] cosines: order [t, N], and start, size, death, birth [t, 2 N - 1] of nodes."""
    t, n, _ = cosine.shape
    device = cosine.device
    frames = torch.arange(t, device=device)
    order = torch.zeros((t, n), dtype=torch.int64, device=device)
    like = torch.full(
        (t, n + 1), -torch.inf, device=device
    )  # how like any token before it each is; nothing at the ends
    visited = torch.zeros((t, n), dtype=torch.bool, device=device)
    best = cosine[:, 0]
    for i in range(1, n):
        visited[frames, order[:, i - 1]] = True
        like[:, i], order[:, i] = best.masked_fill(visited, -torch.inf).max(1)
        best = torch.maximum(best, cosine[frames, order[:, i]])
    # a cut between two runs heals where the threshold falls below it, and joins what lies up to the next lower cuts
    place = torch.arange(n + 1, device=device)
    cut, other = like[:, 1:n, None], like[:, None]  # [t, N - 1, 1], [t, 1, N + 1]
    middle = place[1:n, None]
    left = torch.where((other <= cut) & (place < middle), place, 0).amax(-1)
    right = torch.where((other < cut) & (place > middle), place, n).amin(-1)
    death = torch.maximum(like.gather(1, left), like.gather(1, right))
    ones = torch.ones((t, n), dtype=torch.int64, device=device)
    start = torch.cat([place[:n].expand(t, n), left], 1)
    size = torch.cat([ones, right - left], 1)
    death = torch.cat([torch.maximum(like[:, :-1], like[:, 1:]), death], 1)
    birth = torch.cat([torch.full((t, n), torch.inf, device=device), like[:, 1:n]], 1)
    return order, start, size, death, birth


@dataclass(frozen=True, eq=False)
class _Window:
    """What is joined at any threshold from one to another."""

    nodes: torch.Tensor  # [U] the nodes of frames that are alive somewhere in it
    death: torch.Tensor  # [U]
    birth: torch.Tensor  # [U]
    root: torch.Tensor  # [U] the first node that each is joined with all through it
    degree: torch.Tensor  # [U] how many each is like all through it
    a: torch.Tensor  # [E] pairs that are joined in a part of it,
    b: torch.Tensor  # [E]
    since: torch.Tensor  # [E] float32, from this threshold
    until: torch.Tensor  # [E] float32, up to but not at this one

    def count(self, tau: float) -> int:
        """How many components there are."""
        itself = self.joined(tau) == torch.arange(len(self.nodes), device=self.nodes.device)
        return int((itself & self.alive(tau)).sum())

    def alive(self, tau: float) -> torch.Tensor:
        """[U] which nodes are there."""
        return (self.death <= tau) & (self.birth > tau)

    def joined(self, tau: float) -> torch.Tensor:
        """[U] the first node of each node's component."""
        now = self._now(tau)
        return components(len(self.nodes), self.root[self.a[now]], self.root[self.b[now]])[self.root]

    def degrees(self, tau: float) -> torch.Tensor:
        """[U] how many each node is like."""
        now = self._now(tau)
        return self.degree + _degrees(self.a[now], self.b[now], len(self.nodes))

    def _now(self, tau: float) -> torch.Tensor:
        return ((self.since <= tau) & (self.until > tau)).nonzero()[:, 0]


def _window(frames: _Frames, low: float, high: float, sample: torch.Tensor | None = None) -> _Window | None:
    """Compare the nodes alive in a window, or some of them with all; None where there is too much to remember."""
    nodes = frames.alive(low, high)
    x = frames.sums(nodes)
    x /= torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-12)
    death, birth = frames.death[nodes], frames.birth[nodes]
    root = torch.arange(len(nodes), device=x.device)
    degree = torch.zeros_like(root)
    certain: list[torch.Tensor] = []  # [2, edges] each
    some: list[tuple[torch.Tensor, ...]] = []
    step = max(1, min(STRIP, TILE_BYTES // (4 * len(x))))
    rows = root if sample is None else sample
    for i in range(0, len(rows), step):
        skipped = i if sample is None else 0  # the rows before have met these columns
        cosine = x[rows[i : i + step]] @ x[skipped:].T
        like = cosine > low
        if sample is None:
            like[:, :step].triu_(1)
        a, b = like.nonzero(as_tuple=True)
        cosine, a, b = cosine[a, b], rows[i + a], skipped + b
        since = torch.maximum(death[a], death[b])
        until = torch.minimum(torch.minimum(birth[a], birth[b]), cosine)
        throughout = (since <= low) & (until > high)
        part = (~throughout & (since < until) & (since <= high) & (until > low)).nonzero()[:, 0]
        some.append(tuple(each[part] for each in (a, b, since, until)))
        if sum(len(each[0]) for each in some) > EDGES:
            return None
        a, b = torch.stack([a, b])[:, throughout.nonzero()[:, 0]]
        degree += _degrees(a, b, len(x))
        certain.append(torch.stack([a, b])[:, (root[a] != root[b]).nonzero()[:, 0]])
        if i + step >= len(rows) or sum(each.shape[1] for each in certain) > EDGES // 4:
            a, b = torch.cat(certain, 1)
            root = components(len(x), root[a], root[b])[root]
            certain = []
    return _Window(nodes, death, birth, root, degree, *(torch.cat(each) for each in zip(*some, strict=True)))


def _at(frames: _Frames, tau: float, sample: torch.Tensor | None = None) -> _Window:
    window = _window(frames, tau, tau, sample)
    assert window is not None, "at one threshold all is certain"
    return window


def _degrees(a: torch.Tensor, b: torch.Tensor, count: int) -> torch.Tensor:
    return torch.bincount(torch.cat([a, b]), minlength=count)


def _search(frames: _Frames, budget: int) -> tuple[_Window, float]:
    """The threshold with the largest count within a budget, and a window that it is in."""
    low, high = ALL, NONE  # known to be within the budget, and to be over it
    a, b = _guess(frames, budget)
    best: tuple[_Window, float] | None = None
    for _ in range(PASSES):
        wide = 2 * max(b - a, 0.001)
        window = _window(frames, a, b)
        if window is None:
            middle = (a + b) / 2
            point = _at(frames, middle)
            if point.count(middle) <= budget:
                low = a = middle
                best = point, middle
            else:
                high = b = middle
            if b - a > NARROW:
                continue
            if best is not None:
                break
        tau = None if window is None else largest_within(window.count, a, b, budget, steps=22)
        if window is None or tau is None:
            low, high = (low if low < a else ALL), a
            a, b = max(low, a - wide), a
            continue
        best = window, tau
        if b == high or window.count(b) > budget:
            break
        low = b
        a, b = b, min(high, b + wide)
    return best or (_at(frames, ALL), ALL)


def _guess(frames: _Frames, budget: int) -> tuple[float, float]:
    """Two thresholds that the one for a budget should lie between, from the neighbours of a few nodes.

    A component of m nodes has a sum of 1 / degree of at least 1, its nodes having at most m neighbours with themselves,
    and of exactly 1 where they are all alike; so that sum over all nodes is a little over the count, and the number of
    nodes without a neighbour is a little under it. Both are taken with room for chance.
    """
    enough, _ = _around(frames.count, budget)  # there are no more components than nodes
    x, many = frames.rows, NONE
    for _ in range(4):
        few, over = _between(_neighbours(x), len(x), budget)
        few = max(few, enough)
        many = max(min(many, over), few + 0.002)
        if frames.count(many) > 0.75 * len(x):
            break
        x = frames.sums(frames.alive(many, many))  # other means than those looked at
    return few, min(many, NONE)


def _neighbours(x: torch.Tensor) -> torch.Tensor:
    """[SAMPLE, n] cosines of some of [n, D] with all."""
    some = torch.arange(min(SAMPLE, len(x)), device=x.device) * len(x) // min(SAMPLE, len(x))
    norm = torch.linalg.vector_norm(x, dim=-1).clamp_min(1e-12)
    return x[some] @ x.T / norm[some, None] / norm


def _between(cosine: torch.Tensor, n: int, budget: int) -> tuple[float, float]:
    """Two thresholds that n nodes leave fewer and more components than a budget at, going by [SAMPLE, n] cosines."""

    def at_most(tau: float) -> int:
        return math.ceil(n * float((1 / (cosine > tau).sum(1).clamp_min(1)).mean()))

    def at_least(tau: float) -> int:
        return math.floor(n * float(((cosine > tau).sum(1) <= 1).float().mean()))

    # of few nodes without a neighbour a sample knows too little: the other sum is hardly four times the count
    over = min(_around(at_least, int(1.3 * budget) + 1)[1], _around(at_most, 4 * budget)[1])
    return _around(at_most, int(0.75 * budget))[0], over


def _around(count: Callable[[float], int], budget: int) -> tuple[float, float]:
    """Two thresholds close together, the first within a budget and the second over it."""
    within, over = ALL, NONE
    for _ in range(12):
        middle = (within + over) / 2
        within, over = (middle, over) if count(middle) <= budget else (within, middle)
    return within, over


def _merged(grid: TokenGrid, frames: _Frames, tau: float, window: _Window, joined: _Window) -> Kept:
    """The tokens of a threshold: likeness from one window, what it joins from one that may be of a sample."""
    _, h, w = grid.shape
    device = frames.rows.device
    here = window.alive(tau).nonzero()[:, 0]
    nodes = window.nodes[here]
    component = torch.empty_like(frames.order)  # [n] of each token in its frame
    component[frames.order] = torch.arange(len(nodes), device=device).repeat_interleave(frames.size[nodes])
    key = _keys(frames.degrees(tau, h * w), component, len(nodes))  # [M1] tokens
    # in the order of their keys, by which ties are broken
    by_key = key.argsort()
    component = by_key.argsort()[component]
    key, size, here = key[by_key], frames.size[nodes][by_key], here[by_key]
    labels = joined.joined(tau)[here if joined is window else by_key]
    group = labels.unique(return_inverse=True)[1]  # [M1]
    count = int(group.max()) + 1
    keys = _keys(window.degrees(tau)[here], group, count)  # [M2] components
    group = keys.argsort().argsort()[group]
    keys = keys.sort().values
    # the mean of components, each the mean of its tokens
    weight = 1 / (size * torch.bincount(group)[group]).float()
    of_token = group[component]
    members = of_token.argsort(stable=True)
    means = sums(frames.rows, members, torch.bincount(of_token), weight[component[members]])
    place = _most_like(frames.rows, means)
    assigned = torch.bincount(place, minlength=count)
    added = sums(frames.rows, place.argsort(stable=True), assigned)
    merged = (means + added) / (1 + assigned)[:, None]
    return grid.merge(key[keys].cpu().numpy(), merged, place.cpu().numpy())


def _most_like(rows: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """[n] the place of the mean that each of [n, D] is most like, the first of equals; its own length has no say."""
    x = normalize(means)
    step = max(1, TILE_BYTES // (4 * len(x)))
    return torch.cat([(x @ part.T).max(0).indices for part in rows.split(step)])


def _keys(degree: torch.Tensor, group: torch.Tensor, count: int) -> torch.Tensor:
    """[count] the member of each group with the highest degree, the first of those.

    >>> _keys(torch.tensor([1, 3, 3, 2]), torch.tensor([1, 0, 0, 1]), 2).tolist()
    [1, 3]
    """
    n = len(degree)
    first = n - 1 - torch.arange(n, device=degree.device)
    best = torch.full((count,), -1, dtype=torch.int64, device=degree.device)
    best.scatter_reduce_(0, group, degree * n + first, "amax")
    return n - 1 - best % n
