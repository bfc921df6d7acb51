"""PruneVID, first stage (Huang et al., "PruneVid: Visual Token Pruning for Efficient Video Large Language Models")."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from floc.kept import Kept
from floc.methods import density
from floc.methods.base import Facts
from floc.methods.budgets import require_floor
from floc.methods.density import tiles, wide
from floc.methods.registry import register
from floc.tokens import TokenGrid


@register("prunevid")
@dataclass(frozen=True)
class PruneVid:
    """Average the cells that hardly change within a scene over its frames, then merge what is alike in each frame.

    Frames are clustered by density peaks into scenes, contiguous ones. A cell whose tokens in a scene are alike on
    average is static, and is one token for the scene. The static tokens of a scene, and of each frame the others, are
    clustered by density peaks as well, and a cluster is replaced by its mean.

    A budget sets `cluster_ratio`, and is met exactly: tokens still missing are extra clusters, one for each of the
    groups that would be the next to get one. Where a `cluster_ratio` of 0 keeps too many, groups of `untouched` tokens
    and fewer are clustered too; where 1 keeps too few, `tau` is raised. Both are then reported in the settings.

    Only the first stage of the published method is here, as the second needs a query. What differs from the program:
    - Equal densities are told apart by index, not by noise, and densities are compared by their logarithm, so that
      tokens far apart, whose density is 0 in float32, keep an order (there it is the noise that orders them).
    - Fewer frames than neighbours, and ratios that make less than one cluster, are errors there; here a group has as
      many neighbours as it can, and at least one cluster. A single frame is dynamic as a whole.
    - Tokens come in the order of the places they take, those of their clusters' centres (static ones in the scene's
      first frame), instead of scene by scene with the static ones first.
    """

    facts: ClassVar[Facts] = Facts(
        "Huang et al., PruneVid, 2024",
        "merge",
        floor="one token for each frame, and for each scene's static part",
        searched=("cluster_ratio",),
    )

    tau: float = 0.8  # a cell is static where the mean cosine of its tokens in a scene is above this
    temporal_segment_ratio: float = 0.25  # clusters of frames / frames
    cluster_ratio: float = 0.5  # clusters of tokens / tokens, in each group
    k: int = 7  # neighbours that a density is taken from
    untouched: int = 14  # groups of up to this many tokens are not clustered
    nearest: bool = False

    def __post_init__(self) -> None:
        for name in ("temporal_segment_ratio", "cluster_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], clusters / members; got {getattr(self, name)}")
        if not self.k >= 1:
            raise ValueError(f"k must be at least 1, the point itself; got {self.k}")
        if np.isnan(self.tau):
            raise ValueError("tau must be a number, the cosine above which a cell is static; got nan")

    def native(self, grid: TokenGrid) -> Kept:
        scenes = _Scenes.of(grid, self.temporal_segment_ratio, self.k)
        groups = scenes.groups(self.tau)
        return self._merged(grid, groups, groups.counts(self.cluster_ratio, self.untouched))

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        if budget == grid.n:
            return replace(grid.keep_all(), settings={"tau": 1.0, "cluster_ratio": 1.0})
        scenes = _Scenes.of(grid, self.temporal_segment_ratio, self.k)
        tau, untouched = scenes.raised(self.tau, budget), self.untouched
        groups = scenes.groups(tau)
        if groups.counts(0, untouched).sum() > budget:
            untouched = 0
        floor = int((groups.sizes > 0).sum())
        why = "a token or more of every frame and every scene's static part"
        require_floor("prunevid", budget, floor, grid.n, why, nearest=self.nearest)
        ratio, counts = groups.within(max(budget, floor), untouched)
        extra = int(counts.sum() - groups.counts(ratio, untouched).sum())
        found = {"cluster_ratio": ratio, "tau": tau, "untouched": untouched, "extra_clusters": extra}
        return replace(self._merged(grid, groups, counts), settings=found)

    def _merged(self, grid: TokenGrid, groups: _Groups, counts: np.ndarray) -> Kept:
        """Replace every group by as many clusters as it is given."""
        cells = grid.n // grid.shape[0]
        places, merged = [], []
        cluster_of = np.zeros((len(groups.first), cells), np.int64)  # of each group's cells, over all groups
        before = np.cumsum(counts) - counts
        averages = _scene_means(grid, groups.starts) if groups.sizes[groups.static].any() else None
        for static in (True, False):
            chosen = np.flatnonzero((groups.static == static) & (groups.sizes > 0))
            widest = int(groups.sizes[chosen].max(initial=1))
            for part in tiles(len(chosen), 4 * widest * max(widest, grid.dim), grid.tokens.device):
                some = chosen[part]
                members = groups.members[some][:, : groups.sizes[some].max()]  # [B, M] cells, padded by cells of others
                if static:
                    assert averages is not None, "there are static cells"
                    at = groups.scene[some, None] * cells + members
                    x = averages.view(-1, grid.dim)[torch.from_numpy(at).to(averages.device)]  # [B, M, D]
                else:
                    at = groups.first[some, None] * cells + members
                    x = wide(grid.gather(at.ravel())).view(*at.shape, -1)
                centres, cluster, means = _clustered(x, groups.sizes[some], counts[some], self.k)
                real = np.arange(members.shape[1]) < groups.sizes[some, None]
                of_group = np.broadcast_to(some[:, None], members.shape)
                cluster_of[of_group[real], members[real]] = (before[some, None] + cluster)[real]
                centre_cells = np.take_along_axis(members, centres, 1)
                given = np.arange(centres.shape[1]) < counts[some, None]
                places.append((groups.first[some, None] * cells + centre_cells)[given])
                merged.append(means)
        # the groups were not taken in their own order, so the clusters are not numbered as they come here
        came = np.concatenate(
            [
                np.flatnonzero(np.repeat((groups.static == static) & (groups.sizes > 0), counts))
                for static in (True, False)
            ]
        )
        indices = np.concatenate(places)
        by_place = np.argsort(indices)
        place_of = np.empty_like(by_place)
        place_of[came[by_place]] = np.arange(len(by_place))
        represents = place_of[cluster_of[groups.group_of, np.arange(cells)]].ravel()
        order = torch.from_numpy(by_place).to(grid.tokens.device)
        return grid.merge(indices[by_place], torch.cat(merged)[order], represents)


@dataclass(frozen=True, eq=False)
class _Groups:
    """What is clustered together: of each scene the static cells, then of each of its frames the others."""

    starts: np.ndarray  # [S] the first frame of each scene
    scene: np.ndarray  # [G] the scene of each group
    first: np.ndarray  # [G] its frame, of static ones the scene's first
    static: np.ndarray  # [G] bool
    sizes: np.ndarray  # [G] tokens in it
    members: np.ndarray  # [G, N] cells, its own first, in order
    group_of: np.ndarray  # [T, N] the group of every token

    def counts(self, ratio: float, untouched: int) -> np.ndarray:
        """[G] the clusters of each group."""
        clusters = np.maximum(1, np.floor(ratio * self.sizes)).astype(np.int64)
        return np.where(self.sizes <= untouched, self.sizes, np.minimum(clusters, self.sizes))

    def within(self, budget: int, untouched: int) -> tuple[float, np.ndarray]:
        """The ratio with the largest count within a budget, and [G] clusters that meet it exactly."""
        low, high = 0.0, 1.0
        if self.counts(high, untouched).sum() <= budget:
            return high, self.counts(high, untouched)
        # counts step at fractions of group sizes, which 40 halvings tell apart
        for _ in range(40):
            middle = (low + high) / 2
            if self.counts(middle, untouched).sum() <= budget:
                low = middle
            else:
                high = middle
        counts = self.counts(low, untouched)
        # just below a step, the groups with the largest fraction left over are those that it gives one more
        next_ones = np.flatnonzero(self.counts(high, untouched) > counts)
        counts[next_ones[: budget - counts.sum()]] += 1
        return low, counts


@dataclass(frozen=True, eq=False)
class _Scenes:
    """Contiguous stretches of frames, and how alike the tokens of a cell are in each."""

    starts: np.ndarray  # [S] the first frame of each
    lengths: np.ndarray  # [S]
    alike: np.ndarray  # [S, N] float64, mean cosine of any two frames; -inf where there is one frame

    @classmethod
    def of(cls, grid: TokenGrid, ratio: float, k: int) -> _Scenes:
        labels = contiguous(frame_labels(grid, ratio, k))
        starts = np.flatnonzero(np.diff(labels, prepend=-1))
        lengths = np.diff(starts, append=len(labels))
        parts = tiles(len(labels), 4 * grid.n // len(labels) * grid.dim, grid.tokens.device)
        norms = torch.cat([torch.linalg.vector_norm(wide(grid.tokens[part]), dim=-1).flatten(1) for part in parts])
        shrink = norms.clamp(min=1e-12).reciprocal()
        squares = torch.linalg.vector_norm(_scene_sums(grid, starts, shrink), dim=2).square()  # [S, N]
        # the sum over all pairs, less those of a token with itself: 1, or 0 for a zero token
        itself = np.add.reduceat((norms * shrink).square().cpu().double().numpy(), starts)
        pairs = (lengths * (lengths - 1))[:, None]
        mean = (squares.cpu().double().numpy() - itself) / np.maximum(pairs, 1)
        # above 1 is rounding, and would be above a tau of 1
        alike = np.where(pairs > 0, np.minimum(mean, 1), -np.inf)
        return cls(starts, lengths, alike)

    def raised(self, tau: float, budget: int) -> float:
        """The least threshold, from `tau`, that leaves as many tokens as a budget before any are clustered."""
        saved = np.broadcast_to(self.lengths[:, None] - 1, self.alike.shape)  # by a static cell
        static = self.alike > tau
        left = self.lengths.sum() * self.alike.shape[1] - saved[static].sum()
        if left >= budget:
            return tau
        order = np.argsort(self.alike[static], kind="stable")
        enough = np.searchsorted(left + np.cumsum(saved[static][order]), budget)
        return float(self.alike[static][order][enough])

    def groups(self, tau: float) -> _Groups:
        """Split the cells of every scene."""
        is_static = self.alike > tau  # [S, N]
        frames = self.lengths.sum()
        scene_of = np.repeat(np.arange(len(self.starts)), self.lengths)  # [T]
        # a scene's static group stands before the groups of its frames
        group_of_frame = np.arange(frames) + scene_of + 1
        group_of_scene = self.starts + np.arange(len(self.starts))
        scene = np.empty(frames + len(self.starts), np.int64)
        first, static = np.empty_like(scene), np.zeros(len(scene), bool)
        scene[group_of_frame], scene[group_of_scene] = scene_of, np.arange(len(self.starts))
        first[group_of_frame], first[group_of_scene] = np.arange(frames), self.starts
        static[group_of_scene] = True
        own = np.where(static[:, None], is_static[scene], ~is_static[scene])  # [G, N]
        return _Groups(
            starts=self.starts,
            scene=scene,
            first=first,
            static=static,
            sizes=own.sum(1),
            members=np.argsort(~own, axis=1, kind="stable"),
            group_of=np.where(is_static[scene_of], group_of_scene[scene_of, None], group_of_frame[:, None]),
        )


def frame_labels(grid: TokenGrid, ratio: float, k: int) -> np.ndarray:
    """[T] the cluster of every frame, by its mean token."""
    frames = density.frame_means(grid)[None]  # [1, T, D]
    t = frames.shape[1]
    count = min(t, max(1, int(ratio * t)))
    size, clusters = (torch.tensor([each], device=frames.device) for each in (t, count))
    squared = density.distances(frames, size)
    order = density.ranked(squared, size, k)
    return density.assigned(squared, order, size, clusters, count)[0].cpu().numpy()


def contiguous(labels: np.ndarray) -> np.ndarray:
    """[T] labels of frames, where stray frames take the label of the longer of the runs beside them.

    A label's frames stray where they are not in its longest run, or in one of several longest, or where that is a
    single frame.

    >>> contiguous(np.array([0, 0, 1, 2, 2, 2, 0])).tolist()
    [0, 0, 2, 2, 2, 2, 2]
    """
    starts = np.flatnonzero(np.diff(labels, prepend=-1))
    lengths = np.diff(starts, append=len(labels))
    longest = np.zeros(labels.max() + 1, np.int64)
    np.maximum.at(longest, labels[starts], lengths)
    stray = (lengths < longest[labels[starts]]) | (lengths == 1)
    runs: list[tuple[int | None, int]] = []  # label and length; neighbouring strays are one run
    for is_stray, some in itertools.groupby(range(len(starts)), key=lambda run: bool(stray[run])):
        places = list(some)
        if is_stray:
            runs.append((None, int(lengths[places].sum())))
        else:
            runs.extend((int(labels[starts[run]]), int(lengths[run])) for run in places)
    refined: list[list[int]] = []
    for at, (label, length) in enumerate(runs):
        if label is None:
            left = refined[-1] if refined else (0, 0)
            right = runs[at + 1] if at + 1 < len(runs) else (0, 0)
            label = right[0] if right[1] > left[1] else left[0]
            assert label is not None, "strays side by side are one run"
        if refined and refined[-1][0] == label:
            refined[-1][1] += length
        else:
            refined.append([label, length])
    return np.repeat([label for label, _ in refined], [length for _, length in refined])


def _clustered(
    x: torch.Tensor, sizes: np.ndarray, counts: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
    """Cluster the groups of [B, M, D].

    Returns:
        [B, most] centres, [B, M] the cluster of every point, and [sum of counts, D] the means, group after group.
    """
    most = int(counts.max())
    size, count = (torch.from_numpy(each).to(x.device) for each in (sizes, counts))
    squared = density.distances(x, size)
    order = density.ranked(squared, size, k)
    cluster = density.assigned(squared, order, size, count, most)
    del squared
    # a product with zeros and ones, as sums by index have no fixed order on a GPU
    member = x.new_zeros(len(x), most + 1, x.shape[1]).scatter_(1, cluster[:, None], 1)[:, :most]
    given = torch.from_numpy(np.flatnonzero(np.arange(most) < counts[:, None])).to(x.device)
    means = (member @ x).flatten(0, 1)[given] / member.sum(2).flatten()[given, None]
    return order[:, :most].cpu().numpy(), cluster.cpu().numpy(), means


def _scene_means(grid: TokenGrid, starts: np.ndarray) -> torch.Tensor:
    """[S, N, D] every cell's mean over the frames of a scene."""
    lengths = torch.from_numpy(np.diff(starts, append=grid.shape[0])).to(grid.tokens.device)
    return _scene_sums(grid, starts).div_(lengths[:, None, None])


def _scene_sums(grid: TokenGrid, starts: np.ndarray, factors: torch.Tensor | None = None) -> torch.Tensor:
    """[S, N, D] every cell's sum over the frames of a scene, of tokens times [T, N] factors."""
    t, h, w = grid.shape
    scene = np.repeat(np.arange(len(starts)), np.diff(starts, append=t))
    sums = wide(grid.tokens[:0]).new_zeros(len(starts), h * w * grid.dim)
    for part in tiles(t, 4 * h * w * grid.dim, grid.tokens.device):
        frames = wide(grid.tokens[part]).reshape(-1, h * w, grid.dim)
        if factors is not None:
            frames = frames * factors[part, :, None]
        here = scene[part]
        low, high = here[0], here[-1] + 1
        belongs = torch.from_numpy(np.arange(low, high)[:, None] == here).to(frames.device, frames.dtype)
        sums[low:high] += belongs @ frames.flatten(1)
    return sums.view(len(starts), h * w, grid.dim)
