"""Similarity matrices against their definition in float64, to one unit of fixed point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from floc.selection.gpu.sets import Sets
from floc.selection.gpu.similarity import Rows, fill
from floc.selection.objective import SCALE
from tests.selection.gpu.launches import MARKS
from tests.selection.matrices import normalize, sharpen

pytestmark = MARKS
FORMATS = [torch.float16, torch.bfloat16, torch.float32]
GUARD = 4096  # elements after the matrices, which no kernel may write


def define_matrix(candidates: torch.Tensor, tokens: torch.Tensor, detail: float) -> np.ndarray:
    """[M, N] float64 in units of fixed point."""
    s = normalize(candidates.double().cpu().numpy()) @ normalize(tokens.double().cpu().numpy()).T
    return SCALE * sharpen(s, detail)


def compute_matrices(
    candidates: Sequence[torch.Tensor], tokens: Sequence[torch.Tensor], detail: float, *, symmetric: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each set's matrix and its transpose, as the kernels write them."""
    rows, columns = (tuple(len(values) for values in sets) for sets in (candidates, tokens))
    sets = Sets(rows, columns, rows, symmetric, tokens[0].device)
    memory = torch.empty(sets.elements + GUARD, dtype=torch.int16, device=sets.device)
    guard = memory[sets.elements :].clone()
    targets = Rows.measure(torch.cat(list(tokens)))
    fill(memory, targets if symmetric else Rows.measure(torch.cat(list(candidates))), targets, sets, detail)
    assert torch.equal(memory[sets.elements :], guard)
    return [
        (matrix.cpu().numpy(), transpose.cpu().numpy())
        for matrix, transpose in zip(sets.matrices(memory), sets.transposes(memory), strict=True)
    ]


def assert_equals_definition(tokens: Sequence[torch.Tensor], detail: float) -> None:
    for values, (matrix, _) in zip(tokens, compute_matrices(tokens, tokens, detail, symmetric=True), strict=True):
        assert np.abs(matrix - define_matrix(values, values, detail)).max() <= 1
        np.testing.assert_array_equal(matrix, matrix.T)
        not_zero = values.ne(0).any(1).cpu().numpy()
        np.testing.assert_array_equal(matrix.diagonal(), np.where(not_zero, SCALE, 0))


def make_tokens(n: int, dim: int, dtype: torch.dtype, device: torch.device, common: float = 0.5) -> torch.Tensor:
    """[n, dim] random tokens around a common direction, so that few similarities are near 0."""
    rng = np.random.default_rng(n * dim)
    return torch.from_numpy(rng.standard_normal((n, dim)) + common).to(device, dtype)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("detail", [1, 2, 2.5])
def test_sets_of_different_sizes_in_one_launch(dtype: torch.dtype, detail: float, device: torch.device) -> None:
    tokens = [make_tokens(n, 72, dtype, device) for n in (1, 7, 22)]
    tokens[2][::5] = 0
    tokens[2][1] = tokens[2][2]
    tokens[2][3] = -tokens[2][2]
    assert_equals_definition(tokens, detail)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dim", [1, 61, 64, 200])
def test_dims_that_are_no_multiple_of_the_step(dim: int, dtype: torch.dtype, device: torch.device) -> None:
    assert_equals_definition([make_tokens(n, dim, dtype, device) for n in (3, 9)], detail=1)


def test_rounds_to_nearest(device: torch.device) -> None:
    tokens = make_tokens(20, 40, torch.float32, device)
    [(matrix, _)] = compute_matrices([tokens], [tokens], 1, symmetric=True)
    assert np.abs(matrix - define_matrix(tokens, tokens, 1)).max() < 0.6


def test_sets_of_one_tile_and_of_several(device: torch.device) -> None:
    assert_equals_definition([make_tokens(n, 16, torch.float16, device) for n in (128, 130)], detail=2)


def test_rows_longer_than_a_block(device: torch.device) -> None:
    assert_equals_definition([make_tokens(3, 4100, torch.float32, device)], detail=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("detail", [1, 2])
def test_very_large_and_very_small_rows(dtype: torch.dtype, detail: float, device: torch.device) -> None:
    tokens = make_tokens(12, 40, torch.float32, device)
    tokens[0:3] *= 1e20
    tokens[3:6] *= 1e-25
    tokens[6] *= 1e-38
    tokens[7] *= 3e37
    tokens[8] = 0
    assert_equals_definition([tokens.to(dtype)], detail)


def test_rows_with_large_and_small_values(device: torch.device) -> None:
    tokens = make_tokens(6, 24, torch.float32, device)
    tokens[:, 0] *= 1e25
    tokens[:3, 1] *= 1e25
    assert_equals_definition([tokens], detail=1)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_rectangles_and_their_transposes(dtype: torch.dtype, device: torch.device) -> None:
    candidates = [make_tokens(n, 40, dtype, device) for n in (5, 9, 1)]
    tokens = [make_tokens(n, 40, dtype, device, common=0.3) for n in (2, 17, 4)]
    pairs = compute_matrices(candidates, tokens, 2, symmetric=False)
    for left, right, (matrix, transpose) in zip(candidates, tokens, pairs, strict=True):
        assert np.abs(matrix - define_matrix(left, right, 2)).max() <= 1
        np.testing.assert_array_equal(transpose, matrix.T)


def test_rectangle_of_several_tiles(device: torch.device) -> None:
    candidates, tokens = make_tokens(131, 8, torch.float16, device), make_tokens(20, 8, torch.float16, device)
    [(matrix, transpose)] = compute_matrices([candidates], [tokens], 1, symmetric=False)
    assert np.abs(matrix - define_matrix(candidates, tokens, 1)).max() <= 1
    np.testing.assert_array_equal(transpose, matrix.T)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(("value", "flags"), [(1.0, [0, 0]), (0.0, [0, 0]), (torch.nan, [0, 1]), (-torch.inf, [0, 1])])
def test_flags_values_that_are_not_finite(
    value: float, flags: list[int], dtype: torch.dtype, device: torch.device
) -> None:
    tokens = torch.ones(3, 5, dtype=dtype, device=device)
    tokens[1] = value
    assert Rows.measure(tokens).flags.tolist() == flags
    if not np.isfinite(value):
        tokens[1, 1:] = 1
        assert Rows.measure(tokens).flags[1] == 1


@pytest.mark.parametrize("value", [1e20, 1e-25])
def test_flags_rows_that_need_scaling(value: float, device: torch.device) -> None:
    tokens = torch.full((2, 5), value, device=device)
    assert Rows.measure(tokens).flags.tolist() == [1, 0]
