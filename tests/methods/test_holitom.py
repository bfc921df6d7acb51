"""HoliTom compared with outputs of the published program, and its windows with brute force."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import floc
from floc.methods.holitom import Windows
from floc.tokens import TokenGrid


@pytest.mark.parametrize("case", "abc")
@pytest.mark.parametrize("prefix", ["", "d_"])
def test_matches_published_program(read_golden, case: str, prefix: str) -> None:
    golden = read_golden(f"holitom_{case}")
    options: dict[str, Any] = {"k": int(golden["k"]), "max_window_size": int(golden["max_window_size"])}
    options |= {name: float(golden[f"{prefix}{name}"]) for name in ("retain_ratio", "tau")}
    options |= {"beta": float(golden["beta"]), "attn": golden["attn"]}
    options["contextual"] = float(golden["d_contextual"]) if prefix else 0.0
    kept = floc.compress(golden["tokens"], method="holitom", **options)
    order = np.argsort(golden[f"{prefix}position_index"], kind="stable")
    np.testing.assert_array_equal(kept.indices, golden[f"{prefix}position_index"][order])
    merged = golden[f"{prefix}merged"][order]
    np.testing.assert_allclose(kept.features, merged, atol=1e-5 * np.abs(merged).max(), rtol=0)


@pytest.mark.parametrize("case", "abc")
def test_windows_match_published_program(read_golden, case: str) -> None:
    golden = read_golden(f"holitom_{case}")
    grid = TokenGrid.from_array(golden["tokens"])
    windows = Windows.find(grid, float(golden["tau"]), int(golden["max_window_size"]))
    expected = np.stack([windows.starts, windows.starts + windows.lengths - 1], 1)
    np.testing.assert_array_equal(expected, golden["windows"])
    assert windows.reduced == golden["reduced"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("longest", [1, 3, 1024])
def test_windows_remove_the_most_tokens(seed: int, longest: int) -> None:
    rng = np.random.default_rng(seed)
    which = rng.integers(0, 2, (8, 1, 4)) * (rng.random((8, 1, 4)) < 0.4)
    tokens = np.eye(2, dtype=np.float32)[which]
    same = np.zeros((8, 4), bool)
    same[1:] = (which[1:] == which[:-1])[:, 0]
    best = 0
    for cuts in itertools.product([False, True], repeat=7):
        bounds = [0, *(np.flatnonzero(cuts) + 1).tolist(), 8]
        if max(np.diff(bounds)) <= longest:
            pairs = itertools.pairwise(bounds)
            best = max(best, sum(int(same[a + 1 : b].all(0).sum()) * (b - a - 1) for a, b in pairs))
    windows = Windows.find(TokenGrid.from_array(tokens), 0.8, longest)
    assert windows.reduced == best == int(((windows.lengths - 1) * windows.static).sum())
    assert windows.lengths.max() <= longest
    assert windows.lengths.sum() == 8


@pytest.mark.parametrize("contextual", [0.0, 0.4])
@pytest.mark.parametrize("budget", [1, 30, 70, 105, 300])
def test_budget_is_exact_below_what_averaging_leaves(tokens: np.ndarray, budget: int, contextual: float) -> None:
    kept = floc.compress(tokens, method="holitom", budget=budget, contextual=contextual)
    assert len(kept) == budget
    assert kept.settings["fallback"] == "products with the mean token as attn"


def test_static_video_becomes_its_mean() -> None:
    rng = np.random.default_rng(0)
    tokens = (rng.standard_normal((3, 4, 6)) + 1e-3 * rng.standard_normal((5, 3, 4, 6))).astype(np.float32)
    kept = floc.compress(tokens, method="holitom", retain_ratio=1.0)
    np.testing.assert_allclose(kept.features, tokens.reshape(5, 12, 6).mean(0), atol=1e-6)
    assert kept.indices.tolist() == list(range(12))
    assert kept.represents.tolist() == list(range(12)) * 5
    assert len(floc.compress(tokens, method="holitom", budget=50)) == 12  # averaging leaves no more


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn": np.ones((4, 5))}, r"attn must be \[4, 6\]"),
        ({"retain_ratio": 1.5}, r"retain_ratio must be in \[0, 1\]"),
        ({"retain_ratio": 0.0}, "keeps no token"),
        ({"k": 0}, "k must be at least 1"),
    ],
)
def test_rejects_invalid_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floc.compress(np.ones((4, 2, 3, 5)), method="holitom", **options)
