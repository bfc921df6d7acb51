"""LLaVA-Scissor compared with outputs of the published program and with its definition by graphs and loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens
from floc.methods import scissor
from floc.methods.shared import components as linkage
from floc.tokens import TokenGrid


def normalize(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)


def find_components(x: np.ndarray, tau: float) -> list[tuple[int, list[int]]]:
    """Find the connected components of [M, D] as (key, members), ordered by key."""
    like = normalize(x) @ normalize(x).T > tau
    degree = like.sum(1)
    left, components = set(range(len(x))), []
    while left:
        reached = new = {min(left)}
        while new:
            new = {int(j) for i in new for j in np.flatnonzero(like[i])} - reached
            reached = reached | new
        members = sorted(reached)
        components.append((max(members, key=lambda i: (degree[i], -i)), members))
        left -= reached
    return sorted(components)


def merge_by_definition(tokens: np.ndarray, tau: float) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Return positions, merged tokens and represents, in float64."""
    _, h, w, d = tokens.shape
    rows = tokens.astype(np.float64).reshape(-1, d)
    keys, means = [], []
    for start in range(0, len(rows), h * w):
        for key, members in find_components(rows[start : start + h * w], tau):
            keys.append(start + key)
            means.append(rows[start + np.array(members)].mean(0))
    first = np.array(means)
    components = find_components(first, tau)
    second = np.array([first[members].mean(0) for _, members in components])
    represents = (normalize(rows) @ normalize(second).T).argmax(1)
    merged = np.array(
        [(mean + rows[represents == i].sum(0)) / (1 + (represents == i).sum()) for i, mean in enumerate(second)]
    )
    return [keys[key] for key, _ in components], merged, represents


@pytest.mark.parametrize("case", "abc")
def test_matches_published_program(read_golden, case: str) -> None:
    golden = read_golden(f"scissor_{case}")
    tau = golden["tau"].item()
    kept = floc.compress(golden["tokens"], method="scissor", tau=tau)
    np.testing.assert_allclose(kept.features, golden["merged"], atol=1e-5)
    np.testing.assert_array_equal(kept.represents, golden["assignment"])
    trees = linkage.FrameTrees.build(TokenGrid.from_array(golden["tokens"]))
    nodes = trees.find_nodes(tau, tau)
    means = trees.sum_tokens(nodes) / trees.size[nodes][:, None]
    assert len(means) == len(golden["step1_tokens"])
    nearest = np.abs(means.numpy()[:, None] - golden["step1_tokens"]).max(-1).argmin(0)
    assert len(set(nearest)) == len(means)
    np.testing.assert_allclose(means[nearest], golden["step1_tokens"], atol=1e-5)
    # the same means are joined, whatever their numbers are
    component = scissor._compare_at(trees, tau).find_components(tau)[nearest].numpy()
    expected = golden["step2_component_of_step1"]
    assert ((component[:, None] == component) == (expected[:, None] == expected)).all()


@pytest.mark.parametrize(("t", "h", "w"), [(1, 1, 1), (1, 5, 7), (9, 1, 1), (6, 7, 3), (11, 4, 4), (3, 1, 63)])
@pytest.mark.parametrize("tau", [0.6, 0.8, 0.87, 0.93])
def test_matches_definition(t: int, h: int, w: int, tau: float) -> None:
    tokens = make_tokens(t, h, w, dim=24, seed=t * h * w, shot_frames=4, noise=0.25, dtype=np.float32)
    positions, merged, represents = merge_by_definition(tokens, tau)
    kept = floc.compress(tokens, method="scissor", tau=tau)
    assert kept.indices.tolist() == positions
    np.testing.assert_allclose(kept.features, merged, atol=1e-5 * np.abs(merged).max())
    np.testing.assert_array_equal(kept.represents, represents)


