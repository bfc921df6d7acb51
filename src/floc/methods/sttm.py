"""STTM (Hyun et al., 2025): a quadtree in every frame, then groups of similar nodes over time."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.budgets import check_floor, find_parameter
from floc.methods.shared.components import find_components, sum_groups
from floc.methods.shared.frames import split_tiles
from floc.tokens import TokenGrid

GAP = 0.25  # between the two thresholds in a search; published pairs are 0 to 0.3 apart
LOWEST = 1e-6  # temporal threshold: at 0 and below the published program skips the temporal step
NEVER = 1.05  # above every cosine, including rounding


@register(
    "sttm",
    "Hyun et al., STTM, 2025",
    "merge",
    exact=False,
    floor="about the root cells of one frame",
    searched=("spatial_threshold", "temporal_threshold"),
)
@dataclass(frozen=True)
class STTM:
    """Merge similar neighbours within each frame in a quadtree, then similar nodes of consecutive frames.

    Starting from large cells, a cell becomes one token if its mean has a cosine of at least `spatial_threshold` with
    each of its four quarters; otherwise the quarters are examined. Nodes of consecutive frames that overlap and whose
    cosine is at least `temporal_threshold` are joined, and each group is replaced by the unweighted mean of its
    nodes. Every token is represented by the token it was merged into.

    The thresholds were published for hidden states of an early decoder layer, per model and data set, and do not
    carry over to other tokens. The defaults are those for half the tokens of LLaVA-Video-7B. Thresholds above 1 merge
    nothing; `temporal_threshold <= 0` skips the temporal step. A budget is searched for along
    `temporal_threshold = spatial_threshold - 0.25`, limited to positive values, then with the temporal threshold alone.

    Oddities of the published program, reproduced by default and corrected by `sound=True`:
    - In a grid with an odd number of rows or columns, border cells have fewer than four quarters. They must then also
      be similar to the top left cell of the frame.
    - The loop that forms groups over time stops too early, so some connected groups stay apart.

    Differences from the published program: grids with a side of 2 or a single cell, on which it fails, start from
    their coarsest level. The cosine with a zero vector is 0. Only its default variant is included (unweighted means,
    fast pairing).
    """

    spatial_threshold: float = 0.85  # least cosine of a cell with its quarters to stay whole
    temporal_threshold: float = 0.55  # least cosine of two nodes to be joined over time
    root_level: int = 1  # the level of the largest cells; 0 is the coarsest
    sound: bool = False  # correct the oddities of the published program
    nearest: bool = False

    def __post_init__(self) -> None:
        if self.root_level < 0:
            raise ValueError(f"root_level must be 0, the coarsest level, or more; got {self.root_level}")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        if budget == grid.n:
            return replace(grid.keep_all(), settings={"spatial_threshold": NEVER, "temporal_threshold": 0.0})
        forest = _Forest.build(grid, self.root_level, self.sound)
        spatial = find_parameter(lambda high: forest.count(high, _lower(high)), -1.0, NEVER + GAP, budget)
        if spatial is None:
            reason = "a root cell wherever no earlier one is similar"
            check_floor("sttm", budget, forest.count(-1.0, LOWEST), grid.n, reason, nearest=self.nearest)
            spatial, temporal = -1.0, LOWEST
        else:
            # dividing a cell adds three tokens, splitting a group mostly one: this search comes closer
            closer = find_parameter(lambda low: forest.count(spatial, low), _lower(spatial), NEVER, budget, steps=16)
            assert closer is not None, "the first search found a count within the budget"
            temporal = closer
        settings = {"spatial_threshold": spatial, "temporal_threshold": temporal}
        return replace(forest.merge(grid, spatial, temporal), settings=settings)

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        forest = _Forest.build(grid, self.root_level, self.sound)
        return forest.merge(grid, float(self.spatial_threshold), float(self.temporal_threshold))


def _lower(spatial: float) -> float:
    return max(LOWEST, spatial - GAP)


class _Pyramid(NamedTuple):
    """The cells of one frame, for each level from the finest and each place of the grid."""

    cells: np.ndarray  # [L, N] the cell around the place
    first: np.ndarray  # [L, N] the first place of that cell
    share: np.ndarray  # [L, N] the weight of the token in the mean of that cell
    is_partial: np.ndarray  # [L, N] whether that cell has fewer than four quarters

    @classmethod
    def build(cls, h: int, w: int, root_level: int) -> "_Pyramid":
        """Build the levels from the finest to the root, each cell the mean of one, two or four cells below."""
        sizes = [(h, w)]
        while 2 not in sizes[-1] and sizes[-1] != (1, 1):
            sizes.append(((sizes[-1][0] + 1) // 2, (sizes[-1][1] + 1) // 2))
        cells, share, is_partial = [np.arange(h * w)], [np.ones(h * w)], [np.zeros(h * w, bool)]
        for rows, columns in sizes[: max(0, len(sizes) - 1 - root_level)]:
            # with an odd side the first row or column is alone, the others are paired
            y, x = (np.arange(rows) + rows % 2) // 2, (np.arange(columns) + columns % 2) // 2
            parent = (y[:, None] * ((columns + 1) // 2) + x).ravel()
            quarters = np.bincount(parent)[parent][cells[-1]]
            cells.append(parent[cells[-1]])
            share.append(share[-1] / quarters)
            is_partial.append(quarters < 4)
        first = [np.unique(level, return_index=True)[1][level] for level in cells]
        return cls(np.stack(cells), np.stack(first), np.stack(share), np.stack(is_partial))


@dataclass(frozen=True, eq=False)
class _Forest:
    """The quadtrees of all frames with every cosine that thresholds are compared with.

    Because these are computed once, a search for a budget costs little more than one run.
    """

    tokens: torch.Tensor  # [T, N, D] float32
    scores: torch.Tensor  # [L - 1, T, N] for each coarser level the lowest cosine of the cell with its quarters
    across: torch.Tensor  # [L * L, T - 1, N] for two levels the cosine of the cells, the second in the next frame
    first: torch.Tensor  # [L, N] see `_Pyramid`
    share: torch.Tensor  # [L, N]
    sound: bool

    @classmethod
    def build(cls, grid: TokenGrid, root_level: int, sound: bool) -> "_Forest":
        t, h, w = grid.shape
        tokens = grid.tokens.detach().float().reshape(t, grid.cells, -1)
        pyramid = _Pyramid.build(h, w, root_level)
        compare = _CellCosines(pyramid, tokens.device, sound)
        # a tile starts with the last frame of the tile before, for the pairs across the boundary
        parts = [
            compare(tokens[max(0, tile.start - 1) : tile.stop], min(tile.start, 1))
            for tile in split_tiles(t, 4 * tokens[0].numel(), tokens.device)
        ]
        scores, across = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        first, share = (torch.from_numpy(array).to(tokens.device) for array in (pyramid.first, pyramid.share))
        return cls(tokens, scores, across, first, share.to(tokens.dtype), sound)

    def count(self, spatial: float, temporal: float) -> int:
        level, node = self._divide(spatial)
        return int((_is_own(node) & _is_own(self._group(level, node, temporal))).sum())

    def merge(self, grid: TokenGrid, spatial: float, temporal: float) -> Kept:
        level, node = self._divide(spatial)
        group = self._group(level, node, temporal)
        roots = _is_own(node) & _is_own(group)
        represents = (roots.cumsum(0) - 1)[group[node.flatten()]]  # [n]
        indices = roots.nonzero()[:, 0]
        sizes = torch.bincount(represents, minlength=len(indices))
        nodes = torch.bincount(represents[_is_own(node)], minlength=len(indices))
        # a group is the mean of its nodes, a node the mean of its quarters, and so on down to the tokens
        weights = self.share.gather(0, level).flatten() / nodes[represents]
        members = represents.argsort(stable=True)
        merged = sum_groups(self.tokens.flatten(0, 1), members, sizes, weights[members])
        return grid.merge(indices.cpu().numpy(), merged, represents.cpu().numpy())

    def _divide(self, threshold: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the level of the node around each place, and the flat index of its first token: [T, N] each."""
        t, n, _ = self.tokens.shape
        level = torch.zeros((t, n), dtype=torch.int64, device=self.tokens.device)
        for i, score in enumerate(self.scores, 1):
            level = torch.where(score >= threshold, i, level)  # the coarsest whole cell is set last
        starts = torch.arange(0, t * n, n, device=level.device)
        return level, self.first.gather(0, level) + starts[:, None]

    def _group(self, level: torch.Tensor, node: torch.Tensor, threshold: float) -> torch.Tensor:
        """Map the flat index of each node to the first node of its group: [n]."""
        t, n = node.shape
        if threshold <= 0:
            return torch.arange(t * n, device=node.device)
        # of two nodes around one place one contains the other; comparing every place finds all such pairs
        pairs = level[:-1] * len(self.first) + level[1:]
        similar = self.across.gather(0, pairs[None])[0] >= threshold  # [T - 1, N]
        edges = similar.flatten().nonzero()[:, 0]
        earlier, later = node.flatten()[edges], node.flatten()[edges + n]
        return (find_components if self.sound else _find_groups)(t * n, earlier, later)


