"""STTM (Hyun et al., 2025): a quadtree in every frame, then nodes that stay alike joined over time.

Cells are means of tokens, so the products of the tokens of a root cell with one another, and with those in the next
frame, hold all cosines that a threshold is ever compared with. They are computed once; what a threshold gives is then a
matter of indices, [T, N] of them, and a search for a budget costs little more than one run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from floc.kept import Kept
from floc.methods.base import Facts
from floc.methods.budgets import largest_within, require_floor
from floc.methods.components import components, sums
from floc.methods.registry import register
from floc.tokens import TokenGrid

CACHE_BYTES = 1 << 23  # of tokens multiplied at a time on a CPU: what is read twice should still be in its cache
TILE_BYTES = 1 << 28  # the same on a GPU, where a kernel should have much to do
GAP = 0.25  # between the spatial and the temporal threshold in a search; published pairs are 0 to 0.3 apart
LOWEST = 1e-6  # temporal threshold: at 0 and below the published program leaves out the temporal step
NEVER = 1.05  # a threshold that no cosine reaches, rounding included


@register("sttm")
@dataclass(frozen=True)
class STTM:
    """Merge like neighbours in each frame, in a quadtree, then what stays alike from frame to frame.

    From "STTM" (Hyun et al., 2025), the default of the published program: unweighted means, fast pairing. It is meant
    for hidden states of an early decoder layer, and its thresholds are tuned per model and data set, so those of the
    paper do not carry over to other tokens; the defaults are its pair for half the tokens of LLaVA-Video-7B.

    Reproduced although it is odd:
        - On a grid of an odd number of rows or columns a cell at the border has fewer than four children, and must
          then also be like the top-left cell of its frame.
        - The loop that forms groups over time stops before both ends of every pair agree, so some groups that are
          connected stay apart.
        `sound=True` ignores children that are not there, and joins all that is connected.
    Made to work: a grid with a side of 2, or of one cell, has fewer levels than `root_level` asks for; its coarsest is
    taken. The cosine with a zero vector is 0.

    Every token is represented by what it was merged into. A budget is searched for along
    `temporal_threshold = spatial_threshold - 0.25`, kept above 0, then with the temporal threshold alone. Thresholds
    above 1 merge nothing; `temporal_threshold <= 0` leaves out the temporal step.
    """

    facts: ClassVar[Facts] = Facts(
        "Hyun et al., STTM, 2025",
        "merge",
        exact=False,
        floor="the coarsest cells, once each or more",
        searched=("spatial_threshold", "temporal_threshold"),
    )

    spatial_threshold: float = 0.85  # a cell stays whole where it is at least this like each of its children
    temporal_threshold: float = 0.55  # nodes of two frames are joined where they are at least this alike
    root_level: int = 1  # the level that the division starts from; 0 is the coarsest
    sound: bool = False  # the corrected mode: only children that exist are compared, connected nodes are one group
    nearest: bool = False

    def __post_init__(self) -> None:
        if self.root_level < 0:
            raise ValueError(f"root_level must be 0, the coarsest, or more; got {self.root_level}")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        if budget == grid.n:
            return replace(grid.keep_all(), settings=_thresholds(NEVER, 0.0))
        forest = _Forest.of(grid, self.root_level, self.sound)
        spatial = largest_within(lambda each: forest.count(each, _below(each)), -1.0, NEVER + GAP, budget)
        if spatial is None:
            floor = forest.count(-1.0, LOWEST)
            why = "a cell of its coarsest level wherever nothing before it is alike"
            require_floor("sttm", budget, floor, grid.n, why, nearest=self.nearest)
            spatial, temporal = -1.0, LOWEST
        else:
            # cells split by threes, groups mostly by ones: the temporal threshold alone comes closer
            again = largest_within(lambda each: forest.count(spatial, each), _below(spatial), NEVER, budget, steps=16)
            assert again is not None, "the search starts from what the one before it found"
            temporal = again
        return replace(forest.merged(grid, spatial, temporal), settings=_thresholds(spatial, temporal))

    def native(self, grid: TokenGrid) -> Kept:
        forest = _Forest.of(grid, self.root_level, self.sound)
        return forest.merged(grid, self.spatial_threshold, self.temporal_threshold)


def _below(spatial: float) -> float:
    """The temporal threshold that goes with a spatial one in a search."""
    return max(LOWEST, spatial - GAP)


def _thresholds(spatial: float, temporal: float) -> dict[str, float]:
    return {"spatial_threshold": spatial, "temporal_threshold": temporal}


@dataclass(frozen=True, eq=False)
class _Forest:
    """The quadtrees of all frames. Levels are counted from the finest, whose cells are the places of tokens."""

    tokens: torch.Tensor  # [T, N, D] float32
    scores: torch.Tensor  # [L - 1, T, N] per coarser level how like its least like child the cell around a place is
    across: (
        torch.Tensor
    )  # [L * L, T - 1, N] per two levels the cosine of the cells around a place, one in the next frame
    first: torch.Tensor  # [L, N] the first place of the cell around a place
    share: torch.Tensor  # [L, N] what a token weighs in the mean of the cell around it
    sound: bool

    @classmethod
    def of(cls, grid: TokenGrid, root_level: int, sound: bool) -> _Forest:
        """Compare all that a threshold could ask for."""
        t, h, w = grid.shape
        tokens = grid.tokens.detach().float().reshape(t, h * w, -1)
        tree = _Tree.of(h, w, root_level)
        bytes_at_a_time = CACHE_BYTES if tokens.device.type == "cpu" else TILE_BYTES
        step = max(1, bytes_at_a_time // (4 * tokens[0].numel()))
        compare = _Comparison(tree, tokens.device, sound)
        # a part begins with the last frame of the one before, for the pairs across the seam
        parts = [compare(tokens[max(0, start - 1) : start + step], min(start, 1)) for start in range(0, t, step)]
        scores, across = (torch.cat(each, 1) for each in zip(*parts, strict=True))
        first, share = (torch.from_numpy(each).to(tokens.device) for each in (tree.first, tree.share))
        return cls(tokens, scores, across, first, share.to(tokens.dtype), sound)

    def count(self, spatial: float, temporal: float) -> int:
        """How many tokens two thresholds leave."""
        level, node = self._divided(spatial)
        return int(self._roots(node, self._grouped(level, node, temporal)).sum())

    def merged(self, grid: TokenGrid, spatial: float, temporal: float) -> Kept:
        """What two thresholds leave."""
        level, node = self._divided(spatial)
        group = self._grouped(level, node, temporal)
        roots = self._roots(node, group)
        represents = (roots.cumsum(0) - 1)[group[node.flatten()]]  # [n]
        indices = roots.nonzero()[:, 0]
        tokens, nodes = (
            torch.bincount(each, minlength=len(indices)) for each in (represents, represents[self._is_node(node)])
        )
        # a group is the mean of its nodes, each the mean of its children, and so on down to the tokens
        weights = self.share.gather(0, level).flatten() / nodes[represents]
        members = represents.argsort(stable=True)
        merged = sums(self.tokens.flatten(0, 1), members, tokens, weights[members])
        return grid.merge(indices.cpu().numpy(), merged, represents.cpu().numpy())

    def _divided(self, threshold: float) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, N] the level of the node around each place, and [T, N] the flat index of that node's first token."""
        t, n, _ = self.tokens.shape
        level = torch.zeros((t, n), dtype=torch.int64, device=self.tokens.device)
        for i, score in enumerate(self.scores, 1):
            level = torch.where(score >= threshold, i, level)  # the coarsest that stays whole is the last to be set
        starts = torch.arange(0, t * n, n, device=level.device)
        return level, self.first.gather(0, level) + starts[:, None]

    def _grouped(self, level: torch.Tensor, node: torch.Tensor, threshold: float) -> torch.Tensor:
        """[n] for the flat index of a node that of the first node in its group."""
        t, n = node.shape
        if threshold <= 0:
            return torch.arange(t * n, device=node.device)
        # two nodes around one place: one of them holds the other, and all pairs that do are found so
        pairs = level[:-1] * len(self.first) + level[1:]
        alike = self.across.gather(0, pairs[None])[0] >= threshold  # [T - 1, N]
        edges = alike.flatten().nonzero()[:, 0]
        earlier, later = node.flatten()[edges], node.flatten()[edges + n]
        return (components if self.sound else _almost_components)(t * n, earlier, later)

    def _roots(self, node: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        return self._is_node(node) & (group == torch.arange(len(group), device=group.device))

    def _is_node(self, node: torch.Tensor) -> torch.Tensor:
        return node.flatten() == torch.arange(node.numel(), device=node.device)


@dataclass(frozen=True, eq=False)
class _Tree:
    """The quadtree of a frame, before anything is compared."""

    cells: np.ndarray  # [L, N] the cell around each place
    first: np.ndarray  # [L, N] that cell's first place
    share: np.ndarray  # [L, N] what a token weighs in its mean
    orphan: np.ndarray  # [L, N] whether it has fewer than four children

    @classmethod
    def of(cls, h: int, w: int, root_level: int) -> _Tree:
        """Cells as means of means: of one, two or four cells of the level below."""
        cells, share, orphan = [np.arange(h * w)], [np.ones(h * w)], [np.zeros(h * w, bool)]
        for size in _sizes(h, w, root_level)[:-1]:
            parent = _parents(*size)
            children = np.bincount(parent)[parent][cells[-1]]
            cells.append(parent[cells[-1]])
            share.append(share[-1] / children)
            orphan.append(children < 4)
        first = [np.unique(each, return_index=True)[1][each] for each in cells]
        return cls(np.stack(cells), np.stack(first), np.stack(share), np.stack(orphan))


class _Comparison:
    """Cosines of cells from products of the tokens in each root cell.

    Tokens are laid out as [R, m], root cells and the places in each, filled up where some have fewer; the cells inside
    a root cell, those of all levels together, are numbered to q.
    """

    def __init__(self, tree: _Tree, device: torch.device, sound: bool) -> None:
        levels, n = tree.cells.shape
        roots = tree.cells[-1]
        numbers = []  # per level [N] the number of the cell around each place within its root cell
        q = 0
        for first in tree.first:
            number = _ranks(roots, first == np.arange(n))[first]
            numbers.append(q + number)
            q += int(number.max()) + 1
        slot = numbers[0]
        m = int(slot.max()) + 1
        layout = np.zeros((roots.max() + 1, m), np.int64)  # a place that fills up weighs nothing, so any will do
        layout[roots, slot] = np.arange(n)
        mean = np.zeros((len(layout), q, m), np.float32)
        for number, share in zip(numbers, tree.share, strict=True):
            mean[roots, number, slot] = share
        at = np.array([[(roots * q + one) * q + other for other in numbers] for one in numbers])  # [L, L, N]
        self.levels = levels
        self.layout = torch.from_numpy(layout).to(device)  # [R, m]
        self.mean = torch.from_numpy(mean).to(device)  # [R, q, m]
        self.at = torch.from_numpy(at).to(device)
        self.cells = torch.from_numpy(tree.cells).to(device)
        self.orphans = not sound and bool(tree.orphan.any())
        if self.orphans:  # a child that is not there is taken to be the first cell of the frame
            self.corner = self.mean[0, [int(number[0]) for number in numbers[:-1]]]  # [L - 1, m]
            self.parent = torch.from_numpy(np.stack([roots * q + number for number in numbers[1:]])).to(device)
            self.orphan = torch.from_numpy(tree.orphan[1:]).to(device)

    def __call__(self, tokens: torch.Tensor, seen: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores, and cosines across time, of some frames; the first `seen` of them have been scored before."""
        t, _, d = tokens.shape
        laid = tokens.index_select(1, self.layout.flatten()).view(t, *self.layout.shape, d)  # [t, R, m, D]
        within = self._cells(laid, laid)  # [t, R, q, q]
        norm = within.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
        padded = norm + 1e-8  # as published, across time only
        across = self._cells(laid[:-1], laid[1:]) / (padded[:-1, :, :, None] * padded[1:, :, None])
        across = across.flatten(1)[:, self.at.flatten()].view(t - 1, self.levels**2, self.cells.shape[1])
        within, norm, laid = within[seen:], norm[seen:], laid[seen:]
        cosine = _divide(within, norm[..., :, None] * norm[..., None, :]).flatten(1)
        scores = []
        for i in range(1, self.levels):
            child = cosine[:, self.at[i, i - 1]]  # [t, N]
            cell = self.cells[i].expand(len(child), -1)
            least = child.scatter_reduce(1, cell, child, "amin", include_self=False)
            scores.append(least.gather(1, cell))
        if self.orphans:
            instead = self._with_corners(laid, norm)
            scores = [
                torch.where(orphan, torch.minimum(score, other), score)
                for score, other, orphan in zip(scores, instead, self.orphan, strict=True)
            ]
        none = cosine.new_empty(0, len(cosine), self.cells.shape[1])
        return torch.stack(scores) if scores else none, across.transpose(0, 1)

    def _cells(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """[t, R, q, q] the products of cells, from [t, R, m, D] tokens."""
        products = torch.bmm(a.flatten(0, 1), b.flatten(0, 1).mT).unflatten(0, a.shape[:2])
        return self.mean @ products @ self.mean.mT

    def _with_corners(self, laid: torch.Tensor, norm: torch.Tensor) -> list[torch.Tensor]:
        """Per coarser level [t, N] the cosine of the cell around a place with the frame's first cell a level below."""
        corners = self.corner @ laid[:, 0]  # [t, L - 1, D]
        products = self.mean @ (laid.flatten(1, 2) @ corners.mT).unflatten(1, self.layout.shape)  # [t, R, q, L - 1]
        lengths = norm[..., None] * torch.linalg.vector_norm(corners, dim=-1)[:, None, None]
        cosine = _divide(products, lengths).flatten(1, 2)
        return [cosine[:, parent, i] for i, parent in enumerate(self.parent)]


def _divide(products: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Cosines, 0 for a zero vector."""
    return products / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)


def _ranks(group: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """[N] how many of the counted before each are of its group.

    >>> _ranks(np.array([0, 1, 0, 1, 0]), np.array([True, True, False, True, True])).tolist()
    [0, 0, 1, 1, 1]
    """
    order = np.argsort(group, kind="stable")
    before = counted[order].cumsum() - counted[order]
    starts = np.searchsorted(group[order], group[order])
    ranks = np.empty_like(group)
    ranks[order] = before - before[starts]
    return ranks


def _sizes(h: int, w: int, root_level: int) -> list[tuple[int, int]]:
    """Rows and columns of each level, from the finest to the root.

    >>> _sizes(27, 27, 1)
    [(27, 27), (14, 14), (7, 7), (4, 4)]
    """
    sizes = [(h, w)]
    while 2 not in (h, w) and (h, w) != (1, 1):
        h, w = (h + 1) // 2, (w + 1) // 2
        sizes.append((h, w))
    return sizes[: max(1, len(sizes) - root_level)]


def _parents(h: int, w: int) -> np.ndarray:
    """[h * w] the cell of the next level that holds each cell; where a side is odd, its first row is alone in one.

    >>> _parents(1, 5).tolist()
    [0, 1, 1, 2, 2]
    """
    y, x = (np.arange(h) + h % 2) // 2, (np.arange(w) + w % 2) // 2
    return (y[:, None] * ((w + 1) // 2) + x).ravel()


def _almost_components(size: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[size] the group of each node, as the published loop leaves it: it stops once groups name themselves.

    By then the two ends of an edge may still be apart.

    >>> _almost_components(3, torch.tensor([0, 1]), torch.tensor([2, 2])).tolist()
    [0, 1, 0]
    """
    group = torch.arange(size, device=a.device)
    ends = torch.cat([a, b])
    while True:
        lower = torch.minimum(group[a], group[b])
        group = group.scatter_reduce(0, ends, torch.cat([lower, lower]), "amin")
        group = group[group]
        if torch.equal(group[group], group):
            return group
