"""`Kept`: smaller results from the stored order, and what it tells about itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import floc
from floc import blocks
from floc.kept import Kept
from floc.representatives import KnownRepresentation
from floc.tokens import TokenGrid
from tests.test_compression import assert_same, each_way


def is_auto(options: dict) -> bool:
    """Return whether the horizon depends on the ratio, so that a smaller selection is not a prefix of a larger one."""
    return options.keys() <= {"detail"}


@each_way
def test_at_equals_a_fresh_run_or_a_prefix(tokens: np.ndarray, options: dict) -> None:
    kept = floc.compress(tokens, ratio=1 / 4, **options)
    one_pass = options.get("dedupe", 1) == 1 and not is_auto(options)
    for budget in (1, 2, 3, 52, 105, 209, 210):
        smaller = kept.at(budget=budget)
        if one_pass:
            assert_same(smaller, floc.compress(tokens, budget=budget, **options))
        else:
            np.testing.assert_array_equal(
                np.asarray(kept.indices)[kept.order[:budget]], np.asarray(smaller.indices)[smaller.order]
            )
            np.testing.assert_array_equal(kept.gains[:budget], smaller.gains)
    assert_same(kept.at(ratio="1/16"), kept.at(budget=105).at(ratio=1 / 16))
    assert kept.at(budget=210).coverage == kept.coverage
    assert kept.at(budget=5).method == kept.method


@settings(max_examples=40, deadline=None)
@given(frames=st.integers(2, 15), block=st.integers(1, 6), seed=st.integers(0, 99), data=st.data())
def test_at_equals_a_fresh_run_if_shares_nest(frames, block, seed, data) -> None:
    tokens = np.random.default_rng(seed).standard_normal((frames, 3, 4)).astype(np.float32)
    sizes = [3 * (span.stop - span.start) for span in blocks.split_blocks(frames, block)]
    budget = data.draw(st.integers(1, 3 * frames))
    fewer = data.draw(st.integers(1, budget))
    kept = floc.compress(tokens, budget=budget, block=block, method="floc-paper")
    smaller = kept.at(budget=fewer)
    assert len(smaller) == fewer
    assert set(smaller.indices.tolist()) <= set(kept.indices.tolist())
    if (blocks.share_budget(sizes, fewer) <= blocks.share_budget(sizes, budget)).all():
        assert_same(smaller, floc.compress(tokens, budget=fewer, block=block, method="floc-paper"))


def test_at_of_at_if_shares_do_not_nest() -> None:
    tokens = np.random.default_rng(0).standard_normal((7, 3, 8)).astype(np.float32)  # blocks of 9, 9 and 3 tokens
    kept = floc.compress(tokens, ratio=1, block=3)
    for more in range(2, 22):
        for fewer in range(1, more):
            got = kept.at(budget=more).at(budget=fewer)
            assert len(got) == fewer
            np.testing.assert_array_equal(got.features, tokens.reshape(-1, 8)[got.indices])


@settings(max_examples=40, deadline=None)
@given(frames=st.integers(2, 15), block=st.integers(1, 6), seed=st.integers(0, 99), data=st.data())
def test_at_of_at(frames, block, seed, data) -> None:
    tokens = np.random.default_rng(seed).standard_normal((frames, 3, 4)).astype(np.float32)
    dedupe = data.draw(st.sampled_from([1, 2]))
    kept = floc.compress(tokens, ratio=1, block=block, dedupe=dedupe)
    for _ in range(3):
        kept = kept.at(budget=data.draw(st.integers(1, len(kept))))
        np.testing.assert_array_equal(kept.features, tokens.reshape(-1, 4)[kept.indices])
        assert kept.represents.max() < len(kept)


@each_way
def test_smaller_results_nest_and_coverage_grows(tokens: np.ndarray, options: dict) -> None:
    kept = floc.compress(tokens, ratio=1 / 2, **options)
    previous: set[int] = set()
    reached = -1.0
    for budget in (4, 40, 100, 300, 420):
        smaller = kept.at(budget=budget)
        assert previous <= set(smaller.indices.tolist())
        assert smaller.coverage >= reached - 1e-6
        previous, reached = set(smaller.indices.tolist()), smaller.coverage


def test_at_cannot_grow(tokens: np.ndarray) -> None:
    kept = floc.compress(tokens, budget=20)
    with pytest.raises(ValueError, match=r"budget=30 needs 30 tokens, 20 were kept"):
        kept.at(budget=30)
    with pytest.raises(ValueError, match=r"coverage 0.9999 cannot be reached"):
        kept.at(coverage=0.9999)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_from_host_sorts_and_places(kind) -> None:
    features = kind(np.arange(6.0).reshape(3, 2))
    picks, gains = np.array([7, 0, 3]), np.array([3.0, 2.0, 1.0])
    kept = Kept.from_host(features, picks, gains, (2, 2, 2), representation=KnownRepresentation(None, 0.5))
    assert kept.indices.tolist() == [0, 3, 7]
    assert kept.positions.tolist() == [[0, 0, 0], [0, 1, 1], [1, 1, 1]]
    assert kept.indices[kept.order].tolist() == picks.tolist()
    assert type(kept.order) is type(kept.gains) is type(features)
    assert (len(kept), kept.n, kept.ratio, kept.coverage) == (3, 8, 3 / 8, 0.5)
    with pytest.raises(ValueError, match="their representatives are unknown"):
        _ = kept.represents
    with pytest.raises(ValueError, match="does not keep a nested order"):
        kept.at(budget=1)


def test_repr_does_not_search_for_representatives() -> None:
    kept = TokenGrid.from_array(np.eye(6, dtype=np.float32)[None]).keep(np.array([5, 0, 3]))
    assert repr(kept) == "Kept(3 of 6 tokens, method '')"
    assert kept.coverage == 0.5
    assert "coverage 0.5000" in repr(kept)
