"""Every method there is, through the same door."""

from __future__ import annotations

import numpy as np
import pytest

import floc

each_method = pytest.mark.parametrize("name", floc.methods.names())


@each_method
@pytest.mark.parametrize("budget", [1, 7, 105, 840, 5000])
def test_on_budget_in_video_order_the_same_twice(tokens: np.ndarray, name: str, budget: int) -> None:
    before = tokens.copy()
    kept, again = (floc.compress(tokens, budget=budget, method=name) for _ in range(2))
    np.testing.assert_array_equal(tokens, before)
    assert len(kept) == min(budget, 840)
    assert (np.diff(kept.indices) > 0).all()
    np.testing.assert_array_equal(kept.indices, again.indices)
    np.testing.assert_array_equal(kept.features, again.features)
    assert kept.method == name


@each_method
def test_says_what_it_does_and_takes(name: str) -> None:
    assert floc.methods.describe(name)
    assert set(floc.methods.defaults(name)) == set(floc.methods.options(name))
    with pytest.raises(ValueError, match="unknown option"):
        floc.compress(np.ones((2, 2, 2)), budget=1, method=name, no_such_option=1)
