"""The engines' parts against their definitions in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floc.selection import reference
from floc.selection.backends import create_engine
from floc.selection.cpu import engine as cpu_engine
from floc.selection.cpu import rows, tiles
from floc.selection.engine import Job, Targets
from floc.selection.objective import SCALE, Similarity
from floc.synthetic import film

CPU = torch.device("cpu")
ENGINES = ["cpu", "torch", "reference"]


def unit(tokens: np.ndarray) -> np.ndarray:
    tokens = tokens.astype(np.float64)
    return tokens / np.maximum(np.linalg.norm(tokens, axis=1, keepdims=True), 1e-300)


def defined(tokens: np.ndarray, similarity: Similarity) -> np.ndarray:
    """[n, n] float64 similarities, from the definitions."""
    tokens = tokens.astype(np.float64)
    s = unit(tokens) @ unit(tokens).T
    if similarity.metric == "gaussian":
        distance = np.linalg.norm(tokens[:, None] - tokens[None], axis=-1)
        sigma = np.median(distance[np.triu_indices(len(tokens), 1)])
        s = np.exp(-(distance**2) / (2 * sigma**2))
    return s if similarity.detail == 1 else 1 - (1 - np.clip(s, 0, 1)) ** similarity.detail


def video_tokens(n: int, dim: int = 40, seed: int = 0) -> np.ndarray:
    return film(n, 1, 1, dim=dim, seed=seed, shot_frames=9, dtype=np.float32).reshape(n, dim)


@pytest.mark.parametrize("name", ["cpu", "torch"])
@pytest.mark.parametrize(
    "similarity", [Similarity(m, d) for m in ("cosine", "gaussian") for d in (1, 2, 3, 2.5)], ids=str
)
@pytest.mark.parametrize("n", [1, 2, 63, 257, 1000])
def test_matrix_is_the_definition_to_one_unit(name: str, similarity: Similarity, n: int) -> None:
    tokens = video_tokens(n)
    if name == "cpu":
        with cpu_engine._workers() as pool:
            matrix, _ = cpu_engine._symmetric(pool, tokens, similarity, lambda _: None)
    else:
        from floc.selection.torch import engine

        matrix = engine._symmetric(torch.from_numpy(tokens), similarity)[0].numpy()
    want = defined(tokens, similarity) if n > 1 else np.ones((1, 1))
    assert np.abs(matrix - want * SCALE).max() <= 1
    np.testing.assert_array_equal(matrix, matrix.T)
    assert (matrix.diagonal() == SCALE).all()


@pytest.mark.parametrize("n", [1, 479, 480, 481, 2000])
def test_tiles_cover_the_matrix_once(n: int) -> None:
    covered = np.zeros((n, n), int)
    for tile in tiles.triangle(n):
        covered[tile.rows, tile.columns] += 1
        if tile.mirror:
            covered[tile.columns, tile.rows] += 1
    assert (covered == 1).all()
    covered[:] = 0
    for tile in tiles.rectangle(n, n):
        covered[tile.rows, tile.columns] += 1
    assert (covered == 1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn])
def test_every_format_is_read_as_torch_reads_it(dtype: torch.dtype) -> None:
    values = torch.cat([torch.randn(200) * 10.0**e for e in range(-6, 5)] + [torch.zeros(24)]).clamp(-400, 400)
    tokens = values.to(dtype).reshape(-1, 8)
    want = tokens.double()
    lengths = want.norm(dim=1)
    want = (want / lengths.clamp_min(1e-300)[:, None]).float().numpy()
    got, got_lengths = np.full(want.shape, np.nan, np.float32), np.full(len(want), np.nan)
    rows.normalise(rows.bits(tokens), got, got_lengths, 0, len(want))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(got_lengths, lengths, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-18, 1.0, 1e18, 1e30, 1e37])
@pytest.mark.parametrize("name", ENGINES)
def test_very_large_and_small_tokens(name: str, scale: float) -> None:
    tokens = np.array([[3, 4, 0], [4, -3, 0], [3, 4, 0.5], [0, 0, 0]]) * scale
    tokens = torch.from_numpy(tokens.astype(np.float32))
    [solution] = create_engine(name, CPU).solve([Job(tokens, 4)], Similarity(), with_cosines=True)
    want, gains = reference.greedy(np.rint(defined(tokens.numpy(), Similarity()) * SCALE).astype(np.int16), 4)
    np.testing.assert_array_equal(solution.picks, want)
    np.testing.assert_allclose(solution.gains, gains, atol=4)


@pytest.mark.parametrize("name", ENGINES)
def test_history_is_who_represents_whom_at_every_step(name: str) -> None:
    tokens = video_tokens(90)
    [solution] = create_engine(name, CPU).solve([Job(torch.from_numpy(tokens), 30)], Similarity(), with_cosines=True)
    s = defined(tokens, Similarity())
    history = solution.history
    assert (np.diff(history.rank) >= 0).all()
    for k in (1, 2, 7, 30):
        last = history.representatives(90, k)
        best = s[solution.picks[:k]].max(0)
        np.testing.assert_allclose(s[solution.picks[last], np.arange(90)], best, atol=2 / SCALE)
        upto = history.rank < k
        cosine = np.full(90, np.nan)
        cosine[history.token[upto]] = history.cosine[upto]
        np.testing.assert_allclose(cosine, best, atol=1 / SCALE)
    np.testing.assert_array_equal(solution.gains[1:] >= solution.next_gain, True)


@pytest.mark.parametrize("name", ENGINES)
def test_next_gain_is_the_gain_one_pick_further(name: str) -> None:
    tokens = torch.from_numpy(video_tokens(60))
    run = create_engine(name, CPU)
    short, long, whole = run.solve(
        [Job(tokens, 10), Job(tokens, 11), Job(tokens, 60)], Similarity(), with_cosines=False
    )
    assert short.next_gain == long.gains[10]
    assert whole.next_gain == 0


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("as_unit", [True, False])
def test_sums_by_cluster(name: str, as_unit: bool) -> None:
    tokens = video_tokens(50)
    cluster = np.random.default_rng(0).integers(0, 5, 50)
    first, second = slice(0, 20), slice(20, 50)
    sets = [(torch.from_numpy(tokens[first]), cluster[first]), (torch.from_numpy(tokens[second]), 5 + cluster[second])]
    directions, lengths = create_engine(name, CPU).sum_by_cluster(sets, 10, unit=as_unit)
    members = unit(tokens) if as_unit else tokens.astype(np.float64)
    want = np.zeros((10, tokens.shape[1]))
    np.add.at(want, cluster + np.where(np.arange(50) < 20, 0, 5), members)
    np.testing.assert_allclose(directions.numpy() * lengths[:, None], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("metric", ["cosine", "gaussian"])
def test_weighted_selection_is_the_reference_on_its_definition(name: str, metric: str) -> None:
    rng = np.random.default_rng(4)
    candidates, means = video_tokens(40, seed=1), video_tokens(30, seed=2).astype(np.float64)
    weights = rng.integers(1, 900, 30)
    s = unit(candidates) @ unit(means).T
    if metric == "gaussian":
        s = np.exp(-((candidates[:, None] - means[None]) ** 2).sum(-1) / (2 * 20.0**2))
    want, gains = reference.greedy(np.rint(s * SCALE).astype(np.int16), 12, weights)
    lengths = np.linalg.norm(means, axis=1)
    targets = Targets(torch.from_numpy(unit(means).astype(np.float32)), lengths, weights)
    solution = create_engine(name, CPU).solve_weighted(
        torch.from_numpy(candidates), targets, 12, Similarity(metric), sigma=20.0 if metric == "gaussian" else None
    )
    np.testing.assert_array_equal(solution.picks, want)
    np.testing.assert_allclose(solution.gains, gains, rtol=1e-3)
    best = np.sort(np.argsort(-s[want], axis=0)[:4].T, axis=1)  # no ties among these
    np.testing.assert_array_equal(np.sort(solution.closest, axis=1), best)


@pytest.mark.parametrize("name", ENGINES)
def test_cosines_of_pairs(name: str) -> None:
    left, right = video_tokens(20, seed=1), video_tokens(30, seed=2).astype(np.float16)
    rng = np.random.default_rng(0)
    i, j = rng.integers(0, 20, 700), np.sort(rng.integers(0, 30, 700))
    got = create_engine(name, CPU).cosines(torch.from_numpy(left), i, torch.from_numpy(right), j)
    np.testing.assert_allclose(got, (unit(left)[i] * unit(right)[j]).sum(1), atol=1e-6)


def test_sets_are_chosen_from_together_or_apart_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the torch engine pads sets into one batch; force it here."""
    from floc.selection.torch import engine

    jobs = [Job(torch.from_numpy(video_tokens(n, seed=n)), k) for n, k in ((50, 6), (17, 17), (33, 1), (1, 1))]
    apart = list(engine.TorchEngine().solve(jobs, Similarity(detail=2), with_cosines=True))
    monkeypatch.setattr(engine, "_together", lambda jobs: [jobs])
    together = list(engine.TorchEngine().solve(jobs, Similarity(detail=2), with_cosines=True))
    for a, b in zip(apart, together, strict=True):
        np.testing.assert_array_equal(a.picks, b.picks)
        np.testing.assert_array_equal(a.gains, b.gains)
        assert a.next_gain == b.next_gain
