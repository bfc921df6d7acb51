"""K-means and k-medoids in torch, compared with the libraries and with brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens
from floc.methods.shared import batches

pytest.importorskip("sklearn.cluster")
pytest.importorskip("kmedoids")


def compress(tokens: np.ndarray, method: str, backend: str, **options: Any) -> floc.Kept:
    return floc.compress(tokens, method=method, backend=backend, **options)


def compute_loss(tokens: np.ndarray, picks: np.ndarray, block: int | None) -> float:
    """Sum the Euclidean distances of all tokens to the nearest pick of their block."""
    total, cells = 0.0, tokens.shape[1] * tokens.shape[2]
    frames = block or len(tokens)
    for first in range(0, len(tokens), frames):
        span = tokens[first : first + frames].reshape(-1, tokens.shape[-1]).astype(np.float64)
        inside = picks[(picks >= first * cells) & (picks < first * cells + len(span))] - first * cells
        total += np.linalg.norm(span[:, None] - span[inside], axis=2).min(1).sum()
    return float(total)


@pytest.mark.parametrize("case", "abc")
@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("kmeans", {}, "kept"),
        ("kmedoids", {"algorithm": "alternate"}, "sklearn_extra_medoids"),
        ("kmedoids", {}, None),
        ("kmedoids", {"init": "build"}, None),
    ],
)
def test_matches_reference_outputs(
    read_golden, case: str, method: str, options: dict[str, Any], expected: str | None
) -> None:
    golden = read_golden(f"{method}_{case}")
    tokens, budget = golden["tokens"], int(golden["n_clusters"])
    kept = compress(tokens, method, "torch", budget=budget, block=None, **options)
    if expected is not None:
        np.testing.assert_array_equal(kept.indices, golden[expected])
        return
    start = options.get("init", "random0")
    assert compute_loss(tokens, kept.indices, None) <= 1.005 * float(golden[f"fasterpam_{start}_loss"])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("shape", "block", "ratio"), [((26, 4, 5), 8, "1/8"), ((24, 5, 5), 12, "1/16")])
def test_matches_libraries_in_blocks(seed: int, shape: tuple[int, int, int], block: int, ratio: str) -> None:
    tokens = make_tokens(*shape, dim=24, seed=seed, scenes=3, shot_frames=6, dtype=np.float32)
    common: dict[str, Any] = {"ratio": ratio, "block": block, "seed": seed}
    means = [compress(tokens, "kmeans", backend, **common).indices.tolist() for backend in ("cpu", "torch")]
    assert means[0] == means[1]
    options = {**common, "algorithm": "alternate"}
    medoids = [compress(tokens, "kmedoids", backend, **options).indices.tolist() for backend in ("cpu", "torch")]
    assert medoids[0] == medoids[1]
    for init in ("random", "build"):
        library, own = (
            compute_loss(tokens, compress(tokens, "kmedoids", backend, init=init, **common).indices, block)
            for backend in ("cpu", "torch")
        )
        assert abs(own / library - 1) < 0.01


def test_no_swap_of_a_medoid_reduces_the_sum() -> None:
    tokens = np.random.default_rng(0).standard_normal((6, 2, 3, 5)).astype(np.float32)
    for k in (1, 2, 6, 35):
        kept = compress(tokens, "kmedoids", "torch", budget=k).indices
        least = compute_loss(tokens, kept, None)
        for place in range(k):
            for other in set(range(36)) - set(kept.tolist()):
                swapped = kept.copy()
                swapped[place] = other
                assert compute_loss(tokens, swapped, None) >= least - 1e-6


def test_empty_clusters_get_the_farthest_tokens() -> None:
    batch = batches.Batch(torch.tensor([[[0.0], [1.0], [2.0], [10.0], [20.0]]]), 3, 2)
    # the centres of clusters 0 and 2 are tokens 0 and 4; none goes to cluster 1, which has the centre of cluster 0
    members = torch.zeros(1, 5, 3, dtype=torch.float64)
    members[0, 0, :2] = members[0, 4, 2] = 1
    labels = torch.tensor([[0, 0, 0, 0, 2]])
    filled = batches._fill_empty_clusters(batch, batches._Centres(batch, members), labels)
    assert filled.tolist() == [[0, 0, 0, 1, 2]]


def test_distances_to_means_come_from_distances_between_tokens() -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 9, 4)))
    labels = torch.arange(9).remainder(3).expand(2, -1)
    batch = batches.Batch(x, 3, 2)
    scale = batch.distance[0, 0, 1] / (x[0, 0] - x[0, 1]).square().sum()
    found = batches._Centres(batch, batch.make_members(labels)).distance[0] / scale
    expected = (x[0][:, None] - torch.stack([x[0][i::3].mean(0) for i in range(3)])).square().sum(2)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["kmeans", "kmedoids"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 4), (1, 1, 2, 1), (3, 1, 1, 5), (1, 5, 2, 3), (17, 1, 3, 2)])
@pytest.mark.parametrize("kind", ["equal", "zero", "some zero", "one direction", "noise", "large", "small"])
def test_meets_any_budget_on_degenerate_tokens(method: str, shape: tuple[int, ...], kind: str) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    x = {
        "equal": np.ones_like(x),
        "zero": np.zeros_like(x),
        "some zero": x * (np.arange(x[..., 0].size).reshape(shape[:3]) % 3 > 0)[..., None],
        "one direction": np.abs(x[..., :1]) * np.arange(1, shape[-1] + 1, dtype=np.float32),
        "noise": 1 + 1e-7 * x,
        "large": x * np.float32(1e37),
        "small": x * np.float32(1e-37),
    }[kind]
    n = x[..., 0].size
    for budget in {1, 2, n // 2, n - 1, n} & set(range(1, n + 1)):
        kept = compress(x, method, "torch", budget=budget)
        assert len(set(kept.indices.tolist())) == budget
        if kind in ("some zero", "equal"):  # distinct tokens come first
            distinct = len(np.unique(x.reshape(n, -1), axis=0))
            kept = compress(x, method, "torch", budget=budget, block=None)
            assert len(np.unique(kept.features, axis=0)) >= min(budget, distinct)


def test_rejects_blocks_that_exceed_memory_and_unknown_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.ones((20, 2, 3, 4), np.float32)
    with pytest.raises(ValueError, match="unknown backend 'gpu'"):
        compress(tokens, "kmeans", "gpu", budget=4)
    monkeypatch.setattr("floc._system.available_bytes", lambda device: 300_000)
    with pytest.raises(MemoryError, match="pass block=8"):
        compress(tokens, "kmeans", "torch", budget=20, block=None)
    assert len(compress(tokens, "kmeans", "torch", budget=20)) == 20
