"""K-medoids compared with reference outputs, direct calls to the package, and the definition of a medoid."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import floc
from floc.methods.kmedoids import alternate, fill_up, round_distances

kmedoids = pytest.importorskip("kmedoids")


def compute_distances(tokens: np.ndarray) -> np.ndarray:
    x = tokens.reshape(-1, tokens.shape[-1]).astype(np.float64)
    return np.stack([np.sqrt(((x - row) ** 2).sum(1)) for row in x])


def compute_loss(distance: np.ndarray, medoids: np.ndarray) -> float:
    return distance[:, medoids].min(1).sum()


def alternate_by_definition(distance: np.ndarray, k: int) -> list[int]:
    """Alternate cluster by cluster as defined."""
    medoids = sorted(range(len(distance)), key=lambda i: distance[i].sum())[:k]
    for _ in range(300):
        labels = [min(range(k), key=lambda c: distance[i, medoids[c]]) for i in range(len(distance))]
        after = list(medoids)
        for c in range(k):
            members = [i for i, label in enumerate(labels) if label == c]
            cost = {i: distance[i, members].sum() for i in members}
            best = min(members, key=cost.__getitem__)
            if cost[best] < cost[medoids[c]]:
                after[c] = best
        if after == medoids:
            break
        medoids = after
    return sorted(medoids)


@pytest.mark.parametrize("case", "abc")
@pytest.mark.parametrize(
    ("options", "medoids", "total"),
    [
        ({}, "fasterpam_random0_medoids", "fasterpam_random0_loss"),
        (dict(init="build"), "fasterpam_build_medoids", "fasterpam_build_loss"),
        (dict(algorithm="alternate"), "sklearn_extra_medoids", "sklearn_extra_inertia"),
    ],
    ids=["random", "build", "alternate"],
)
def test_matches_reference_outputs(read_golden, case: str, options: dict, medoids: str, total: str) -> None:
    golden = read_golden(f"kmedoids_{case}")
    kept = floc.compress(golden["tokens"], budget=int(golden["n_clusters"]), method="kmedoids", block=None, **options)
    np.testing.assert_array_equal(kept.indices, golden[medoids])
    assert compute_loss(compute_distances(golden["tokens"]), kept.indices) == pytest.approx(
        float(golden[total]), rel=1e-6
    )


@pytest.mark.parametrize(
    ("shape", "k"), [((2, 1, 1, 3), 1), ((7, 3, 3, 24), 15), ((5, 1, 51, 9), 31), ((1, 8, 9, 100), 9)]
)
@pytest.mark.parametrize("seed", [0, 7])
def test_matches_fasterpam(shape: tuple[int, ...], k: int, seed: int) -> None:
    tokens = np.random.default_rng(k).standard_normal(shape).astype(np.float32) + 2
    distance = compute_distances(tokens)
    for init, random_state in (("random", seed), ("build", None)):
        kept = floc.compress(tokens, budget=k, method="kmedoids", block=None, seed=seed, init=init).indices
        fit = kmedoids.fasterpam(distance, k, init=init, random_state=random_state, n_cpu=1)
        assert compute_loss(distance, kept) == pytest.approx(fit.loss)
        assert kept.tolist() == sorted(fit.medoids.tolist())


def test_no_swap_of_a_medoid_reduces_the_loss() -> None:
    tokens = np.random.default_rng(0).standard_normal((6, 2, 3, 5)).astype(np.float32)
    distance = compute_distances(tokens)
    kept = floc.compress(tokens, budget=6, method="kmedoids").indices
    for place in range(6):
        for other in set(range(36)) - set(kept.tolist()):
            swapped = kept.copy()
            swapped[place] = other
            assert compute_loss(distance, swapped) >= compute_loss(distance, kept) - 1e-6


@pytest.mark.parametrize(("n", "k"), [(2, 1), (63, 9), (120, 60), (63, 62)])
def test_alternate_matches_definition(n: int, k: int) -> None:
    distance = compute_distances(np.random.default_rng(n).standard_normal((n, 7)))
    assert sorted(alternate(distance, k).tolist()) == alternate_by_definition(distance, k)


def test_rounded_distances_ignore_rounding_errors() -> None:
    distance = torch.from_numpy(compute_distances(np.random.default_rng(3).standard_normal((200, 30))))
    exact = round_distances(distance.clone())
    noise = 1 + 1e-15 * np.random.default_rng(0).standard_normal((200, 200))
    assert (exact == exact.round()).all()
    assert 2**31 <= exact.max() <= 2**32
    np.testing.assert_array_equal(round_distances(distance * torch.from_numpy(noise)), exact)
    np.testing.assert_allclose(exact / exact.max(), distance / distance.max(), atol=1e-9)


@pytest.mark.parametrize("options", [{}, dict(init="build"), dict(algorithm="alternate")])
def test_keeps_distinct_tokens_before_duplicates(options: dict) -> None:
    tokens = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)[np.arange(40) // 8 % 5, None]
    five = floc.compress(tokens, budget=5, method="kmedoids", block=None, init="build").indices
    assert sorted(set(five // 8)) == [0, 1, 2, 3, 4]
    for k in (5, 6, 20, 39, 40):
        assert len(set(floc.compress(tokens, budget=k, method="kmedoids", block=None, **options).indices)) == k
    equal = floc.compress(np.ones((3, 4, 8)), budget=5, method="kmedoids", init="build")
    assert equal.indices.tolist() == [0, 1, 2, 3, 4]


def test_farthest_tokens_replace_repeated_medoids() -> None:
    distance = np.abs(np.subtract.outer([0, 1, 4, 5, 5.0], [0, 1, 4, 5, 5.0]))
    assert [fill_up(np.array([1, 1]), distance, k).tolist() for k in (2, 5)] == [[1, 3], [1, 3, 4, 2, 0]]


def test_rejects_invalid_options_and_explains_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def compress(**options: object) -> floc.Kept:
        return floc.compress(np.ones((2, 2, 2)), budget=1, method="kmedoids", **options)

    with pytest.raises(ValueError, match="unknown init 'biuld'; did you mean 'build'"):
        compress(init="biuld")
    with pytest.raises(ValueError, match="unknown algorithm 'pam'"):
        compress(algorithm="pam")
    with pytest.raises(ValueError, match="init='build' applies to FasterPAM only"):
        compress(algorithm="alternate", init="build")
    monkeypatch.setitem(sys.modules, "kmedoids", None)
    with pytest.raises(
        ImportError, match=r"'kmedoids' needs the kmedoids package: pip install 'floc-video\[cluster\]'"
    ):
        compress()
    assert len(compress(algorithm="alternate")) == 1
