"""Both kernels against the plain greedy, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floc.selection import reference
from floc.selection.gpu import greedy, steps, team
from floc.selection.gpu.greedy import Programs
from floc.selection.gpu.sets import Sets
from floc.selection.objective import SCALE
from tests.selection.gpu.launches import MARKS, WAYS, laid_out, selected
from tests.selection.test_greedy import KINDS, case

pytestmark = MARKS


def assert_reference(
    got: Sequence[tuple[np.ndarray, np.ndarray, int]],
    matrices: Sequence[np.ndarray],
    weights: Sequence[np.ndarray] | None = None,
) -> None:
    for b, ((picks, gains, _), matrix) in enumerate(zip(got, matrices, strict=True)):
        want = reference.greedy(matrix, len(picks), None if weights is None else weights[b])
        np.testing.assert_array_equal(picks, want[0])
        np.testing.assert_array_equal(gains, want[1])


@pytest.mark.parametrize("by", WAYS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_ragged_sets_equal_the_reference(kind: str, by: Programs, device: torch.device) -> None:
    sizes, depths = (1, 2, 17, 33), (1, 2, 12, 4)
    matrices = [case(kind, n, seed=n) for n in sizes]
    got = selected(matrices, depths, device, symmetric=kind != "ties", by=by)
    assert_reference(got, matrices)


@pytest.mark.parametrize("by", WAYS, ids=str)
@pytest.mark.parametrize(("n", "k"), [(63, 30), (64, 8), (65, 9), (257, 6)])
def test_sizes_around_vectors_and_tiles(n: int, k: int, by: Programs, device: torch.device) -> None:
    matrices = [case("centred", n, seed=n)]
    assert_reference(selected(matrices, [k], device, symmetric=True, by=by), matrices)


@pytest.mark.parametrize("by", WAYS, ids=str)
@pytest.mark.parametrize("largest", [1, 9, 2**20])
def test_weighted_rectangles(largest: int, by: Programs, device: torch.device) -> None:
    rng = np.random.default_rng(largest)
    shapes, depths = ((1, 5), (6, 1), (20, 33), (30, 17)), (1, 6, 7, 30)
    matrices = [rng.integers(-SCALE, SCALE + 1, shape).astype(np.int16) for shape in shapes]
    weights = [rng.integers(0, largest + 1, n) for _, n in shapes]
    assert_reference(selected(matrices, depths, device, weights, by=by), matrices, weights)


@pytest.mark.parametrize("by", WAYS, ids=str)
def test_weights_that_are_all_zero_leave_the_lowest_indices(by: Programs, device: torch.device) -> None:
    [(picks, gains, made)] = selected([case("plain", 9, 0)], [4], device, [np.zeros(9, np.int64)], by=by)
    assert (picks.tolist(), gains.tolist(), made) == ([0, 1, 2, 3], [0, 0, 0, 0], 1)


@pytest.mark.parametrize("by", WAYS, ids=str)
def test_extreme_similarities(by: Programs, device: torch.device) -> None:
    rng = np.random.default_rng(0)
    matrices = [
        rng.choice(np.array([-32768, -SCALE, 0, SCALE, 32767], np.int16), (m, n)) for m, n in ((12, 9), (9, 30))
    ]
    assert_reference(selected(matrices, [12, 9], device, by=by), matrices)


@pytest.mark.parametrize("by", [by for by in WAYS if by.kernel == "team"], ids=str)
def test_gains_that_need_64_bits(by: Programs, device: torch.device) -> None:
    n = 70_000  # more than 2**31 / 2**15 tokens at the extremes
    matrix = np.stack([np.full(n, each, np.int16) for each in (SCALE, -SCALE, 32767, -32768)])
    [(picks, gains, _)] = selected([matrix], [2], device, by=by)
    assert (picks.tolist(), gains.tolist()) == ([2, 0], [n * 32767, 0])
    [(picks, gains, _)] = selected([matrix[[3, 1]].copy()], [2], device, by=by)
    assert (picks.tolist(), gains.tolist()) == ([1, 0], [-n * SCALE, 0])


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_anything_equals_the_reference(data: st.DataObject, device: torch.device) -> None:
    m, n = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    k = data.draw(st.integers(1, m))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    spread = data.draw(st.sampled_from([1, 3, SCALE]))
    matrices = [rng.integers(-spread, spread + 1, (m, n)).astype(np.int16)]
    weights = [rng.integers(0, 9, n)] if data.draw(st.booleans()) else None
    for by in WAYS:
        assert_reference(selected(matrices, [k], device, weights, by=by), matrices, weights)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 999), kind=st.sampled_from(KINDS), n=st.integers(2, 12))
def test_gains_never_rise_and_prefixes_nest(seed: int, kind: str, n: int, device: torch.device) -> None:
    matrix = case(kind, n, seed)
    for by in WAYS:
        (picks, gains, _), (opening, _, _) = selected([matrix, matrix], [n, n // 2], device, by=by)
        assert sorted(picks) == list(range(n))
        assert (np.diff(gains[1:]) <= 0).all()  # the first is taken from nothing, where nothing bounds the second
        np.testing.assert_array_equal(opening, picks[: n // 2])


@pytest.mark.parametrize("by", WAYS, ids=str)
def test_picks_that_gain_nothing_are_filled_up_in_a_given_order(by: Programs, device: torch.device) -> None:
    matrices = [case("duplicates", 12, 0), case("all equal", 5, 0), case("plain", 7, 0)]
    depths = [12, 3, 2]
    later = [np.random.default_rng(b).permutation(len(matrix)) for b, matrix in enumerate(matrices)]
    memory, sets = laid_out(matrices, depths, device, symmetric=True)
    picked = greedy.greedy(memory, sets, by=by)
    greedy.fill_up(picked, sets, torch.from_numpy(np.concatenate(later)).to(device, torch.int32))
    ends = np.cumsum(depths)
    for matrix, depth, end, order in zip(matrices, depths, ends, later, strict=True):
        picks, gains = reference.greedy(matrix, depth)
        made = 1 + int((gains[1:] > 0).sum())
        rest = [each for each in order if each not in picks[:made]]
        want = [*picks[:made], *rest][:depth]
        assert picked.picks[end - depth : end].tolist() == want
        assert picked.gains[end - depth : end].tolist() == gains.tolist()


@pytest.mark.parametrize("by", WAYS, ids=str)
@pytest.mark.parametrize("kind", ["plain", "centred", "duplicates"])
@pytest.mark.parametrize("enough", [4, 16])
def test_what_is_left_out_is_never_among_the_best(kind: str, enough: int, by: Programs, device: torch.device) -> None:
    """A first pick counts as larger than any other, and no pick as larger than its set's first."""
    matrices = [case("all equal", 9, seed=1), case(kind, 26, seed=0), case(kind, 1, seed=3)]
    sizes = [len(matrix) for matrix in matrices]
    largest, left_out, full_runs = np.iinfo(np.int64).max, [], []
    for matrix, (picks, gains, made) in zip(
        matrices, selected(matrices, sizes, device, symmetric=True, enough=enough, by=by), strict=True
    ):
        want = reference.greedy(matrix, len(matrix))
        np.testing.assert_array_equal(picks[:made], want[0][:made])
        np.testing.assert_array_equal(gains[:made], want[1][:made])
        due = np.minimum(want[1], want[1][0])
        due[0] = largest
        full_runs.append(due)
        left_out.append(due[made:][due[made:] > 0])
    all_due = np.concatenate(full_runs)
    for due in np.concatenate(left_out):
        assert (all_due > due).sum() >= enough


