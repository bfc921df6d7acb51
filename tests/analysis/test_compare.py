"""Comparing methods: which runs are made, and what is measured."""

from __future__ import annotations

import json

import numpy as np
import pytest

import floc
from floc import analysis
from floc.analysis.compare import compare, plan_steps
from floc.methods.registry import parse

METHODS = ["floc", "floc-paper", "random", "frame_uniform"]


@pytest.fixture(scope="module")
def comparison(tokens: np.ndarray):
    return compare(tokens, [*METHODS, "floc:detail=1:block=none"], ["1/4", "1/16"])


def test_every_method_runs_at_every_ratio(comparison) -> None:
    assert [result.name for result in comparison.results] == [*METHODS, "floc:detail=1:block=none"]
    for result in comparison.results:
        assert [comparison.steps[step].label for step in result.measures] == ["1/4", "1/16"]
        for step, kept in result.kept.items():
            assert len(kept) <= comparison.steps[step].budget
            assert kept.nested or comparison.steps[step].requested
    assert len(comparison.rows()) == 10


def test_steps_in_between_are_cut_from_the_larger_run(comparison, tokens: np.ndarray) -> None:
    result = comparison.results[0]
    assert sorted(result.kept) == list(range(len(comparison.steps)))
    larger = None
    for step, kept in sorted(result.kept.items()):
        budget = comparison.steps[step].budget
        if comparison.steps[step].requested:
            larger = floc.compress(tokens, budget=budget)
        np.testing.assert_array_equal(kept.indices, larger.at(budget=budget).indices)
        np.testing.assert_array_equal(kept.represents, larger.at(budget=budget).represents)
        assert kept.seconds > 0


def test_method_without_nested_order_runs_at_each_ratio(comparison, tokens: np.ndarray) -> None:
    uniform = comparison.results[3]
    assert list(uniform.kept) == [0, len(comparison.steps) - 1]
    for step, kept in uniform.kept.items():
        fresh = floc.compress(tokens, budget=comparison.steps[step].budget, method="frame_uniform")
        np.testing.assert_array_equal(kept.indices, fresh.indices)


def test_measures_equal_the_metrics(comparison, tokens: np.ndarray) -> None:
    for result in comparison.results:
        for step, measures in result.measures.items():
            kept = result.kept[step]
            assert measures.coverage == pytest.approx(analysis.coverage(tokens, kept))
            assert measures.worst == pytest.approx(analysis.worst_coverage(tokens, kept))
            assert measures.averaged_distance == pytest.approx(analysis.averaged_distance(tokens, kept))
            assert measures.redundancy == pytest.approx(analysis.redundancy(tokens, kept))
            assert measures.tokens == len(kept)
            assert measures.seconds > 0


def test_nearest_kept_token_is_the_default_representative(comparison, tokens: np.ndarray) -> None:
    rows = tokens.reshape(840, -1) / np.linalg.norm(tokens.reshape(840, -1), axis=1, keepdims=True)
    for result in comparison.results[2:4]:
        for kept in result.kept.values():
            cosines = rows @ rows[kept.indices].T
            np.testing.assert_allclose(cosines[np.arange(840), kept.represents], cosines.max(1), atol=1e-6)
            np.testing.assert_array_equal(kept.represents[kept.indices], np.arange(len(kept)))
            assert kept.coverage == pytest.approx(cosines.max(1).mean(), abs=1e-6)


