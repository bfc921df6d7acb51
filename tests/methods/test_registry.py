"""Every method there is, through the same door."""

from __future__ import annotations

import numpy as np
import pytest

import floc

each_method = pytest.mark.parametrize("name", floc.methods.names())


@each_method
@pytest.mark.parametrize("budget", [13, 105, 840, 5000])
def test_on_budget_in_video_order_the_same_twice(tokens: np.ndarray, name: str, budget: int) -> None:
    before = tokens.copy()
    kept, again = (floc.compress(tokens, budget=budget, method=name) for _ in range(2))
    np.testing.assert_array_equal(tokens, before)
    if floc.methods.facts(name).exact:
        assert len(kept) == min(budget, 840)
    else:
        assert 0 < len(kept) <= min(budget, 840)
    assert (np.diff(kept.indices) > 0).all()
    np.testing.assert_array_equal(kept.indices, again.indices)
    np.testing.assert_array_equal(kept.features, again.features)
    assert kept.method == name


@each_method
def test_every_token_has_a_representative_as_close_as_coverage_says(tokens: np.ndarray, name: str) -> None:
    kept = floc.compress(tokens, budget=105, method=name)
    assert kept.represents.shape == (840,)
    assert 0 <= kept.represents.min() <= kept.represents.max() < len(kept)
    rows, stand = (
        each / np.linalg.norm(each, axis=1, keepdims=True) for each in (tokens.reshape(840, -1), kept.features)
    )
    assert kept.coverage == pytest.approx((rows * stand[kept.represents]).sum(1).mean(), abs=1e-4)


@each_method
def test_a_nested_order_holds_the_smaller_answers(tokens: np.ndarray, name: str) -> None:
    kept = floc.compress(tokens, budget=105, method=name)
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
    kept = floc.compress(tokens, budget=105, method=name)
    known = "coverage" in repr(kept)
    assert known == (kept.path is not None)
    assert f"coverage {kept.coverage:.4f}" in repr(kept)


@each_method
def test_reaches_a_coverage(tokens: np.ndarray, name: str) -> None:
    assert floc.compress(tokens, coverage=0.9, method=name).coverage >= 0.9


@each_method
def test_says_what_it_does_and_takes(name: str) -> None:
    assert floc.methods.describe(name)
    assert set(floc.methods.defaults(name)) == set(floc.methods.options(name))
    with pytest.raises(ValueError, match="unknown option"):
        floc.compress(np.ones((2, 2, 2)), budget=1, method=name, no_such_option=1)