@pytest.mark.parametrize("by", WAYS, ids=str)
def test_enough_leaves_picks_out(by: Programs, device: torch.device) -> None:
    matrix = case("centred", 40, 0)
    [(_, gains, made)] = selected([matrix], [40], device, symmetric=True, enough=3, by=by)
    assert made < 1 + (reference.greedy(matrix, 40)[1][1:] > 0).sum()
    assert (gains[made:] == 0).all()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("by", WAYS, ids=str)
def test_rows_along_either_axis(by: Programs, axis: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "AXIS", axis)
    matrices = [case("centred", 70, seed=1)]
    weights = [np.random.default_rng(0).integers(0, 9, 70)]
    assert_reference(selected(matrices, [20], device, symmetric=True, by=by), matrices)
    assert_reference(selected(matrices, [20], device, weights, symmetric=True, by=by), matrices, weights)


def test_more_tokens_rise_than_are_waited_for_at_a_time(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "CHUNK", 16)
    matrices = [case("centred", 90, seed=2)]
    assert_reference(selected(matrices, [30], device, symmetric=True, by=Programs("team", 1)), matrices)


@pytest.mark.parametrize(
    ("candidates", "tokens", "count", "want"),
    [
        (1920, 1920, 25, Programs("few", 5)),
        (1920, 1920, 225, Programs("few", 1)),
        (4320, 4320, 8, Programs("team", 16)),
        (47_040, 47_040, 1, Programs("team", 128)),
        (40, 40, 1, Programs("few", 1)),
        (200_000, 100, 140, Programs("team", 1)),
        (9000, 9000, 140, Programs("team", 1)),
    ],
)
def test_programs_by_size(
    candidates: int, tokens: int, count: int, want: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greedy, "interpreted", lambda: False)
    monkeypatch.setattr(greedy, "multiprocessors", lambda _: 132)
    sets = Sets((candidates,) * count, (tokens,) * count, (1,) * count, False, torch.device("cpu"))
    assert greedy._programs(sets) == want