def test_many_tokens_use_principal_directions(tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = compare(tokens, ["floc", "random"], ["1/4"])
    monkeypatch.setattr("floc.analysis.compare.MAX_PRODUCTS", 1000)
    monkeypatch.setattr("floc.analysis.compare.SEARCH_DIRECTIONS", 16)
    approximate = compare(tokens, ["floc", "random"], ["1/4"])
    assert any("searched in 16 principal directions" in note for note in approximate.notes)
    for one, other in zip(exact.results, approximate.results, strict=True):
        assert 0 <= one.measures[0].redundancy - other.measures[0].redundancy < 0.02
        assert 0 <= one.measures[0].coverage - other.measures[0].coverage < 0.01
        kept = other.kept[0]
        assert analysis.coverage(tokens, kept) == pytest.approx(one.measures[0].coverage)
    assert approximate.results[1].kept[0].coverage == pytest.approx(approximate.results[1].measures[0].coverage)


def test_scatter_is_zscored_over_methods(comparison) -> None:
    for step in (0, len(comparison.steps) - 1):
        points = np.array([result.scatter[step] for result in comparison.results])
        np.testing.assert_allclose(points.mean(0), 0, atol=1e-9)
        np.testing.assert_allclose(points.std(0), 1)
        sums = [result.measures[step].averaged_sum_coverage for result in comparison.results]
        assert points[:, 0].argmax() == np.argmax(sums)


def test_failed_runs_are_noted_and_others_continue(tokens: np.ndarray) -> None:
    comparison = compare(tokens, ["frame_uniform", "random"], ["1/8", "1/128"])
    assert list(comparison.results[0].measures) == [0]
    assert any("frame_uniform at 1/128" in note and "at least 12 of 840" in note for note in comparison.notes)
    with pytest.raises(ValueError, match="no method could be run: frame_uniform at 1/128: "):
        compare(tokens, ["frame_uniform"], ["1/128"])


def test_kept_tokens_represent_themselves_among_equal_tokens() -> None:
    still = np.repeat(np.random.default_rng(0).standard_normal((1, 2, 3, 8)), 40, axis=0)
    comparison = compare(still, ["frame_uniform", "random"], ["1/4"])
    for result in comparison.results:
        kept = result.kept[0]
        np.testing.assert_array_equal(kept.represents[kept.indices], np.arange(len(kept)))


def test_undefined_measures_are_none() -> None:
    comparison = compare(np.random.default_rng(0).standard_normal((4, 2, 3, 8)), ["random"], ["1/24"])
    (row,) = comparison.rows()
    assert row["tokens"] == 1
    assert row["averaged_distance"] is None
    assert row["redundancy"] is None
    json.dumps(row, allow_nan=False)


def test_progress_never_decreases(tokens: np.ndarray) -> None:
    calls: list[tuple[str, float]] = []
    compare(tokens, ["random", "floc"], ["1/8"], progress=lambda task, share: calls.append((task, share)))
    shares = [share for _, share in calls]
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] < 1
    assert calls[0][0] == "random at 1/8"


@pytest.mark.parametrize(
    "ratios", [["1/8"], ["1/8", "1/16", "1/32"], ["0.5", "1/7", "1/1000"], ["1", "1/840"], ["1/8"] * 2]
)
def test_steps_contain_every_requested_ratio_in_order(ratios: list[str]) -> None:
    steps = plan_steps(ratios, 840)
    budgets = [step.budget for step in steps]
    assert budgets == sorted(set(budgets), reverse=True)
    assert len(steps) <= 17 + len(ratios)
    assert sum(step.requested for step in steps) == len(set(ratios))
    assert steps[0].requested
    assert steps[-1].requested


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flock", "unknown method 'flock'; did you mean 'floc'"),
        ("floc:detial=1", "unknown option of method 'floc', 'detial'; did you mean 'detail'"),
        ("floc:detail", "'detail' is not an option; write options as"),
        ("floc:detail=none", "detail must be a finite number"),
        ("floc:progress=1", "progress takes a function"),
        ("divprune:block=0", "block must be a number of frames"),
        ("random:seed=x", "seed must be a whole number .*got 'x'"),
    ],
)
def test_rejects_invalid_method_specs(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_rejects_empty_or_tiny_requests(tokens: np.ndarray) -> None:
    with pytest.raises(ValueError, match="at least one method"):
        compare(tokens, [], ["1/8"])
    with pytest.raises(ValueError, match="at least one ratio"):
        compare(tokens, ["random"], [])
    with pytest.raises(ValueError, match="too small to compare at"):
        compare(tokens, ["random"], ["1e-30", "1/8"])
