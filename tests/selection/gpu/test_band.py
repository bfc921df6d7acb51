"""Selection within a horizon on the GPU against greedy on the band, and whole compressions against the reference."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import floc
from floc.selection import reference
from floc.selection.engine import Band, Job
from floc.selection.gpu import band_rounds, band_selection
from floc.selection.gpu.band_rounds import BandPicks, BandPrograms, pick_in_rounds
from floc.selection.gpu.band_similarity import BandTiles, compute_band, get_gain_type
from floc.selection.gpu.engine import GpuEngine
from floc.selection.gpu.similarity import Rows
from floc.selection.objective import SCALE, Similarity
from floc.selection.torch.engine import ReferenceEngine
from tests.selection.bands import assert_same, make_signs, pack
from tests.selection.gpu.launches import MARKS, parametrize_alternately
from tests.selection.gpu.test_greedy_processes import ProcessLauncher
from tests.selection.gpu.test_similarity import FORMATS, define_matrix, make_tokens

pytestmark = MARKS
SHAPES = [(1, 1), (1, 5), (2, 1), (5, 3), (11, 5), (17, 2), (30, 1)]  # frames, cells
HORIZONS = [0, 4, 80]


def make_band_matrix(band: Band, largest: int, seed: int) -> np.ndarray:
    """[n, n] symmetric integers up to `largest`: few distinct values make many ties, many are negative."""
    half = np.random.default_rng(seed).integers(-largest, largest + 1, (band.n, band.n))
    return np.triu(half) + np.triu(half, 1).T


def pick(
    matrix: np.ndarray,
    band: Band,
    count: int,
    device: torch.device,
    programs: BandPrograms | None = None,
    dtype: torch.dtype = torch.int32,
) -> BandPicks:
    values = torch.from_numpy(pack(matrix, band)).to(device)
    return pick_in_rounds(values, values.sum(1, dtype=dtype), band, count, programs)


def assert_greedy(picks: BandPicks, matrix: np.ndarray, band: Band, count: int) -> None:
    """Assert that the picks, sorted by gain and then by index, are greedy's as long as it gains anything."""
    gains = picks.gains.cpu().numpy()
    order = np.lexsort((np.arange(band.n), -gains))[:count]
    want, want_gains = reference.greedy(reference.limit_to_horizon(matrix, band.cells, band.horizon), count)
    useful = int(np.count_nonzero(want_gains > 0))
    np.testing.assert_array_equal(order[:useful], want[:useful])
    np.testing.assert_array_equal(gains[order][:useful], want_gains[:useful])
    assert (gains[order][useful:] == -1).all()


