"""The engines against definitions in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from floc.selection import reference
from floc.selection.backends import create_engine
from floc.selection.engine import Job, Targets
from floc.selection.objective import SCALE, Similarity
from floc.selection.torch.engine import compute_symmetric_matrix
from tests.selection.matrices import make_video_tokens, normalize, sharpen

cpu_engine = pytest.importorskip(
    "floc.selection.cpu.engine", reason="backend 'cpu' needs numba: pip install 'floc-video[cpu]'"
)

CPU = torch.device("cpu")
ENGINES = ["cpu", "torch", "reference"]


def define_matrix(tokens: np.ndarray, similarity: Similarity) -> np.ndarray:
    """[n, n] float64 similarities by definition."""
    tokens = tokens.astype(np.float64)
    s = normalize(tokens) @ normalize(tokens).T
    if similarity.metric == "gaussian":
        distance = np.linalg.norm(tokens[:, None] - tokens[None], axis=-1)
        sigma = np.median(distance[np.triu_indices(len(tokens), 1)])
        s = np.exp(-(distance**2) / (2 * sigma**2))
    return sharpen(s, similarity.detail)


@pytest.mark.parametrize(
    ("name", "similarity"),
    [
        (name, Similarity(metric, detail))
        for name, metric in (("cpu", "cosine"), ("torch", "cosine"), ("torch", "gaussian"))  # cpu uses torch's Gaussian
        for detail in (1, 2, 3, 2.5)
    ],
    ids=str,
)
@pytest.mark.parametrize("n", [1, 2, 63, 257, 1000])
def test_matrix_equals_definition_to_one_unit(name: str, similarity: Similarity, n: int) -> None:
    tokens = make_video_tokens(n)
    if name == "cpu":
        matrix = cpu_engine._compute_cosine_matrix(tokens, similarity.detail, lambda _: None)
    else:
        matrix = compute_symmetric_matrix(torch.from_numpy(tokens), similarity)[0].numpy()
    want = define_matrix(tokens, similarity) if n > 1 else np.ones((1, 1))
    assert np.abs(matrix - want * SCALE).max() <= 1
    np.testing.assert_array_equal(matrix, matrix.T)
    assert (matrix.diagonal() == SCALE).all()


@pytest.mark.parametrize("name", ["cpu", "torch"])
@pytest.mark.parametrize("detail", [1, 2])
def test_gaussian_selection_equals_reference(name: str, detail: float) -> None:
    jobs = [Job(torch.from_numpy(make_video_tokens(n, seed=n)), k) for n, k in ((90, 30), (1, 1), (257, 20))]
    ours, plain = (
        list(create_engine(engine, CPU).solve(jobs, Similarity("gaussian", detail), with_cosines=True))
        for engine in (name, "reference")
    )
    for got, want in zip(ours, plain, strict=True):
        np.testing.assert_array_equal(got.picks, want.picks)
        np.testing.assert_array_equal(got.gains, want.gains)
        assert (got.next_gain, got.sigma) == (want.next_gain, want.sigma)
        np.testing.assert_array_equal(got.history.token, want.history.token)
        np.testing.assert_array_equal(got.history.rank, want.history.rank)
        np.testing.assert_allclose(got.history.cosine, want.history.cosine, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-18, 1.0, 1e18, 1e30, 1e37])
@pytest.mark.parametrize("name", ENGINES)
def test_very_large_and_small_tokens(name: str, scale: float) -> None:
    tokens = np.array([[3, 4, 0], [4, -3, 0], [3, 4, 0.5], [0, 0, 0]]) * scale
    tokens = torch.from_numpy(tokens.astype(np.float32))
    [solution] = create_engine(name, CPU).solve([Job(tokens, 4)], Similarity(), with_cosines=True)
    want, gains = reference.greedy(np.rint(define_matrix(tokens.numpy(), Similarity()) * SCALE).astype(np.int16), 4)
    np.testing.assert_array_equal(solution.picks, want)
    np.testing.assert_allclose(solution.gains, gains, atol=4)


@pytest.mark.parametrize("name", ENGINES)
def test_history_gives_representatives_after_every_pick(name: str) -> None:
    tokens = make_video_tokens(90)
    [solution] = create_engine(name, CPU).solve([Job(torch.from_numpy(tokens), 30)], Similarity(), with_cosines=True)
    s = define_matrix(tokens, Similarity())
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
def test_next_gain_is_the_gain_of_the_next_pick(name: str) -> None:
    tokens = torch.from_numpy(make_video_tokens(60))
    run = create_engine(name, CPU)
    short, long, whole = run.solve(
        [Job(tokens, 10), Job(tokens, 11), Job(tokens, 60)], Similarity(), with_cosines=False
    )
    assert short.next_gain == long.gains[10]
    assert whole.next_gain == 0


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("as_unit", [True, False])
def test_sum_by_cluster(name: str, as_unit: bool) -> None:
    tokens = make_video_tokens(50)
    cluster = np.random.default_rng(0).integers(0, 5, 50)
    first, second = slice(0, 20), slice(20, 50)
    sets = [(torch.from_numpy(tokens[first]), cluster[first]), (torch.from_numpy(tokens[second]), 5 + cluster[second])]
    directions, lengths = create_engine(name, CPU).sum_by_cluster(sets, 10, unit=as_unit)
    members = normalize(tokens) if as_unit else tokens.astype(np.float64)
    want = np.zeros((10, tokens.shape[1]))
    np.add.at(want, cluster + np.where(np.arange(50) < 20, 0, 5), members)
    np.testing.assert_allclose(directions.numpy() * lengths[:, None], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("metric", ["cosine", "gaussian"])
def test_weighted_selection_equals_reference(name: str, metric: str) -> None:
    rng = np.random.default_rng(4)
    candidates, means = make_video_tokens(40, seed=1), make_video_tokens(30, seed=2).astype(np.float64)
    weights = rng.integers(1, 900, 30)
    s = normalize(candidates) @ normalize(means).T
    if metric == "gaussian":
        s = np.exp(-((candidates[:, None] - means[None]) ** 2).sum(-1) / (2 * 20.0**2))
    want, gains = reference.greedy(np.rint(s * SCALE).astype(np.int16), 12, weights)
    lengths = np.linalg.norm(means, axis=1)
    targets = Targets(torch.from_numpy(normalize(means).astype(np.float32)), lengths, weights)
    solution = create_engine(name, CPU).solve_weighted(
        torch.from_numpy(candidates), targets, 12, Similarity(metric), sigma=20.0 if metric == "gaussian" else None
    )
    np.testing.assert_array_equal(solution.picks, want)
    np.testing.assert_allclose(solution.gains, gains, rtol=1e-3)
    best = np.sort(np.argsort(-s[want], axis=0)[:4].T, axis=1)  # there are no ties
    np.testing.assert_array_equal(np.sort(solution.closest, axis=1), best)


@pytest.mark.parametrize("name", ENGINES)
def test_cosines_of_pairs(name: str) -> None:
    left, right = make_video_tokens(20, seed=1), make_video_tokens(30, seed=2).astype(np.float16)
    rng = np.random.default_rng(0)
    i, j = rng.integers(0, 20, 700), np.sort(rng.integers(0, 30, 700))
    got = create_engine(name, CPU).compute_cosines(torch.from_numpy(left), i, torch.from_numpy(right), j)
    np.testing.assert_allclose(got, (normalize(left)[i] * normalize(right)[j]).sum(1), atol=1e-6)


# ---- compiled code and kernels do not check bounds, so the engines must


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "cluster",
    [np.array([0, 1, 2]), np.array([-1, 0, 1]), np.array([0, 2**62, 1]), np.array([0, 1]), np.array([0.0, 1.0, 1.0])],
    ids=str,
)
def test_sum_by_cluster_rejects_clusters_that_do_not_exist(name: str, cluster: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"clusters of set 0 must be"):
        create_engine(name, CPU).sum_by_cluster([(torch.ones(3, 4), cluster)], 2, unit=True)


@pytest.mark.parametrize("name", ENGINES)
def test_sum_by_cluster_rejects_sets_of_other_features(name: str) -> None:
    sets = [(torch.ones(2, 4), np.zeros(2, np.int64)), (torch.ones(2, 5), np.zeros(2, np.int64))]
    with pytest.raises(ValueError, match="must have the same features"):
        create_engine(name, CPU).sum_by_cluster(sets, 1, unit=True)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(("i", "j"), [([3], [0]), ([0], [5]), ([-1], [0]), ([0, 1], [0])])
def test_compute_cosines_rejects_rows_that_do_not_exist(name: str, i: list[int], j: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^[ij] must be"):
        create_engine(name, CPU).compute_cosines(torch.ones(3, 4), np.array(i), torch.ones(5, 4), np.array(j))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("shape", "depth", "weights", "message"),
    [
        ((3, 4), 0, None, "cannot make 0 picks"),
        ((3, 4), 4, None, "cannot make 4 picks"),
        ((3, 4), 2, [1, 1, 1], "for each of 4 tokens"),
        ((3, 4), 2, [1, 1, 1, -1], "at least 0"),
        ((3, 4), 2, [1, 1, 1, 2**60], "too much for exact 64-bit gains"),
        ((3, 4), 2, [2**62] * 4, "too much for exact 64-bit gains"),
    ],
)
def test_select_rejects_what_kernels_cannot_do(name: str, shape: tuple, depth: int, weights: Any, message: str) -> None:
    matrix = torch.ones(shape, dtype=torch.int16)
    with pytest.raises(ValueError, match=message):
        create_engine(name, CPU).select([matrix], [depth], None if weights is None else np.array(weights))


@pytest.mark.parametrize("budget", [-1, 0, 4])
def test_jobs_reject_budgets_outside_of_the_set(budget: int) -> None:
    with pytest.raises(ValueError, match="cannot select"):
        Job(torch.ones(3, 4), budget)
    targets = Targets(torch.ones(2, 4), np.ones(2), np.ones(2, np.int64))
    with pytest.raises(ValueError, match="cannot select"):
        create_engine("cpu", CPU).solve_weighted(torch.ones(3, 4), targets, budget, Similarity())


def test_targets_need_one_weight_each() -> None:
    with pytest.raises(ValueError, match="every target needs"):
        Targets(torch.ones(2, 4), np.ones(2), np.ones(3, np.int64))
