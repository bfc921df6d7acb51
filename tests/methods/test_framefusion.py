"""FrameFusion's merging step compared with outputs of the published program and with its definition."""

from __future__ import annotations

import numpy as np
import pytest

import floc


@pytest.mark.parametrize("case", "abc")
def test_matches_published_program(read_golden, case: str) -> None:
    golden = read_golden(f"framefusion_{case}")
    options = {name: float(golden[name]) for name in ("cost", "similarity_lower_bound")}
    kept = floc.compress(golden["tokens"], method="framefusion", **options)
    np.testing.assert_array_equal(kept.indices, golden["position_index"])
    scale = np.abs(golden["merged"]).max()
    np.testing.assert_allclose(kept.features, golden["merged"], atol=1e-5 * scale, rtol=0)
    n = golden["tokens"][..., 0].size
    if golden["limited"]:
        assert len(kept) == n - int((1 - 28 * options["cost"] / 28) * n)


def test_budget_keeps_the_places_of_evs_with_means(tokens: np.ndarray) -> None:
    kept = floc.compress(tokens, method="framefusion", budget=200)
    assert kept.indices.tolist() == floc.compress(tokens, method="evs", budget=200).indices.tolist()
    is_kept = np.zeros(840, bool)
    is_kept[kept.indices] = True
    rows, expected = tokens.reshape(840, -1), []
    for index in kept.indices:
        run = [index]
        while run[-1] + 12 < 840 and not is_kept[run[-1] + 12]:
            run.append(run[-1] + 12)
        expected.append(rows[run].mean(0))
        assert (kept.indices[kept.represents[run]] == index).all()
    np.testing.assert_allclose(kept.features, expected, atol=1e-5)


def test_first_frame_is_never_merged(tokens: np.ndarray) -> None:
    kept = floc.compress(tokens, method="framefusion", cost=0.0, similarity_lower_bound=-1.0)
    assert kept.indices.tolist() == list(range(12))


def test_rejects_invalid_cost() -> None:
    with pytest.raises(ValueError, match="cost must be in"):
        floc.compress(np.ones((4, 2, 3, 5)), method="framefusion", cost=1.5)