def _is_own(index: torch.Tensor) -> torch.Tensor:
    """Return which elements hold their own flat index: [n] bool."""
    return index.flatten() == torch.arange(index.numel(), device=index.device)


class _CellCosines:
    """Computes cosines of cells from the products of the tokens in each root cell.

    Tokens are laid out as [R, m]: root cells, and the places in each, padded. The cells of all levels inside a root
    cell are numbered 0..q-1.
    """

    def __init__(self, pyramid: _Pyramid, device: torch.device, sound: bool) -> None:
        self.levels, n = pyramid.cells.shape
        roots = pyramid.cells[-1]
        numbers = []  # for each level [N] the number of the cell around each place
        q = 0
        for first in pyramid.first:
            is_first = (first == np.arange(n))[:, None] & (roots[:, None] == np.arange(roots.max() + 1))
            number = is_first.cumsum(0)[first, roots] - 1
            numbers.append(q + number)
            q += int(number.max()) + 1
        slot = numbers[0]
        layout = np.zeros((roots.max() + 1, slot.max() + 1), np.int64)  # padding has no weight, so any place will do
        layout[roots, slot] = np.arange(n)
        mean = np.zeros((len(layout), q, layout.shape[1]), np.float32)
        for number, share in zip(numbers, pyramid.share, strict=True):
            mean[roots, number, slot] = share
        pairs = np.array([[(roots * q + one) * q + other for other in numbers] for one in numbers])  # [L, L, N]
        arrays = (layout, mean, pairs, pyramid.cells)  # [R, m], [R, q, m], [L, L, N], [L, N]
        self.layout, self.mean, self.pairs, self.cells = (torch.from_numpy(array).to(device) for array in arrays)
        self.has_partial = not sound and bool(pyramid.is_partial.any())
        if self.has_partial:  # the published program uses the first cell of the frame for a missing quarter
            self.corner = self.mean[0, [int(number[0]) for number in numbers[:-1]]]  # [L - 1, m]
            self.parent = torch.from_numpy(np.stack([roots * q + number for number in numbers[1:]])).to(device)
            self.is_partial = torch.from_numpy(pyramid.is_partial[1:]).to(device)

    def __call__(self, tokens: torch.Tensor, skip: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores of [t, N, D] frames after the first `skip`, and the cosines across all of them."""
        t, n, d = tokens.shape
        x = tokens.index_select(1, self.layout.flatten()).view(t, *self.layout.shape, d)  # [t, R, m, D]
        within = self._multiply(x, x)  # [t, R, q, q]
        norm = within.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
        padded = norm + 1e-8  # as published, across time only
        across = self._multiply(x[:-1], x[1:]) / (padded[:-1, :, :, None] * padded[1:, :, None])
        across = across.flatten(1)[:, self.pairs.flatten()].view(t - 1, self.levels**2, n)
        within, norm, x = within[skip:], norm[skip:], x[skip:]
        cosine = _divide_lengths(within, norm[..., :, None] * norm[..., None, :]).flatten(1)
        scores = cosine.new_empty(self.levels - 1, len(cosine), n)
        for i in range(1, self.levels):
            quarter = cosine[:, self.pairs[i, i - 1]]  # [t, N]
            cell = self.cells[i].expand(len(quarter), -1)
            scores[i - 1] = quarter.scatter_reduce(1, cell, quarter, "amin", include_self=False).gather(1, cell)
        if self.has_partial:
            # the cosine of each coarser cell with the frame's first cell one level below
            corners = self.corner @ x[:, 0]  # [t, L - 1, D]
            products = self.mean @ (x.flatten(1, 2) @ corners.mT).unflatten(1, self.layout.shape)  # [t, R, q, L - 1]
            lengths = norm[..., None] * torch.linalg.vector_norm(corners, dim=-1)[:, None, None]
            with_corner = _divide_lengths(products, lengths).flatten(1, 2)
            lower = torch.stack([with_corner[:, parent, i] for i, parent in enumerate(self.parent)])  # [L - 1, t, N]
            scores = torch.where(self.is_partial[:, None], torch.minimum(scores, lower), scores)
        return scores, across.transpose(0, 1)

    def _multiply(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return the products of cells, [t, R, q, q], of [t, R, m, D] tokens."""
        products = torch.bmm(a.flatten(0, 1), b.flatten(0, 1).mT).unflatten(0, a.shape[:2])
        return self.mean @ products @ self.mean.mT


def _divide_lengths(products: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return cosines, 0 for zero vectors."""
    return products / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)


def _find_groups(size: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the group of each node, [size], as the published loop does: the ends of an edge may stay apart.

    >>> _find_groups(3, torch.tensor([0, 1]), torch.tensor([2, 2])).tolist()
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
