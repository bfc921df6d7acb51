"""Both greedy kernels against the reference, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floc.selection import reference
from floc.selection.gpu import greedy, greedy_many_programs, greedy_steps
from floc.selection.gpu.greedy import Programs
from floc.selection.gpu.sets import Sets
from floc.selection.objective import SCALE
from tests.selection.gpu.launches import MARKS, PROGRAMS, select_sets
from tests.selection.matrices import KINDS, make_matrix

pytestmark = MARKS


def assert_equals_reference(
    got: Sequence[tuple[np.ndarray, np.ndarray, int]],
    matrices: Sequence[np.ndarray],
    weights: Sequence[np.ndarray] | None = None,
) -> None:
    for b, ((picks, gains, _), matrix) in enumerate(zip(got, matrices, strict=True)):
        want = reference.greedy(matrix, len(picks), None if weights is None else weights[b])
        np.testing.assert_array_equal(picks, want[0])
        np.testing.assert_array_equal(gains, want[1])


@pytest.mark.parametrize("programs", PROGRAMS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_sets_of_different_sizes_equal_reference(kind: str, programs: Programs, device: torch.device) -> None:
    sizes, depths = (1, 2, 17, 33), (1, 2, 12, 4)
    matrices = [make_matrix(kind, n, seed=n) for n in sizes]
    got = select_sets(matrices, depths, device, symmetric=kind != "ties", programs=programs)
    assert_equals_reference(got, matrices)


@pytest.mark.parametrize("programs", PROGRAMS, ids=str)
@pytest.mark.parametrize(("n", "k"), [(63, 30), (64, 8), (65, 9), (257, 6)])
def test_sizes_around_a_vector_equal_reference(n: int, k: int, programs: Programs, device: torch.device) -> None:
    matrices = [make_matrix("centred", n, seed=n)]
    assert_equals_reference(select_sets(matrices, [k], device, symmetric=True, programs=programs), matrices)


@pytest.mark.parametrize("programs", PROGRAMS, ids=str)
@pytest.mark.parametrize("largest", [1, 9, 2**20])
def test_weighted_rectangles_equal_reference(largest: int, programs: Programs, device: torch.device) -> None:
    rng = np.random.default_rng(largest)
    shapes, depths = ((1, 5), (6, 1), (20, 33), (30, 17)), (1, 6, 7, 30)
    matrices = [rng.integers(-SCALE, SCALE + 1, shape).astype(np.int16) for shape in shapes]
    weights = [rng.integers(0, largest + 1, n) for _, n in shapes]
    assert_equals_reference(select_sets(matrices, depths, device, weights, programs=programs), matrices, weights)


@pytest.mark.parametrize("programs", PROGRAMS, ids=str)
def test_zero_weights_pick_lowest_indices(programs: Programs, device: torch.device) -> None:
    [(picks, gains, made)] = select_sets(
        [make_matrix("plain", 9, 0)], [4], device, [np.zeros(9, np.int64)], programs=programs
    )
    assert (picks.tolist(), gains.tolist(), made) == ([0, 1, 2, 3], [0, 0, 0, 0], 1)


@pytest.mark.parametrize("programs", PROGRAMS, ids=str)
def test_extreme_similarities_equal_reference(programs: Programs, device: torch.device) -> None:
    rng = np.random.default_rng(0)
    matrices = [
        rng.choice(np.array([-32768, -SCALE, 0, SCALE, 32767], np.int16), (m, n)) for m, n in ((12, 9), (9, 30))
    ]
    assert_equals_reference(select_sets(matrices, [12, 9], device, programs=programs), matrices)


@pytest.mark.parametrize("programs", [programs for programs in PROGRAMS if programs.kernel == "many"], ids=str)
def test_gains_that_need_64_bits(programs: Programs, device: torch.device) -> None:
    n = 70_000  # more than 2**31 / 2**15 tokens at the extremes
    matrix = np.stack([np.full(n, value, np.int16) for value in (SCALE, -SCALE, 32767, -32768)])
    [(picks, gains, _)] = select_sets([matrix], [2], device, programs=programs)
    assert (picks.tolist(), gains.tolist()) == ([2, 0], [n * 32767, 0])
    [(picks, gains, _)] = select_sets([matrix[[3, 1]].copy()], [2], device, programs=programs)
    assert (picks.tolist(), gains.tolist()) == ([1, 0], [-n * SCALE, 0])


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_random_matrices_equal_reference(data: st.DataObject, device: torch.device) -> None:
    m, n = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    k = data.draw(st.integers(1, m))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    spread = data.draw(st.sampled_from([1, 3, SCALE]))
    matrices = [rng.integers(-spread, spread + 1, (m, n)).astype(np.int16)]
    weights = [rng.integers(0, 9, n)] if data.draw(st.booleans()) else None
    for programs in PROGRAMS:
        assert_equals_reference(select_sets(matrices, [k], device, weights, programs=programs), matrices, weights)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 999), kind=st.sampled_from(KINDS), n=st.integers(2, 12))
def test_gains_never_rise_and_prefixes_nest(seed: int, kind: str, n: int, device: torch.device) -> None:
    matrix = make_matrix(kind, n, seed)
    for programs in PROGRAMS:
        (picks, gains, _), (opening, _, _) = select_sets([matrix, matrix], [n, n // 2], device, programs=programs)
        assert sorted(picks) == list(range(n))
        assert (np.diff(gains[1:]) <= 0).all()  # the first gain does not bound the second
        np.testing.assert_array_equal(opening, picks[: n // 2])


@pytest.mark.parametrize("programs", PROGRAMS, ids=str)
@pytest.mark.parametrize("kind", ["plain", "centred", "duplicates"])
@pytest.mark.parametrize("stop_count", [4, 16])
def test_early_stop_omits_only_picks_below_the_best(
    kind: str, stop_count: int, programs: Programs, device: torch.device
) -> None:
    """A first pick counts as larger than any other, and no pick as larger than its set's first."""
    matrices = [make_matrix("all equal", 9, seed=1), make_matrix(kind, 26, seed=0), make_matrix(kind, 1, seed=3)]
    sizes = [len(matrix) for matrix in matrices]
    largest, left_out, full_runs = np.iinfo(np.int64).max, [], []
    for matrix, (picks, gains, made) in zip(
        matrices,
        select_sets(matrices, sizes, device, symmetric=True, stop_count=stop_count, programs=programs),
        strict=True,
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
        assert (all_due > due).sum() >= stop_count


@pytest.mark.parametrize("programs", PROGRAMS, ids=str)
def test_early_stop_omits_picks(programs: Programs, device: torch.device) -> None:
    matrix = make_matrix("centred", 40, 0)
    [(_, gains, made)] = select_sets([matrix], [40], device, symmetric=True, stop_count=3, programs=programs)
    assert made < 1 + (reference.greedy(matrix, 40)[1][1:] > 0).sum()
    assert (gains[made:] == 0).all()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("programs", PROGRAMS, ids=str)
def test_rows_along_either_axis(
    programs: Programs, axis: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greedy_steps, "AXIS", axis)
    matrices = [make_matrix("centred", 70, seed=1)]
    weights = [np.random.default_rng(0).integers(0, 9, 70)]
    assert_equals_reference(select_sets(matrices, [20], device, symmetric=True, programs=programs), matrices)
    assert_equals_reference(
        select_sets(matrices, [20], device, weights, symmetric=True, programs=programs), matrices, weights
    )


def test_more_raised_tokens_than_a_chunk(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy_many_programs, "CHUNK", 16)
    matrices = [make_matrix("centred", 90, seed=2)]
    assert_equals_reference(select_sets(matrices, [30], device, symmetric=True, programs=Programs("many", 1)), matrices)


@pytest.mark.parametrize(
    ("candidates", "tokens", "count", "want"),
    [
        (1920, 1920, 25, Programs("few", 5)),
        (1920, 1920, 225, Programs("few", 1)),
        (4320, 4320, 8, Programs("many", 16)),
        (47_040, 47_040, 1, Programs("many", 128)),
        (40, 40, 1, Programs("few", 1)),
        (200_000, 100, 140, Programs("many", 1)),
        (9000, 9000, 140, Programs("many", 1)),
    ],
)
def test_chooses_programs_by_size(
    candidates: int, tokens: int, count: int, want: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greedy, "is_interpreted", lambda: False)
    monkeypatch.setattr(greedy, "count_multiprocessors", lambda _: 132)
    sets = Sets((candidates,) * count, (tokens,) * count, (1,) * count, False, torch.device("cpu"))
    assert greedy._choose_programs(sets) == want
