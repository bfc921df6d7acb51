"""PruneVid, first stage (Huang et al., "PruneVid: Visual Token Pruning for Efficient Video Large Language Models")."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch

from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.budgets import check_floor
from floc.methods.shared.density import cluster_points
from floc.methods.shared.frames import average_frames, read_frames, split_tiles, tile_frames, to_float
from floc.methods.shared.inputs import check_least, check_shares
from floc.tokens import TokenGrid


@register(
    "prunevid",
    "Huang et al., PruneVid, 2024",
    "merge",
    floor="one token for each frame and for each scene's static part",
    searched=("cluster_ratio",),
)
@dataclass(frozen=True)
class PruneVid:
    """Average static cells over the frames of a scene, then merge similar tokens of each frame.

    Frames are clustered by density peaks, and the clusters made contiguous, into scenes. A cell is static in a scene
    if the mean cosine of its tokens is above `tau`; its tokens are replaced by their mean. The static tokens of each
    scene, and the other tokens of each frame, are then clustered by density peaks, and each cluster is replaced by
    its mean.

    A budget sets `cluster_ratio` and is met exactly: missing tokens become extra clusters, one in each of the groups
    that would be the next to get one. If a `cluster_ratio` of 0 keeps too many tokens, groups of up to `untouched`
    tokens are clustered too; if 1 keeps too few, `tau` is raised. The settings of the result report both.

    Only the first stage is included; the second needs a query. Differences from the published program:
    - Ties between densities are broken by index, not by noise. Densities are compared by their logarithm, because
      those of distant tokens underflow in float32.
    - The program fails if there are fewer frames than neighbours or less than one cluster. Here the neighbours are
      limited to the group, and every group has at least one cluster. A single frame is not static.
    - Tokens are in video order: a merged token takes the position of its cluster's centre, static ones in the first
      frame of the scene. The program outputs them scene by scene, static tokens first.
    """

    tau: float = 0.8  # a cell with a higher mean cosine in a scene is static
    temporal_segment_ratio: float = 0.25  # clusters of frames / frames
    cluster_ratio: float = 0.5  # clusters / tokens in each group
    k: int = 7  # neighbours that a density is computed from, the point itself included
    untouched: int = 14  # groups of up to this many tokens are not clustered
    nearest: bool = False

    def __post_init__(self) -> None:
        check_shares(self, "temporal_segment_ratio", "cluster_ratio")
        check_least(self, 1, "neighbour", "k")

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        groups = _Scenes.find(grid, self.temporal_segment_ratio, self.k).split(self.tau)
        return self._merge(grid, groups, groups.count_clusters(self.cluster_ratio, self.untouched))

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        if budget == grid.n:
            return replace(grid.keep_all(), settings={"tau": 1.0, "cluster_ratio": 1.0})
        scenes = _Scenes.find(grid, self.temporal_segment_ratio, self.k)
        tau, untouched = scenes.raise_threshold(self.tau, budget), self.untouched
        groups = scenes.split(tau)
        if groups.count_clusters(0, untouched).sum() > budget:
            untouched = 0
        floor, reason = (
            int((groups.sizes > 0).sum()),
            "at least one token of every frame and of every scene's static part",
        )
        check_floor("prunevid", budget, floor, grid.n, reason, nearest=self.nearest)
        ratio, counts = groups.share_budget(max(budget, floor), untouched)
        extra = int(counts.sum() - groups.count_clusters(ratio, untouched).sum())
        settings = {"cluster_ratio": ratio, "tau": tau, "untouched": untouched, "extra_clusters": extra}
        return replace(self._merge(grid, groups, counts), settings=settings)

    def _merge(self, grid: TokenGrid, groups: "_TokenGroups", counts: np.ndarray) -> Kept:
        """Replace every group by [G] counts of clusters."""
        cells, device = grid.cells, grid.tokens.device
        before = np.cumsum(counts) - counts  # clusters are numbered group after group
        indices = np.empty(counts.sum(), np.int64)
        merged = to_float(grid.tokens[:0]).new_empty(len(indices), grid.dim)
        cluster_of = np.zeros((len(counts), cells), np.int64)
        means = None  # [S, N, D] of static cells
        if groups.sizes[groups.static].any():
            lengths = torch.from_numpy(np.diff(groups.starts, append=grid.shape[0])).to(device)
            means = _sum_scenes(grid, groups.starts).div_(lengths[:, None, None])
        for static in (True, False):
            selected = np.flatnonzero((groups.static == static) & (groups.sizes > 0))
            widest = int(groups.sizes[selected].max(initial=1))
            for tile in split_tiles(len(selected), 4 * widest * max(widest, grid.dim), device):
                group = selected[tile]
                size, count = groups.sizes[group, None], counts[group, None]
                members = groups.members[group][:, : size.max()]  # [B, M] cells, padded with cells of other groups
                if static:
                    assert means is not None, "there are static cells"
                    rows = torch.from_numpy(groups.scene[group, None] * cells + members).to(device)
                    x = means.view(-1, grid.dim)[rows]  # [B, M, D]
                else:
                    rows = groups.frame[group, None] * cells + members
                    x = to_float(grid.gather(rows.ravel())).view(*rows.shape, -1)
                centres, cluster, cluster_means = _cluster(x, size[:, 0], count[:, 0], self.k)
                is_member = np.arange(members.shape[1]) < size
                of_group = np.repeat(group, size[:, 0])
                cluster_of[of_group, members[is_member]] = (before[group, None] + cluster)[is_member]
                is_cluster = np.arange(centres.shape[1]) < count
                numbers = (before[group, None] + np.arange(centres.shape[1]))[is_cluster]
                centre_cells = np.take_along_axis(members, centres, 1)
                indices[numbers] = (groups.frame[group, None] * cells + centre_cells)[is_cluster]
                merged[torch.from_numpy(numbers).to(device)] = cluster_means
        by_index = np.argsort(indices)
        represents = np.argsort(by_index)[cluster_of[groups.group_of, np.arange(cells)]].ravel()
        return grid.merge(indices[by_index], merged[torch.from_numpy(by_index).to(device)], represents)


@dataclass(frozen=True, eq=False)
class _TokenGroups:
    """The tokens clustered together: the static cells of each scene, followed by the others of each of its frames."""

    starts: np.ndarray  # [S] the first frame of each scene
    scene: np.ndarray  # [G] the scene of each group
    frame: np.ndarray  # [G] its frame; for static groups the first of the scene
    static: np.ndarray  # [G] bool
    sizes: np.ndarray  # [G] tokens
    members: np.ndarray  # [G, N] cells, those of the group first, ascending
    group_of: np.ndarray  # [T, N] the group of every token

    def count_clusters(self, ratio: float, untouched: int) -> np.ndarray:
        """Return the clusters of each group: [G]."""
        clusters = np.maximum(1, np.floor(ratio * self.sizes)).astype(np.int64)
        return np.where(self.sizes <= untouched, self.sizes, np.minimum(clusters, self.sizes))

    def share_budget(self, budget: int, untouched: int) -> tuple[float, np.ndarray]:
        """Return the ratio with the largest count within a budget, and [G] clusters that meet the budget exactly."""
        low, high = 0.0, 1.0
        if self.count_clusters(high, untouched).sum() <= budget:
            return high, self.count_clusters(high, untouched)
        # counts step at fractions of group sizes, which 40 bisections resolve
        for _ in range(40):
            middle = (low + high) / 2
            is_within = self.count_clusters(middle, untouched).sum() <= budget
            low, high = (middle, high) if is_within else (low, middle)
        counts = self.count_clusters(low, untouched)
        # just below a step, the groups that it gives one more are those with the largest fraction left over
        growing = np.flatnonzero(self.count_clusters(high, untouched) > counts)
        counts[growing[: budget - counts.sum()]] += 1
        return low, counts


@dataclass(frozen=True, eq=False)
class _Scenes:
    """Contiguous runs of frames, and how similar the tokens of each cell are within them."""

    starts: np.ndarray  # [S] the first frame of each
    lengths: np.ndarray  # [S]
    similarity: np.ndarray  # [S, N] float64, mean cosine of any two frames; -inf for a single frame

    @classmethod
    def find(cls, grid: TokenGrid, ratio: float, k: int) -> "_Scenes":
        labels = make_contiguous(label_frames(grid, ratio, k))
        starts = np.flatnonzero(np.diff(labels, prepend=-1))
        lengths = np.diff(starts, append=len(labels))
        norms = torch.cat([torch.linalg.vector_norm(read_frames(grid, tile), dim=-1) for tile in tile_frames(grid)])
        factors = norms.clamp(min=1e-12).reciprocal()
        squares = torch.linalg.vector_norm(_sum_scenes(grid, starts, factors), dim=2).square()  # [S, N]
        # the sum over all pairs, minus those of a token with itself: 1, or 0 for a zero token
        own = np.add.reduceat((norms * factors).square().cpu().double().numpy(), starts)
        pairs = (lengths * (lengths - 1))[:, None]
        mean = (squares.cpu().double().numpy() - own) / np.maximum(pairs, 1)
        # rounding may exceed 1, and so a tau of 1
        return cls(starts, lengths, np.where(pairs > 0, np.minimum(mean, 1), -np.inf))

    def raise_threshold(self, tau: float, budget: int) -> float:
        """Return the lowest threshold, at least `tau`, that leaves `budget` tokens before clustering."""
        savings = np.broadcast_to(self.lengths[:, None] - 1, self.similarity.shape)  # of a static cell
        static = self.similarity > tau
        left = self.lengths.sum() * self.similarity.shape[1] - savings[static].sum()
        if left >= budget:
            return tau
        order = np.argsort(self.similarity[static], kind="stable")
        enough = np.searchsorted(left + np.cumsum(savings[static][order]), budget)
        return float(self.similarity[static][order][enough])

    def split(self, tau: float) -> _TokenGroups:
        """Split the cells of every scene into static ones and others."""
        is_static = self.similarity > tau  # [S, N]
        frames, scenes = np.arange(self.lengths.sum()), np.arange(len(self.starts))
        scene_of = np.repeat(scenes, self.lengths)  # [T]
        scene = np.insert(scene_of, self.starts, scenes)
        static = np.insert(np.zeros(len(frames), bool), self.starts, True)
        own = np.where(static[:, None], is_static[scene], ~is_static[scene])  # [G, N]
        members = np.argsort(~own, axis=1, kind="stable")
        scene_group, frame_group = np.flatnonzero(static)[scene_of, None], np.flatnonzero(~static)[:, None]  # [T, 1]
        group_of = np.where(is_static[scene_of], scene_group, frame_group)
        frame = np.insert(frames, self.starts, self.starts)
        return _TokenGroups(self.starts, scene, frame, static, own.sum(1), members, group_of)


def label_frames(grid: TokenGrid, ratio: float, k: int) -> np.ndarray:
    """Cluster frames by their mean token: [T]."""
    frames = average_frames(grid)[None]  # [1, T, D]
    t = frames.shape[1]
    count = min(t, max(1, int(ratio * t)))
    sizes, counts = (torch.tensor([number], device=frames.device) for number in (t, count))
    return cluster_points(frames, sizes, counts, count, k)[1][0].cpu().numpy()


def make_contiguous(labels: np.ndarray) -> np.ndarray:
    """Relabel stray frames with the label of the longer neighbouring run: [T].

    The frames of a label are stray if their run is shorter than the label's longest run, or a single frame.

    >>> make_contiguous(np.array([0, 0, 1, 2, 2, 2, 0])).tolist()
    [0, 0, 2, 2, 2, 2, 2]
    """
    starts = np.flatnonzero(np.diff(labels, prepend=-1))
    lengths = np.diff(starts, append=len(labels))
    longest = np.zeros(labels.max() + 1, np.int64)
    np.maximum.at(longest, labels[starts], lengths)
    stray = (lengths < longest[labels[starts]]) | (lengths == 1)
    run_labels = np.where(stray, -1, labels[starts])
    first = np.flatnonzero(np.diff(run_labels, prepend=-2))  # adjacent strays are one run
    runs = np.stack([run_labels[first], np.add.reduceat(lengths, first)], 1).tolist()
    joined = [[0, 0]]  # label and length
    for (label, length), right in itertools.pairwise([*runs, [0, 0]]):
        left = joined[-1]
        if label < 0:
            label = right[0] if right[1] > left[1] else left[0]
        if label == left[0]:
            left[1] += length
        else:
            joined.append([label, length])
    return np.repeat(*np.transpose(joined))


def _cluster(
    x: torch.Tensor, sizes: np.ndarray, counts: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
    """Cluster the groups of [B, M, D] points.

    Returns:
        [B, most] centres, [B, M] the cluster of every point, and [sum of counts, D] the means, group after group.
    """
    most = int(counts.max())
    size, count = (torch.from_numpy(array).to(x.device) for array in (sizes, counts))
    centres, cluster = cluster_points(x, size, count, most, k)
    # a product with zeros and ones, since scattered sums have no fixed order on a GPU
    member = x.new_zeros(len(x), most + 1, x.shape[1]).scatter_(1, cluster[:, None], 1)[:, :most]
    is_cluster = torch.from_numpy(np.flatnonzero(np.arange(most) < counts[:, None])).to(x.device)
    means = (member @ x).flatten(0, 1)[is_cluster] / member.sum(2).flatten()[is_cluster, None]
    return centres.cpu().numpy(), cluster.cpu().numpy(), means


def _sum_scenes(grid: TokenGrid, starts: np.ndarray, factors: torch.Tensor | None = None) -> torch.Tensor:
    """Return the sum of every cell over the frames of each scene, [S, N, D], times [T, N] factors."""
    scene_of = np.repeat(np.arange(len(starts)), np.diff(starts, append=grid.shape[0]))
    sums = to_float(grid.tokens[:0]).new_zeros(len(starts), grid.cells * grid.dim)
    for tile in tile_frames(grid):
        frames = read_frames(grid, tile)
        if factors is not None:
            frames = frames * factors[tile, :, None]
        scene = scene_of[tile]
        low, high = scene[0], scene[-1] + 1
        belongs = torch.from_numpy(np.arange(low, high)[:, None] == scene).to(frames.device, frames.dtype)
        sums[low:high] += belongs @ frames.flatten(1)
    return sums.view(len(starts), grid.cells, grid.dim)
