"""Who stands for whom, and what is made of it, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.selection.gpu import clusters
from floc.selection.gpu.greedy import Picked
from floc.selection.gpu.similarity import Rows
from tests.selection.gpu.launches import MARKS, laid_out
from tests.selection.test_engines import unit
from tests.selection.test_greedy import case

pytestmark = MARKS
FORMATS = [torch.float16, torch.bfloat16, torch.float32]


def rows_of_all_lengths(n: int, dim: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[n, dim] tokens of lengths from 1e-3 to 1e3, and a zero."""
    rng = np.random.default_rng(n)
    tokens = rng.standard_normal((n, dim)) * 10 ** rng.uniform(-3, 3, (n, 1))
    tokens[n // 2] = 0
    return torch.from_numpy(tokens).to(device, dtype)


def on(device: torch.device, values: np.ndarray, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.from_numpy(values).to(device, dtype)


@pytest.mark.parametrize("kind", ["centred", "ties", "all equal"])
def test_a_token_is_represented_by_the_first_of_its_closest_picks_and_a_pick_by_itself(
    kind: str, device: torch.device
) -> None:
    sizes, depths, counts = (1, 20, 70, 9), (1, 18, 30, 9), (1, 17, 20, 9)
    matrices = [case(kind, n, seed=n) for n in sizes]
    memory, sets = laid_out(matrices, depths, device, symmetric=kind != "ties")
    rng = np.random.default_rng(0)
    picks = [rng.permutation(n)[:depth] for n, depth in zip(sizes, depths, strict=True)]
    got = clusters.represent(memory, sets, on(device, np.concatenate(picks)), on(device, np.array(counts)))
    want, first = [], 0
    for matrix, mine, count, depth in zip(matrices, picks, counts, depths, strict=True):
        standing = matrix[mine[:count]].astype(int)
        standing[np.arange(count), mine[:count]] = 99_999
        want.append(first + standing.argmax(0))
        first += depth
    np.testing.assert_array_equal(got.cpu().numpy(), np.concatenate(want))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("dim", [5, 64, 1030])
def test_sums_of_unit_rows(dtype: torch.dtype, dim: int, device: torch.device) -> None:
    tokens = rows_of_all_lengths(19, dim, dtype, device)
    cluster = np.array([0, 1, 2, 3] * 4 + [0, 0, 0])
    want = np.zeros((4, dim))
    np.add.at(want, cluster, unit(tokens.double().cpu().numpy()))
    got = clusters.sums(Rows.of(tokens), on(device, cluster, torch.int64), 4, torch.float32)
    np.testing.assert_allclose(got.cpu().numpy(), want, atol=2e-6)
    half = clusters.sums(Rows.of(tokens), on(device, cluster, torch.int64), 4, torch.float16)
    np.testing.assert_allclose(half.cpu().numpy(), want, atol=2e-3)


@pytest.mark.parametrize("scale", [1e-25, 1e20])
def test_sums_of_very_small_and_very_large_rows(scale: float, device: torch.device) -> None:
    tokens = rows_of_all_lengths(7, 12, torch.float32, device) * scale
    got = clusters.sums(Rows.of(tokens), torch.zeros(7, dtype=torch.int64, device=device), 1, torch.float32)
    np.testing.assert_allclose(got[0].cpu().numpy(), unit(tokens.double().cpu().numpy()).sum(0), atol=2e-6)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("to", [torch.float16, torch.float32], ids=str)
def test_gathered_rows_point_where_they_did(dtype: torch.dtype, to: torch.dtype, device: torch.device) -> None:
    tokens = rows_of_all_lengths(11, 24, dtype, device)
    places = np.array([10, 0, 5, 5, 3])  # 5 is the zero
    got = clusters.gathered(Rows.of(tokens), on(device, places, torch.int64), to)
    assert got.values.dtype == to
    values = got.values.double().cpu().numpy()
    want = unit(tokens.double().cpu().numpy())[places]
    np.testing.assert_allclose(values * got.scale.double().cpu().numpy()[:, None], want, atol=2**-11)
    lengths = np.linalg.norm(np.delete(values, [2, 3], axis=0), axis=1)
    assert ((lengths > 0.499) & (lengths < 1.001)).all()
    assert got.scale[2:4].tolist() == [0, 0]


def test_gathered_rows_of_extreme_lengths(device: torch.device) -> None:
    tokens = rows_of_all_lengths(8, 24, torch.float32, device)
    tokens[:3] *= 1e20
    tokens[5:] *= 1e-25
    got = clusters.gathered(Rows.of(tokens), torch.arange(8, device=device), torch.float16)
    np.testing.assert_allclose(
        got.values.double().cpu().numpy() * got.scale.double().cpu().numpy()[:, None],
        unit(tokens.double().cpu().numpy()),
        atol=2**-11,
    )


@pytest.mark.parametrize(("enough", "needed"), [(0, [True, False, True]), (9, [True, False, True]), (8, [False] * 3)])
def test_tokens_from_the_worst_covered_on(enough: int, needed: list[bool], device: torch.device) -> None:
    """In sets that are not complete; in all others, in index order."""
    sizes, made, depths = (9, 5, 6), (3, 4, 1), (6, 4, 6)
    tokens = [torch.rand(n, 12, device=device, generator=torch.Generator(device).manual_seed(n)) for n in sizes]
    tokens[0][4] = 0
    picks = [np.arange(depth) for depth in depths]
    firsts = np.cumsum(depths) - depths
    by = [first + np.arange(n) % count for first, n, count in zip(firsts, sizes, made, strict=True)]
    _, sets = laid_out([np.zeros((n, n), np.int16) for n in sizes], depths, device, symmetric=True)
    picked = Picked(
        on(device, np.concatenate(picks)),
        torch.zeros(sum(depths), dtype=torch.int32, device=device),
        on(device, np.array(made)),
        torch.zeros(3, dtype=torch.int32, device=device),
    )
    got = clusters.worst_first(Rows.of(torch.cat(tokens)), sets, picked, on(device, np.concatenate(by)), enough)
    want = []
    for mine, first, standing, is_needed in zip(tokens, firsts, by, needed, strict=True):
        all_units = unit(mine.cpu().numpy())
        cosine = (all_units * all_units[standing - first]).sum(1)
        cosine[standing - first == np.arange(len(mine))] = 1
        cosine = np.where(cosine > 0, cosine, 2)  # a zero token is last
        order = np.argsort(cosine, kind="stable") if is_needed else np.arange(len(mine))
        want.append(order)
    got_by_set = np.split(got.cpu().numpy(), np.cumsum(sizes)[:-1])
    for mine, order, count in zip(got_by_set, want, made, strict=True):
        # those that were picked are exactly as well covered as they can be, so how they are ordered says nothing
        np.testing.assert_array_equal(mine[mine >= count], order[order >= count])
