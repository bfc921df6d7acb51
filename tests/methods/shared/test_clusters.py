"""The common parts of the clustering methods."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

import floc
from floc import blocks
from floc.methods.shared import clusters
from floc.tokens import TokenGrid

pytest.importorskip("sklearn.cluster")  # loads the libraries whose threads are limited

rng = np.random.default_rng(0)


def select_by_definition(x: np.ndarray, labels: np.ndarray) -> list[int]:
    """Select the member nearest to the mean in each cluster, cluster by cluster."""
    x, picks = x.astype(np.float64), []
    for label in sorted(set(labels.tolist())):
        members = np.flatnonzero(labels == label)
        picks.append(int(members[((x[members] - x[members].mean(0)) ** 2).sum(1).argmin()]))
    return picks


@pytest.mark.parametrize(("n", "dim", "k"), [(1, 1, 1), (63, 7, 20), (257, 40, 3)])
def test_representative_is_the_member_nearest_to_the_mean(
    n: int, dim: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "FEATURE_STEP", 16)
    x = rng.standard_normal((n, dim)).astype(np.float32)
    labels = 5 * rng.integers(0, k, n)  # with gaps between the labels
    picks = select_by_definition(x, labels)
    assert clusters.select_representatives(x, labels, len(picks)).tolist() == picks


def test_first_of_two_members_represents_both() -> None:
    x = rng.standard_normal((200, 50)).astype(np.float32) + 10
    assert sorted(clusters.select_representatives(x, np.arange(200) // 2, 100)) == list(range(0, 200, 2))


def test_farthest_tokens_replace_missing_clusters_duplicates_last() -> None:
    x = np.array([0, 0, 0.5, 3, 3, 2, 0], np.float32)[:, None]
    filled = [clusters.select_representatives(x, np.zeros(7, int), k).tolist() for k in range(1, 8)]
    assert filled[-1] == [2, 3, 5, 0, 4, 1, 6]
    assert all(filled[k] == filled[-1][: k + 1] for k in range(7))


def test_finds_duplicates() -> None:
    x = np.array([[1, 0.0], [0, 1], [1, -0.0], [0, 1], [2, -1]], np.float32)  # all have the same sum
    first, kind = clusters.find_duplicates(x)
    assert sorted(first) == [0, 1, 4]
    assert first[kind].tolist() == [0, 1, 0, 1, 4]


@pytest.mark.parametrize("offset", [0, 1000])
def test_distances_are_symmetric_and_zero_only_for_duplicates(offset: int) -> None:
    x = (offset + rng.standard_normal((40, 30))).astype(np.float32)
    x[7] = x[30]
    squares = clusters.compute_squared_distances(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(squares, squares.T)
    np.testing.assert_allclose(squares, ((x[:, None] - x.astype(np.float64)) ** 2).sum(2), rtol=1e-8, atol=1e-12)
    assert np.argwhere(np.triu(squares == 0, 1)).tolist() == [[7, 30]]


def test_rounding_does_not_separate_duplicates() -> None:
    half = 3 + rng.standard_normal((25, 3584)).astype(np.float32)
    squares = clusters.compute_squared_distances(torch.from_numpy(np.tile(half, (2, 1))))
    assert (squares.diagonal(25) == 0).all()
    assert (squares >= 0).all()


@pytest.mark.parametrize("block", [8, 3, 100, None])
@pytest.mark.parametrize("budget", [1, 2, 100, 839])
def test_blocks_share_the_budget(tokens: np.ndarray, block: int | None, budget: int) -> None:
    spans = blocks.split_blocks(70, block)
    requests = []

    def first(x: torch.Tensor, k: int) -> np.ndarray:
        requests.append((len(x), k))
        return np.arange(k)[::-1]

    picks = clusters.select_in_blocks(TokenGrid.from_array(tokens), spans, budget, first)
    shares = blocks.share_budget([12 * (span.stop - span.start) for span in spans], budget)
    expected = [12 * span.start + i for span, k in zip(spans, shares, strict=True) for i in range(k)]
    assert picks.tolist() == expected
    assert all(0 < k < n for n, k in requests)


def test_libraries_run_single_threaded_and_get_their_threads_back(
    tokens: np.ndarray, set_threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    # it may know fewer libraries than the test
    monkeypatch.setattr(clusters, "single_threaded_blas", contextlib.nullcontext)
    set_threads(3)
    before = [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()]
    thread_counts = []

    def record_threads(x: torch.Tensor, k: int) -> np.ndarray:
        x @ x.T  # torch would set its threads here
        thread_counts.extend(pool["num_threads"] for pool in threadpool_info())
        thread_counts.append(torch.get_num_threads())
        if k == 100:
            raise RuntimeError("failure")
        return np.arange(k)

    clusters.select_in_blocks(TokenGrid.from_array(tokens), blocks.split_blocks(70, 8), 50, record_threads)
    assert set(thread_counts) == {1}
    assert [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()] == before
    with pytest.raises(RuntimeError, match="failure"):
        clusters.select_in_blocks(TokenGrid.from_array(tokens), blocks.split_blocks(70, None), 100, record_threads)
    assert [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()] == before


def test_suppresses_warning_about_fewer_clusters(tokens: np.ndarray) -> None:
    def warn(x: torch.Tensor, k: int) -> np.ndarray:
        warnings.warn("Number of distinct clusters (3) found smaller than n_clusters (4).", UserWarning, stacklevel=1)
        return np.arange(k)

    assert len(clusters.select_in_blocks(TokenGrid.from_array(tokens), blocks.split_blocks(70, 8), 50, warn)) == 50


@pytest.mark.parametrize("method", ["kmeans", "kmedoids", "spectral"])
def test_threads_dtype_and_layout_do_not_change_the_result(tokens: np.ndarray, method: str, set_threads) -> None:
    half = torch.from_numpy(tokens).bfloat16()
    plain = half.float().numpy()
    set_threads(1)
    one = floc.compress(plain, budget=97, method=method).indices
    set_threads(5)
    strided = half.float().permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    for variant in (plain, half, half.double(), strided, strided.requires_grad_()):
        assert floc.compress(variant, budget=97, method=method).indices.tolist() == one.tolist()


@pytest.mark.parametrize("method", ["kmeans", "kmedoids", "spectral"])
@pytest.mark.parametrize(
    ("option", "message"),
    [
        (dict(block=0), "block must be a number of frames, at least 1.*or None.*got 0"),
        (dict(block=2.5), "block must be.*got 2.5"),
        (dict(block=True), "block must be.*got True"),
        (dict(seed=-1), r"seed must be a whole number from 0 to 2\*\*32 - 1, got -1"),
        (dict(seed=2**32), "seed must be"),
    ],
)
def test_rejects_invalid_options(method: str, option: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floc.compress(np.ones((2, 2, 2)), budget=1, method=method, **option)


@pytest.mark.parametrize("method", ["kmedoids", "spectral"])
def test_rejects_blocks_whose_distances_exceed_memory(
    tokens: np.ndarray, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floc._system.available_bytes", lambda device: 10_000_000)
    with pytest.raises(MemoryError, match=r"selecting from 840 tokens at once needs .* are free; pass block=8"):
        floc.compress(tokens, budget=20, method=method, block=None)
    assert len(floc.compress(tokens, budget=20, method=method)) == 20


@pytest.mark.parametrize("method", ["kmeans", "kmedoids", "spectral"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 4), (1, 1, 2, 1), (3, 1, 1, 5), (1, 5, 2, 3), (17, 1, 3, 2)])
@pytest.mark.parametrize("kind", ["equal", "zero", "some zero", "one direction", "noise"])
def test_meets_any_budget_on_degenerate_tokens(method: str, shape: tuple[int, ...], kind: str) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    x = {
        "equal": np.ones_like(x),
        "zero": np.zeros_like(x),
        "some zero": x * (np.arange(x[..., 0].size).reshape(shape[:3]) % 3 > 0)[..., None],
        "one direction": np.abs(x[..., :1]) * np.arange(1, shape[-1] + 1, dtype=np.float32),
        "noise": 1 + 1e-7 * x,
    }[kind]
    n = x[..., 0].size
    for budget in {1, 2, n // 2, n - 1, n} & set(range(1, n + 1)):
        kept = floc.compress(x, budget=budget, method=method)
        assert len(set(kept.indices.tolist())) == budget
        assert 0 <= kept.represents.min() <= kept.represents.max() < budget
        np.testing.assert_array_equal(kept.features, x.reshape(n, -1)[kept.indices])
