"""Spectral clustering compared with reference outputs and with direct calls to scikit-learn."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

import floc
from floc.methods.shared.clusters import select_representatives
from floc.methods.spectral import cluster_spectrally, make_seeding
from floc.representatives import normalize

sklearn_cluster = pytest.importorskip("sklearn.cluster")
adjusted_rand = pytest.importorskip("sklearn.metrics").adjusted_rand_score


@pytest.fixture(autouse=True)
def _one_thread():
    """Limit libraries to one thread, as the method does; more are slower."""
    with threadpool_limits(limits=1):
        yield


@pytest.mark.parametrize("case", "abc")
def test_matches_reference_outputs(read_golden, case: str) -> None:
    golden = read_golden(f"spectral_{case}")
    k = int(golden["n_clusters"])
    x = normalize(torch.from_numpy(golden["tokens"])).flatten(0, 2)
    assert sorted(select_representatives(x.numpy(), golden["labels_l2"], k)) == golden["kept_l2"].tolist()
    # eigenvectors depend on the BLAS, so clusters need to agree only approximately
    labels = cluster_spectrally(x, k, seed=0)
    assert adjusted_rand(labels, golden["labels_l2"]) > 0.95
    if case == "b":  # the smallest
        kept = floc.compress(golden["tokens"], budget=k, method="spectral", block=None)
        assert kept.indices.tolist() == sorted(select_representatives(x.numpy(), labels, k))


@pytest.mark.parametrize(("n", "dim", "k"), [(2, 3, 1), (63, 24, 10), (150, 150, 12), (96, 500, 12)])
@pytest.mark.parametrize("seed", [0, 7])
def test_clusters_match_scikit_learn(n: int, dim: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((k, dim))[rng.integers(0, k, n)] + 0.4 * rng.standard_normal((n, dim))
    x = normalize(torch.from_numpy(x))
    plain = sklearn_cluster.SpectralClustering(k, random_state=seed, affinity="rbf", gamma=1.0)
    if n == dim:
        with pytest.warns(UserWarning, match="API has changed"):  # it takes square input for affinities
            plain.fit(x.numpy())
    else:
        plain.fit(x.numpy())
    assert adjusted_rand(cluster_spectrally(x, k, seed=seed), plain.labels_) > 0.95


@pytest.mark.parametrize(("n", "k"), [(2, 1), (63, 63), (200, 25)])
def test_seeding_matches_scikit_learn(n: int, k: int) -> None:
    points = np.random.default_rng(n).standard_normal((n, 12))
    random, scikit_random = np.random.RandomState(5), np.random.RandomState(5)
    start = make_seeding(points)
    for _ in range(3):  # the generator must be left in the same state
        expected, _ = sklearn_cluster.kmeans_plusplus(points, k, random_state=scikit_random)
        np.testing.assert_array_equal(start(points, k, random_state=random), expected)


def test_blocks_are_independent(tokens: np.ndarray) -> None:
    kept = floc.compress(tokens, budget=105, method="spectral").indices
    for start in range(0, 70, 8):
        block_indices = kept[(kept >= 12 * start) & (kept < 12 * (start + 8))] - 12 * start
        alone = floc.compress(tokens[start : start + 8], budget=len(block_indices), method="spectral", block=None)
        assert alone.indices.tolist() == block_indices.tolist()


def test_seed_changes_the_result(tokens: np.ndarray) -> None:
    kept = [floc.compress(tokens[:8], budget=30, method="spectral", seed=seed).indices.tolist() for seed in (0, 0, 1)]
    assert kept[0] == kept[1] != kept[2]


def test_lengths_do_not_change_the_result(tokens: np.ndarray) -> None:
    lengths = 2.0 ** np.random.default_rng(0).integers(-3, 2, (70, 3, 4, 1)).astype(np.float32)
    plain, scaled = (
        floc.compress(x, budget=105, method="spectral").indices.tolist() for x in (tokens, tokens * lengths)
    )
    assert plain == scaled


def test_keeps_duplicates_last_and_by_index() -> None:
    tokens = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)[[2, 2, 0, 2, 0, 1, 1, 0], None]
    kept = [floc.compress(tokens, budget=k, method="spectral").indices.tolist() for k in range(3, 9)]
    assert kept[:3] == [[0, 2, 5], [0, 1, 2, 5], [0, 1, 2, 3, 5]]
    assert kept[-1] == list(range(8))


def test_explains_missing_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ImportError, match=r"'spectral' needs scikit-learn: pip install 'floc-video\[cluster\]'"):
        floc.compress(np.ones((2, 2, 2)), budget=1, method="spectral")
