"""PruneVid compared with outputs of the published program and with its definition."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens
from floc.methods import prunevid
from floc.methods.shared import frames
from floc.tokens import TokenGrid


class Cluster(NamedTuple):
    members: list[int]  # flat indices
    mean: np.ndarray


def cluster_by_density(x: np.ndarray, clusters: int, k: int) -> tuple[list[int], list[int]]:
    """Return the centres and the cluster of each point."""
    m = len(x)
    d = np.sqrt(((x[:, None] - x[None]) ** 2).mean(-1))
    rho = np.exp(-np.sort(d**2, 1)[:, : min(k, m)].mean(1))
    score = [
        rho[i] * min((d[i, j] for j in range(m) if (-rho[j], j) < (-rho[i], i)), default=d.max()) for i in range(m)
    ]
    centres = sorted(range(m), key=lambda i: (-score[i], i))[:clusters]
    labels = d[:, centres].argmin(1)
    labels[centres] = np.arange(clusters)
    return centres, labels.tolist()


def make_contiguous_by_definition(labels: list[int]) -> list[int]:
    """Relabel stray frames one by one."""

    def run(values: list[int | None], at: int) -> int:
        """Return the length of the run of equal values around a frame."""
        low = high = at
        while low > 0 and values[low - 1] == values[at]:
            low -= 1
        while high + 1 < len(values) and values[high + 1] == values[at]:
            high += 1
        return high - low + 1

    t = len(labels)
    longest = {label: max(run(labels, i) for i in range(t) if labels[i] == label) for label in labels}
    values = [
        label if run(labels, i) == longest[label] and longest[label] > 1 else None for i, label in enumerate(labels)
    ]
    for i in range(t):
        if values[i] is None:
            end = next((j for j in range(i, t) if values[j] is not None), t)
            left = run(values, i - 1) if i else 0
            right = run(values, end) if end < t else 0
            values[i:end] = [values[end] if right > left else values[i - 1] if i else 0] * (end - i)
    return values


def merge_by_definition(
    tokens: np.ndarray,
    tau: float = 0.8,
    temporal_segment_ratio: float = 0.25,
    cluster_ratio: float = 0.5,
    k: int = 7,
    untouched: int = 14,
) -> dict[int, Cluster]:
    """Merge step by step as defined, by position."""
    t, n = tokens.shape[0], tokens.shape[1] * tokens.shape[2]
    x = tokens.reshape(t, n, -1).astype(np.float64)
    unit = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
    labels = make_contiguous_by_definition(cluster_by_density(x.mean(1), max(1, int(temporal_segment_ratio * t)), k)[1])
    merged: dict[int, Cluster] = {}

    def cluster(places: list[int], members: list[list[int]], values: np.ndarray) -> None:
        size = len(values)
        if size <= untouched:
            centres, of = list(range(size)), list(range(size))
        else:
            centres, of = cluster_by_density(values, max(1, int(cluster_ratio * size)), k)
        for c, centre in enumerate(centres):
            member_places = [i for i in range(size) if of[i] == c]
            merged[places[centre]] = Cluster(
                sorted(itertools.chain.from_iterable(members[i] for i in member_places)), values[member_places].mean(0)
            )

    start = 0
    for _, run in itertools.groupby(labels):
        w = len(list(run))
        frames = range(start, start + w)
        static = []
        for p in range(n):
            pairs = [unit[a, p] @ unit[b, p] for a in frames for b in frames if a != b]
            if pairs and np.mean(pairs) > tau:
                static.append(p)
        cluster(
            [start * n + p for p in static],
            [[f * n + p for f in frames] for p in static],
            x[start : start + w, static].mean(0),
        )
        moving = [p for p in range(n) if p not in static]
        for f in frames:
            cluster([f * n + p for p in moving], [[f * n + p] for p in moving], x[f, moving])
        start += w
    return merged


def assert_matches(kept: floc.Kept, merged: dict[int, Cluster]) -> None:
    indices = sorted(merged)
    assert kept.indices.tolist() == indices
    np.testing.assert_allclose(kept.features, [merged[i].mean for i in indices], atol=1e-5)
    expected = np.full(kept.n, -1)
    for place, i in enumerate(indices):
        expected[merged[i].members] = place
    np.testing.assert_array_equal(kept.represents, expected)


@pytest.mark.parametrize("case", "abc")
def test_matches_published_program(read_golden, case: str) -> None:
    golden = read_golden(f"prunevid_{case}")
    options = {name: golden[name].item() for name in ("tau", "temporal_segment_ratio", "cluster_ratio", "k")}
    tokens = golden["tokens"]
    labels = prunevid.label_frames(TokenGrid.from_array(tokens), options["temporal_segment_ratio"], 7)
    np.testing.assert_array_equal(labels, golden["frame_labels"])
    np.testing.assert_array_equal(prunevid.make_contiguous(labels), golden["frame_labels_refined"])
    kept = floc.compress(tokens, method="prunevid", **options)
    assert len(kept) == len(golden["merged"])
    apart = np.abs(kept.features[:, None] - golden["merged"]).max(-1)
    assert sorted(apart.argmin(0)) == list(range(len(kept)))  # one for one
    assert apart.min(0).max() < 1e-5
    # the program outputs them scene by scene: static tokens, then those of each frame
    ends = golden["segment_sizes"].cumsum()
    of_scene = np.searchsorted(ends, kept.positions[:, 0][apart.argmin(0)], side="right")
    np.testing.assert_array_equal(
        of_scene, np.repeat(np.arange(len(ends)), golden["static_sizes"] + golden["dynamic_sizes"])
    )
    assert_matches(kept, merge_by_definition(tokens, **options))


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 1, 1), {}),
        ((1, 5, 7), {}),
        ((2, 1, 3), {}),
        ((5, 4, 5), {"cluster_ratio": 0.3}),  # fewer frames than neighbours
        ((3, 5, 4), {"temporal_segment_ratio": 0.1, "cluster_ratio": 0.01}),  # less than one cluster
        ((9, 1, 1), {"temporal_segment_ratio": 1.0}),
        ((17, 3, 9), {"cluster_ratio": 0.29, "k": 5}),
        ((31, 2, 4), {"tau": 0.6, "untouched": 3}),
        ((20, 6, 3), {"tau": -2.0, "cluster_ratio": 0.4}),  # all static
        ((12, 4, 5), {"tau": 1.0, "cluster_ratio": 1.0}),  # all dynamic
    ],
)
@pytest.mark.parametrize("cache", [1 << 23, 3000])
def test_matches_definition(
    shape: tuple[int, int, int], options: dict, cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "CPU_BYTES", cache)  # one tile or many
    tokens = make_tokens(*shape, dim=24, seed=sum(shape), scenes=2, shot_frames=6, dtype=np.float32)
    assert_matches(floc.compress(tokens, method="prunevid", **options), merge_by_definition(tokens, **options))


@pytest.mark.parametrize("seed", range(40))
def test_make_contiguous_matches_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.repeat(rng.integers(0, 1 + seed % 5, 12), rng.integers(1, 4, 12))[: 1 + seed]
    assert prunevid.make_contiguous(labels).tolist() == make_contiguous_by_definition(labels.tolist())


def test_meets_any_budget_above_the_floor_exactly() -> None:
    tokens = make_tokens(12, 4, 5, dim=16, seed=3, scenes=2, shot_frames=6, dtype=np.float32)
    fewest = len(floc.compress(tokens, budget=1, method="prunevid", nearest=True))
    assert 12 <= fewest <= 15
    for budget in [*range(fewest, 240, 7), 239, 240]:
        kept = floc.compress(tokens, budget=budget, method="prunevid")
        assert len(kept) == budget
        used = kept.settings
        names = ("tau", "temporal_segment_ratio", "cluster_ratio", "k", "untouched")
        native = floc.compress(tokens, method="prunevid", **{name: used[name] for name in names})
        assert len(native) == budget - used.get("extra_clusters", 0)
        if not used.get("extra_clusters", 0):
            np.testing.assert_array_equal(native.indices, kept.indices)
            np.testing.assert_array_equal(native.features, kept.features)
        # a merged token is the mean of those it represents
        rows = tokens.reshape(240, -1)
        for place in range(len(kept)):
            np.testing.assert_allclose(kept.features[place], rows[kept.represents == place].mean(0), atol=1e-5)
    with pytest.raises(ValueError, match=f"at least {fewest} of 240 tokens"):
        floc.compress(tokens, budget=fewest - 1, method="prunevid")
    assert kept.settings["cluster_ratio"] == 1.0


def test_budget_changes_untouched_and_tau_only_if_needed() -> None:
    tokens = make_tokens(12, 4, 5, dim=16, seed=3, scenes=2, shot_frames=6, dtype=np.float32)
    least = len(floc.compress(tokens, method="prunevid", cluster_ratio=0.0))
    most = len(floc.compress(tokens, method="prunevid", cluster_ratio=1.0))
    settings = {
        budget: floc.compress(tokens, budget=budget, method="prunevid").settings
        for budget in (least - 1, least, most, most + 1)
    }
    assert [used["untouched"] for used in settings.values()] == [0, 14, 14, 14]
    assert [used["tau"] == 0.8 for used in settings.values()] == [True, True, True, False]
    assert settings[most + 1]["tau"] > 0.8
    # any lower tau leaves too few
    lower = np.nextafter(settings[most + 1]["tau"], 0)
    assert len(floc.compress(tokens, method="prunevid", cluster_ratio=1.0, tau=lower)) == most


def test_extra_clusters_go_to_largest_fractions() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 60, 50)
    nothing = np.zeros(0)
    groups = prunevid._TokenGroups(nothing, nothing, nothing, nothing, sizes, nothing, nothing)
    clustered = np.flatnonzero(sizes > 14)
    for budget in range(int(groups.count_clusters(0, 14).sum()), sizes.sum() + 1, 7):
        ratio, counts = groups.share_budget(budget, 14)
        assert counts.sum() == budget
        extra = counts - groups.count_clusters(ratio, 14)
        assert set(extra) <= {0, 1}
        part = (ratio * sizes - groups.count_clusters(ratio, 14)).round(6)
        ranking = sorted(clustered, key=lambda g: (-part[g], g))
        assert sorted(ranking[: extra.sum()]) == np.flatnonzero(extra).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_and_strides(dtype: torch.dtype) -> None:
    tokens = torch.from_numpy(make_tokens(14, 4, 6, dim=16, seed=5, dtype=np.float32)).to(dtype)
    kept = floc.compress(tokens, budget=90, method="prunevid")
    assert kept.features.dtype == dtype
    exact = floc.compress(tokens.float(), budget=90, method="prunevid")
    assert kept.indices.tolist() == exact.indices.tolist()
    torch.testing.assert_close(
        kept.features, exact.features.to(dtype), atol=2e-2 if dtype != torch.float64 else 1e-5, rtol=0
    )
    strided = floc.compress(tokens.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0), budget=90, method="prunevid")
    torch.testing.assert_close(strided.features, kept.features)
    whole = floc.compress(tokens, ratio=1, method="prunevid")
    assert torch.equal(whole.features, tokens.flatten(0, 2))


@pytest.mark.parametrize("value", [0.0, 1.5])
@pytest.mark.parametrize("shape", [(1, 1, 1), (8, 1, 1), (9, 4, 5)])
def test_equal_and_zero_tokens(value: float, shape: tuple[int, int, int]) -> None:
    tokens = np.full((*shape, 8), value, np.float32)
    kept = floc.compress(tokens, method="prunevid")
    np.testing.assert_allclose(kept.features, value)
    budget = max(10, shape[0] + 1)
    assert len(floc.compress(tokens, budget=budget, method="prunevid")) == min(budget, np.prod(shape))


def test_similarity_is_at_most_one() -> None:
    frame = make_tokens(1, 3, 5, dim=300, seed=1, dtype=np.float32)
    still = np.repeat(frame, 9, 0)
    assert len(floc.compress(still, method="prunevid", tau=0.999, cluster_ratio=1.0)) == 15
    assert len(floc.compress(still, method="prunevid", tau=1.0, cluster_ratio=1.0)) == 135


@pytest.mark.parametrize(
    "options", [{"tau": np.nan}, {"temporal_segment_ratio": 1.1}, {"cluster_ratio": -0.1}, {"k": 0}]
)
def test_rejects_invalid_options(options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        floc.compress(np.ones((4, 2, 2, 3)), method="prunevid", **options)


def test_rejects_budget_together_with_cluster_ratio() -> None:
    with pytest.raises(ValueError, match="cluster_ratio"):
        floc.compress(np.ones((4, 2, 2, 3)), method="prunevid", budget=8, cluster_ratio=0.5)