@pytest.mark.parametrize("shape", [(24, 3, 4), (10, 5, 5), (6, 1, 30)])
def test_budget_reports_the_threshold_of_its_result(shape: tuple[int, int, int]) -> None:
    tokens = make_tokens(*shape, dim=32, seed=2, shot_frames=9, dtype=np.float32)
    n = math.prod(shape)
    scan = [len(floc.compress(tokens, method="scissor", tau=tau)) for tau in np.linspace(0.3, 1, 60)]
    for budget in (1, n // 16, n // 8, n // 3, n - 1):
        kept = floc.compress(tokens, budget=budget, method="scissor")
        # counts waver, so a threshold that the search did not try can be slightly closer
        assert 0.9 * max([1, *(count for count in scan if count <= budget)]) <= len(kept) <= budget
        again = floc.compress(tokens, method="scissor", tau=kept.settings["tau"])
        np.testing.assert_array_equal(again.indices, kept.indices)
        np.testing.assert_allclose(again.features, kept.features, atol=1e-5)
        np.testing.assert_array_equal(again.represents, kept.represents)


@pytest.mark.parametrize("guess", [(0.2, 0.21), (0.99, 1.0), (0.5, 1.05), (-1.01, 0.3), (0.8, 0.8)])
def test_wrong_guess_does_not_change_the_count(guess: tuple[float, float], monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = make_tokens(20, 3, 4, dim=32, seed=2, shot_frames=9, dtype=np.float32)
    expected = [len(floc.compress(tokens, budget=budget, method="scissor")) for budget in (5, 30, 200)]
    monkeypatch.setattr(scissor, "_guess_window", lambda trees, budget: guess)
    counts = [len(floc.compress(tokens, budget=budget, method="scissor")) for budget in (5, 30, 200)]
    np.testing.assert_allclose(counts, expected, atol=3)


def test_memory_limits_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = make_tokens(20, 4, 5, dim=32, seed=2, shot_frames=9, dtype=np.float32)
    expected, native = (
        floc.compress(tokens, method="scissor", **options) for options in ({"budget": 50}, {"tau": 0.7})
    )
    monkeypatch.setattr(linkage, "LINKAGE_BYTES", 3 * 4 * 20 * 20)
    monkeypatch.setattr(scissor, "TILE_BYTES", 5000)
    monkeypatch.setattr(linkage, "TILE_BYTES", 5000)
    monkeypatch.setattr(scissor, "MAX_EDGES", 20)
    windows = []
    search = scissor._compare
    monkeypatch.setattr(scissor, "_compare", lambda *args: windows.append(search(*args)) or windows[-1])
    kept = floc.compress(tokens, budget=50, method="scissor")
    assert None in windows
    assert len(kept) == len(expected)
    np.testing.assert_array_equal(kept.indices, expected.indices)
    np.testing.assert_allclose(kept.features, expected.features, atol=1e-5)
    again = floc.compress(tokens, tau=0.7, method="scissor")
    np.testing.assert_array_equal(again.indices, native.indices)
    np.testing.assert_allclose(again.features, native.features, atol=1e-5)


@pytest.mark.parametrize("off", [-1e-6, 0, 1e-6])
def test_search_ends_if_rounding_makes_the_count_jump(off: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal(400) * rng.uniform(1, 2, (8, 4, 5, 1))  # one direction: every cosine is nearly 1
    cosines, compare = linkage.compute_cosines, scissor._compare
    passes = []
    monkeypatch.setattr(scissor, "MAX_EDGES", 100)
    monkeypatch.setattr(linkage, "compute_cosines", lambda tokens: cosines(tokens) + off)  # as if rounded differently
    monkeypatch.setattr(scissor, "_compare", lambda *args: passes.append(args) or compare(*args))
    kept = floc.compress(tokens.astype(np.float32), budget=20, method="scissor")
    assert 1 <= len(kept) <= 20
    assert len(passes) < 40


def test_full_budget_changes_nothing() -> None:
    tokens = np.random.default_rng(0).standard_normal((3, 2, 4, 5))
    kept = floc.compress(tokens, ratio=1, method="scissor")
    np.testing.assert_array_equal(kept.features, tokens.reshape(24, 5))
    again = floc.compress(tokens, method="scissor", tau=kept.settings["tau"])
    np.testing.assert_allclose(again.features, kept.features, atol=1e-6)


@pytest.mark.parametrize("value", [0, 1])
def test_equal_tokens(value: int) -> None:
    tokens = np.full((6, 3, 3, 4), value, np.float32)
    kept = floc.compress(tokens, budget=20, method="scissor")
    assert 1 <= len(kept) <= 20
    np.testing.assert_allclose(kept.features, tokens.reshape(54, 4)[: len(kept)])
    one = floc.compress(tokens, method="scissor", tau=-0.5)
    assert one.indices.tolist() == [0]
    assert set(one.represents) == {0}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_and_layout_do_not_change_the_result(dtype: torch.dtype) -> None:
    tokens = torch.from_numpy(make_tokens(9, 4, 6, dim=32, shot_frames=4)).to(dtype)
    scattered = tokens.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0)
    kept = floc.compress(scattered, ratio=1 / 4, method="scissor")
    plain = floc.compress(tokens.float(), ratio=1 / 4, method="scissor")
    assert kept.indices.tolist() == plain.indices.tolist()
    assert kept.features.dtype == dtype
    np.testing.assert_allclose(kept.features.float(), plain.features, atol=1e-6, rtol=2**-8)


def test_rejects_values_too_large_for_cosines() -> None:
    with pytest.raises(ValueError, match="too large to compute cosines; divide"):
        floc.compress(np.full((4, 2, 3, 2), 1e30, np.float32), budget=3, method="scissor")
