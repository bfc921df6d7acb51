"""Connected components compared with a walk over the graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.methods.shared.components import find_components, sum_groups


def walk(size: int, a: np.ndarray, b: np.ndarray) -> list[int]:
    """Return the smallest node reachable from each node."""
    label = list(range(size))
    for start in range(size):
        reached, new = {start}, {start}
        while new:
            new = {y for x in new for y in [*b[a == x], *a[b == x]]} - reached
            reached |= new
        label[start] = min(reached)
    return label


@pytest.mark.parametrize(("size", "edges"), [(1, 0), (2, 1), (63, 20), (63, 60), (120, 110), (40, 400)])
def test_components_of_random_graphs(size: int, edges: int) -> None:
    rng = np.random.default_rng(size + edges)
    a, b = rng.integers(size, size=(2, edges))
    assert find_components(size, torch.from_numpy(a), torch.from_numpy(b)).tolist() == walk(size, a, b)


@pytest.mark.parametrize("shuffled", [False, True])
def test_long_path_is_one_component(shuffled: bool) -> None:
    path = torch.randperm(5000, generator=torch.Generator().manual_seed(0)) if shuffled else torch.arange(5000)
    assert (find_components(5001, path[:-1], path[1:])[:5000] == 0).all()
    assert find_components(5001, path[:-1], path[1:])[5000] == 5000


def test_sums_groups_including_empty_and_weighted() -> None:
    rows = torch.arange(8.0).view(4, 2)
    members, sizes = torch.tensor([3, 0, 2]), torch.tensor([2, 0, 1])
    assert sum_groups(rows, members, sizes).tolist() == [[6, 8], [0, 0], [4, 5]]
    assert sum_groups(rows, members, sizes, torch.tensor([0.5, 1, 2])).tolist() == [[3, 4.5], [0, 0], [8, 10]]
