from __future__ import annotations

import json

import numpy as np
import pytest

import floc
from floc import analysis
from floc.analysis.compare import compare, rows, stops_for
from floc.methods.registry import parse

METHODS = ["floc", "floc-paper", "random", "frame_uniform"]


@pytest.fixture(scope="module")
def found(tokens: np.ndarray):
    return compare(tokens, [*METHODS, "floc:detail=1:block=none"], ["1/4", "1/16"])


def test_every_method_at_every_ratio(found) -> None:
    assert [contender.name for contender in found.contenders] == [*METHODS, "floc:detail=1:block=none"]
    for contender in found.contenders:
        assert [found.stops[place].label for place in contender.measures] == ["1/4", "1/16"]
        for place, kept in contender.kept.items():
            assert len(kept) <= found.stops[place].budget
            assert kept.nested or found.stops[place].asked
    assert len(rows(found)) == 10


def test_what_was_asked_for_is_run_and_what_lies_between_is_cut_from_the_larger(found, tokens: np.ndarray) -> None:
    contender = found.contenders[0]
    assert sorted(contender.kept) == list(range(len(found.stops)))
    larger = None
    for place, kept in sorted(contender.kept.items()):
        budget = found.stops[place].budget
        if found.stops[place].asked:
            larger = floc.compress(tokens, budget=budget)
        np.testing.assert_array_equal(kept.indices, larger.at(budget=budget).indices)
        np.testing.assert_array_equal(kept.represents, larger.at(budget=budget).represents)
        assert kept.seconds > 0


def test_one_that_is_not_nested_is_run_at_each_ratio(found, tokens: np.ndarray) -> None:
    uniform = found.contenders[3]
    assert list(uniform.kept) == [0, len(found.stops) - 1]
    for place, kept in uniform.kept.items():
        fresh = floc.compress(tokens, budget=found.stops[place].budget, method="frame_uniform")
        np.testing.assert_array_equal(kept.indices, fresh.indices)


def test_measures_are_those_of_analysis(found, tokens: np.ndarray) -> None:
    for contender in found.contenders:
        for place, measures in contender.measures.items():
            kept = contender.kept[place]
            assert measures.coverage == pytest.approx(analysis.coverage(tokens, kept))
            assert measures.worst == pytest.approx(analysis.worst(tokens, kept))
            assert measures.averaged_distance == pytest.approx(analysis.averaged_distance(tokens, kept))
            assert measures.redundancy == pytest.approx(analysis.redundancy(tokens, kept))
            assert measures.tokens == len(kept)
            assert measures.seconds > 0


def test_who_stands_for_whom_is_the_nearest_where_a_method_does_not_say(found, tokens: np.ndarray) -> None:
    rows = tokens.reshape(840, -1) / np.linalg.norm(tokens.reshape(840, -1), axis=1, keepdims=True)
    for contender in found.contenders[2:4]:
        for kept in contender.kept.values():
            cosines = rows @ rows[kept.indices].T
            np.testing.assert_allclose(cosines[np.arange(840), kept.represents], cosines.max(1), atol=1e-6)
            np.testing.assert_array_equal(kept.represents[kept.indices], np.arange(len(kept)))
            assert kept.coverage == pytest.approx(cosines.max(1).mean(), abs=1e-6)


