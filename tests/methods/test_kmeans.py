"""K-means against the reference outputs, and against scikit-learn called plainly."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import floc
from floc import blocks
from floc.methods import kmeans

sklearn_cluster = pytest.importorskip("sklearn.cluster")


def plainly(x: np.ndarray, k: int, seed: int = 0) -> list[int]:
    """The definition, cluster by cluster."""
    labels = sklearn_cluster.KMeans(k, random_state=seed).fit(x).labels_
    x, picks = x.astype(np.float64), []
    for label in range(k):
        members = np.flatnonzero(labels == label)
        picks.append(int(members[((x[members] - x[members].mean(0)) ** 2).sum(1).argmin()]))
    return sorted(picks)


@pytest.mark.parametrize("case", "abc")
def test_keeps_what_the_reference_keeps(read_golden, case: str) -> None:
    golden = read_golden(f"kmeans_{case}")
    kept = floc.compress(golden["tokens"], budget=int(golden["n_clusters"]), method="kmeans", block=None)
    np.testing.assert_array_equal(kept.indices, golden["kept"])
    np.testing.assert_array_equal(kept.features, golden["tokens"].reshape(kept.n, -1)[golden["kept"]])


@pytest.mark.parametrize(
    ("shape", "k"), [((2, 1, 1, 3), 1), ((7, 3, 3, 24), 62), ((5, 1, 51, 9), 31), ((1, 8, 9, 100), 20)]
)
@pytest.mark.parametrize("seed", [0, 7])
def test_keeps_what_scikit_learn_finds(shape: tuple[int, ...], k: int, seed: int) -> None:
    tokens = np.random.default_rng(k).standard_normal(shape).astype(np.float32) + 2
    kept = floc.compress(tokens, budget=k, method="kmeans", block=None, seed=seed)
    assert kept.indices.tolist() == plainly(tokens.reshape(-1, shape[-1]), k, seed)


@pytest.mark.parametrize("repeat", [1, 3])
def test_other_coordinates_give_the_same(repeat: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((96, 3)) @ rng.standard_normal((3, 400)) + 500).astype(np.float32)  # takes many steps
    x = np.tile(x[: 96 // repeat], (repeat, 1))
    kept, fits = [], []

    class KMeans(sklearn_cluster.KMeans):
        def fit(self, points):
            fits.append((points.copy(), self.tol * points.var(0).mean()))
            return super().fit(points)

    monkeypatch.setattr(sklearn_cluster, "KMeans", KMeans)
    for large, own_length in ((1 << 19, 0), (0, kmeans.RIDGE), (0, -1)):  # the last leaves no such coordinates
        monkeypatch.setattr(kmeans, "MIN_PROJECTED", large)
        monkeypatch.setattr(kmeans, "RIDGE", own_length)
        kept.append(floc.compress(x.reshape(8, 3, 4, 400), budget=12, method="kmeans").indices.tolist())
    assert kept[0] == kept[1] == kept[2]
    (plain, tolerance), (spanned, own_tolerance), (again, same_tolerance) = fits
    assert (spanned.shape, spanned.dtype) == ((96, 96), np.float64)
    np.testing.assert_array_equal(again, plain)
    assert same_tolerance == tolerance
    plain = plain * (np.abs(x).max() / np.abs(plain).max())  # a power of two was taken out
    assert np.linalg.norm(spanned[:, None] - spanned, axis=2) == pytest.approx(
        np.linalg.norm(plain[:, None] - plain, axis=2), rel=1e-5, abs=1e-3
    )
    assert own_tolerance == pytest.approx(tolerance * (np.abs(x).max() / np.abs(fits[0][0]).max()) ** 2, rel=1e-4)


def test_each_block_is_a_set_of_its_own(tokens: np.ndarray) -> None:
    kept = floc.compress(tokens, budget=105, method="kmeans").indices
    spans = blocks.split_blocks(70, 8)
    shares = blocks.share_budget([12 * (span.stop - span.start) for span in spans], 105)
    expected = [
        12 * span.start + np.array(plainly(tokens[span].reshape(-1, 48), int(k)))
        for span, k in zip(spans, shares, strict=True)
    ]
    assert kept.tolist() == np.concatenate(expected).tolist()


@pytest.mark.parametrize("large", [1 << 19, 0])
def test_repeated_tokens_are_kept_once_and_then_the_first(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmeans, "MIN_PROJECTED", large)
    tokens = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)[[2, 2, 0, 2, 0, 1, 1, 0], None]
    kept = [floc.compress(tokens, budget=k, method="kmeans").indices.tolist() for k in range(3, 9)]
    assert kept[0] == [0, 2, 5]
    assert kept[1] == [0, 1, 2, 5]
    assert kept[2] == [0, 1, 2, 3, 5]
    assert kept[-1] == list(range(8))


@pytest.mark.parametrize("scale", [2.0**120, 2.0**-110])
def test_large_and_small_tokens(scale: float) -> None:
    tokens = np.random.default_rng(0).standard_normal((40, 1, 1, 6)).astype(np.float32)
    plain, scaled = (floc.compress(x, budget=7, method="kmeans") for x in (tokens, tokens * np.float32(scale)))
    assert plain.indices.tolist() == scaled.indices.tolist()


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ImportError, match=r"'kmeans' needs scikit-learn: pip install 'floc-video\[cluster\]'"):
        floc.compress(np.ones((2, 2, 2)), budget=1, method="kmeans")