@parametrize_alternately(["frames", "cells", "horizon"], SHAPES, HORIZONS)
def test_rounds_equal_greedy(frames: int, cells: int, horizon: int, device: torch.device) -> None:
    band = Band(frames, cells, horizon)
    for largest, count in itertools.product([1, 40, SCALE], sorted({1, max(1, band.n // 5), band.n})):
        matrix = make_band_matrix(band, largest, seed=count)
        assert_greedy(pick(matrix, band, count, device), matrix, band, count)


def test_rounds_end_when_enough_picks_are_made(device: torch.device) -> None:
    band = Band(40, 4, 1)
    matrix = make_band_matrix(band, SCALE, seed=0)
    few, all_ = (pick(matrix, band, count, device) for count in (10, band.n))
    assert int((few.gains > 0).sum()) < int((all_.gains > 0).sum()) / 2
    assert int(few.rounds.max()) < int(all_.rounds.max()) / 2


def test_tokens_without_similarities_are_not_picked(device: torch.device) -> None:
    band = Band(3, 2, 1)
    assert pick(np.zeros((6, 6), np.int64), band, 6, device).gains.tolist() == [-1] * 6


def test_wide_bands_have_64_bit_gains(device: torch.device) -> None:
    band = Band(9, 4, 3)
    matrix = make_band_matrix(band, SCALE, seed=1)
    assert_greedy(pick(matrix, band, 20, device, dtype=torch.int64), matrix, band, 20)
    assert get_gain_type(Band(10, 1 << 12, 16)) == torch.int64


@pytest.mark.parametrize("shape", [dict(TOKENS=4, LANES=2, ROWS=1), dict(TOKENS=8, LANES=8, ROWS=2)], ids=str)
def test_blocks_smaller_than_the_band(
    shape: dict[str, int], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers are raised and losses are computed in several turns."""
    choose, band = band_rounds.choose_shape, Band(20, 3, 4)
    monkeypatch.setattr(band_rounds, "choose_shape", lambda *sizes: choose(*sizes) | shape)
    matrix = make_band_matrix(band, SCALE, seed=5)
    assert_greedy(pick(matrix, band, 30, device), matrix, band, 30)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the tests above run several programs on the GPU")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@parametrize_alternately(
    ["frames", "cells", "horizon", "owned", "largest"],
    [(6, 2, 0, 1), (9, 3, 1, 1), (10, 2, 4, 3), (12, 2, 1, 5), (30, 1, 2, 4)],
    [1, SCALE],
)
def test_several_programs_equal_greedy(
    frames: int, cells: int, horizon: int, owned: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process for each program, as in test_greedy_processes.py."""
    monkeypatch.setattr(band_rounds, "_pick_in_rounds", ProcessLauncher(band_rounds._pick_in_rounds))
    band = Band(frames, cells, horizon)
    matrix = make_band_matrix(band, largest, seed=frames)
    count = max(1, band.n // 2)
    picks = pick(matrix, band, count, torch.device("cpu"), programs=BandPrograms(owned, 1))
    assert len(picks.rounds) == math.ceil(frames / owned)
    assert_greedy(picks, matrix, band, count)


@parametrize_alternately(
    ["detail", "frames", "cells", "horizon"],
    [1, 2, 3, 2.5],
    [(1, 1, 0), (3, 70, 1), (50, 3, 20), (40, 9, 4), (5, 2, 9)],
)
def test_bands_equal_the_definition(detail: float, frames: int, cells: int, horizon: int, device: torch.device) -> None:
    band = Band(frames, cells, horizon)
    tokens = make_tokens(band.n, 24, torch.float32, device, common=0.2)
    tokens[band.n // 2] = 0
    check_band(tokens, band, detail, BandTiles())


@parametrize_alternately(["tiles", "dtype"], [BandTiles(64, 128), BandTiles(128, 64), BandTiles(32, 32)], FORMATS)
def test_tiles_of_any_size(tiles: BandTiles, dtype: torch.dtype, device: torch.device) -> None:
    check_band(make_tokens(200, 72, dtype, device), Band(40, 5, 4), 2, tiles)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_very_large_and_very_small_rows(dtype: torch.dtype, device: torch.device) -> None:
    tokens = make_tokens(12, 40, torch.float32, device)
    tokens[0:3] *= 1e20
    tokens[3:6] *= 1e-25
    check_band(tokens.to(dtype), Band(4, 3, 1), 2, BandTiles())


def check_band(tokens: torch.Tensor, band: Band, detail: float, tiles: BandTiles) -> None:
    """Check the band against its definition to one unit, its symmetry and its sums."""
    result, sums = compute_band(Rows.measure(tokens), band, detail, tiles)
    values = result.cpu().numpy().astype(np.int64)
    want = pack(np.rint(define_matrix(tokens, tokens, detail)).astype(np.int64), band)
    assert np.abs(values - want).max() <= 1
    v, column = np.nonzero(values)
    u = column + (v // band.cells - band.horizon) * band.cells
    np.testing.assert_array_equal(values[u, v - (u // band.cells - band.horizon) * band.cells], values[v, column])
    np.testing.assert_array_equal(sums.cpu(), values.sum(1))


@parametrize_alternately(["detail", "frames", "cells", "horizon"], [1, 2.5], [(1, 5), (11, 5), (30, 1)], [0, 4, 40])
def test_the_engine_equals_the_reference(
    detail: float, frames: int, cells: int, horizon: int, device: torch.device
) -> None:
    band, similarity = Band(frames, cells, horizon), Similarity("cosine", detail)
    tokens = make_signs(band.n, seed=band.n)
    tokens[band.n // 2] = 0
    tokens[-1] = tokens[0]  # a tie
    for k in {1, max(1, band.n // 5), band.n}:
        want = ReferenceEngine().solve_band(Job(torch.from_numpy(tokens), k), band, similarity, with_cosines=True)
        job = Job(torch.from_numpy(tokens).to(device), k)
        assert_same(GpuEngine().solve_band(job, band, similarity, with_cosines=True), want)


@parametrize_alternately(["detail", "horizon", "budget"], [1, 3], [0, 2, 5, 20], [1, 12, 36])
def test_compressions_equal_the_reference(detail: float, horizon: int, budget: int, device: torch.device) -> None:
    tokens = torch.from_numpy(make_signs(36, seed=2)).view(9, 2, 2, 16)
    tokens[4, 1, 1] = 0
    options = dict(budget=budget, horizon=horizon, detail=detail)
    got = floc.compress(tokens.to(device), backend="gpu", **options)
    want = floc.compress(tokens, backend="reference", **options)
    assert got.settings == {**want.settings, "backend": "gpu"}
    for name in ("indices", "order", "gains", "positions"):
        np.testing.assert_array_equal(getattr(got, name).cpu(), getattr(want, name), err_msg=name)
    assert got.coverage == pytest.approx(want.coverage, abs=1e-6)
    assert got.bound == pytest.approx(want.bound, abs=1e-6)
    fewer = max(1, budget // 2)
    np.testing.assert_array_equal(got.at(budget=fewer).indices.cpu(), want.at(budget=fewer).indices)
    assert got.at(budget=fewer).coverage == pytest.approx(want.at(budget=fewer).coverage, abs=1e-6)
    for name in ("indices", "features", "positions", "order", "gains", "represents"):
        assert getattr(got, name).device.type == device.type


def test_representatives_are_the_closest_within_the_horizon(device: torch.device) -> None:
    tokens = torch.from_numpy(make_signs(36, seed=2)).view(9, 2, 2, 16)
    kept = floc.compress(tokens.to(device), budget=7, horizon=2, detail=1, backend="gpu")
    rows, indices = tokens.view(36, 16).double() / 4, kept.indices.cpu()
    cosine = rows @ rows[indices].T
    distance = (torch.arange(36)[:, None] // 4 - indices // 4).abs()
    cosine[distance > 2] = 0
    best, represents = cosine.max(1).values, kept.represents.cpu()
    covered = best > 0
    assert not bool(covered.all())
    torch.testing.assert_close(cosine[torch.arange(36), represents][covered], best[covered])
    nearest = (torch.arange(36)[:, None] - indices).abs()
    away = nearest[torch.arange(36), represents][~covered]
    assert torch.equal(away, nearest.min(1).values[~covered])
    assert kept.coverage == pytest.approx(float(best.mean()), abs=1e-6)


def test_a_target_coverage_equals_the_reference(device: torch.device) -> None:
    tokens = torch.from_numpy(make_signs(36, seed=2)).view(9, 2, 2, 16)
    got = floc.compress(tokens.to(device), coverage=0.8, horizon="auto", backend="gpu")
    want = floc.compress(tokens, coverage=0.8, horizon="auto", backend="reference")
    np.testing.assert_array_equal(got.indices.cpu(), want.indices)
    np.testing.assert_array_equal(got.represents.cpu(), want.represents)


def test_reports_tokens_that_are_not_finite_on_first_host_access(device: torch.device) -> None:
    tokens = torch.ones(9, 2, 2, 8, device=device)
    tokens[3, 1, 0, 7] = torch.nan
    kept = floc.compress(tokens, budget=5, horizon=2, backend="gpu")
    for access in (lambda: kept.coverage, lambda: kept.represents, lambda: kept.bound, lambda: kept.at(budget=2)):
        with pytest.raises(ValueError, match="in frame 3, row 1, column 0"):
            access()


def test_rejects_a_band_of_other_tokens() -> None:
    with pytest.raises(ValueError, match="cannot select 3 of 12 tokens in Band"):
        band_selection.rank_in_band(torch.ones(12, 4), Band(5, 2, 1), 3, 2.0)
