"""Representatives, cluster sums and the order of tokens by coverage, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.selection.gpu import clusters
from floc.selection.gpu.similarity import Rows
from tests.selection.gpu.launches import MARKS, lay_out
from tests.selection.matrices import make_matrix, normalize

pytestmark = MARKS
FORMATS = [torch.float16, torch.bfloat16, torch.float32]


def make_rows(n: int, dim: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[n, dim] tokens of lengths from 1e-3 to 1e3, and a zero token."""
    rng = np.random.default_rng(n)
    tokens = rng.standard_normal((n, dim)) * 10 ** rng.uniform(-3, 3, (n, 1))
    tokens[n // 2] = 0
    return torch.from_numpy(tokens).to(device, dtype)


def to_device(device: torch.device, values: np.ndarray, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.from_numpy(values).to(device, dtype)


@pytest.mark.parametrize("kind", ["centred", "ties", "all equal"])
def test_representative_is_first_closest_pick_and_picks_represent_themselves(kind: str, device: torch.device) -> None:
    sizes, depths, counts = (1, 20, 70, 9), (1, 18, 30, 9), (1, 17, 20, 9)
    matrices = [make_matrix(kind, n, seed=n) for n in sizes]
    memory, sets = lay_out(matrices, depths, device, symmetric=kind != "ties")
    rng = np.random.default_rng(0)
    picks = [rng.permutation(n)[:depth] for n, depth in zip(sizes, depths, strict=True)]
    got = clusters.find_representatives(
        memory, sets, to_device(device, np.concatenate(picks)), to_device(device, np.array(counts))
    )
    want, first = [], 0
    for matrix, set_picks, count, depth in zip(matrices, picks, counts, depths, strict=True):
        similarity = matrix[set_picks[:count]].astype(int)
        similarity[np.arange(count), set_picks[:count]] = 99_999
        want.append(first + similarity.argmax(0))
        first += depth
    np.testing.assert_array_equal(got.cpu().numpy(), np.concatenate(want))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("dim", [5, 64, 1030])
def test_sums_of_unit_rows(dtype: torch.dtype, dim: int, device: torch.device) -> None:
    tokens = make_rows(19, dim, dtype, device)
    cluster = np.array([0, 1, 2, 3] * 4 + [0, 0, 0])
    want = np.zeros((4, dim))
    np.add.at(want, cluster, normalize(tokens.double().cpu().numpy()))
    got = clusters.sum_clusters(Rows.measure(tokens), to_device(device, cluster, torch.int64), 4, torch.float32)
    np.testing.assert_allclose(got.cpu().numpy(), want, atol=2e-6)
    half = clusters.sum_clusters(Rows.measure(tokens), to_device(device, cluster, torch.int64), 4, torch.float16)
    np.testing.assert_allclose(half.cpu().numpy(), want, atol=2e-3)


@pytest.mark.parametrize("scale", [1e-25, 1e20])
def test_sums_of_very_small_and_very_large_rows(scale: float, device: torch.device) -> None:
    tokens = make_rows(7, 12, torch.float32, device) * scale
    got = clusters.sum_clusters(
        Rows.measure(tokens), torch.zeros(7, dtype=torch.int64, device=device), 1, torch.float32
    )
    np.testing.assert_allclose(got[0].cpu().numpy(), normalize(tokens.double().cpu().numpy()).sum(0), atol=2e-6)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("to", [torch.float16, torch.float32], ids=str)
def test_gathered_rows_keep_their_direction(dtype: torch.dtype, to: torch.dtype, device: torch.device) -> None:
    tokens = make_rows(11, 24, dtype, device)
    places = np.array([10, 0, 5, 5, 3])  # 5 is the zero token
    got = clusters.gather_rows(Rows.measure(tokens), to_device(device, places, torch.int64), to)
    assert got.values.dtype == to
    values = got.values.double().cpu().numpy()
    want = normalize(tokens.double().cpu().numpy())[places]
    np.testing.assert_allclose(values * got.scale.double().cpu().numpy()[:, None], want, atol=2**-11)
    lengths = np.linalg.norm(np.delete(values, [2, 3], axis=0), axis=1)
    assert ((lengths > 0.499) & (lengths < 1.001)).all()
    assert got.scale[2:4].tolist() == [0, 0]


def test_gathered_rows_of_extreme_lengths(device: torch.device) -> None:
    tokens = make_rows(8, 24, torch.float32, device)
    tokens[:3] *= 1e20
    tokens[5:] *= 1e-25
    got = clusters.gather_rows(Rows.measure(tokens), torch.arange(8, device=device), torch.float16)
    np.testing.assert_allclose(
        got.values.double().cpu().numpy() * got.scale.double().cpu().numpy()[:, None],
        normalize(tokens.double().cpu().numpy()),
        atol=2**-11,
    )