def test_the_nearest_of_very_many_is_searched_for(tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = compare(tokens, ["floc", "random"], ["1/4"])
    monkeypatch.setattr("floc.analysis.compare.AFFORDABLE", 1000)
    monkeypatch.setattr("floc.analysis.compare.SEARCH_DIRECTIONS", 16)
    searched = compare(tokens, ["floc", "random"], ["1/4"])
    assert any("looked for in 16 principal directions" in note for note in searched.notes)
    for one, other in zip(exact.contenders, searched.contenders, strict=True):
        assert 0 <= one.measures[0].redundancy - other.measures[0].redundancy < 0.02
        assert 0 <= one.measures[0].coverage - other.measures[0].coverage < 0.01
        kept = other.kept[0]
        assert analysis.coverage(tokens, kept) == pytest.approx(one.measures[0].coverage)
    assert searched.contenders[1].kept[0].coverage == pytest.approx(searched.contenders[1].measures[0].coverage)


def test_scatter_is_zscored_over_the_methods(found) -> None:
    for place in (0, len(found.stops) - 1):
        points = np.array([contender.scatter[place] for contender in found.contenders])
        np.testing.assert_allclose(points.mean(0), 0, atol=1e-9)
        np.testing.assert_allclose(points.std(0), 1)
        sums = [contender.measures[place].averaged_sum_coverage for contender in found.contenders]
        assert points[:, 0].argmax() == np.argmax(sums)


def test_what_cannot_run_is_noted_and_the_rest_goes_on(tokens: np.ndarray) -> None:
    found = compare(tokens, ["frame_uniform", "random"], ["1/8", "1/128"])
    assert list(found.contenders[0].measures) == [0]
    assert any("frame_uniform at 1/128" in note and "at least 12 of 840" in note for note in found.notes)
    with pytest.raises(ValueError, match="no method could be run: frame_uniform at 1/128: "):
        compare(tokens, ["frame_uniform"], ["1/128"])


def test_tokens_that_are_the_same_stand_for_themselves() -> None:
    still = np.repeat(np.random.default_rng(0).standard_normal((1, 2, 3, 8)), 40, axis=0)
    found = compare(still, ["frame_uniform", "random"], ["1/4"])
    for contender in found.contenders:
        kept = contender.kept[0]
        np.testing.assert_array_equal(kept.represents[kept.indices], np.arange(len(kept)))


def test_what_cannot_be_measured_is_not_a_number() -> None:
    found = compare(np.random.default_rng(0).standard_normal((4, 2, 3, 8)), ["random"], ["1/24"])
    (row,) = rows(found)
    assert row["tokens"] == 1
    assert row["averaged_distance"] is None
    assert row["redundancy"] is None
    json.dumps(row, allow_nan=False)


def test_progress_rises_to_the_end(tokens: np.ndarray) -> None:
    seen: list[tuple[str, float]] = []
    compare(tokens, ["random", "floc"], ["1/8"], progress=lambda what, share: seen.append((what, share)))
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] < 1
    assert seen[0][0] == "random at 1/8"


@pytest.mark.parametrize(
    "ratios", [["1/8"], ["1/8", "1/16", "1/32"], ["0.5", "1/7", "1/1000"], ["1", "1/840"], ["1/8"] * 2]
)
def test_stops_hold_every_ratio_asked_for_from_most_to_fewest(ratios: list[str]) -> None:
    stops = stops_for(ratios, 840)
    budgets = [stop.budget for stop in stops]
    assert budgets == sorted(set(budgets), reverse=True)
    assert len(stops) <= 17 + len(ratios)
    assert sum(stop.asked for stop in stops) == len(set(ratios))
    assert stops[0].asked
    assert stops[-1].asked


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flock", "unknown method 'flock': did you mean 'floc'"),
        ("floc:detial=1", "unknown option of method 'floc', 'detial': did you mean 'detail'"),
        ("floc:detail", "'detail' is not an option; write options as"),
        ("floc:detail=none", "detail must be a number"),
        ("floc:progress=1", "progress takes a function"),
        ("divprune:block=0", "block must be a number of frames"),
        ("random:seed=x", "seed must be a whole number, got 'x'"),
    ],
)
def test_methods_that_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_nothing_to_compare_is_an_error(tokens: np.ndarray) -> None:
    with pytest.raises(ValueError, match="at least one method"):
        compare(tokens, [], ["1/8"])
    with pytest.raises(ValueError, match="at least one ratio"):
        compare(tokens, ["random"], [])
    with pytest.raises(ValueError, match="too small to compare at"):
        compare(tokens, ["random"], ["1e-400", "1/8"])
