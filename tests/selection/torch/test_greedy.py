"""Lazy greedy in torch on a batch of sets against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.selection import reference
from floc.selection.torch import greedy
from tests.selection.matrices import KINDS, make_matrix


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_batch_of_padded_sets_equals_reference(kind: str, weighted: bool) -> None:
    sizes, k = [40, 7, 23], 7
    matrices = [make_matrix(kind, n, seed=n) for n in sizes]
    batch = np.zeros((3, 40, 40), np.int16)
    weights = np.zeros((3, 40), np.int64)
    for b, (n, matrix) in enumerate(zip(sizes, matrices, strict=True)):
        batch[b, :n, :n] = matrix
        weights[b, :n] = np.random.default_rng(b).integers(0, 9, n)
    given = torch.from_numpy(weights) if weighted else None
    picks, gains = greedy.greedy(torch.from_numpy(batch), k, given, torch.tensor(sizes))
    for b, (n, matrix) in enumerate(zip(sizes, matrices, strict=True)):
        want = reference.greedy(matrix, k, weights[b, :n] if weighted else None)
        np.testing.assert_array_equal(picks[b].numpy(), want[0])
        np.testing.assert_array_equal(gains[b].numpy(), want[1])


def test_a_set_with_fewer_candidates_ends_in_negative_gains() -> None:
    batch = torch.zeros(1, 4, 4, dtype=torch.int16)
    _, gains = greedy.greedy(batch, 3, candidates=torch.tensor([2]))
    assert gains.tolist() == [[0, 0, -1]]
