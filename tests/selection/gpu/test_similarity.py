"""Similarities against their definition in float64, to one unit of fixed point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from floc.selection.gpu.sets import Sets
from floc.selection.gpu.similarity import Rows, fill
from floc.selection.objective import SCALE
from tests.selection.gpu.launches import MARKS
from tests.selection.test_engines import unit

pytestmark = MARKS
FORMATS = [torch.float16, torch.bfloat16, torch.float32]
BEHIND = 4096  # elements after the matrices, which nobody may write


def defined(candidates: torch.Tensor, tokens: torch.Tensor, detail: float) -> np.ndarray:
    """[M, N] float64 in units of fixed point."""
    s = unit(candidates.double().cpu().numpy()) @ unit(tokens.double().cpu().numpy()).T
    return SCALE * (s if detail == 1 else 1 - (1 - s.clip(0, 1)) ** detail)


def filled(
    candidates: Sequence[torch.Tensor], tokens: Sequence[torch.Tensor], detail: float, *, symmetric: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each set's matrix and its transpose, as the kernels write them."""
    rows, columns = (tuple(len(each) for each in sets) for sets in (candidates, tokens))
    sets = Sets(rows, columns, rows, symmetric, tokens[0].device)
    memory = torch.empty(sets.elements + BEHIND, dtype=torch.int16, device=sets.device)
    behind = memory[sets.elements :].clone()
    targets = Rows.of(torch.cat(list(tokens)))
    fill(memory, targets if symmetric else Rows.of(torch.cat(list(candidates))), targets, sets, detail)
    assert torch.equal(memory[sets.elements :], behind)
    return [
        (matrix.cpu().numpy(), turned.cpu().numpy())
        for matrix, turned in zip(sets.matrices(memory), sets.transposes(memory), strict=True)
    ]


def assert_defined(tokens: Sequence[torch.Tensor], detail: float) -> None:
    for mine, (matrix, _) in zip(tokens, filled(tokens, tokens, detail, symmetric=True), strict=True):
        assert np.abs(matrix - defined(mine, mine, detail)).max() <= 1
        np.testing.assert_array_equal(matrix, matrix.T)
        not_zero = mine.ne(0).any(1).cpu().numpy()
        np.testing.assert_array_equal(matrix.diagonal(), np.where(not_zero, SCALE, 0))


def noise(n: int, dim: int, dtype: torch.dtype, device: torch.device, common: float = 0.5) -> torch.Tensor:
    """[n, dim] tokens around a common direction, so that few similarities are near 0."""
    rng = np.random.default_rng(n * dim)
    return torch.from_numpy(rng.standard_normal((n, dim)) + common).to(device, dtype)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("detail", [1, 2, 2.5])
def test_ragged_sets_in_one_launch(dtype: torch.dtype, detail: float, device: torch.device) -> None:
    tokens = [noise(n, 72, dtype, device) for n in (1, 7, 22)]
    tokens[2][::5] = 0
    tokens[2][1] = tokens[2][2]
    tokens[2][3] = -tokens[2][2]
    assert_defined(tokens, detail)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dim", [1, 61, 64, 200])
def test_dims_that_fill_steps_and_such_that_do_not(dim: int, dtype: torch.dtype, device: torch.device) -> None:
    assert_defined([noise(n, dim, dtype, device) for n in (3, 9)], detail=1)


def test_rounded_to_nearest(device: torch.device) -> None:
    tokens = noise(20, 40, torch.float32, device)
    [(matrix, _)] = filled([tokens], [tokens], 1, symmetric=True)
    assert np.abs(matrix - defined(tokens, tokens, 1)).max() < 0.6


def test_sets_of_one_tile_and_of_several(device: torch.device) -> None:
    assert_defined([noise(n, 16, torch.float16, device) for n in (128, 130)], detail=2)


def test_rows_longer_than_what_is_read_at_a_time(device: torch.device) -> None:
    assert_defined([noise(3, 4100, torch.float32, device)], detail=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("detail", [1, 2])
def test_very_large_and_very_small_rows(dtype: torch.dtype, detail: float, device: torch.device) -> None:
    tokens = noise(12, 40, torch.float32, device)
    tokens[0:3] *= 1e20
    tokens[3:6] *= 1e-25
    tokens[6] *= 1e-38
    tokens[7] *= 3e37
    tokens[8] = 0
    assert_defined([tokens.to(dtype)], detail)


def test_a_row_with_large_and_small_numbers(device: torch.device) -> None:
    tokens = noise(6, 24, torch.float32, device)
    tokens[:, 0] *= 1e25
    tokens[:3, 1] *= 1e25
    assert_defined([tokens], detail=1)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_rectangles_and_their_transposes(dtype: torch.dtype, device: torch.device) -> None:
    candidates = [noise(n, 40, dtype, device) for n in (5, 9, 1)]
    tokens = [noise(n, 40, dtype, device, common=0.3) for n in (2, 17, 4)]
    pairs = filled(candidates, tokens, 2, symmetric=False)
    for mine, others, (matrix, turned) in zip(candidates, tokens, pairs, strict=True):
        assert np.abs(matrix - defined(mine, others, 2)).max() <= 1
        np.testing.assert_array_equal(turned, matrix.T)


def test_a_rectangle_of_several_tiles(device: torch.device) -> None:
    candidates, tokens = noise(131, 8, torch.float16, device), noise(20, 8, torch.float16, device)
    [(matrix, turned)] = filled([candidates], [tokens], 1, symmetric=False)
    assert np.abs(matrix - defined(candidates, tokens, 1)).max() <= 1
    np.testing.assert_array_equal(turned, matrix.T)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(("value", "seen"), [(1.0, [0, 0]), (0.0, [0, 0]), (torch.nan, [0, 1]), (-torch.inf, [0, 1])])
def test_what_is_not_finite_is_seen(value: float, seen: list[int], dtype: torch.dtype, device: torch.device) -> None:
    tokens = torch.ones(3, 5, dtype=dtype, device=device)
    tokens[1] = value
    assert Rows.of(tokens).seen.tolist() == seen
    if not np.isfinite(value):
        tokens[1, 1:] = 1
        assert Rows.of(tokens).seen[1] == 1


@pytest.mark.parametrize("value", [1e20, 1e-25])
def test_rows_that_need_scaling_are_seen(value: float, device: torch.device) -> None:
    tokens = torch.full((2, 5), value, device=device)
    assert Rows.of(tokens).seen.tolist() == [1, 0]
