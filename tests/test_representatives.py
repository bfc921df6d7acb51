"""Representatives, compared with brute force over all pairs of tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc import representatives
from floc.representatives import (
    AssignedRepresentation,
    KnownRepresentation,
    NearestRepresentation,
    SummedRepresentation,
    compute_cosines,
    describe_non_finite,
    find_nearest,
    find_nearest_of_prefixes,
)

RNG = torch.Generator().manual_seed(0)
TOKENS, KEPT = torch.randn(5, 2, 3, 8, generator=RNG), torch.randn(7, 8, generator=RNG)


def brute_force(tokens: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = [[torch.cosine_similarity(token, other, dim=0) for other in kept] for token in tokens.reshape(-1, 8)]
    return torch.tensor(pairs).max(1)


@pytest.mark.parametrize("tile_bytes", [1, 100, 1 << 26])
def test_find_nearest(tile_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(representatives, "TILE_BYTES", tile_bytes)
    for end, (cosine, place) in zip([1, 3, 7], find_nearest_of_prefixes(TOKENS, KEPT, [1, 3, 7]), strict=True):
        expected_cosine, expected_place = brute_force(TOKENS, KEPT[:end])
        torch.testing.assert_close(cosine, expected_cosine)
        assert torch.equal(place, expected_place)
    cosine, place = find_nearest(TOKENS, KEPT)
    torch.testing.assert_close(compute_cosines(TOKENS, KEPT, place), cosine)


def test_nearest_representation_of_released_tokens_is_unknown() -> None:
    rows = TOKENS.reshape(-1, 8)
    nearest = NearestRepresentation(TOKENS, rows[[3, 20]], np.array([3, 20]))
    cosine, place = brute_force(TOKENS, rows[[3, 20]])
    np.testing.assert_array_equal(nearest.represents, place)
    assert nearest.coverage == pytest.approx(float(cosine.mean()), abs=1e-6)
    assert nearest.shrink(np.array([1]), None).represents.tolist() == [0] * 30
    with pytest.raises(ValueError, match="which were released after the selection"):
        _ = NearestRepresentation(None, rows[:1], np.array([0])).coverage


def test_assigned_representation() -> None:
    represents = np.arange(30) % 7
    cosines = [torch.cosine_similarity(token, KEPT[i % 7], dim=0) for i, token in enumerate(TOKENS.reshape(-1, 8))]
    assigned = AssignedRepresentation(TOKENS, KEPT, represents)
    assert assigned.coverage == pytest.approx(float(torch.stack(cosines).mean()), abs=1e-6)
    with pytest.raises(ValueError, match="have no nested order"):
        assigned.shrink(np.array([0]), None)


def test_summed_representation_weighs_by_length() -> None:
    summed = SummedRepresentation(torch.eye(2), np.array([3.0, 1.0]), 4.0, torch.tensor([[1.0, 0.0]]))
    assert summed.coverage == 0.75


def test_is_known_tells_whether_coverage_costs_nothing() -> None:
    assert KnownRepresentation(None, 0.5).is_known
    assigned = AssignedRepresentation(TOKENS, KEPT, np.zeros(30, np.int64))
    assert not assigned.is_known
    _ = assigned.coverage
    assert assigned.is_known


def test_describe_non_finite_names_the_place() -> None:
    assert describe_non_finite(TOKENS) is None
    wrong = TOKENS.double()
    wrong[3, 1, 2, 7] = 1e300
    assert describe_non_finite(wrong) == "1e+300 in frame 3, row 1, column 2; drop or repair that frame first"
