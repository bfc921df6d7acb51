"""Density-peak clustering of many groups compared with the definition for one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.methods.shared import density, frames


def cluster_by_definition(x: np.ndarray, clusters: int, k: int) -> tuple[list[int], list[int]]:
    """Return the points by descending score and the cluster of each point, step by step."""
    m = len(x)
    x = x.astype(np.float64)
    d = np.sqrt(((x[:, None] - x[None]) ** 2).mean(-1))
    rho = [np.exp(-np.mean(np.sort(d[i] ** 2)[: min(k, m)])) for i in range(m)]
    score = []
    for i in range(m):
        denser = [d[i, j] for j in range(m) if rho[j] > rho[i] or (rho[j] == rho[i] and j < i)]
        score.append(rho[i] * min(denser, default=d.max()))
    order = sorted(range(m), key=lambda i: (-score[i], i))
    centres = order[:clusters]
    labels = [min(range(clusters), key=lambda c: (d[i, centres[c]], c)) for i in range(m)]
    for c, i in enumerate(centres):
        labels[i] = c
    return order, labels


@pytest.mark.parametrize("cache", [1 << 23, 1, 2000])
@pytest.mark.parametrize("k", [1, 4, 7, 100])
def test_clusters_padded_groups_of_different_sizes(k: int, cache: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "CPU_BYTES", cache)  # all rows in one tile, one per tile, a few per tile
    rng = np.random.default_rng(k)
    sizes, counts = np.array([1, 2, 5, 17, 23, 23]), np.array([1, 1, 5, 4, 1, 23])
    x = (rng.standard_normal((6, 23, 12)) + 5 * rng.standard_normal(12)).astype(np.float32)
    size, count = torch.from_numpy(sizes), torch.from_numpy(counts)
    centres, cluster = density.cluster_points(torch.from_numpy(x), size, count, 23, k)
    for b in range(6):
        expected, labels = cluster_by_definition(x[b, : sizes[b]], counts[b], k)
        assert centres[b, : sizes[b]].tolist() == expected
        assert cluster[b].tolist() == labels + [23] * (23 - sizes[b])


def test_duplicates_have_distance_zero_and_rank_last() -> None:
    x = torch.randn(1, 4, 300, generator=torch.Generator().manual_seed(0)) + 100
    x = x[:, [0, 1, 0, 2, 1, 3, 0]]
    size = torch.tensor([7])
    squared = density.compute_distances(x, size)
    assert squared[0, 0, 2] == squared[0, 2, 6] == squared[0, 1, 4] == 0
    order = density.rank_points(squared, size, k=2)[0].tolist()
    assert set(order[:4]) == {0, 1, 3, 5}
    assert order[4:] == [2, 4, 6]  # at distance 0 from a denser point, so in index order
    cluster = density.cluster_points(x, size, torch.tensor([6]), 6, k=2)[1][0]
    # a centre stays in its own cluster; other duplicates go to the first
    assert cluster[[2, 4, 6]].tolist() == [4, 5, order.index(0)]


def test_ranks_points_whose_densities_underflow() -> None:
    x = torch.tensor([[[0.0], [100.0], [220.0], [360.0]]])
    squared = density.compute_distances(x, torch.tensor([4]))
    # sparseness 5000, 5000, 7200, 9800 and separation 360, 100, 120, 140: densities outweigh distances
    assert density.rank_points(squared, torch.tensor([4]), k=2).tolist() == [[0, 1, 2, 3]]
    assert density.rank_points(squared.flip(1, 2), torch.tensor([4]), k=2)[0, -2:].tolist() == [1, 0]
