"""Options `query` and `query_weight` of method floc: what `floc.compress` returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import floc
from floc.methods.shared.question import compute_relevance, scale_weight
from floc.selection import reference
from floc.selection.objective import SCALE, WEIGHT_SCALE
from tests.selection.matrices import normalize

BACKENDS = ["reference", "cpu", "torch"]
PLACES: list[dict[str, Any]] = [{"horizon": 1}, {"horizon": None}, {"block": 3}]


def make_signs(seed: int, *shape: int) -> np.ndarray:
    """Tokens of +1 and -1, 16 features: their cosines are exact, so all backends have the same similarities."""
    return np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), (*shape, 16))


def relate(tokens: np.ndarray, query: np.ndarray) -> np.ndarray:
    """[n, Q] relevance by its definition, in float64."""
    cosine = normalize(tokens.reshape(-1, tokens.shape[-1])) @ normalize(query).T
    above = np.maximum(cosine - cosine.mean(0), 0)
    return above / above.max()


def select_by_definition(tokens: np.ndarray, query: np.ndarray, weight: float, k: int, place: Any) -> np.ndarray:
    """Select by `reference.greedy` with all targets written out: the tokens, then the question."""
    rows = tokens.reshape(-1, 16)
    matrix = np.rint(rows @ rows.T / 16 * SCALE).astype(np.int64)
    cells = len(rows) // len(tokens)
    if place.get("horizon") is not None:
        matrix = reference.limit_to_horizon(matrix, cells, place["horizon"])
    relevance = compute_relevance(torch.from_numpy(rows), torch.from_numpy(query)).numpy()
    step = place.get("block", len(tokens)) * cells
    picks = []
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        targets = np.concatenate([matrix[part, part], relevance[part]], 1)
        each = max(1, round(weight * 256 * len(targets) / len(query)))
        weights = np.array([256] * len(targets) + [each] * len(query))
        share = k * len(targets) // len(rows)  # whole numbers in this test
        picks.append(start + reference.greedy(targets, share, weights)[0])
    return np.sort(np.concatenate(picks))


@settings(max_examples=30, deadline=None)
@given(
    weight=st.sampled_from([1e-6, 0.1, 0.25, 1.0, 7.5, 100.0]),
    words=st.integers(1, 5),
    place=st.sampled_from(PLACES),
    seed=st.integers(0, 2**16),
)
def test_equals_greedy_with_explicit_targets(weight: float, words: int, place: dict[str, Any], seed: int) -> None:
    tokens, query = make_signs(seed, 9, 2, 2), make_signs(seed + 1, words)
    expected = select_by_definition(tokens, query, weight, 12, place)
    results = [
        floc.compress(tokens, budget=12, query=query, query_weight=weight, detail=1, backend=backend, **place)
        for backend in BACKENDS
    ]
    for kept in results:
        np.testing.assert_array_equal(kept.indices, expected)
        np.testing.assert_array_equal(kept.order, results[0].order)
        np.testing.assert_array_equal(kept.gains, results[0].gains)
        np.testing.assert_array_equal(kept.represents, results[0].represents)
        assert (kept.bound, kept.coverage) == (results[0].bound, results[0].coverage)


@pytest.mark.parametrize("place", PLACES)
def test_the_order_is_nested_and_coverage_is_that_of_the_video(place: dict[str, Any]) -> None:
    tokens, query = make_signs(0, 9, 2, 2), make_signs(1, 3)
    options: dict[str, Any] = dict(query=query, query_weight=0.5, detail=1, **place)
    kept = floc.compress(tokens, budget=12, **options)
    for budget in (3, 6, 9):
        smaller, direct = kept.at(budget=budget), floc.compress(tokens, budget=budget, **options)
        np.testing.assert_array_equal(smaller.indices, direct.indices)
        np.testing.assert_array_equal(smaller.represents, direct.represents)
        assert smaller.bound == pytest.approx(direct.bound)
        assert smaller.coverage == pytest.approx(direct.coverage)
    rows = normalize(tokens.reshape(36, 16))
    cosine = (rows * rows[kept.indices[kept.represents]]).sum(1)
    assert kept.coverage == pytest.approx(np.maximum(cosine, 0 if place.get("horizon") else -1).mean(), abs=1e-4)
    assert 0 < kept.bound <= 1


def test_bound_holds_for_the_best_selection() -> None:
    """f(S) of the best of all selections, by trying them all."""
    from itertools import combinations

    for seed in range(5):
        tokens, query = make_signs(seed, 4, 1, 2), make_signs(seed + 9, 2)
        kept = floc.compress(tokens, budget=3, query=query, query_weight=2.0, detail=1, horizon=1)
        rows = tokens.reshape(8, 16)
        matrix = reference.limit_to_horizon(np.rint(rows @ rows.T / 16 * SCALE).astype(np.int64), 2, 1)
        relevance = compute_relevance(torch.from_numpy(rows), torch.from_numpy(query)).numpy()
        targets = np.concatenate([matrix * WEIGHT_SCALE, relevance.astype(np.int64) * scale_weight(2.0, 8, 2)], 1)
        best = max(targets[list(chosen)].max(0).sum() for chosen in combinations(range(8), 3))
        reached = targets[kept.indices].max(0).sum()
        assert kept.gains.sum() == pytest.approx(reached / (SCALE * WEIGHT_SCALE))
        assert kept.bound <= reached / best + 1e-12


@pytest.mark.parametrize("place", [*PLACES, {}])
def test_a_heavy_question_picks_what_it_asks_for_first(place: dict[str, Any]) -> None:
    """Each word of the question is a token of the video, off the common direction of all tokens."""
    rng = np.random.default_rng(0)
    tokens = (rng.standard_normal((12, 3, 4, 32)) + 3).astype(np.float32)
    query = tokens.reshape(-1, 32)[[17, 101]] - tokens.mean((0, 1, 2))
    assert relate(tokens, query).argmax(0).tolist() == [17, 101]
    kept = floc.compress(tokens, ratio=1 / 8, query=query, query_weight=50.0, **place)
    assert {17, 101} <= set(kept.indices.tolist())
    if "block" not in place:
        assert set(kept.indices[kept.order[:2]].tolist()) == {17, 101}


def test_relevance_equals_its_definition() -> None:
    rng = np.random.default_rng(0)
    tokens, query = rng.standard_normal((500, 24)).astype(np.float32) + 1, rng.standard_normal((6, 24)) - 1
    relevance = compute_relevance(torch.from_numpy(tokens), torch.from_numpy(query.astype(np.float32)))
    assert relevance.dtype == torch.int16
    np.testing.assert_allclose(relevance / SCALE, relate(tokens, query), atol=2 / SCALE)


def test_a_word_that_is_equally_similar_to_all_tokens_has_no_relevance() -> None:
    """Tokens of one direction: their cosines differ by rounding only."""
    rng = torch.Generator().manual_seed(0)
    tokens = torch.rand(50, 1, generator=rng) * torch.randn(1, 24, generator=rng)
    query = torch.randn(3, 24, generator=rng)
    cosine = torch.nn.functional.normalize(tokens, dim=1) @ torch.nn.functional.normalize(query, dim=1).T
    assert float((cosine - cosine.mean(0)).max()) > 0
    assert not compute_relevance(tokens, query).any()
    assert not compute_relevance(torch.randn(9, 24, generator=rng), torch.zeros(2, 24)).any()


def test_the_offset_between_text_and_images_has_no_influence() -> None:
    """A direction that all tokens share, and that the question lacks or has, changes no pick."""
    rng = np.random.default_rng(0)
    tokens = np.zeros((10, 2, 3, 9), np.float32)
    tokens[..., :8] = rng.choice([-1, 1], (10, 2, 3, 8))
    tokens[..., 8] = 2
    query = np.concatenate([rng.choice([-1.0, 1.0], (3, 8)), np.zeros((3, 1))], 1).astype(np.float32)
    shifted = query.copy()
    shifted[:, 8] = -4
    one, other = (
        floc.compress(tokens, budget=9, query=words, query_weight=1.0, horizon=2) for words in (query, shifted)
    )
    np.testing.assert_array_equal(one.indices, other.indices)


def test_the_weight_means_the_same_for_any_number_of_tokens_and_words() -> None:
    for tokens, words in ((1000, 7), (100_000, 7), (100_000, 500)):
        assert words * scale_weight(0.25, tokens, words) == pytest.approx(0.25 * tokens * WEIGHT_SCALE, rel=0.02)
    assert scale_weight(1e-9, 10, 100) == 1  # never 0


def test_without_a_question_nothing_changes(tokens: np.ndarray) -> None:
    plain, same = floc.compress(tokens, ratio=1 / 8), floc.compress(tokens, ratio=1 / 8, query=None, query_weight=0)
    np.testing.assert_array_equal(plain.indices, same.indices)
    np.testing.assert_array_equal(plain.gains, same.gains)


def test_torch_input_of_half_precision_and_settings(tokens: np.ndarray) -> None:
    grid = torch.from_numpy(tokens).bfloat16()
    query = torch.randn(5, 48, generator=torch.Generator().manual_seed(0)).bfloat16()
    kept = floc.compress(grid, ratio=1 / 8, query=query, query_weight=0.25)
    assert kept.features.dtype == torch.bfloat16
    assert kept.settings["query"] == "array (5, 48)"
    assert kept.settings["query_weight"] == 0.25
    assert kept.at(coverage=kept.coverage - 0.01).coverage >= kept.coverage - 0.01
    reached = floc.compress(grid, coverage=0.9, query=query, query_weight=0.25)
    assert reached.coverage >= 0.9


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"query": np.ones((3, 47), np.float32)},
            ValueError,
            r"query must be \[Q, 48\], to fit the tokens; got \(3, 47\)",
        ),
        ({"query": np.ones(48, np.float32)}, ValueError, r"query must be \[Q, 48\]"),
        ({"query": np.ones((0, 48), np.float32)}, ValueError, r"query must be \[Q, 48\].*got \(0, 48\)"),
        ({"query": np.full((2, 48), np.nan, np.float32)}, ValueError, "query must be finite"),
        ({"query": np.full((2, 48), np.inf, np.float32)}, ValueError, "query must be finite"),
        ({"query": np.ones((2, 48), np.int64)}, TypeError, "query must be floating point"),
        ({"query": "What is on the table?"}, TypeError, "query must be a torch tensor or a numpy array, got str"),
        ({"query_weight": -0.5}, ValueError, "query_weight must be a number from 0 to 100.*got -0.5"),
        ({"query_weight": 1e9}, ValueError, "query_weight must be a number from 0 to 100"),
        ({"query_weight": float("nan")}, ValueError, "query_weight must be a finite number"),
        ({"query_weight": float("inf")}, ValueError, "query_weight must be a finite number"),
        ({"query_weight": "much"}, ValueError, "query_weight must be a finite number"),
        ({"query_weight": 0}, ValueError, "query has no effect with query_weight=0; pass a weight"),
        ({"query": None}, ValueError, "query_weight=0.5 needs the question"),
        ({"dedupe": 2}, ValueError, "query needs dedupe=1"),
        ({"block": 8, "metric": "gaussian"}, ValueError, "query needs dedupe=1 and metric='cosine'"),
        ({"method": "floc-paper"}, ValueError, "unknown option of method 'floc-paper'"),
        ({"method": "kmeans"}, ValueError, "unknown option of method 'kmeans'"),
    ],
)
def test_rejects_questions_that_cannot_steer(
    tokens: np.ndarray, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {"query": np.ones((2, 48), np.float32), "query_weight": 0.5, **options}
    with pytest.raises(error, match=message):
        floc.compress(tokens, ratio=1 / 8, **given)
