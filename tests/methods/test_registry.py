"""Every method there is, through the same door."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import floc

each_method = pytest.mark.parametrize("name", floc.methods.names())


def compress(tokens: Any, name: str, **dial: Any) -> floc.Kept:
    """What a method keeps; where a budget is below its floor, the fewest it can."""
    options = {"nearest": True} if "nearest" in floc.methods.options(name) else {}
    return floc.compress(tokens, method=name, **dial, **options)


def floor_of(tokens: np.ndarray, name: str) -> int:
    return len(compress(tokens, name, budget=1)) if floc.methods.facts(name).floor else 1


@each_method
@pytest.mark.parametrize("budget", [13, 105, 300, 840, 5000])
def test_on_budget_in_video_order_the_same_twice(tokens: np.ndarray, name: str, budget: int) -> None:
    before = tokens.copy()
    kept, again = (compress(tokens, name, budget=budget) for _ in range(2))
    np.testing.assert_array_equal(tokens, before)
    most = max(min(budget, 840), floor_of(tokens, name))
    assert 0 < len(kept) <= most
    if floc.methods.facts(name).exact:
        assert len(kept) == most
    assert (np.diff(kept.indices) > 0).all()
    np.testing.assert_array_equal(kept.positions, np.stack(np.unravel_index(kept.indices, (70, 3, 4)), 1))
    assert sorted(kept.order) == list(range(len(kept)))
    np.testing.assert_array_equal(kept.indices, again.indices)
    np.testing.assert_array_equal(kept.features, again.features)
    assert kept.method == name


@each_method
def test_every_token_has_a_representative_as_close_as_coverage_says(tokens: np.ndarray, name: str) -> None:
    kept = compress(tokens, name, budget=105)
    assert kept.represents.shape == (840,)
    assert 0 <= kept.represents.min() <= kept.represents.max() < len(kept)
    rows, stand = (
        each / np.linalg.norm(each, axis=1, keepdims=True) for each in (tokens.reshape(840, -1), kept.features)
    )
    assert kept.coverage == pytest.approx((rows * stand[kept.represents]).sum(1).mean(), abs=1e-4)


@each_method
def test_what_is_selected_is_a_token_and_what_is_merged_is_near_its_members(tokens: np.ndarray, name: str) -> None:
    kept = compress(tokens, name, budget=105)
    rows = tokens.reshape(840, -1)
    if floc.methods.facts(name).kind == "select":
        np.testing.assert_array_equal(kept.features, rows[kept.indices])
        np.testing.assert_array_equal(kept.represents[kept.indices], np.arange(len(kept)))
    else:
        assert np.isfinite(kept.features).all()
        assert np.abs(kept.features).max() <= np.abs(rows).max() * (1 + 1e-6)


@each_method
def test_a_nested_order_holds_the_smaller_answers(tokens: np.ndarray, name: str) -> None:
    kept = compress(tokens, name, budget=105)
    if not kept.nested:
        with pytest.raises(ValueError, match="does not keep a nested order"):
            kept.at(budget=50)
        return
    few = kept.at(budget=50)
    assert len(few) == 50
    assert set(few.indices) < set(kept.indices)
    np.testing.assert_array_equal(few.features, tokens.reshape(840, -1)[few.indices])
    np.testing.assert_array_equal(few.positions, np.stack(np.unravel_index(few.indices, (70, 3, 4)), 1))
    assert few.represents.max() < 50
    assert kept.at(coverage=few.coverage).coverage >= few.coverage - 1e-9


@each_method
def test_looking_at_it_sets_off_nothing(tokens: np.ndarray, name: str) -> None:
    kept = compress(tokens, name, budget=105)
    known = "coverage" in repr(kept)
    assert known == (kept.ranking is not None)
    assert f"coverage {kept.coverage:.4f}" in repr(kept)


@each_method
def test_reaches_a_coverage(name: str) -> None:
    few = np.random.default_rng(0).standard_normal((12, 2, 3, 8)).astype(np.float32)
    assert compress(few, name, coverage=0.9).coverage >= 0.9


@each_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_precision_comes_back_as_it_came(tokens: np.ndarray, name: str, dtype: torch.dtype) -> None:
    given = torch.from_numpy(tokens).to(dtype)
    kept = compress(given, name, budget=300)
    assert kept.features.dtype == dtype
    assert kept.features.isfinite().all()
    assert len(kept) == len(compress(tokens, name, budget=300)) or not floc.methods.facts(name).exact


@each_method
def test_half_precision_chooses_what_float32_would_of_the_same_numbers(tokens: np.ndarray, name: str) -> None:
    given = torch.from_numpy(tokens).bfloat16()
    kept, same = compress(given, name, budget=300), compress(given.float(), name, budget=300)
    assert kept.indices.tolist() == same.indices.tolist()


@each_method
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 4, 5), (2, 1, 7), (3, 5, 1), (5, 2, 2), (7, 3, 3), (9, 4, 7), (33, 1, 2)]
)
def test_awkward_sizes(name: str, shape: tuple[int, int, int]) -> None:
    few = np.random.default_rng(1).standard_normal((*shape, 6)).astype(np.float32)
    n = few[..., 0].size
    for budget in sorted({1, max(1, n // 3), n}):
        kept = compress(few, name, budget=budget)
        assert 1 <= len(kept) <= n
        assert np.isfinite(kept.features).all()
        assert kept.represents.shape == (n,)


@each_method
def test_ratio_one_keeps_everything_as_it_is(tokens: np.ndarray, name: str) -> None:
    kept = floc.compress(tokens, ratio=1, method=name)
    assert kept.indices.tolist() == list(range(840))
    np.testing.assert_array_equal(kept.features, tokens.reshape(840, -1))
    np.testing.assert_array_equal(kept.represents, np.arange(840))


@each_method
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_tokens_that_are_all_the_same(name: str, value: float) -> None:
    same = np.full((10, 3, 4, 5), value, np.float32)
    kept = compress(same, name, budget=40)
    assert 1 <= len(kept) <= max(40, floor_of(same, name))
    if floc.methods.facts(name).exact:
        assert len(kept) == max(40, floor_of(same, name))
    np.testing.assert_allclose(kept.features, value, atol=1e-6)
    assert len(set(kept.indices.tolist())) == len(kept)


@each_method
def test_not_contiguous_is_no_matter(tokens: np.ndarray, name: str) -> None:
    turned = torch.from_numpy(tokens).permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    assert not turned.is_contiguous()
    kept, same = compress(turned, name, budget=300), compress(tokens, name, budget=300)
    assert kept.indices.tolist() == same.indices.tolist()


@each_method
def test_a_floor_is_an_error_that_names_it(tokens: np.ndarray, name: str) -> None:
    if not floc.methods.facts(name).floor:
        assert len(floc.compress(tokens, budget=1, method=name)) == 1
        return
    least = floor_of(tokens, name)
    with pytest.raises(ValueError, match=f"at least {least} of 840 tokens.*got a budget of 1.*nearest=True"):
        floc.compress(tokens, budget=1, method=name)
    assert len(floc.compress(tokens, budget=least, method=name)) <= least


@each_method
def test_without_a_dial_it_runs_on_its_own_parameters_or_says_that_it_has_none(tokens: np.ndarray, name: str) -> None:
    chosen = floc.methods.get(name)()
    if not isinstance(chosen, floc.methods.Native):
        with pytest.raises(ValueError, match="exactly one of ratio"):
            floc.compress(tokens, method=name)
        return
    clusterings = {key: {"n_clusters": 50} for key in ("kmeans", "kmedoids", "spectral")}
    own = {"pooling": {"stride": 2}, **clusterings}.get(name, {})  # these have no size of their own
    if own:
        with pytest.raises(ValueError, match=f"{name} needs"):
            floc.compress(tokens, method=name)
    assert 0 < len(floc.compress(tokens, method=name, **own)) <= 840


@each_method
def test_a_budget_and_what_it_sets_are_not_both_taken(tokens: np.ndarray, name: str) -> None:
    for option in floc.methods.facts(name).searched:
        with pytest.raises(ValueError, match=f"ratio=1/8 sets {option} of method '{name}'; give one or the other"):
            floc.compress(tokens, ratio=1 / 8, method=name, **{option: 1})


def test_parameters_may_come_from_a_file_of_arrays(tokens: np.ndarray) -> None:
    plain = floc.compress(tokens, method="sttm", spatial_threshold=0.8, temporal_threshold=0.7, root_level=1)
    stored = {"spatial_threshold": np.array(0.8), "temporal_threshold": torch.tensor(0.7, dtype=torch.float64)}
    kept = floc.compress(tokens, method="sttm", root_level=np.int64(1), **stored)
    assert kept.indices.tolist() == plain.indices.tolist()
    assert kept.settings == plain.settings


@pytest.mark.parametrize("name", ["kmeans", "kmedoids", "spectral"])
def test_clusters_are_asked_for_by_number(tokens: np.ndarray, name: str) -> None:
    kept = floc.compress(tokens, method=name, n_clusters=60)
    assert kept.indices.tolist() == floc.compress(tokens, method=name, budget=60).indices.tolist()
    with pytest.raises(ValueError, match=r"whole number in 1..840, the tokens there are; got 841"):
        floc.compress(tokens, method=name, n_clusters=841)


@each_method
def test_says_what_it_does_and_takes(name: str) -> None:
    facts = floc.methods.facts(name)
    assert floc.methods.describe(name)
    assert facts.paper
    assert facts.kind in ("select", "merge")
    assert set(floc.methods.defaults(name)) == set(floc.methods.options(name))
    assert set(facts.searched) <= set(floc.methods.options(name))
    assert bool(facts.floor) == ("nearest" in floc.methods.options(name))
    with pytest.raises(ValueError, match="unknown option"):
        floc.compress(np.ones((2, 2, 2)), budget=1, method=name, no_such_option=1)
