"""K-means compared with reference outputs and with direct calls to scikit-learn."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import floc
from floc import blocks
from floc.methods import kmeans

sklearn_cluster = pytest.importorskip("sklearn.cluster")


def select_by_definition(x: np.ndarray, k: int, seed: int = 0) -> list[int]:
    """Select cluster by cluster as defined."""
    labels = sklearn_cluster.KMeans(k, random_state=seed).fit(x).labels_
    x, picks = x.astype(np.float64), []
    for label in range(k):
        members = np.flatnonzero(labels == label)
        picks.append(int(members[((x[members] - x[members].mean(0)) ** 2).sum(1).argmin()]))
    return sorted(picks)


@pytest.mark.parametrize("case", "abc")
def test_matches_reference_outputs(read_golden, case: str) -> None:
    golden = read_golden(f"kmeans_{case}")
    kept = floc.compress(golden["tokens"], budget=int(golden["n_clusters"]), method="kmeans", block=None)
    np.testing.assert_array_equal(kept.indices, golden["kept"])
    np.testing.assert_array_equal(kept.features, golden["tokens"].reshape(kept.n, -1)[golden["kept"]])


@pytest.mark.parametrize(
    ("shape", "k"), [((2, 1, 1, 3), 1), ((7, 3, 3, 24), 62), ((5, 1, 51, 9), 31), ((1, 8, 9, 100), 20)]
)
@pytest.mark.parametrize("seed", [0, 7])
def test_matches_scikit_learn(shape: tuple[int, ...], k: int, seed: int) -> None:
    tokens = np.random.default_rng(k).standard_normal(shape).astype(np.float32) + 2
    kept = floc.compress(tokens, budget=k, method="kmeans", block=None, seed=seed)
    assert kept.indices.tolist() == select_by_definition(tokens.reshape(-1, shape[-1]), k, seed)


@pytest.mark.parametrize("repeat", [1, 3])
def test_projected_coordinates_give_the_same_clusters(repeat: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((96, 3)) @ rng.standard_normal((3, 400)) + 500).astype(np.float32)  # needs many iterations
    x = np.tile(x[: 96 // repeat], (repeat, 1))
    kept, fits = [], []

    class KMeans(sklearn_cluster.KMeans):
        def fit(self, points):
            fits.append((points.copy(), self.tol * points.var(0).mean()))
            return super().fit(points)

    monkeypatch.setattr(sklearn_cluster, "KMeans", KMeans)
    for min_projected, ridge in ((1 << 19, 0), (0, kmeans.RIDGE), (0, -1)):  # with the last, the decomposition fails
        monkeypatch.setattr(kmeans, "MIN_PROJECTED", min_projected)
        monkeypatch.setattr(kmeans, "RIDGE", ridge)
        kept.append(floc.compress(x.reshape(8, 3, 4, 400), budget=12, method="kmeans").indices.tolist())
    assert kept[0] == kept[1] == kept[2]
    (plain, tolerance), (projected, projected_tolerance), (again, same_tolerance) = fits
    assert (projected.shape, projected.dtype) == ((96, 96), np.float64)
    np.testing.assert_array_equal(again, plain)
    assert same_tolerance == tolerance
    plain = plain * (np.abs(x).max() / np.abs(plain).max())  # undo the scaling by a power of two
    assert np.linalg.norm(projected[:, None] - projected, axis=2) == pytest.approx(
        np.linalg.norm(plain[:, None] - plain, axis=2), rel=1e-5, abs=1e-3
    )
    assert projected_tolerance == pytest.approx(tolerance * (np.abs(x).max() / np.abs(fits[0][0]).max()) ** 2, rel=1e-4)


def test_blocks_are_independent(tokens: np.ndarray) -> None:
    kept = floc.compress(tokens, budget=105, method="kmeans").indices
    spans = blocks.split_blocks(70, 8)
    shares = blocks.share_budget([12 * (span.stop - span.start) for span in spans], 105)
    expected = [
        12 * span.start + np.array(select_by_definition(tokens[span].reshape(-1, 48), int(k)))
        for span, k in zip(spans, shares, strict=True)
    ]
    assert kept.tolist() == np.concatenate(expected).tolist()


@pytest.mark.parametrize("min_projected", [1 << 19, 0])
def test_keeps_duplicates_last_and_by_index(min_projected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmeans, "MIN_PROJECTED", min_projected)
    tokens = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)[[2, 2, 0, 2, 0, 1, 1, 0], None]
    kept = [floc.compress(tokens, budget=k, method="kmeans").indices.tolist() for k in range(3, 9)]
    assert kept[0] == [0, 2, 5]
    assert kept[1] == [0, 1, 2, 5]
    assert kept[2] == [0, 1, 2, 3, 5]
    assert kept[-1] == list(range(8))


@pytest.mark.parametrize("scale", [2.0**120, 2.0**-110])
def test_scale_does_not_change_the_result(scale: float) -> None:
    tokens = np.random.default_rng(0).standard_normal((40, 1, 1, 6)).astype(np.float32)
    plain, scaled = (floc.compress(x, budget=7, method="kmeans") for x in (tokens, tokens * np.float32(scale)))
    assert plain.indices.tolist() == scaled.indices.tolist()


def test_explains_missing_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ImportError, match=r"'kmeans' needs scikit-learn: pip install 'floc-video\[cluster\]'"):
        floc.compress(np.ones((2, 2, 2)), budget=1, method="kmeans")
